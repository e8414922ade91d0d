"""Primitives without operands (input const iota), `call`, a named composite with a body, and
`result`, an output of a call other than the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import DType, as_dtype, int32
from weft.core.errors import ShapeError
from weft.graph.ir import Shape
from weft.ops.composite import COMPOSITES
from weft.ops.primitive import Aval, Primitive, register
from weft.ops.rules import canonical_axis, countable, dims


def _input_abstract(**attrs: Any) -> Aval:
    raise ShapeError("input: an input's shape is given, not computed")


def _const_abstract(*, value: np.ndarray) -> Aval:
    return Aval(value.shape, as_dtype(value.dtype))


def _iota_abstract(*, shape: Shape, axis: int, dtype: DType) -> Aval:
    canonical_axis("iota", axis, len(dims("iota", shape)))
    if dtype == int32:
        countable("iota", shape[axis])
    return Aval(tuple(shape), dtype)


def _iota_numpy(*, shape: Shape, axis: int, dtype: DType) -> np.ndarray:
    line = np.arange(shape[axis]).astype(dtype.numpy)
    return np.broadcast_to(line.reshape(-1, *[1] * (len(shape) - axis - 1)), shape)


def _call_abstract(*xs: Aval, name: str, params: Mapping[str, Any]) -> Any:
    return COMPOSITES[name].abstract(*xs, **params)


def _result_abstract(call: Aval, *, index: int) -> Aval:
    raise ShapeError("result: a result's shape is that of the call's output")


def _call_numpy(*xs: np.ndarray, name: str, params: Mapping[str, Any]) -> Any:
    composite = COMPOSITES[name]
    return (composite.numpy or composite.body)(*xs, **params)


register(Primitive("input", "source", _input_abstract, None))
register(Primitive("const", "source", _const_abstract, lambda *, value: value))
register(Primitive("iota", "source", _iota_abstract, _iota_numpy))
register(Primitive("call", "call", _call_abstract, _call_numpy))
register(Primitive("result", "result", _result_abstract, None))
