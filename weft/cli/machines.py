"""The common parts of commands that run a model on several ranks (`weft launch -n 2 run ...`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from weft.cli.options import together
from weft.core.errors import UsageError
from weft.core.hints import command
from weft.ranks import join

divides = together(
    click.option("--parallel", default="layers", type=click.Choice(["layers", "columns"]),
                 help="Under weft launch: divide the model's layers over the ranks (default), or "
                 "the columns of its matrices."),
    click.option("--split", metavar="N,N,...",
                 help="Under weft launch: number of layers of each rank, like 10,6 (default: by "
                 "the ranks' memory and speed)."),
)  # fmt: skip


def on_ranks(
    path: Callable[[], str], device: str, parallel: str, split: str | None,
    work: Callable[[Callable[..., Any] | None], int],
) -> int:  # fmt: skip
    """Does `work` with what loads models: None for weft.load, or where a launcher started several
    ranks what divides a model among them. Ranks other than 0 follow, the model being at path();
    the exit status."""
    layers, by_columns = _layers(split), parallel == "columns"
    ranks = join()
    if ranks.size == 1:
        if layers or by_columns:
            raise UsageError(
                "--parallel and --split are for several ranks: "
                f"{command('launch', '-n', 2, 'run', 'MODEL', 'PROMPT')}"
            )
        return work(None)
    if layers and by_columns:
        raise UsageError("--split is for layers; columns are divided evenly")
    from weft.machines.load import Way, follow, leading

    with ranks.leaving():
        if ranks.rank:
            return follow(ranks, path, device)
        with leading(ranks, Way(by_columns, layers)) as load:
            return work(load)


def _layers(split: str | None) -> list[int]:
    if split is None:
        return []
    try:
        return [int(part) for part in split.split(",")]
    except ValueError:
        raise UsageError(f"--split is {split[:40]!r}; expected numbers of layers: 10,6") from None
