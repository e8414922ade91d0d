"""A request asked of the server's own application, as if a client had sent it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from weft.serve.keys import ApiKey
from weft.serve.tracing import BATCH


@dataclass
class Reply:
    """A whole reply."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    @property
    def retry(self) -> int | None:
        """Seconds after which it makes sense to ask again; None: it does not."""
        given = self.headers.get("retry-after", "")
        return int(given) if given.isdecimal() else None


async def ask(
    app: ASGIApp, path: str, body: bytes, owner: bytes, key: ApiKey | None, held: list[int],
    batch: str,
) -> Reply:  # fmt: skip
    """The reply to a POST of `body`, JSON. `owner` is whose request it is (`guard.key_of`), `batch`
    is the id of its batch. `held` gets the tokens that are held for it."""
    length = str(len(body)).encode()
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "client": None, "server": None, "weft.owner": owner,
        BATCH: batch,
        "headers": [(b"content-type", b"application/json"), (b"content-length", length)],
    }  # fmt: skip
    if key is not None:
        scope |= {"weft.key": key, "weft.held": held}
    parts = [body]
    reply = Reply()

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()  # this client does not leave
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            pairs: list[tuple[Any, Any]] = message.get("headers", [])
            reply.headers = {name.decode().lower(): value.decode() for name, value in pairs}
        else:
            reply.body += message.get("body", b"")

    await app(scope, receive, send)
    return reply
