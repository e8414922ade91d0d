"""Divides the columns of matrices among machines (tensor parallelism; Shoeybi et al.,
"Megatron-LM", arXiv:1909.08053) without dividing any sum.

Each rank has its heads, and the columns (rows of the weight) of every matrix that make its part of
the result: queries, keys, values, gates and the like. The two output matrices of a layer are
divided by columns too, and take the gathered results of all ranks. So every product adds all of its
K on one rank, in the usual order, and no bit depends on the number of ranks. Megatron divides K of
those two matrices and adds the partial results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.core.packed import Packed
from weft.models.arch.config import DecoderConfig

LANES = 64  # most columns that kernels take together; packed weights are divided between such runs
# roles, or parts of roles, that every rank has in full if it reads them.
_WHOLE = ("embed", "pos", "norm")
_BESIDE = ("attn_norm", "mlp_norm", "attn_post", "mlp_post", "q_norm", "k_norm", "scalar")


def check_columns(c: DecoderConfig, ranks: int, where: str) -> None:
    """Raises UsageError for a model whose columns cannot be divided among `ranks` ranks."""
    kinds = {c.mixer(i) for i in range(c.layers)} | {c.feed_forward(i) for i in range(c.layers)}
    if kinds != {"attention", "dense"} or c.by_layer or c.layer_input or c.qk_norm == "whole":
        raise UsageError(
            f"{where}: the columns of {c.family} are not divided: its layers are not alike, or not "
            "attention and a dense feed-forward; divide its layers: --parallel layers"
        )
    for what, n in (("heads", c.heads), ("key/value heads", c.kv_heads), ("hidden", c.hidden),
                    ("feed-forward columns", c.ffn)):  # fmt: skip
        if n % ranks:
            raise UsageError(f"{where}: {n} {what} are not divided among {ranks} ranks")


def own_columns(
    c: DecoderConfig, weights: Mapping[str, np.ndarray | Packed]
) -> tuple[DecoderConfig, Mapping[str, np.ndarray | Packed]]:
    """Returns config and weights of this rank's columns; unchanged if columns are not divided.
    Raises UsageError for packed weights that cannot be cut there."""
    if c.run is None or c.run.ranks == 1:
        return c, weights
    n = c.run.ranks
    own = replace(c, heads=c.heads // n, kv_heads=c.kv_heads // n, ffn=c.ffn // n, tied=False)
    return own, _Columns(c, weights)


def vocab_of(c: DecoderConfig, rank: int, ranks: int) -> tuple[int, int]:
    """Returns the range of tokens whose logits a rank computes: first, last + 1."""
    runs = -(-c.vocab // LANES)
    first, end = (min(runs * r // ranks * LANES, c.vocab) for r in (rank, rank + 1))
    return first, end


class _Columns(Mapping[str, Any]):
    """This rank's rows of every weight, cut on access."""

    def __init__(self, c: DecoderConfig, weights: Mapping[str, Any]) -> None:
        self._c, self._weights = c, weights
        assert c.run is not None
        self._run = c.run
        self._roles = [r for r in weights if r != "embed" or self._run.embeds]
        self._roles += ["head"] if c.tied else []

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    def __getitem__(self, role: str) -> Any:
        c = self._c
        value = self._weights["embed" if role == "head" and c.tied else role]
        first, _, rest = role.partition(".")
        part, _, end = rest.partition(".")
        if first in _WHOLE or part in _BESIDE:
            return value
        if first == "head" and isinstance(value, Packed) and c.vocab % LANES:
            raise UsageError(  # kernels handle an incomplete run of columns differently
                f"the packed output layer's {c.vocab} columns are not a multiple of {LANES}: they "
                "are not divided; divide the layers: --parallel layers"
            )
        if first == "head":
            return _cut(value, [slice(*vocab_of(c, self._run.rank, self._run.ranks))], 0)
        packed = isinstance(value, Packed)
        axis = int(end == "w" and c.transposed and not packed)
        ranges = self._ranges(self._sizes(part, value.shape[axis]))
        if packed and any((r.start | r.stop) % LANES for r in ranges):
            raise UsageError(
                f"packed weight {role} is not divided: a rank would have other than whole runs of "
                f"{LANES} of its columns; divide the layers: --parallel layers"
            )
        return _cut(value, ranges, axis)

    def _sizes(self, part: str, count: int) -> list[int]:
        """Returns the lengths of the blocks that are joined in a weight."""
        c = self._c
        if part == "qkv":
            return [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        return [c.ffn, c.ffn] if part == "gate_up" else [count]

    def _ranges(self, sizes: list[int]) -> list[slice]:
        """Returns this rank's part of each block."""
        rank, ranks, begin, found = self._run.rank, self._run.ranks, 0, []
        for size in sizes:
            found.append(slice(begin + size * rank // ranks, begin + size * (rank + 1) // ranks))
            begin += size
        return found


def _cut(value: Any, ranges: list[slice], axis: int) -> Any:
    """Returns runs of rows (or columns), a view if possible."""
    if isinstance(value, Packed):
        return value._replace(parts={p: _cut(v, ranges, 0) for p, v in value.parts.items()})
    cut = [value[r] if axis == 0 else value[:, r] for r in ranges]
    return np.ascontiguousarray(cut[0] if len(cut) == 1 else np.concatenate(cut, axis))
