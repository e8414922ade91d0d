"""Embeddings folded by bags, and forms of two vectors."""

from __future__ import annotations

import math

from weft.nn import init, tree
from weft.nn.layers import EmbeddingRows, empty
from weft.nn.module import Module, lacks
from weft.tensor import functional as F
from weft.tensor.core import Tensor


class EmbeddingBag(EmbeddingRows):
    """The sum, mean or max of the rows of weight [count, dim] in each bag of integer ids: [B, dim].
    The bags are the rows of ids[B, L], or runs of ids[N] that begin at offsets[B]. The weight
    starts standard normal; row `padding_idx` starts as zeros and counts for nothing. See
    functional.embedding_bag. Raises UsageError for a padding_idx that is not a row.

    >>> nn.EmbeddingBag(10, 4)(weft.tensor([1, 2, 5]), weft.tensor([0, 2])).shape
    (2, 4)
    """

    _OPTIONS = "max_norm norm_type scale_grad_by_freq mode sparse include_last_offset padding_idx"

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, include_last_offset: bool = False, padding_idx: int | None = None,
    ):  # fmt: skip
        lacks(self, max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
        self.mode, self.include_last_offset = mode, include_last_offset
        self._rows(num_embeddings, embedding_dim, padding_idx)

    def forward(
        self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        how = (self.mode, per_sample_weights, self.include_last_offset, self.padding_idx)
        return F.embedding_bag(ids, self.weight, offsets, *how)

    def extra_repr(self) -> str:
        return tree.options(self)


class Bilinear(Module):
    """x1[..., in1], x2[..., in2] -> x1 weight x2 + bias: [..., out]; weight [out, in1, in2], bias
    [out]. Both start uniform in +- 1/sqrt(in1). See functional.bilinear. Raises ShapeError for
    other shapes.

    >>> nn.Bilinear(3, 4, 2)(weft.ones((5, 3)), weft.ones((5, 4))).shape
    (5, 2)
    """

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True):
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        self.weight = empty(out_features, in1_features, in2_features)
        self.bias = empty(out_features) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values."""
        bound = 1.0 / math.sqrt(max(self.in1_features, 1))
        for p in (self.weight, self.bias):
            if p is not None:
                init.uniform_(p, -bound, bound)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = ("in1_features", "in2_features", "out_features")
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in sizes)
        return f"{shown}, bias={self.bias is not None}"
