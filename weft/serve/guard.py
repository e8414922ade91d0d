"""The checks before every route: the client's key, the Host header, and the origin of web pages.

The checks use what the server itself read (the path of the scope, the raw headers), never a URL
that a client's Host header is part of.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.serve.errors import form_of
from weft.serve.keys import ApiKey, ApiKeys
from weft.serve.origins import Headers, is_preflight, preflight, shared_with
from weft.serve.wire import HttpError, json_response

LOCAL = ("localhost", "127.0.0.1", "::1")
SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def is_local(host: str) -> bool:
    """True if an address to listen on is reachable from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """The application behind a key and a list of names.

    keys: the secrets of which every request must send one, on every path (None: no key). It comes
    as `Authorization: Bearer KEY`, as `x-api-key: KEY` or, from the chat page, as the password of
    `Authorization: Basic`.

    hosts: the names that a Host header may have (None: any). A page of another site whose name
    points here sends its own name. Requests from pages of another origin are rejected, unless
    `origins` has it.
    """

    def __init__(
        self, app: ASGIApp, keys: ApiKeys | None, hosts: Iterable[str] | None,
        origins: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._app, self._keys = app, keys
        self.allow(hosts, origins)

    def allow(self, hosts: Iterable[str] | None, origins: Iterable[str]) -> None:
        """Sets the names and the other origins that are answered from now on."""
        self._origins = {origin.encode() for origin in origins}
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        assert scope["type"] == "http", "sockets of other kinds are not taken"
        headers = scope["headers"]
        page = dict(headers).get(b"origin", b"").lower()
        if shared := page in self._origins:
            send = _with(send, shared_with(dict(headers)[b"origin"]))
        if self._hosts is not None and not self._named(headers):
            message = "this server does not answer to that Host: --allow-host adds one"
            await _refuse(421, message, scope, receive, send)
        elif not shared and _foreign(headers):
            message = "pages of other origins are not answered: --allow-origin adds one"
            await _refuse(403, message, scope, receive, send)
        elif shared and is_preflight(scope["method"], headers):
            await Response(status_code=204)(scope, receive, _with(send, preflight(headers)))
        elif self._keys is None:
            await self._app(scope, receive, _with(send, SAFE))
        elif (key := self._keys.find(_keys(headers))) is None:
            message = "a key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
            await _refuse(401, message, scope, receive, send)
        else:
            await self._under(key, scope, receive, send)

    async def _under(self, key: ApiKey, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request within the limits of its key; those that ask for nothing to be computed
        have none."""
        if scope["method"] != "POST":
            await self._app(scope, receive, _with(send, SAFE))
            return
        try:
            key.enter()
        except HttpError as e:
            response = json_response(form_of(scope["path"])(e), e.status, e.headers)
            await response(scope, receive, _with(send, SAFE, key))
            return
        held: list[int] = []
        try:
            inner = {**scope, "weft.key": key, "weft.held": held}
            await self._app(inner, receive, _with(send, SAFE, key))
        finally:
            key.leave(sum(held))

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


def key_of(scope: Mapping[str, Any]) -> bytes:
    """Whose request this is: a digest of the key that it names (b"" without one). Caches of
    prefixes are kept apart by it. Requests of the server's own say it themselves."""
    if "weft.owner" in scope:
        return bytes(scope["weft.owner"])
    found = _keys(scope["headers"])
    return hashlib.sha256(found[0]).digest() if found else b""


def _keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys that a request brings."""
    found = []
    for name, value in headers:
        scheme, _, rest = value.partition(b" ")
        if name == b"x-api-key":
            found.append(value.strip())
        elif name == b"authorization" and scheme.lower() == b"bearer":
            found.append(rest.strip())
        elif name == b"authorization" and scheme.lower() == b"basic":
            with contextlib.suppress(binascii.Error):
                found.append(base64.b64decode(rest.strip()).partition(b":")[2])
    return found


def _foreign(headers: list[tuple[bytes, bytes]]) -> bool:
    """True if a browser says that a page of another origin sent the request."""
    known = dict(headers)
    origin = known.get(b"origin")
    return origin is not None and origin.partition(b"//")[2] != known.get(b"host")


async def _refuse(status: int, message: str, scope: Scope, receive: Receive, send: Send) -> None:
    error = form_of(scope["path"])(HttpError(status, message))
    # A browser asks for a key if a person opens the page; programs get no such request.
    asks = status == 401 and scope["path"] == "/" and scope["method"] == "GET"
    more = {"WWW-Authenticate": 'Basic realm="weft: any name, the key as password"'} if asks else {}
    await json_response(error, status, more)(scope, receive, _with(send, SAFE))


def _with(send: Send, more: Headers, key: ApiKey | None = None) -> Send:
    """`send`, with more headers in each response, and what `key` has left as it begins."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            left = key.headers() if key else []
            message["headers"] = [*message.get("headers", ()), *more, *left]
        await send(message)

    return sending
