"""The common parts of commands that listen: their address, their clients, and their end."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import Command, together
from weft.cli.server_files import read_config, read_key, read_keys
from weft.core.errors import UsageError
from weft.core.install import how

if TYPE_CHECKING:
    from weft.serve.keys import ApiKeys
    from weft.serve.routing import App
    from weft.serve.tls import Certificate


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
        click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False),
                     help="PEM file with the certificate, for HTTPS. Replaced files are read again "
                     "while the server runs."),
        click.option("--tls-key", type=click.Path(exists=True, dir_okay=False),
                     help="PEM file with the certificate's private key."),
        click.option("--config", type=click.Path(exists=True, dir_okay=False), is_eager=True,
                     expose_value=False, callback=read_config,
                     help="TOML file with values for these options, like max-batch = 8. Options on "
                     "the command line win."),
        click.option("--log-level", default="info", show_default=True,
                     type=click.Choice(["debug", "info", "warning", "error"]),
                     help="Log messages of this level and above."),
        click.option("--log-json", is_flag=True, help="Log a JSON object per line."),
    )  # fmt: skip


def keys_to(options: Mapping[str, Any]) -> ApiKeys | None:
    """The keys of which requests have to bring one. Raises UsageError where other machines would be
    let in without one."""
    from weft.serve.guard import is_local
    from weft.serve.keys import ApiKey, ApiKeys

    keys = read_keys(options.get("keys_file"))
    if (key := read_key(options["api_key_file"])) is not None:
        keys.append(ApiKey("", key))
    if not keys and not is_local(options["host"]):
        raise UsageError(
            f"--host {options['host']} lets other machines in: give --api-key-file, or listen on "
            "127.0.0.1"
        )
    return ApiKeys(keys) if keys else None


def defer_reloads() -> None:
    """Ignores SIGHUP until the server heeds it, unless it may say that a terminal was closed."""
    if hasattr(signal, "SIGHUP") and not (sys.stdin is not None and sys.stdin.isatty()):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def hosts_of(options: Mapping[str, Any]) -> set[str] | None:
    """The names that requests may call this server by; None: any."""
    from weft.serve.guard import LOCAL, is_local

    host, more = options["host"], options["allow_host"]
    return {*LOCAL, host, *more} if is_local(host) or more else None


def origins_of(options: Mapping[str, Any]) -> set[str]:
    """The origins whose pages are answered besides the server's own. Raises UsageError."""
    from weft.serve.origins import origin_of

    return {origin_of(given) for given in options["allow_origin"]}


def tls_of(options: Mapping[str, Any]) -> Certificate | None:
    """The certificate for HTTPS; None: plain HTTP. Raises UsageError for half of one, and for files
    that are wrong."""
    from weft.serve.tls import Certificate

    files = options["tls_cert"], options["tls_key"]
    if (files[0] is None) != (files[1] is None):
        raise UsageError("HTTPS needs both --tls-cert and --tls-key; give the other one too")
    return None if files[0] is None else Certificate(*files)


async def play(
    app: App, listening: socket.socket, what: str, more: Callable[[], Iterable[str]],
    certificate: Certificate | None = None, reload: Callable[[], Awaitable[str]] | None = None,
) -> int:  # fmt: skip
    """Serves until a signal; the exit status. Once requests are answered it is said where, after
    `what`, and `more` in further lines. SIGHUP calls `reload`, which returns what it changed."""
    from weft.serve.running import Server

    host, port = listening.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host

    def ready() -> None:
        scheme = "http" if certificate is None else "https"
        first = f"{what} at {scheme}://{where}:{port}" + (" (key needed)" if app.keyed else "")
        with contextlib.suppress(OSError):  # a full disk behind stdout must not stop the server
            click.echo("\n  ".join([first, *more()]))

    server = Server(app.application, ready, app.leave, certificate, reload)
    await server.serve(sockets=[listening])
    return 0 if server.started else 1


PACKAGES = ("uvicorn", "starlette", "msgspec", "prometheus_client", "llguidance")


def need() -> None:
    """Raises UsageError where a package of the extra `serve` is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"serving needs {', '.join(missing)}: {how('serve')}")
