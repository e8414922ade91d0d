"""`weft route`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from weft.cli.listening import (
    defer_reloads,
    hosts_of,
    keys_to,
    listens,
    need,
    origins_of,
    play,
    tls_of,
)
from weft.cli.server_files import read_key

if TYPE_CHECKING:
    from weft.serve.keys import ApiKeys


@click.command(epilog="Example:  weft route http://127.0.0.1:8001 http://127.0.0.1:8002")
@click.argument("replicas", nargs=-1, required=True)
@click.option("--upstream-key-file", help="File with the replicas' API key in its first line "
              "(default: forward the client's key).")  # fmt: skip
@click.option("--allow-mixed", is_flag=True, help="Accept replicas with different versions of a "
              "model. Answers then depend on the replica.")  # fmt: skip
@listens(8000)
def route(replicas: tuple[str, ...], **options: Any) -> int:
    """Balance requests over REPLICAS, addresses of running `weft serve` (http://HOST:PORT).

    Each turn of a conversation goes to the replica that has the earlier turns in its cache. If a
    replica fails, another one answers with the same seed, and goes on with a stream where the
    first one broke off."""
    need()
    ctx = click.get_current_context()
    return asyncio.run(_route(replicas, keys_to(options), options, ctx))


async def _route(
    urls: tuple[str, ...], keys: ApiKeys | None, options: dict[str, Any], ctx: click.Context
) -> int:
    from weft.cli.reloading import Reloading
    from weft.serve.logs import quiet_logs
    from weft.serve.router.exchange import ReplicaAddress
    from weft.serve.router.fleet import Fleet
    from weft.serve.router.relay import make_router
    from weft.serve.router.replica import Replica
    from weft.serve.running import listen

    defer_reloads()
    quiet_logs(options["log_level"], options["log_json"])
    theirs = read_key(options["upstream_key_file"], "--upstream-key-file")
    fleet = Fleet([Replica(ReplicaAddress.of(url), theirs) for url in urls], options["allow_mixed"])

    def told() -> list[str]:
        return [f"{replica.name}: {replica.told()['status']}" for replica in fleet.replicas]

    certificate = tls_of(options)
    listening = listen(options["host"], options["port"])
    try:
        app = make_router(fleet, keys, hosts_of(options), origins_of(options))
        what = f"weft routes to {len(urls)} replicas"
        reload = Reloading(ctx, app, keys, certificate)
        return await play(app, listening, what, told, certificate, reload)
    finally:
        listening.close()
