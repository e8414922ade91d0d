"""The common parts of commands that listen: their address, their clients, and their end."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import Command, together
from weft.core.errors import UsageError
from weft.core.install import how

if TYPE_CHECKING:
    from weft.serve.routing import App


def listens(port: int) -> Callable[[Command], Command]:
    """The options of a command that listens, by default on this port."""
    return together(
        click.option("--host", default="127.0.0.1", show_default=True,
                     help="Address to listen on. 0.0.0.0 accepts other machines and needs "
                     "--api-key-file."),
        click.option("--port", default=port, show_default=True, type=click.IntRange(0, 65535),
                     help="Port to listen on; 0 picks a free port and prints it."),
        click.option("--api-key-file", help="File with the API key in its first line. Requests "
                     "must send it as Authorization: Bearer KEY or x-api-key."),
        click.option("--allow-host", multiple=True, help="Also accept requests with this Host "
                     "header, like chat.example.org. May be repeated."),
        click.option("--allow-origin", multiple=True, help="Also answer pages and apps of this "
                     "origin, like https://chat.example.org or app://notes. May be repeated."),
        click.option("--log-level", default="info", show_default=True,
                     type=click.Choice(["debug", "info", "warning", "error"]),
                     help="Log messages of this level and above."),
    )  # fmt: skip


def read_key(path: str | None, option: str = "--api-key-file") -> bytes | None:
    """The key in the first line of the file that an option names. Raises UsageError for one that is
    short, or that others can read."""
    if path is None:
        return None
    try:
        mode, data = Path(path).stat().st_mode, Path(path).read_bytes()
    except OSError as e:
        raise UsageError(f"{option} {path}: {e.strerror}") from None
    key = data.split(b"\n", 1)[0].strip()
    if len(key) < 16 or not key.isascii():
        raise UsageError(f"{path}: its first line has to be a key of at least 16 ASCII characters")
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"other users can read {path}; run: chmod 600 {path}")
    return key


def key_to(options: Mapping[str, Any]) -> bytes | None:
    """The key that requests have to bring. Raises UsageError where other machines would be let in
    without one."""
    from weft.serve.guard import is_local

    key, host = read_key(options["api_key_file"]), options["host"]
    if key is None and not is_local(host):
        raise UsageError(
            f"--host {host} lets other machines in: give --api-key-file, or listen on 127.0.0.1"
        )
    return key


def hosts_of(options: Mapping[str, Any]) -> set[str] | None:
    """The names that requests may call this server by; None: any."""
    from weft.serve.guard import LOCAL, is_local

    host, more = options["host"], options["allow_host"]
    return {*LOCAL, host, *more} if is_local(host) or more else None


def origins_of(options: Mapping[str, Any]) -> set[str]:
    """The origins whose pages are answered besides the server's own. Raises UsageError."""
    from weft.serve.origins import origin_of

    return {origin_of(given) for given in options["allow_origin"]}


async def play(
    app: App, listening: socket.socket, what: str, more: Callable[[], Iterable[str]]
) -> int:  # fmt: skip
    """Serves until a signal; the exit status. Once requests are answered it is said where, after
    `what`, and `more` in further lines."""
    from weft.serve.running import Server

    host, port = listening.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host

    def ready() -> None:
        first = f"{what} at http://{where}:{port}" + (" (key needed)" if app.keyed else "")
        with contextlib.suppress(OSError):  # a full disk behind stdout must not stop the server
            click.echo("\n  ".join([first, *more()]))

    server = Server(app.application, ready, app.leave)
    await server.serve(sockets=[listening])
    return 0 if server.started else 1


PACKAGES = ("uvicorn", "starlette", "msgspec", "prometheus_client", "llguidance")


def need() -> None:
    """Raises UsageError where a package of the extra `serve` is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {', '.join(missing)}: {how('serve')}")
