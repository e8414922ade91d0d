"""Where a tokenizer runs: in this process, or in a child with limits."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from weft.core.confined import Confined, Limits, Stopped
from weft.core.errors import ModelError
from weft.core.text import first_line
from weft.importers.hf_config import read_bounded
from weft.models import tokenizer_plain as plain

MAX_FILE = 256 << 20  # bytes of tokenizer.json
MAX_NEAR = 1 << 20  # characters of a text that this process encodes itself: beyond some millions,
# the library panics where a pattern looks back over a run of spaces
MAX_SECONDS = 20.0  # of loading; and of a call, beyond what the size of its text allows
MAX_MEMORY = 1 << 30  # bytes, likewise
CHARACTERS = 100_000  # of text per second, at the least; a tenth of what plain ones do
BYTES = 1000  # of memory per character
_PANIC = re.compile(rb"\n?thread '[^\n]*' .*panicked at ")  # and all that follows
_one_at_a_time = threading.Lock()
_WORKER = Path(__file__).with_name("tokenizer_worker.py")


@contextmanager
def _without_panics() -> Iterator[None]:
    """Keeps from stderr what Rust prints of a panic, which is raised as well. All else that is
    written there meanwhile comes out afterwards."""
    with _one_at_a_time, tempfile.TemporaryFile() as held:
        try:
            stderr = os.dup(2)
        except OSError:  # there is none
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            held.seek(0)
            said = held.read()
            panic = _PANIC.search(said)
            said = said[: panic.start()] if panic else said
            with suppress(OSError):  # a full disk for logs ends no work
                os.write(stderr, said)
            os.close(stderr)


class Coder:
    """A tokenizer.json, or `data` that would be one: encodes and decodes. Every failure of the
    library, panics included, is a ModelError of two lines. `limit` cuts texts at that many
    tokens; `side` and `split`: see `tokenizer_worker.load`."""

    def __init__(
        self,
        path: Path,
        limit: int | None,
        data: bytes | None = None,
        side: str | None = None,
        split: bool = False,
    ) -> None:
        self.path = path
        setup = {"path": os.path.abspath(path)} if data is None else {"text": data.decode()}
        data = read_bounded(path, MAX_FILE) if data is None else data
        # 60 times what is read: a vocabulary of short tokens is kept in three tables.
        memory = MAX_MEMORY + 60 * len(data)
        self._loading = Limits(MAX_SECONDS, memory, 1 << 10)
        asked: dict[str, Any] = {"limit": limit, "side": side, "split": split}
        self._child = Confined(_WORKER, ("tokenizers",), setup | asked, self._loading)
        self._checked = False
        self._near = self._load(data, asked) if plain.safe_to_load(data) else None
        self.size = int(
            self._near.get_vocab_size()
            if self._near
            else self._guarded("cannot be read", self._child.start)
        )

    def encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        """The ids of each text."""
        longest = max(map(len, texts), default=0)
        near = self._near
        if near is not None and longest <= MAX_NEAR:
            from weft.models.tokenizer_worker import encode

            return self._guarded("failed", lambda: encode(near, texts, special))
        limits = self._limits(sum(map(len, texts)))
        request = {"texts": list(texts), "special": special}
        said = f"failed on a text of {longest} characters"
        out: list[list[int]] = self._guarded(said, lambda: self._child.call(request, limits))
        return out

    def decode(self, ids: list[int], skip: bool) -> str:
        """The text of ids from 0 to 2^32 - 1; unknown ones give nothing."""
        near = self._near
        if near is not None:
            if not self._checked:  # not at once: it takes as long as a tenth of the loading
                from weft.models.tokenizer_worker import check_ids

                self._guarded("cannot be read", lambda: check_ids(near))
                self._checked = True
            return self._guarded("failed", lambda: near.decode(ids, skip_special_tokens=skip))
        request = {"ids": ids, "skip": skip}
        limits = self._limits(16 * len(ids))
        text: str = self._guarded("failed", lambda: self._child.call(request, limits))
        return text

    def _load(self, data: bytes, asked: dict[str, Any]) -> Any:
        """The tokenizer, if all it does is plain."""
        from weft.models.tokenizer_worker import load

        with _without_panics():
            raw = self._guarded("cannot be read", lambda: load(data, **asked))
        return raw if plain.safe_to_use(raw) else None

    def _limits(self, characters: int) -> Limits:
        seconds = MAX_SECONDS + characters / CHARACTERS
        memory = self._loading.memory + BYTES * characters
        return Limits(seconds, memory, (64 << 20) + 200 * characters)

    def _guarded(self, said: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Stopped as e:
            self._fail("", e)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as e:  # the library's panics are not Exceptions
            self._fail(f"{said}: ", e)

    def _fail(self, said: str, e: BaseException) -> NoReturn:
        raise ModelError(
            f"{self.path}: the tokenizer {said}{first_line(e)}\n"
            "expected a tokenizer.json that the tokenizers library can use; take the model's own, "
            "or pass ids; cut a text of millions of characters into parts"
        ) from None
