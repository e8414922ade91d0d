"""Layers divided among machines: which weights each has (pipeline parallelism; Huang et al.,
"GPipe", arXiv:1811.06965).

Each machine computes a run of layers; rank 0 has the first, and the embedding and the output layer
too, which are often one matrix. What goes from one to the next are rows of the residual stream in
float32, as they are in any layer: nothing is summed, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.core.errors import UsageError
from weft.models.config import DecoderConfig, Run


def runs_of(split: Sequence[int]) -> list[Run]:
    """The Run of each rank, which has so many layers."""
    ends = [sum(split[: i + 1]) for i in range(len(split))]
    return [Run(e - n, e, rank == 0, rank == 0) for rank, (n, e) in enumerate(zip(split, ends))]


def check_parts(c: DecoderConfig, ranks: int, where: str) -> None:
    """Raises UsageError for a model that cannot be divided among so many ranks."""
    if c.layer_input or c.shares:
        raise UsageError(
            f"{where}: layers of {c.family} take more than the residual stream of those before "
            "(embeddings of their own, or others' keys and values): it runs on one machine"
        )
    if c.layers < ranks:
        raise UsageError(f"{where} has {c.layers} layers; start at most as many ranks")


def check_split(c: DecoderConfig, split: Sequence[int], ranks: int) -> None:
    """Raises UsageError for numbers of layers that are none of each rank's."""
    if len(split) != ranks or sum(split) != c.layers or min(split) < 1:
        raise UsageError(
            f"the split is {','.join(map(str, split))}; expected {ranks} numbers of layers, each "
            f"at least 1, that add up to the model's {c.layers}"
        )


def entry(c: DecoderConfig) -> DecoderConfig:
    """Of a part of a model what comes before the next rank's: all but the output layer."""
    assert c.run is not None
    return replace(c, run=c.run._replace(ends=False))


def output(c: DecoderConfig) -> DecoderConfig:
    """The output layer alone."""
    return replace(c, run=Run(c.layers, c.layers, ends=True))


def roles_of(c: DecoderConfig) -> Callable[[str], bool]:
    """Whether a weight, a part of a packed one or a table by position is read by what is computed
    here."""
    run = c.run
    if run is None:
        return lambda role: True
    tops = {"embed": run.embeds or (run.ends and c.tied), "pos": run.embeds}
    tops |= {"norm": run.ends, "head": run.ends, "rope": run.end > run.first}
    tops |= {"query_growth": run.end > run.first}

    def wanted(role: str) -> bool:
        first = role.partition(".")[0]
        return int(first) in c.here if first.isdecimal() else tops[first]

    return wanted
