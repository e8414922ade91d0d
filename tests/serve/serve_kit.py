"""Servers for tests: the model in the box with a chat template, on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from weft.models.box import box_folder
from weft.serve.app import make_app
from weft.serve.metrics import Metrics
from weft.serve.running import Server, listen
from weft.serve.served import Settings
from weft.serve.shelf import Shelf

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


@dataclass
class Running:
    """A server in a thread of this process."""

    host: str
    port: int
    shelf: Shelf
    loop: asyncio.AbstractEventLoop
    server: Server

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON (or text) and headers of one request."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, data, dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read().decode()
            kind = answer.headers.get("content-type", "")
            found = json.loads(text) if kind.startswith("application/json") else text
            return answer.status, found, dict(answer.headers)
        finally:
            connection.close()


@contextlib.contextmanager
def serving(
    models: Mapping[str, str], key: bytes | None = None, limit: int | None = None, **settings: Any
) -> Iterator[Running]:
    """A server of these models until the block ends."""
    ready = threading.Event()
    made: list[Any] = []

    async def play() -> None:
        given = {"load": {"device": "cpu"}, "sequences": 8, **settings}
        shelf = Shelf(models, Settings(**given), Metrics(), limit)
        listening = listen("127.0.0.1", 0)
        app = make_app(shelf, key, {"localhost", "127.0.0.1"})
        server = Server(app.application, ready.set, app.leave)
        port = listening.getsockname()[1]
        made.append(Running("127.0.0.1", port, shelf, asyncio.get_running_loop(), server))
        try:
            await server.serve(sockets=[listening])
        finally:
            listening.close()
            ready.set()

    thread = threading.Thread(target=asyncio.run, args=(play(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield made[0]
    finally:
        made[0].server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server does not end"


def until(found: Callable[[], bool], seconds: float = 20) -> None:
    """Waits for something, not for ever."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.005)
