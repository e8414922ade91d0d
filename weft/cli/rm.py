"""`weft rm`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.cli import options
from weft.cli.loading import on_terminal
from weft.core import text
from weft.core.errors import UsageError, WeftError
from weft.core.hints import command

if TYPE_CHECKING:
    from weft.cli.held import Held


@dataclass(frozen=True)
class Entry:
    """One model or one file of quantised weights: `check` raises StorageError if it lies behind a
    link, `remove` removes it."""

    name: str
    kind: str
    nbytes: int
    check: Callable[[], None]
    remove: Callable[[], None]


@click.command(
    epilog="""\b
Example:  weft rm ORG/NAME
          weft rm ORG/NAME:Q4_K_M.gguf ORG/NAME+int4 --yes
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@options.option("--yes", "-y", is_flag=True, help="Remove without asking.")
@options.as_json
def rm(names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove models that weft keeps, by the names that `weft list` shows: fetched ones from
    huggingface_hub's cache, and quantised weights (ORG/NAME+int4) from weft's own. Files that
    another revision of the model needs stay. Folders of your own are never touched."""
    found = [entry for name in dict.fromkeys(names) for entry in _entries(name)]
    for entry in found:
        entry.check()  # before anything is removed
    if not yes:
        _ask(found)
    for entry in found:
        entry.remove()
    if as_json:
        gone = [{"name": e.name, "kind": e.kind, "bytes": e.nbytes} for e in found]
        click.echo(json.dumps({"removed": gone, "freed": sum(e.nbytes for e in found)}))
    else:
        for entry in found:
            click.echo(f"removed {entry.name}, {text.size(entry.nbytes)}")


def _entries(name: str) -> Sequence[Entry]:
    """The entries of this name. Raises UsageError if there are none."""
    from weft.cli import held, kept

    models = held.held_models()
    found = [_model(m, models) for m in models if m.name == name]
    found += [
        Entry(w.name, "quantised weights", w.nbytes, w.check, w.remove)
        for w in kept.weights() if w.name == name != ""
    ]  # fmt: skip
    if found:
        return found
    like = sorted({m.name for m in models if m.name.startswith((f"{name}@", f"{name}:"))})
    if like:
        raise UsageError(f"{name} names no model here; do you mean {' or '.join(like[:4])}?")
    raise UsageError(
        f"weft keeps no model {name!r:.200}, and removes nothing else; to list what it keeps: "
        f"{command('list')}"
    )


def _model(model: Held, models: Sequence[Held]) -> Entry:
    here = [m for m in models if (m.at.repo, m.commit) == (model.at.repo, model.commit)]
    plan = model.removal(last=len(here) == 1)
    return Entry(model.name, model.kind, plan.nbytes, plan.check, plan.run)


def _ask(found: Sequence[Entry]) -> None:
    rows = [[e.name, e.kind, text.size(e.nbytes)] for e in found]
    click.echo(text.table(["name", "kind", "size"], rows, right="c"), err=True)
    if not on_terminal():
        raise UsageError("nothing was removed: there is no terminal to ask on; add --yes")
    if not click.confirm("weft: remove them for good?", default=False, err=True):
        raise WeftError("nothing was removed")
