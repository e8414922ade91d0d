"""Operators that make tensors. Each has the device of the call (`here`) or, traced, none yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.importers.aten.numbers import fitting, number_dtype
from weft.importers.aten.table import aten
from weft.importers.imported import here
from weft.tensor import create, random
from weft.tensor.core import Tensor


def _full(size: Sequence[int], value: Any, dtype: DType) -> Tensor:
    return create.full(list(size), fitting(value, dtype), dtype, here())


@aten("full")
def full(size: Sequence[int], fill_value: Any, dtype: DType | None = None) -> Tensor:
    return _full(size, fill_value, dtype or number_dtype(fill_value))


@aten("scalar_tensor")
def scalar_tensor(s: Any, dtype: DType | None = None) -> Tensor:
    return _full((), s, dtype or number_dtype(float(s)))


@aten("zeros", "empty.memory_format")
def zeros(size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return _full(size, 0, dtype or number_dtype(0.0))


@aten("empty_strided")
def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: DType | None = None) -> Tensor:
    return zeros(size, dtype)


@aten("ones")
def ones(size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return _full(size, 1, dtype or number_dtype(0.0))


@aten("full_like")
def full_like(self: Tensor, fill_value: Any, dtype: DType | None = None) -> Tensor:
    return _full(self.shape, fill_value, dtype or self.dtype)


@aten("zeros_like", "empty_like", "zero")
def zeros_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return _full(self.shape, 0, dtype or self.dtype)


@aten("ones_like")
def ones_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return _full(self.shape, 1, dtype or self.dtype)


@aten("fill.Scalar", "fill.Tensor")
def fill(self: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.cast(self.dtype).expand(self.shape)
    return _full(self.shape, value, self.dtype)


@aten("new_full")
def new_full(
    self: Tensor, size: Sequence[int], fill_value: Any, dtype: DType | None = None
) -> Tensor:
    return _full(size, fill_value, dtype or self.dtype)


@aten("new_zeros", "new_empty")
def new_zeros(self: Tensor, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return _full(size, 0, dtype or self.dtype)


@aten("new_ones")
def new_ones(self: Tensor, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return _full(size, 1, dtype or self.dtype)


@aten("arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, dtype: DType | None = None) -> Tensor:
    return create.arange(start, end, step, dtype, here())


@aten("arange.start")
def arange_from(start: Any, end: Any, dtype: DType | None = None) -> Tensor:
    return arange(start, end, 1, dtype)


@aten("arange")
def arange_to(end: Any, dtype: DType | None = None) -> Tensor:
    return arange(0, end, 1, dtype)


@aten("linspace")
def linspace(start: float, end: float, steps: int, dtype: DType | None = None) -> Tensor:
    return create.linspace(start, end, steps, dtype, here())


@aten("eye", "eye.m")
def eye(n: int, m: int | None = None, dtype: DType | None = None) -> Tensor:
    return create.eye(n, m, dtype, here())


@aten("rand")
def rand(size: Sequence[int], dtype: DType | None = None) -> Tensor:
    """Uniform in [0, 1), of weft's generator, not PyTorch's."""
    return random.rand(*size, dtype=dtype, device=here())


@aten("randn")
def randn(size: Sequence[int], dtype: DType | None = None) -> Tensor:
    """Numbers of the normal distribution, from weft's generator instead of PyTorch's."""
    return random.randn(*size, dtype=dtype, device=here())


@aten("rand_like")
def rand_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return rand(self.shape, dtype or self.dtype)


@aten("randn_like")
def randn_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return randn(self.shape, dtype or self.dtype)


@aten("randint.low")
def randint(low: int, high: int, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    """Integers from low to high - 1, of weft's generator, not PyTorch's."""
    drawn = (rand(size) * (high - low)).floor().minimum(float(high - low - 1))
    return (drawn.cast(dt.int32) + low).cast(dtype or dt.int32)


@aten("randint")
def randint_to(high: int, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return randint(0, high, size, dtype)


@aten("randperm")
def randperm(n: int, dtype: DType | None = None) -> Tensor:
    """0..n-1 in an order of weft's generator, not PyTorch's."""
    return rand([n]).argsort(0).cast(dtype or dt.int32)


def _triangle(find: Callable[..., tuple[np.ndarray, ...]], name: str) -> None:
    @aten(name)
    def indices(row: int, col: int, offset: int = 0, dtype: DType | None = None) -> Tensor:
        """Rows and columns [2, K] of a triangle's elements, in row-major order."""
        at = np.stack(find(row, offset, col)).astype(np.int32)
        made = Tensor(at) if here() is None else Tensor(at).to(here())
        return made.cast(dtype or dt.int32)


_triangle(np.tril_indices, "tril_indices")
_triangle(np.triu_indices, "triu_indices")
