"""The chat page: a few files that the browser gets as they are."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from weft.serve.wire import Refused

FOLDER = Path(__file__).with_name("page")
FILES = {path.name: path for path in FOLDER.iterdir() if path.is_file()}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css",
          ".svg": "image/svg+xml"}  # fmt: skip


async def page(request: Request) -> Response:
    """A page to chat on."""
    name = request.path_params.get("name", "index.html")
    path = FILES.get(name)
    if path is None:
        raise Refused(404, "there is no such file")
    return FileResponse(path, headers=_HEADERS, media_type=_KINDS[path.suffix])
