"""What commands share that run a model on several ranks (`weft launch -n 2 run ...`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from weft.core.errors import UsageError
from weft.ranks import join

split_option = click.option(
    "--split", metavar="N,N,...",
    help="Under weft launch: how many layers each rank has (default: by the ranks' memory).",
)  # fmt: skip


def on_ranks(
    path: Callable[[], str], device: str, split: str | None,
    work: Callable[[Callable[..., Any] | None], int],
) -> int:  # fmt: skip
    """Does `work` with what loads models: None for weft.load, or where a launcher started several
    ranks what divides a model among them. Ranks other than 0 follow, the model being at path();
    the exit status."""
    layers = _layers(split)
    ranks = join()
    if ranks.size == 1:
        if layers:
            raise UsageError("--split is for several ranks: weft launch -n N ...")
        return work(None)
    from weft.models.machines.load import follow, leading

    with ranks.leaving():
        if ranks.rank:
            return follow(ranks, path, device)
        with leading(ranks, layers) as load:
            return work(load)


def _layers(split: str | None) -> list[int] | None:
    if split is None:
        return None
    try:
        return [int(part) for part in split.split(",")]
    except ValueError:
        raise UsageError(f"--split is {split[:40]!r}; expected numbers of layers: 10,6") from None
