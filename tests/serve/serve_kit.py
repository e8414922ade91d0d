"""Servers for tests: the model in the box with a chat template, on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

from held import Gate

from weft.hub.box import box_folder
from weft.serve.app import make_app
from weft.serve.batches.folder import BatchFolder
from weft.serve.guard import LOCAL
from weft.serve.keys import ApiKeys
from weft.serve.metrics import ServerMetrics
from weft.serve.router.exchange import ReplicaAddress
from weft.serve.router.fleet import Fleet
from weft.serve.router.relay import make_router
from weft.serve.router.replica import Replica
from weft.serve.routing import App
from weft.serve.running import Server, listen
from weft.serve.settings import ServeSettings
from weft.serve.shelf import ModelShelf
from weft.serve.tracing import Traces

T = TypeVar("T")

# As Qwen's and Hermes' templates write, in short: tools, reasoning, calls and their results.
TEMPLATE = """
{%- if tools %}tools: {{ tools | tojson }} as <tool_call>{"name": .., "arguments": ..}</tool_call>
{% endif -%}
{%- for m in messages -%}
<|{{ m.role }}|>{{ m.content }}
{%- for c in m.tool_calls or [] %}
<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{% endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}
"""


def chatty_box(folder: Path, context: int = 512) -> Path:
    """The model in the box with a chat template; in a longer `context` it writes nonsense."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in box_folder().iterdir():
        if path.is_file():
            shutil.copy(path, folder / path.name)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = context
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def marked_box(folder: Path, marks: Mapping[str, bool], eos: str = "") -> dict[str, int]:
    """The model in the box with a chat template, whose last tokens are these marks: by their text,
    whether they are special. eos: one that ends answers too. Their ids by their text."""
    chatty_box(folder)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    last = sorted(vocab, key=vocab.__getitem__)[-len(marks) :]
    ids = {mark: vocab.pop(old) for mark, old in zip(marks, last)}
    vocab |= ids
    data["model"]["merges"] = [
        m for m in data["model"]["merges"]
        if "".join(m if isinstance(m, list) else m.split(" ")) not in last
    ]  # fmt: skip
    data["added_tokens"] += [
        {"id": ids[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": special} for mark, special in marks.items()
    ]  # fmt: skip
    path.write_text(json.dumps(data))
    if eos:
        for name in ("config.json", "generation_config.json"):
            if (folder / name).exists():
                config = json.loads((folder / name).read_text())
                config["eos_token_id"] = [0, ids[eos]]
                (folder / name).write_text(json.dumps(config))
    return ids


@dataclass
class Listening:
    """What listens on a port of this machine."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON (or text) and headers of one request."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = HTTPConnection(self.host, self.port, timeout=240)
        try:
            connection.request(method, path, data, dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read().decode()
            kind = answer.headers.get("content-type", "")
            found = json.loads(text) if kind.startswith("application/json") else text
            return answer.status, found, dict(answer.headers)
        finally:
            connection.close()


@dataclass
class Threaded(Listening):
    """A server in a thread of this process."""

    loop: asyncio.AbstractEventLoop
    server: Server


@dataclass
class Running(Threaded):
    """One of models."""

    shelf: ModelShelf


def keys_of(key: bytes | ApiKeys | None) -> ApiKeys | None:
    return ApiKeys.of(key) if isinstance(key, bytes) else key


@contextlib.contextmanager
def serving(
    models: Mapping[str, str], key: bytes | ApiKeys | None = None, limit: int | None = None,
    origins: Iterable[str] = (), batches: Path | None = None, traces: Traces | None = None,
    **settings: Any,
) -> Iterator[Running]:  # fmt: skip
    """A server of these models until the block ends."""

    def make() -> tuple[App, ModelShelf]:
        given = {"load": {"device": "cpu"}, "sequences": 8, **settings}
        metrics = ServerMetrics()
        metrics.traces = traces
        shelf = ModelShelf(models, ServeSettings(**given), metrics, limit)
        folder = None if batches is None else BatchFolder(batches, time.time)
        return make_app(shelf, keys_of(key), set(LOCAL), origins, folder), shelf

    with threaded(make) as (server, shelf):
        yield Running(*vars(server).values(), shelf)


@contextlib.contextmanager
def threaded(make: Callable[[], tuple[App, T]]) -> Iterator[tuple[Threaded, T]]:
    """An application that `make` makes on its event loop, served until the block ends, and what
    else it gives."""
    ready = threading.Event()
    made: list[Any] = []

    async def play() -> None:
        app, more = make()
        listening = listen("127.0.0.1", 0)
        server = Server(app.application, ready.set, app.leave)
        port = listening.getsockname()[1]
        made.append((Threaded("127.0.0.1", port, asyncio.get_running_loop(), server), more))
        try:
            await server.serve(sockets=[listening])
        finally:
            listening.close()
            ready.set()

    thread = threading.Thread(target=asyncio.run, args=(play(),), daemon=True)
    thread.start()
    assert ready.wait(240)
    try:
        yield made[0]
    finally:
        made[0][0].server.should_exit = True
        thread.join(240)
        assert not thread.is_alive(), "the server does not end"


@contextlib.contextmanager
def failing(server: Running, error: Exception) -> Iterator[None]:
    """The device fails from the next steps on, until the block ends."""
    runner = server.shelf.decoders()[0].runner
    real = runner.rows, runner.prefill

    def lost(*args: Any, **more: Any) -> Any:
        raise error

    runner.rows = runner.prefill = lost  # type: ignore[method-assign]
    try:
        yield
    finally:
        runner.rows, runner.prefill = real  # type: ignore[method-assign]


def until(found: Callable[[], bool], seconds: float = 240) -> None:
    """Waits for something, not for ever."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.005)


@dataclass
class Routing(Threaded):
    """A router."""

    fleet: Fleet


@contextlib.contextmanager
def routing(
    *servers: Listening, key: bytes | None = None, theirs: bytes | None = None, mixed: bool = False
) -> Iterator[Routing]:
    """A router in front of servers until the block ends."""

    def make() -> tuple[App, Fleet]:
        fleet = Fleet([Replica(ReplicaAddress.of(server.url), theirs) for server in servers], mixed)
        return make_router(fleet, keys_of(key), set(LOCAL)), fleet

    with threaded(make) as (server, fleet):
        yield Routing(*vars(server).values(), fleet)


@contextlib.contextmanager
def stream(to: Listening, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
    """The response of a stream, to be read line by line."""
    connection = HTTPConnection(to.host, to.port, timeout=240)
    connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
    try:
        yield connection.getresponse()
    finally:
        connection.close()


@dataclass
class Process(Listening):
    """A command of weft's that listens, as a process of its own; its engines stand behind a
    gate, which is open."""

    popen: subprocess.Popen[str]
    gate: Gate

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@contextlib.contextmanager
def process(*words: str, full: bool = False) -> Iterator[Process]:
    """`weft WORDS`, on a free port unless they name one, until the block ends. full: what it says
    goes to a full disk, so its port has to be known."""
    folder = tempfile.TemporaryDirectory()
    gate = Gate(Path(folder.name) / "steps")
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from held import hold"
    run = f"{here}; hold({str(gate.file)!r}); from weft.cli.start import main; main()"
    port = [] if "--port" in words else ["--port", "0"]
    out = open("/dev/full", "w") if full else subprocess.PIPE  # noqa: SIM115
    popen = subprocess.Popen(
        [sys.executable, "-c", run, *words, *port], stdout=out, stderr=out, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    made = Process("", 0, popen, gate)
    try:
        if not full:
            assert popen.stdout is not None and popen.stderr is not None
            line = popen.stdout.readline()
            found = re.search(r"https?://([\d.]+):(\d+)", line)
            assert found, line + popen.stderr.read()
            made.host, made.port = found[1], int(found[2])
        yield made
    finally:
        made.end()
        folder.cleanup()
