"""Options that a listening command reads again while it runs, at SIGHUP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from weft.cli.listening import hosts_of, keys_to, origins_of, tls_of
from weft.cli.server_files import CONFIG, read_config
from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.serve.keys import ApiKeys
    from weft.serve.routing import App
    from weft.serve.tls import Certificate

CHANGE = frozenset(
    ("api_key_file", "keys_file", "allow_host", "allow_origin", "tls_cert", "tls_key", "log_level")
)
"""Options of every command that listens which may change while it runs."""
Apply = Callable[[], None]


class Reloading:
    """The options of a running command, by click's context of its start. Called, it reads the
    configuration file and the files of keys and certificates again. It checks all, then changes
    all. `more`: further options that may change; `check` returns what changes them. Raises
    UsageError, and changes nothing, where something is wrong."""

    def __init__(
        self, ctx: click.Context, app: App, keys: ApiKeys | None, certificate: Certificate | None,
        more: frozenset[str] = frozenset(),
        check: Callable[[Mapping[str, Any]], Apply] = lambda options: lambda: None,
    ) -> None:  # fmt: skip
        self._ctx, self._app, self._keys, self._certificate = ctx, app, keys, certificate
        self._may, self._check, self._options = CHANGE | more, check, dict(ctx.params)

    async def __call__(self) -> str:
        from weft.serve.logs import set_level

        options = again(self._ctx)
        changed = [name for name, value in options.items() if value != self._options[name]]
        if fixed := [spelled(name) for name in changed if name not in self._may]:
            raise UsageError(f"{', '.join(fixed)} cannot change while it runs; start it again")
        keys, certificate = keys_to(options), tls_of(options)
        hosts, origins = hosts_of(options), origins_of(options)
        for now, new, what in (
            (self._keys, keys, "--api-key-file, --keys-file"),
            (self._certificate, certificate, "--tls-cert, --tls-key"),
        ):
            if (now is None) != (new is None):
                how = "appear" if now is None else "go"
                raise UsageError(f"{what} cannot {how} while it runs; start it again")
        apply = await asyncio.to_thread(self._check, options)
        if self._certificate is not None and certificate is not None:
            self._certificate.become(certificate)  # the one step that can fail, so the first
        if self._keys is not None and keys is not None:
            self._keys.become(keys)
        self._app.application.allow(hosts, origins)
        set_level(options["log_level"])  # after what can fail
        apply()
        self._options = options
        return ", ".join(map(spelled, changed)) or "no option changed, files are read again"


def again(ctx: click.Context) -> dict[str, Any]:
    """The options of a command as they would be at a start now: those of its command line, the
    others from the configuration file as it is. Raises UsageError."""
    fresh = click.Context(ctx.command, info_name=ctx.info_name)
    line = ParameterSource.COMMANDLINE
    try:
        (config,) = [param for param in ctx.command.params if param.name == "config"]
        read_config(fresh, config, ctx.meta.get(CONFIG))
        for param in ctx.command.params:
            name = str(param.name)
            if name not in ctx.params:
                continue
            if ctx.get_parameter_source(name) is line:
                fresh.params[name] = ctx.params[name]
            else:
                param.handle_parse_result(fresh, {}, [])
    except click.ClickException as e:
        raise UsageError(e.format_message()) from None
    # click marks what is not given with a member of an Enum before it makes it None.
    return {n: None if isinstance(value, Enum) else value for n, value in fresh.params.items()}


def spelled(name: str) -> str:
    """An option as it is written."""
    return "models" if name == "models" else f"--{name.replace('_', '-')}"
