"""Products of matrices, and attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import ShapeError
from weft.importers.aten.table import aten, named, rows
from weft.importers.imported import here
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.create import arange
from weft.tensor.einsum import einsum as contracted


@aten("mm", "bmm", "matmul", "mv", "dot", "linalg_matmul")
def matmul(self: Tensor, *others: Tensor, **named: Tensor) -> Tensor:
    (other,) = (*others, *named.values())
    return self @ other


rows(__name__, {"linear": (F.linear, "input weight bias")})


def _plus(self: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (self if beta == 1 else self * beta)


@aten("addmm")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(self, mat1 @ mat2, beta, alpha)


@aten("addmv")
def addmv(self: Tensor, mat: Tensor, vec: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(self, mat @ vec, beta, alpha)


@aten("baddbmm")
def baddbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    return _plus(self, batch1 @ batch2, beta, alpha)


@aten("outer")
def outer(self: Tensor, vec2: Tensor) -> Tensor:
    return self.unsqueeze(1) * vec2


@aten("einsum")
def einsum(equation: str, tensors: Sequence[Tensor], path: Any = None) -> Tensor:
    return contracted(equation, *tensors)


@aten("scaled_dot_product_attention")
def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    query, key, value = _same_lead(query, key, value, heads=not enable_gqa)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )


def _same_lead(*parts: Tensor, heads: bool) -> Iterator[Tensor]:
    """Batches, and heads where they are not grouped, broadcast to one shape, as PyTorch does."""
    last = 2 if heads else 3
    shapes = [p.shape[: max(p.ndim - last, 0)] for p in parts]
    lead = np.broadcast_shapes(*shapes)
    return (
        p if s == lead else p.expand((*lead, *p.shape[len(s) :])) for p, s in zip(parts, shapes)
    )


@aten("_scaled_dot_product_flash_attention_for_cpu", results=1)
def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention op that the default decompositions produce on a CPU."""
    return attention(query, key, value, attn_mask, dropout_p, is_causal, scale), None


def _plain_batches(self: Any, mat2: Any, offs: Any = None, *rest: Any, **named: Any) -> str:
    return "without offsets" if offs is None else ""


@aten("_grouped_mm", refuses=_plain_batches)
def grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """Rows [N, K], each times the matrix of its group, mat2[G, K, M]: group g ends before row
    offs[g]; rows beyond the last give 0."""
    assert offs is not None
    if self.ndim != 2 or mat2.ndim != 3:
        raise ShapeError(f"{list(self.shape)} x {list(mat2.shape)}; expected [N, K] and [G, K, M]")
    row = arange(self.shape[0], device=here()).reshape(-1, 1)
    group = (row >= offs.reshape(1, -1)).cast(dt.int32).sum(-1)
    inside = (group < mat2.shape[0]).unsqueeze(1)
    picked = mat2.take(group.minimum(mat2.shape[0] - 1), 0)
    out = inside.where((self.unsqueeze(1) @ picked).squeeze(1), 0.0)
    out = out if bias is None else out + bias
    return out if out_dtype is None else out.cast(out_dtype)


@named("transformers.grouped_mm_fallback.default")
def grouped_mm_fallback(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """The operator by which transformers' experts are exported."""
    return grouped_mm(input, weight, offs)


@aten("_trilinear")
def trilinear(
    i1: Tensor, i2: Tensor, i3: Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """The product of three operands with axes added, summed over some."""
    for at, axes in enumerate((expand1, expand2, expand3)):
        for axis in sorted(axes):
            i1, i2, i3 = (x.unsqueeze(axis) if i == at else x for i, x in enumerate((i1, i2, i3)))
    return (i1 * i2 * i3).sum(tuple(sumdim))
