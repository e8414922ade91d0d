"""dequantize: the float32 matrix that packed weights encode (core/packed defines them).

Integers of any kind are exact in float32, and each step rounds once, so every device gives the bits
of `core.packed.dequantized`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.core.packed import Form, dequantized
from weft.graph.ir import Node
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval

NAME = "dequantize"


def dequantize(form: Form, parts: Mapping[str, Value]) -> Value:
    """The float32 matrix [N, K] of packed parts, by name. Raises ShapeError or DTypeError where
    they are not those of the form."""
    form.known()
    if set(parts) != set(form.parts):
        raise ShapeError(f"this form has the parts {', '.join(form.parts)}, not {', '.join(parts)}")
    return f.call(NAME, *(parts[p] for p in form.parts), **form._asdict())


def form_of(node: Node) -> Form | None:
    """The form of a call of `dequantize`; None of every other node."""
    if node.op != "call" or node.attrs["name"] != NAME:
        return None
    return Form(**node.attrs["params"])


def _abstract(*parts: Aval, **params: Any) -> Aval:
    form = Form(**params)
    form.known()
    if len(parts) != len(form.parts) or any(len(p.shape) != 2 for p in parts):
        raise ShapeError(f"dequantize: expected the matrices {', '.join(form.parts)}, got {parts}")
    n, width = parts[0].shape
    k = width * 8 // form.planes[0]
    hollow = (np.broadcast_to(np.zeros((), p.dtype.numpy), p.shape) for p in parts)
    form.check(dict(zip(form.parts, hollow)), n, k)
    return Aval((n, k), dt.float32)


def _body(*values: Value, **params: Any) -> Value:
    form = Form(**params)
    parts = dict(zip(form.parts, values))
    low, *high = form.planes
    codes = _unpacked(parts["codes"], low)
    if high:
        above = _unpacked(parts["high"], high[0])
        codes = f.bitwise_or(codes, f.shift_left(above, f.full_like(above, low)))
    if form.table is None:
        value = f.sub(f.cast(codes, dt.float32), float(form.offset))
    else:
        value = f.gather(f.const(form.table, dt.float32), f.cast(codes, dt.int32), 0)
    k = aval(value).shape[1]

    def wide(part: str) -> Value:
        found = _repeated(f.cast(parts[part], dt.float32), k // form.group)
        if form.super_group and part != "zeros":
            top = f.cast(parts[f"super_{part}"], dt.float32)
            found = f.mul(found, _repeated(top, k // form.group))
        return _repeated(found, k)

    if form.shift == "zero":
        value = f.sub(value, wide("zeros"))
    value = f.mul(value, wide("scales"))
    return f.add(value, wide("lows")) if form.shift == "low" else value


def _unpacked(part: Value, bits: int) -> Value:
    """The codes uint8 [N, K] in bytes [N, K * bits / 8]."""
    if bits == 8:
        return part
    n, width = aval(part).shape
    shape = (n, width, 8 // bits)
    wide = f.broadcast(f.reshape(part, (n, width, 1)), shape)
    shifts = f.mul(f.iota(shape, 2, dt.uint8), bits)
    fields = f.bitwise_and(f.shift_right(wide, shifts), f.full_like(wide, (1 << bits) - 1))
    return f.reshape(fields, (n, -1))


def _repeated(x: Value, columns: int) -> Value:
    """Each element of a row as often as `columns` of them need."""
    n, count = aval(x).shape
    if count == columns:
        return x
    wide = f.broadcast(f.reshape(x, (n, count, 1)), (n, count, columns // count))
    return f.reshape(wide, (n, columns))


def _numpy(*parts: np.ndarray, **params: Any) -> np.ndarray:
    form = Form(**params)
    return dequantized(form, dict(zip(form.parts, parts)))


# A kernel computes it at any element, so it is fused wherever it is read, as movement is.
_PARAMS = {"bits": None, "group": None, **Form._field_defaults}
register_composite(Composite(NAME, _abstract, _body, _PARAMS, _numpy, kind="movement"))
