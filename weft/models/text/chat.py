"""Chat templates: untrusted programs, run in Jinja's sandbox in a process with limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.errors import ModelError, UsageError
from weft.host.confined import ChildError, Confined, Limits, Stopped
from weft.importers.hf_config import read_bounded

MAX_TEMPLATE = 1 << 20  # bytes
MAX_SECONDS = 10.0  # limit on compiling, and on each rendering
MAX_MEMORY = 512 << 20  # bytes
MAX_REPLY = 100 << 20  # bytes; enough for MAX_TEXT characters of chat_worker in any JSON escape
TEMPLATE = "chat_template.jinja"  # file in a model's folder
_WORKER = Path(__file__).with_name("chat_worker.py")


def read_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Returns the template's source from chat_template.jinja or tokenizer_config.json, or None."""
    path = folder / TEMPLATE
    if path.exists():
        return template_text(path)
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):  # named templates; "default" is the one for chat
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    if found is None:
        return None
    if not isinstance(found, str) or len(found) > MAX_TEMPLATE:
        raise ModelError(f"{folder}: chat_template must be a string under {MAX_TEMPLATE} bytes")
    return found


def template_text(path: Path) -> str:
    """Returns the source in a file. Raises ModelError, FileFormatError."""
    try:
        return read_bounded(path, MAX_TEMPLATE).decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not UTF-8 text") from None


class ChatTemplate:
    """A compiled chat template, in its own process. Raises ModelError at any time if the template
    is broken, or takes more than MAX_SECONDS or MAX_MEMORY."""

    def __init__(self, source: str) -> None:
        self._limits = Limits(MAX_SECONDS, MAX_MEMORY, MAX_REPLY)
        setup = {"source": source}
        self._source = source
        self._child = Confined(_WORKER, ("jinja2", "markupsafe"), setup, self._limits)
        try:
            self._child.start()
        except ChildError as e:  # the source is untrusted: SyntaxError, RecursionError, ...
            raise ModelError(f"the chat template does not compile: {e}") from None
        except Stopped as e:
            raise _stopped(e) from None

    def tree(self) -> list[Any]:
        """Returns the template as Jinja parsed it: a node is its kind (jinja2.nodes) followed by
        its fields. Raises ModelError for a template nested too deeply."""
        try:
            return list(self._child.call({"parse": self._source}, self._limits)["tree"])
        except ChildError as e:
            raise ModelError(f"the chat template cannot be read: {e}") from None
        except Stopped as e:
            raise _stopped(e) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation_prompt: bool,
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any],
    ) -> str:
        """Returns the prompt for `messages`; they and `variables` hold JSON values. Raises
        UsageError if the template rejects them, ModelError if it takes too much time or memory."""
        for m in messages:
            if not isinstance(m, Mapping) or not isinstance(m.get("role"), str):
                raise UsageError(f"a chat message needs a role and content, got {str(m)[:80]}")
        values = {"tools": None, "documents": None, **special_tokens, **variables}
        values |= {
            "messages": [dict(m) for m in messages],
            "add_generation_prompt": generation_prompt,
        }
        try:
            answer = self._child.call({"values": values}, self._limits)
        except ChildError as e:  # any error that the untrusted program raises
            raise UsageError(f"the chat template failed on these messages: {e}") from None
        except Stopped as e:
            raise _stopped(e) from None
        except (TypeError, ValueError, RecursionError) as e:
            raise UsageError(
                f"messages and variables of a chat must be what JSON can hold: {e}"
            ) from None
        if "refused" in answer:
            raise UsageError(f"the chat template refuses these messages: {answer['refused']}")
        return str(answer["text"])


def _stopped(e: Stopped) -> ModelError:
    return ModelError(
        f"the chat template {e}\nit is a program in the model's folder: correct it there "
        "(chat_template.jinja or tokenizer_config.json), or prompt with plain text"
    )
