"""What stands before every route: who may ask, under which name, and how much.

Judged by what the server itself read (the path of the scope, the raw headers), never by a URL that
a client's Host header had a part in.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serve.wire import json_response

LOCAL = ("localhost", "127.0.0.1", "::1")
_SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def is_local(host: str) -> bool:
    """Whether an address to listen on is this machine's alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """The application behind a key and a list of names.

    key: what `Authorization: Bearer KEY` or `x-api-key: KEY` must say, on every path but `open`
    ones; None: nobody is asked. hosts: names that a Host header may have (a page of another site
    that has had its name pointed here sends its own); None: any.
    """

    def __init__(
        self, app: ASGIApp, key: bytes | None, hosts: Iterable[str] | None,
        open_paths: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._app = app
        self._key = None if key is None else hashlib.sha256(key).digest()
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        if self._hosts is not None and not self._named(headers):
            message = "this server does not answer to that Host; call it by its own address"
            await _refuse(421, message, scope, receive, send)
        elif not self._allowed(scope["path"], headers):
            message = "a key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
            await _refuse(401, message, scope, receive, send)
        else:
            await self._app(scope, receive, _safe(send))

    def _named(self, headers: list[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == b"host"]
        if len(given) != 1:
            return False
        host = given[0].decode("latin-1").lower()
        if host.startswith("["):
            host = host[1:].partition("]")[0]
        else:
            host = host.partition(":")[0]
        assert self._hosts is not None
        return host in self._hosts

    def _allowed(self, path: str, headers: list[tuple[bytes, bytes]]) -> bool:
        if self._key is None or path in self._open:
            return True
        found = False
        for name, value in headers:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                value = value[7:]
            elif name != b"x-api-key":
                continue
            digest = hashlib.sha256(value.strip()).digest()
            found |= hmac.compare_digest(digest, self._key)  # both of 32 bytes: constant time
        return found


def key_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Whose request this is: a digest of the key that it names (b"" without one). Caches of
    prefixes are kept apart by it."""
    for name, value in headers:
        if name in (b"authorization", b"x-api-key"):
            return hashlib.sha256(value).digest()
    return b""


async def _refuse(status: int, message: str, scope: Scope, receive: Receive, send: Send) -> None:
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    await json_response({"error": error}, status)(scope, receive, _safe(send))


def _safe(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_SAFE]
        await send(message)

    return sending
