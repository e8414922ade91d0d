"""Normalisation layers."""

from __future__ import annotations

from weft.core.errors import ShapeError
from weft.nn import init
from weft.nn.layers import empty
from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.core import Tensor


def _width(name: str, shape: int | tuple[int, ...] | list[int]) -> int:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(sizes) != 1:
        raise ShapeError(f"{name}: normalises the last axis only, not {list(sizes)}")
    return sizes[0]


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) weight + bias over the last axis; weight and bias [D]."""

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5,
        elementwise_affine: bool = True, bias: bool = True,
    ):  # fmt: skip
        self.width, self.eps = _width("LayerNorm", normalized_shape), eps
        self.weight = init.ones_(empty(self.width)) if elementwise_affine else None
        self.bias = empty(self.width) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) weight over the last axis; weight [D]. An eps of None is float32's
    distance from 1 to the next number, as in PyTorch."""

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float | None = None,
        elementwise_affine: bool = True,
    ):  # fmt: skip
        self.width = _width("RMSNorm", normalized_shape)
        self.eps = 2.0**-23 if eps is None else eps
        self.weight = init.ones_(empty(self.width)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"
