"""A folder on localhost, to look at a page before it goes to a web server."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from weft.core.errors import UsageError
from weft.core.hints import command

_RANGE = re.compile(r"bytes=(\d+)-")


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder, whole or from a byte on; no listings of folders."""

    extensions_map = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def send_head(self) -> Any:
        begin = _RANGE.fullmatch(self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if begin is None or not path.is_file():
            return super().send_head()
        size, first = path.stat().st_size, int(begin[1])
        if first >= size:
            self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return None
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - first))
        self.end_headers()
        file = path.open("rb")
        file.seek(first)
        return file

    def end_headers(self) -> None:
        """With what a browser asks of pages whose threads share memory."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        stream: BinaryIO = source
        with suppress(BrokenPipeError, ConnectionResetError):  # the visitor has gone
            super().copyfile(stream, outputfile)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page fetches dozens of files."""


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of `folder` on localhost, not yet serving. Raises UsageError for a folder without an
    index.html, and if the port is in use."""
    if not (folder / "index.html").is_file():
        write = command("export", "web", "-o", folder)
        raise UsageError(f"{folder} lacks index.html; write the page first: {write}")
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(folder)))
    except OSError as error:
        raise UsageError(f"port {port} cannot be had ({error.strerror}); try --port 0") from None


def serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serves `folder` until it is interrupted; `say` gets the address first."""
    with server(folder, port) as running:
        say(f"http://127.0.0.1:{running.server_address[1]}/")
        running.serve_forever()
