"""`weft pull`, `weft list` and `weft rm`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options
from weft.cli.loading import asking, on_terminal
from weft.core import text
from weft.core.errors import UsageError, WeftError
from weft.core.hints import command

if TYPE_CHECKING:
    from weft.cli.held import CachedModel


@click.command(
    epilog="""\b
Example:  weft pull ORG/NAME
          weft pull ORG/NAME:Q4_K_M --yes
"""
)
@click.argument("name")
@click.option("--revision", help="A branch, a tag or a commit (default: main).")
@options.yes
@options.as_json
def pull(name: str, revision: str | None, yes: bool, as_json: bool) -> None:
    """Download the newest version of the model ORG/NAME from the Hugging Face hub into
    huggingface_hub's cache, and print its path. ORG/NAME:FILE.gguf or ORG/NAME:Q4_K_M names one of
    a repository's GGUF files, ORG/NAME@REVISION a branch, a tag or a commit. weft downloads only
    the files that it reads."""
    from dataclasses import replace

    from weft.hub import fetch, names
    from weft.models.run.entry import runnable

    found = names.parse(name)
    if found is None:
        raise UsageError(f"{name!r} is not a model's name; expected ORG/NAME or ORG/NAME:FILE.gguf")
    if revision is not None:
        if found.revision != names.MAIN or names.parse(f"{found.repo}@{revision}") is None:
            raise UsageError(f"--revision {revision!r} with {name}: give one branch, tag or commit")
        found = replace(found, revision=revision)
    listing = fetch.look_up(found)
    path = fetch.fetch(listing, asking(yes), runnable)
    if as_json:
        answer = {"name": str(found), "commit": listing.commit, "path": str(path)}
        click.echo(json.dumps(answer))
    else:
        click.echo(str(path))


@click.command("list", epilog="Example:  weft list --prune")
@click.option("--prune", is_flag=True, help="First remove stale entries from weft's own cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with paths.")
def list_models(prune: bool, as_json: bool) -> None:
    """List the models in huggingface_hub's cache that weft can load, with the names that commands
    take, and the content of weft's own cache. With --prune, remove quantised weights whose model is
    gone or has changed, then the least recently used entries of each kind above its size limit. It
    never removes models; `weft rm NAME` does."""
    from weft.cli import kept
    from weft.cli.held import held_models
    from weft.host.files import default_directory
    from weft.hub.names import cache

    freed = kept.prune() if prune else 0
    models, kinds, weights = held_models(), kept.kinds(), kept.weights()
    if as_json:
        own: dict[str, Any] = {"folder": str(default_directory() or ""), "freed": freed}
        own |= {"kinds": [k.as_dict() for k in kinds], "quantised": [w.as_dict() for w in weights]}
        found = {"cache": str(cache()), "models": [m.as_dict() for m in models], "kept": own}
        click.echo(json.dumps(found))
        return
    if not models:
        how = command("pull", "ORG/NAME")
        print(f"weft: nothing in {cache()}; fetch a model: {how}", file=sys.stderr)
    else:
        rows = [[m.name, m.revision, text.size(m.nbytes), m.kind] for m in models]
        click.echo(text.table(["name", "revision", "size", "kind"], rows, right="c"))
    if any(k.files for k in kinds) or prune:
        click.echo(f"\nkept in {default_directory()}:")
        sizes = [[k.kind, str(k.files), text.size(k.nbytes), text.size(k.limit)] for k in kinds]
        click.echo(text.table(["kind", "files", "size", "at most"], sizes, right="bcd"))
        if weights:
            rows = [[w.name or "(not usable)", text.size(w.nbytes)] for w in weights]
            click.echo("\n" + text.table(["quantised weights", "size"], rows, right="b"))
    if prune:
        print(f"weft: freed {text.size(freed)}", file=sys.stderr)


# -- removing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HubEntry:
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
    """Remove models by the names that `weft list` shows: downloaded models from huggingface_hub's
    cache, quantised weights (ORG/NAME+int4) from weft's own cache. Files that another revision of
    the model needs stay. weft never touches folders of your own."""
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


def _entries(name: str) -> Sequence[HubEntry]:
    """The entries of this name. Raises UsageError if there are none."""
    from weft.cli import held, kept

    models = held.held_models()
    found = [_model(m, models) for m in models if m.name == name]
    found += [
        HubEntry(w.name, "quantised weights", w.nbytes, w.check, w.remove)
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


def _model(model: CachedModel, models: Sequence[CachedModel]) -> HubEntry:
    here = [m for m in models if (m.at.repo, m.commit) == (model.at.repo, model.commit)]
    plan = model.removal(last=len(here) == 1)
    return HubEntry(model.name, model.kind, plan.nbytes, plan.check, plan.run)


def _ask(found: Sequence[HubEntry]) -> None:
    rows = [[e.name, e.kind, text.size(e.nbytes)] for e in found]
    click.echo(text.table(["name", "kind", "size"], rows, right="c"), err=True)
    if not on_terminal():
        raise UsageError("nothing was removed, because weft can ask only on a terminal; add --yes")
    if not click.confirm("weft: remove them for good?", default=False, err=True):
        raise WeftError("nothing was removed")
