"""A server with a key, and requests by hand."""

from __future__ import annotations

import json

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def status(got: bytes) -> int:
    """Of an answer that says what was wrong, and closes the connection."""
    head, _, body = got.partition(b"\r\n\r\n")
    assert json.loads(body)["error"]["message"] and b"connection: close" in head.lower()
    return int(head.split(b" ")[1])


POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
