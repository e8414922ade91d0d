"""Divides the columns of matrices among machines (tensor parallelism; Shoeybi et al.,
"Megatron-LM", arXiv:1909.08053) without dividing any sum.

Each rank has its heads, and the columns (rows of the weight) of every matrix that make its part of
the result: queries, keys, values, gates and the like. The two output matrices of a layer are
divided by columns too, and take the gathered results of all ranks. So every product adds all of its
K on one rank, in the usual order, and no bit depends on the number of ranks. Megatron divides K of
both matrices and adds the partial results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from weft.core.errors import UsageError
from weft.core.packed import Packed
from weft.models.arch.config import DecoderConfig, WeightSpec
from weft.models.arch.stages import check_own
from weft.models.arch.weights import Value, Weight

LANES = 64  # most columns that kernels take together; packed weights are divided between such runs


def check_columns(c: DecoderConfig, ranks: int, where: str) -> None:
    """Raises UsageError for a model whose columns cannot be divided among `ranks` ranks."""
    check_own(c, where)
    kinds = {c.mixer(i) for i in range(c.layers)} | {c.feed_forward(i) for i in range(c.layers)}
    unlike = c.by_layer or c.layer_input or c.qk_norm in ("heads", "whole") or c.head_bias
    if kinds != {"attention", "dense"} or unlike:
        raise UsageError(
            f"{where}: the columns of {c.family} are not divided: its layers are not alike, or not "
            "attention and a dense feed-forward; divide its layers: --parallel layers"
        )
    for what, n in (("heads", c.heads), ("key/value heads", c.kv_heads), ("hidden", c.hidden),
                    ("feed-forward columns", c.ffn)):  # fmt: skip
        if n % ranks:
            raise UsageError(f"{where}: {n} {what} are not divided among {ranks} ranks")


def own_columns(
    c: DecoderConfig, weights: Mapping[str, Weight]
) -> tuple[DecoderConfig, Mapping[str, Weight]]:
    """Returns config and weights of this rank's columns; unchanged if columns are not divided.
    Packed weights that cannot be cut there raise UsageError when they are read."""
    if c.run is None or c.run.ranks == 1:
        return c, weights
    n, found = c.run.ranks, dict(weights)
    if c.tied:
        spec = replace(weights["embed"].spec, kind="head", divides=(c.vocab,))
        found["head"] = weights["embed"]._replace(spec=spec)
    if not c.run.embeds:
        found.pop("embed", None)
    own = replace(c, heads=c.heads // n, kv_heads=c.kv_heads // n, ffn=c.ffn // n, tied=False)
    cut = {r: w.then(partial(_own, c, r, w.spec)) for r, w in found.items() if w.spec.divides}
    return own, found | cut


def vocab_of(c: DecoderConfig, rank: int, ranks: int) -> tuple[int, int]:
    """Returns the range of tokens whose logits a rank computes: first, last + 1."""
    runs = -(-c.vocab // LANES)
    first, end = (min(runs * r // ranks * LANES, c.vocab) for r in (rank, rank + 1))
    return first, end


def _own(c: DecoderConfig, role: str, spec: WeightSpec, value: Value) -> Value:
    """Returns this rank's columns of a weight."""
    assert c.run is not None
    packed, rank, ranks = isinstance(value, Packed), c.run.rank, c.run.ranks
    if spec.kind == "head":
        if packed and c.vocab % LANES:  # kernels handle an incomplete run of columns differently
            raise UsageError(
                f"the packed output layer's {c.vocab} columns are not a multiple of {LANES}: they "
                "are not divided; divide the layers: --parallel layers"
            )
        return _cut(value, [slice(*vocab_of(c, rank, ranks))], 0)
    begin, ranges = 0, []
    for size in spec.divides:
        ranges.append(slice(begin + size * rank // ranks, begin + size * (rank + 1) // ranks))
        begin += size
    if packed and any((r.start | r.stop) % LANES for r in ranges):
        raise UsageError(
            f"packed weight {role} is not divided: a rank would have other than whole runs of "
            f"{LANES} of its columns; divide the layers: --parallel layers"
        )
    return _cut(value, ranges, int(role.endswith(".w") and c.transposed and not packed))


def _cut(value: Value, ranges: list[slice], axis: int) -> Value:
    """Returns runs of rows (or columns), a view if possible."""
    if isinstance(value, Packed):
        return value._replace(parts={p: _rows(v, ranges, 0) for p, v in value.parts.items()})
    return _rows(value, ranges, axis)


def _rows(value: np.ndarray, ranges: list[slice], axis: int) -> np.ndarray:
    cut = [value[r] if axis == 0 else value[:, r] for r in ranges]
    return np.ascontiguousarray(cut[0] if len(cut) == 1 else np.concatenate(cut, axis))
