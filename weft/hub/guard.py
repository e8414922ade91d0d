"""Guards against hostile file names from a hub. huggingface_hub names a cached file after its ETag,
so an ETag that is a path would be written outside the cache."""

from __future__ import annotations

import functools
import re
from typing import Any

from weft.core.errors import HubError

_PLAIN = re.compile(r'(?:W/)?"?[0-9A-Za-z][\w.+=-]{0,199}"?', re.ASCII)
_HEADERS = "ETag", "X-Linked-Etag"


@functools.cache
def refuse_paths() -> None:
    """Makes every HTTP client that huggingface_hub creates from now on reject such ETags."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http  # the only place that holds the current factory

    made = _http._GLOBAL_CLIENT_FACTORY

    def guarded() -> Any:
        client = made()
        client.event_hooks["response"].append(_check)
        return client

    set_client_factory(guarded)


def _check(response: Any) -> None:
    for header in _HEADERS if response.request.method == "HEAD" else ():
        value = response.headers.get(header, "0")
        if not _PLAIN.fullmatch(value):
            raise HubError(f"{response.url.host} gave {value[:60]!a} as the {header} of a file")
