"""Divides layers among machines: selects the weights of each (pipeline parallelism; Huang et al.,
"GPipe", arXiv:1811.06965).

Each machine computes a run of layers. Rank 0 has the first, and also the embedding and the output
layer, which are often one matrix. Machines exchange rows of the residual stream in float32, as
between any two layers. No sum is divided, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.core.errors import UsageError
from weft.models.arch.config import DecoderConfig, LayerRange


def runs_of(split: Sequence[int]) -> list[LayerRange]:
    """Returns the LayerRange of each rank, from the number of layers of each."""
    ends = [sum(split[: i + 1]) for i in range(len(split))]
    return [
        LayerRange(e - n, e, rank == 0, rank == 0) for rank, (n, e) in enumerate(zip(split, ends))
    ]


def check_own(c: DecoderConfig, where: str) -> None:
    """Raises UsageError for a model without layers that weft knows."""
    if c.traced is not None:
        raise UsageError(
            f"{where}: {c.family} is traced from another library's code, which is not divided: it "
            "runs on one machine"
        )


def check_parts(c: DecoderConfig, ranks: int, where: str) -> None:
    """Raises UsageError for a model that cannot be divided among `ranks` ranks."""
    check_own(c, where)
    if c.layer_input or c.shares:
        raise UsageError(
            f"{where}: layers of {c.family} take more than the residual stream of those before "
            "(embeddings of their own, or others' keys and values): it runs on one machine"
        )
    if c.layers < ranks:
        raise UsageError(f"{where} has {c.layers} layers; start at most as many ranks")


def check_split(c: DecoderConfig, split: Sequence[int], ranks: int) -> None:
    """Raises UsageError if the numbers of layers do not fit the ranks and the model."""
    if len(split) != ranks or sum(split) != c.layers or min(split) < 1:
        raise UsageError(
            f"the split is {','.join(map(str, split))}; expected {ranks} numbers of layers, each "
            f"at least 1, that add up to the model's {c.layers}"
        )


def entry(c: DecoderConfig) -> DecoderConfig:
    """Returns the config of rank 0's part without the output layer."""
    assert c.run is not None
    return replace(c, run=c.run._replace(ends=False))


def output(c: DecoderConfig) -> DecoderConfig:
    """Returns the config of the output layer alone."""
    return replace(c, run=LayerRange(c.layers, c.layers, ends=True))


def roles_of(c: DecoderConfig) -> Callable[[str], bool]:
    """Returns a test for roles: True if this part of the model reads the weight, a part of a packed
    weight, or a table by position."""
    run = c.run
    if run is None:
        return lambda role: True
    tops = {"embed": run.embeds or (run.ends and c.tied), "pos": run.embeds}
    tops |= {"norm": run.ends, "head": run.ends, "rope": run.end > run.first}
    tops |= {"query_growth": run.end > run.first}
    tops |= dict.fromkeys(("layer_embed", "layer_proj", "layer_proj_norm"), run.embeds)
    for j in range(c.altup.streams - 1 if c.altup else 0):
        tops |= {f"alt_in_{j}": run.embeds, f"alt_out_{j}": run.ends}

    def wanted(role: str) -> bool:
        first = role.partition(".")[0]
        return int(first) in c.here if first.isdecimal() else tops[first]

    return wanted
