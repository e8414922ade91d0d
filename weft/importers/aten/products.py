"""Products of matrices, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.importers.aten.table import aten
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.einsum import einsum as contracted


@aten("mm", "bmm", "matmul", "mv", "dot", "linalg_matmul")
def matmul(self: Tensor, *others: Tensor, **named: Tensor) -> Tensor:
    (other,) = (*others, *named.values())
    return self @ other


@aten("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(input, weight, bias)


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
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )


@aten("_scaled_dot_product_flash_attention_for_cpu", results=1)
def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """What the default decompositions make of attention on a CPU."""
    return attention(query, key, value, attn_mask, dropout_p, is_causal, scale), None


@aten("cosine_similarity")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return (F.normalize(x1, dim, eps) * F.normalize(x2, dim, eps)).sum(dim)
