"""Helpers of the long trials of `weft serve`: a server of the model in the box as a process of its
own, and requests to it, for whole answers or streams."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from weft.hub.box import box_folder

TEMPLATE = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


@dataclass(frozen=True)
class Request:
    """One request of OpenAI's protocol, without the fields of a stream."""

    path: str
    body: Mapping[str, Any]


@contextlib.contextmanager
def chatting_box() -> Iterator[Path]:
    """The model in the box with a chat template, in a folder that goes at the end."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "box"
        shutil.copytree(box_folder(), folder)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        yield folder


@contextlib.contextmanager
def served(model: Path, *options: str) -> Iterator[tuple[str, int]]:
    """`weft serve` of a model: its address and the number of its process."""
    run = "from weft.cli.start import main; main()"
    command = [sys.executable, "-u", "-c", run, "serve", str(model), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                raise SystemExit("the server did not start")
            yield found[0], process.pid
        finally:
            process.terminate()


def connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=300)


def ask(connection: http.client.HTTPConnection, request: Request) -> tuple[int, Any]:
    """Status and JSON of an answer that comes as a whole."""
    connection.request("POST", request.path, json.dumps(request.body))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def events(
    connection: http.client.HTTPConnection, request: Request, most: int | None = None
) -> Iterator[Any]:
    """The events of an answer that comes as a stream; after `most` of them the client leaves."""
    connection.request("POST", request.path, json.dumps({**request.body, "stream": True}))
    response = connection.getresponse()
    if response.status != 200:
        raise AssertionError(f"status {response.status}: {response.read()[:300]!r}")
    seen = 0
    for line in response:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            yield json.loads(line[6:])
            seen += 1
        if seen == most:
            connection.close()
            return


def told(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The content of an answer, choice by choice: its text, its finish reason, its logprobs."""
    made = []
    for choice in sorted(choices, key=lambda c: int(c["index"])):
        said = choice.get("message", choice)
        text = said["content"] if "content" in said else said["text"]
        made.append({"text": text, "finish": choice["finish_reason"],
                     "logprobs": _flat(choice["logprobs"])})  # fmt: skip
    return made


def joined(parts: Sequence[Any]) -> list[dict[str, Any]]:
    """The same of the events of a stream; of a choice of which nothing came yet, nothing."""
    made: dict[int, dict[str, Any]] = {}

    def of(index: int) -> dict[str, Any]:
        return made.setdefault(index, {"text": "", "finish": None, "logprobs": []})

    for part in parts:
        if "error" in part:
            raise AssertionError(part["error"])
        for choice in part["choices"]:
            found = of(choice["index"])
            text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            found["text"] += text or ""
            found["logprobs"] += _flat(choice["logprobs"])
            found["finish"] = choice["finish_reason"] or found["finish"]
    return [of(i) for i in range(max(made, default=-1) + 1)]


def _flat(logprobs: Any) -> list[Any]:
    """Tokens with their logprobs and alternatives, in one form for chats and completions."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return [(t["token"], t["logprob"], [(a["token"], a["logprob"]) for a in t["top_logprobs"]])
                for t in logprobs["content"]]  # fmt: skip
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]))
