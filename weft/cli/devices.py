"""`weft devices`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from weft.core import text


@click.command(epilog="Example:  weft devices --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def devices(as_json: bool) -> None:
    """List each device: kind, name, driver, memory, dtypes; or why it is not available and what to
    install. A software device runs on the CPU and is never picked automatically."""
    from weft.backends import registry

    found = registry.devices()
    if as_json:
        click.echo(json.dumps({"devices": [asdict(d) | {"id": d.id} for d in found]}, default=str))
        return
    rows = [
        [
            d.id, d.name, d.driver, text.size(d.memory) if d.memory else "",
            ("software" if d.software else "ready") if d.available else "missing",
            " ".join(d.dtypes) if d.available else d.reason,
        ]
        for d in found
    ]  # fmt: skip
    click.echo(
        text.table(["device", "name", "driver", "memory", "state", "dtypes, or what to do"], rows)
    )
