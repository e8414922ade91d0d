"""The options of commands that load a model, as one value."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options
from weft.core.errors import UsageError, WeftError

if TYPE_CHECKING:
    from weft.hub.fetch import Agree, Offer


@dataclass(frozen=True)
class Loading:
    """The way a command loads a model: options of `weft.load`, as they were given. `adapters` are
    [NAME=]PATH; with `yes` a model is fetched without a question."""

    device: str = "auto"
    dtype: str | None = None
    quant: str | None = None
    act_dtype: str | None = None
    context: int | None = None
    cache: str | None = None
    adapters: tuple[str, ...] = ()
    generation_config: str | None = None
    yes: bool = False

    def path(self, model: str) -> str:
        """Returns the path of a model, which is fetched if it is missing."""
        return model_path(model, self.yes)

    def options(self) -> dict[str, Any]:
        """Returns the options for `weft.load` that were given, but for the adapters."""
        names = [f.name for f in fields(self) if f.name not in ("adapters", "yes")]
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}

    def load(self, model: str, **more: Any) -> Any:
        """Loads a model; `more` takes precedence over the options that were given."""
        import weft

        return weft.load(self.path(model), **(self.options() | more))

    def adapted(self, model: Path) -> dict[str, str]:
        """Returns the paths of the adapters by name, and prints a note for one that seems to be
        another model's. Raises UsageError for a name that is given twice."""
        from weft.models.weights.adapter_base import other_base

        found: dict[str, str] = {}
        for given in self.adapters:
            name, named, path = given.partition("=")
            if not named:
                name, path = Path(given).name, given
            if not name or not path or name in found:
                raise UsageError(f"--adapter {given!r:.100}; expected [NAME=]PATH, each name once")
            found[name] = self.path(path)
            why = other_base(model, Path(found[name])) if model.is_dir() else None
            if why is not None:
                click.echo(f"note: {why}", err=True)
        return found


def loads(*names: str, **changed: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds options for these fields of Loading, and --yes; the command
    gets them as `loading`. `changed` are options that differ from the shared ones."""
    assert {*names, *changed} <= {f.name for f in fields(Loading)}

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(*args: Any, **given: Any) -> Any:
            taken = {name: given.pop(name) for name in (*names, "yes")}
            return command(*args, loading=Loading(**taken), **given)

        each = (changed.get(name) or getattr(options, name) for name in (*names, "yes"))
        return options.together(*each)(call)

    return add


def model_path(model: str, yes: bool) -> str:
    """The path of `model`, a path or a name; on a terminal the user is asked before anything is
    fetched, unless `yes`."""
    from weft.hub.resolve import resolve
    from weft.models.run.entry import runnable

    return str(resolve(model, asking(yes), runnable))


def asking(yes: bool) -> Agree | None:
    """A function that asks on the terminal before a fetch; None if no question is wanted or
    possible."""
    if yes or not on_terminal():
        return None

    def agree(offer: Offer) -> None:
        if not click.confirm(f"weft: download {offer}?", default=True, err=True):
            raise WeftError(f"{offer.name} was not downloaded")

    return agree


def on_terminal() -> bool:
    """True if a question can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()
