"""Embeddings folded by bags, and products of two vectors by a stack of matrices."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.tensor.autocast import narrowed
from weft.tensor.base import place
from weft.tensor.core import Tensor
from weft.tensor.create import ones, zeros
from weft.tensor.keys import as_index
from weft.tensor.layers import embedding, scatter_add
from weft.tensor.scattering import scatter_join

MODES = ("sum", "mean", "max")


def embedding_bag(
    ids: Tensor, weight: Tensor, offsets: Tensor | None = None, mode: str = "mean",
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """The sum, mean or max of the rows of weight[V, D] in each bag of integer ids: [B, D].

    The bags are the rows of ids[B, L], or runs of ids[N] that begin at offsets[B] (in rising order
    from 0; with `include_last_offset` the last entry is the end, not a bag). An empty bag gives
    zeros. Row `padding_idx` counts for nothing. `per_sample_weights`, like ids, multiplies the rows
    of a sum. Narrow floats are folded in float32. Raises ShapeError for other shapes, UsageError
    for other modes.

    >>> table = weft.tensor([[1.0], [2.0], [4.0]])
    >>> F.embedding_bag(weft.tensor([0, 1, 2]), table, weft.tensor([0, 2]), "sum").tolist()
    [[3.0], [4.0]]
    """
    if mode not in MODES or (per_sample_weights is not None and mode != "sum"):
        raise UsageError(
            f"embedding_bag: mode {mode!r:.40}; expected one of {', '.join(MODES)}, and 'sum' with "
            "per_sample_weights"
        )
    fits = ids.ndim == (2 if offsets is None else 1) and weight.ndim == 2
    if not fits or (per_sample_weights is not None and per_sample_weights.shape != ids.shape):
        raise ShapeError(
            f"embedding_bag: ids {list(ids.shape)}, weight {list(weight.shape)}; expected [B, L], "
            "or [N] with offsets, and [V, D]; per_sample_weights like ids"
        )
    rows = embedding(ids, weight, padding_idx).cast(dt.compute_dtype(weight.dtype))
    counts = ones(ids.shape, "bool", place(ids)) if padding_idx is None else (
        as_index(ids) != padding_idx % weight.shape[0]
    )  # fmt: skip
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is None:
        return _rectangle(rows, counts, mode).cast(weight.dtype)
    starts = offsets.narrow(0, 0, offsets.size - 1) if include_last_offset else offsets
    return _runs(rows, counts, as_index(starts), mode).cast(weight.dtype)


def _rectangle(rows: Tensor, counts: Tensor, mode: str) -> Tensor:
    """rows[B, L, D] folded over L, where counts[B, L] holds."""
    held = counts.unsqueeze(-1)
    if not rows.shape[1]:
        return rows.sum(1)
    if mode == "max":
        return counts.any(1, keepdims=True).where(held.where(rows, -math.inf).max(1), 0.0)
    return _mean(held.where(rows, 0.0).sum(1), counts.cast(dt.int32).sum(1), mode)


def _runs(rows: Tensor, counts: Tensor, starts: Tensor, mode: str) -> Tensor:
    """rows[N, D] folded by runs that begin at `starts`, where counts[N] holds."""
    at, count, bags = place(rows), rows.shape[0], starts.shape[0]
    begun = zeros((count + 1,), dt.int32, at)
    begun = scatter_add(begun, starts, ones((bags,), dt.int32, at)).cumsum(0)
    bag = counts.where(begun.narrow(0, 0, count) - 1, -1)
    out = zeros((bags, rows.shape[1]), rows.dtype, at)
    if mode == "max":
        return scatter_join(out, bag, rows, "max", include_self=False)
    total = scatter_add(out, bag, rows)
    line = ones((count,), dt.int32, at)
    return _mean(total, scatter_add(zeros((bags,), dt.int32, at), bag, line), mode)


def _mean(total: Tensor, count: Tensor, mode: str) -> Tensor:
    if mode == "sum":
        return total
    return total / count.maximum(1).cast(total.dtype).unsqueeze(-1)


def bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1[..., I] weight[O, I, J] x2[..., J] + bias[O] -> [..., O]: one form of both per output.
    Raises ShapeError for shapes that do not agree.

    >>> one, two = weft.ones((1, 2)), weft.ones((1, 3))
    >>> F.bilinear(one, two, weft.ones((4, 2, 3))).tolist()
    [[6.0, 6.0, 6.0, 6.0]]
    """
    fits = weight.ndim == 3 and x1.ndim and x1.shape[:-1] == x2.shape[:-1]
    if not fits or (x1.shape[-1], x2.shape[-1]) != weight.shape[1:]:
        raise ShapeError(
            f"bilinear: x1 {list(x1.shape)}, x2 {list(x2.shape)}, weight {list(weight.shape)}; "
            "expected [..., I], [..., J] and [O, I, J]"
        )
    outputs, i, j = weight.shape
    n = math.prod(x1.shape[:-1])
    left, right, form = narrowed(x1.reshape(n, i), x2.reshape(n, j, 1), weight)
    out = left @ form.permute(1, 0, 2).reshape(i, outputs * j)
    made: Tensor = (out.reshape(n, outputs, j) @ right).reshape(*x1.shape[:-1], outputs)
    return made if bias is None else made + bias
