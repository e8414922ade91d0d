"""The bits of a tensor read as another dtype, as `view(dtype)` does, on the host. The result is a
view: writes go both ways, gradients none."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import ShapeError, UsageError
from weft.ops.batching import detached
from weft.tensor import views
from weft.torch.tensor import Tensor


def reread(input: Any, dtype: DType) -> Any:
    """The bits of `input` as `dtype`; of another width, the last axis is longer or shorter. Raises
    UsageError on devices and in compiled functions, ShapeError for a last axis that does not
    fit."""
    if dtype == input.dtype:
        return input.reshape(input.shape)
    old, strides = input.dtype, views.strides(input)
    wide, narrow = dtype.itemsize, old.itemsize
    if wide != narrow:
        last = input.shape[-1] * narrow if input.ndim else 0
        if not input.ndim or strides[-1] != 1 or last % wide:
            raise ShapeError(
                f"view: {input._known()} as {dtype.name}; for another width the last axis is "
                f"contiguous, of a multiple of {wide} bytes"
            )
        whole = [s * narrow for s in strides[:-1]]
        if any(s % wide for s in whole):
            raise ShapeError(f"view: {input._known()} as {dtype.name}: its rows start in between")
        strides = (*(s // wide for s in whole), 1)
    made = Tensor(_read(detached(input.value), dtype))
    return views.link(
        made,
        input,
        lambda v: _read(detached(v), dtype),
        lambda base, v: base._wrap(_read(detached(v.value), old)),
        strides,
        detached=True,
    )


def _read(value: Any, dtype: DType) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise UsageError(
            "view(dtype) reads bits on the host, and not in compiled functions; use .cpu(), or "
            "to(dtype) for values"
        )
    return np.ascontiguousarray(value).view(dtype.numpy).reshape(_shape(value, dtype))


def _shape(value: np.ndarray, dtype: DType) -> tuple[int, ...]:
    if not value.ndim or value.itemsize == dtype.itemsize:
        return value.shape
    return (*value.shape[:-1], value.shape[-1] * value.itemsize // dtype.itemsize)
