"""`weft devices`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict

import click

from weft.cli import options
from weft.core import install, text


@click.command(epilog="Example:  weft devices --json")
@options.as_json
def devices(as_json: bool) -> None:
    """List each device with its kind, name, driver, memory and dtypes. For a missing device, say
    why and what to install. weft never picks a software device (one that runs on the CPU)
    automatically."""
    from weft.backends import registry

    found = registry.devices()
    if (clash := install.clash()) is not None:
        click.echo(clash, err=True)
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
    table = text.table(
        ["device", "name", "driver", "memory", "state", "dtypes, or what to do"], rows
    )
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and max(map(len, table.splitlines())) > width:
        table = _narrow(rows, width)
    click.echo(table)


def _narrow(rows: list[list[str]], width: int) -> str:
    """The same for a terminal of few columns: what is long goes below its device."""
    first = text.table(
        ["device", "state", "memory", "name"],
        [[id_, state, memory, name] for id_, name, _, memory, state, _ in rows],
    ).splitlines()
    indent = " " * first[0].index("state")
    lines = first[:1]
    fold = textwrap.TextWrapper(
        max(width, 40), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for head, (_, _, driver, _, _, rest) in zip(first[1:], rows):
        lines += [head, *fold.wrap(driver), *fold.wrap(rest)]
    return "\n".join(lines)
