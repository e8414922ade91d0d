"""Pages of other origins that a server answers: the names of origins, and the headers of CORS
(https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

import re

from weft.core.errors import UsageError

Headers = list[tuple[bytes, bytes]]

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._~-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_USUAL = {"http": ":80", "https": ":443"}  # ports that an Origin header leaves out
_METHODS = b"GET, HEAD, POST, DELETE"
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[ \t]*,[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LONGEST = 1024  # bytes of a list of headers
_SECONDS = b"600"  # a browser may keep the answer to a preflight
# headers of answers that pages may read besides the usual ones
_SHOWN = b", ".join([b"retry-after", *(
    f"x-ratelimit-{figure}-{unit}".encode()
    for figure in ("limit", "remaining", "reset") for unit in ("requests", "tokens")
)])  # fmt: skip


def origin_of(text: str) -> str:
    """Returns an origin as browsers send it: "https://chat.example.org", "app://notes". Raises
    UsageError for anything but one exact origin."""
    found = _ORIGIN.fullmatch(text.strip().rstrip("/").lower())
    if found is None:
        raise UsageError(
            f"--allow-origin {text[:80]!r}: expected one exact origin, like "
            "https://chat.example.org or app://notes"
        )
    scheme, host, port = found[1], found[2], found[3] or ""
    return f"{scheme}://{host}{'' if port == _USUAL.get(scheme) else port}"


def is_preflight(method: str, headers: Headers) -> bool:
    """True for a browser's question whether a page may send a request."""
    return method == "OPTIONS" and any(n == b"access-control-request-method" for n, _ in headers)


def preflight(headers: Headers) -> Headers:
    """The answer to a preflight of an allowed origin, without the origin itself: what a page may
    send. The request that follows needs the key, if there is one."""
    asked = dict(headers)
    made = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _SECONDS)]
    names = asked.get(b"access-control-request-headers", b"").strip()
    if len(names) <= _LONGEST and _NAMES.fullmatch(names):
        made.append((b"access-control-allow-headers", names))
    if asked.get(b"access-control-request-private-network") == b"true":
        made.append((b"access-control-allow-private-network", b"true"))
    return made


def shared_with(origin: bytes) -> Headers:
    """The headers that let a page of this origin read an answer. No cookies or remembered passwords
    are taken from pages."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _SHOWN),
        (b"vary", b"Origin"),
    ]
