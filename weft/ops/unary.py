"""Elementwise primitives of one argument, and cast: each in one record.

Lowering: `(builder, x[, attrs]) -> Expr` in f32, int32, uint32, int8, uint8 or bool, any lane
count. The caller casts f16 and bf16 to f32 before and back after. 8-bit integers are computed in
int32 and wrapped by the cast back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Type
from weft.ops import functions as f, special
from weft.ops.functions import Value
from weft.ops.lazy import km
from weft.ops.primitive import Aval, Primitive, VjpRule, aval, register
from weft.ops.rules import in_f32, is_narrow, want, wide


def _register(
    name: str, kinds: str, numpy: Any, lower: Any, vjp: VjpRule | None, *,
    cost: int = 1, range_: tuple[float, float] = (-3, 3), out: DType | None = None,
) -> None:  # fmt: skip
    def abstract(x: Aval) -> Aval:
        want(name, x, kinds)
        return Aval(x.shape, out or x.dtype)

    numpy = in_f32(numpy)
    register(Primitive(name, "elementwise", abstract, numpy, lower, vjp, cost, (range_,)))


def in_int32(lower: Callable[..., Expr]) -> Callable[..., Expr]:
    """8-bit integers are computed in int32; a result that is not bool wraps back."""

    def lowered(b: Builder, *operands: Expr) -> Expr:
        dtype = operands[0].type.dtype
        if dtype not in (dt.int8, dt.uint8):
            return lower(b, *operands)
        out = lower(b, *(kb.cast(x, dt.int32) for x in operands))
        return out if out.type.dtype == dt.bool_ else kb.cast(out, dtype)

    return lowered


def _neg(b: Builder, x: Expr) -> Expr:
    if x.type.dtype.is_float:
        return kb.unary("neg", x)
    return kb.binary("sub", kb.const(0, x.type), x)


def _abs(b: Builder, x: Expr) -> Expr:
    return x if x.type.dtype.kind == "uint" else kb.unary("abs", x)


def _on_floats(op: str) -> Callable[[Builder, Expr], Expr]:
    """An IR unary on floats that leaves integers as they are."""
    return lambda b, x: kb.unary(op, x) if x.type.dtype.is_float else x


def _isnan(b: Builder, x: Expr) -> Expr:
    if not x.type.dtype.is_float:
        return kb.const(False, Type(dt.bool_, x.type.lanes))
    return km.isnan(b, x)


def _signbit(b: Builder, x: Expr) -> Expr:
    if x.type.dtype.kind == "uint":
        return kb.const(False, Type(dt.bool_, x.type.lanes))
    return kb.binary("lt", kb.bitcast(x, dt.int32) if x.type.dtype.is_float else x, 0)


def _np_floats(rule: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: rule(x) if x.dtype.kind == "f" else x


def _np_erf(x: np.ndarray) -> np.ndarray:
    return special.erf(x).astype(x.dtype)


def _np_ndtr(x: np.ndarray) -> np.ndarray:
    return special.ndtr(x).astype(x.dtype)


def _np_isnan(x: np.ndarray) -> np.ndarray:
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, np.bool_)


def _np_signbit(x: np.ndarray) -> np.ndarray:
    below: np.ndarray = np.signbit(x) if x.dtype.kind == "f" else x < 0
    return below


# -- derivatives (see VjpRule) -------------------------------------------------------------------


def _abs_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    below = f.where(f.less(x, 0), f.neg(g), 0)
    return (f.where(f.less(f.full_like(x, 0), x), g, below),)


def _flat_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    """floor and round are constant almost everywhere."""
    return (f.full_like(g, 0),)


def _erf_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    return (f.mul(g, f.mul(f.exp(f.neg(f.mul(x, x))), 2.0 / math.sqrt(math.pi))),)


def _ndtr_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    bell = f.exp(f.mul(f.mul(x, x), -0.5))
    return (f.mul(g, f.mul(bell, 1.0 / math.sqrt(2.0 * math.pi))),)


def _tanh_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    return (f.mul(g, f.sub(1.0, f.mul(out, out))),)


# -- the records ----------------------------------------------------------------------------------

_register("neg", "numeric", np.negative, in_int32(_neg), lambda g, out, x: (f.neg(g),))
_register("abs", "numeric", np.abs, in_int32(_abs), _abs_vjp)
_register("floor", "numeric", _np_floats(np.floor), _on_floats("floor"), _flat_vjp)
_register("round", "numeric", _np_floats(np.rint), _on_floats("rint"), _flat_vjp)  # half to even
_register("sqrt", "float", np.sqrt, lambda b, x: kb.unary("sqrt", x),
          lambda g, out, x: (f.mul(g, f.div(0.5, out)),), cost=4, range_=(0.1, 4))  # fmt: skip
_register("exp", "float", np.exp, lambda b, x: km.exp(b, x),
          lambda g, out, x: (f.mul(g, out),), cost=8)  # fmt: skip
_register("log", "float", np.log, lambda b, x: km.log(b, x),
          lambda g, out, x: (f.div(g, x),), cost=8, range_=(0.1, 4))  # fmt: skip
_register("sin", "float", np.sin, lambda b, x: km.sin(b, x),
          lambda g, out, x: (f.mul(g, f.cos(x)),), cost=8, range_=(-4, 4))  # fmt: skip
_register("cos", "float", np.cos, lambda b, x: km.cos(b, x),
          lambda g, out, x: (f.neg(f.mul(g, f.sin(x))),), cost=8, range_=(-4, 4))  # fmt: skip
_register("tanh", "float", np.tanh, lambda b, x: km.tanh(b, x), _tanh_vjp, cost=8)
_register("erf", "float", _np_erf, lambda b, x: km.erf(b, x), _erf_vjp, cost=8)
_register("ndtr", "float", _np_ndtr, lambda b, x: km.ndtr(b, x), _ndtr_vjp, cost=8)
_register("isnan", "numeric", _np_isnan, _isnan, None, out=dt.bool_)
_register("signbit", "numeric", _np_signbit, in_int32(_signbit), None, out=dt.bool_)


# -- cast ---------------------------------------------------------------------------------------


def _cast_abstract(x: Aval, *, dtype: DType) -> Aval:
    return Aval(x.shape, dtype)


def _cast_numpy(x: np.ndarray, *, dtype: DType) -> np.ndarray:
    """Float to integer truncates and saturates, NaN gives 0; integers wrap; anything to f16 or
    bf16 goes through f32 (as kernels compute it); to bool is `!= 0`."""
    target = dtype.numpy
    if x.dtype == target:
        return x
    x = wide(x)
    if dtype.kind == "bool":
        true: np.ndarray = x != 0
        return true
    if dtype.is_int and x.dtype.kind == "f":
        info = np.iinfo(target)
        if x.size and info.min <= float(x.min()) and float(x.max()) < info.max:
            return x.astype(target)  # the usual case, without the steps that saturate
        whole = np.trunc(np.where(np.isnan(x), 0.0, x.astype(np.float64)))
        inside = np.clip(whole, float(info.min), float(info.max))
        top = whole >= float(info.max)  # 2**63 - 1 is not a float64: never cast it
        return np.where(top, info.max, np.where(top, 0.0, inside).astype(target)).astype(target)
    if is_narrow(target) and x.dtype.kind != "f":
        x = x.astype(np.float32)
    return x.astype(target)


def _cast_lower(b: Builder, x: Expr, *, dtype: DType) -> Expr:
    return kb.cast(x, dt.compute_dtype(dtype))


def _cast_vjp(g: Value, out: Value, x: Value, *, dtype: Any) -> Sequence[Any]:
    return (f.cast(g, aval(x).dtype) if aval(x).dtype.is_float else None,)


register(
    Primitive("cast", "elementwise", _cast_abstract, _cast_numpy, _cast_lower, _cast_vjp, cost=1)
)
