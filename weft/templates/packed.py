"""Packed weights in kernels: what codes, scales and the rest of the parts give (core/packed)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.packed import Form
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.expr import bitcast, cast, const, eq, lookup, ne, pack, select
from weft.kernel.ir import F32, Expr, Type
from weft.ops.packed import form_of
from weft.ops.quantize import BLOCK, STEP
from weft.templates import affine
from weft.templates.view import Index

if TYPE_CHECKING:
    from weft.templates.emit import Emitter


def element(em: Emitter, node: Node, index: Index) -> Expr:
    """The element of a `dequantize` at `index`."""
    form, (row, k), b = form_of(node), index, em.b
    assert form is not None
    parts = dict(zip(form.parts, node.inputs))

    def field(part: str, bits: int) -> Expr:
        byte, place = affine.divide(k, 8 // bits)
        found = cast(em.value(parts[part], (row, byte)), dt.int32)
        return found if bits == 8 else (found >> (em.expr(place) * bits)) & ((1 << bits) - 1)

    def number(part: str) -> Expr:
        column, _ = affine.divide(k, node.shape[1] // parts[part].shape[1])
        return cast(em.value(parts[part], (row, column)), dt.float32)

    low, *high = form.planes
    code = field("codes", low)
    if high:
        code = code | (field("high", high[0]) << low)
    value = value_of(b, form, b.let(code, "code"), em.caps)
    return finish(b, form, value, numbers(b, form, number))


def rescaled(em: Emitter, node: Node, index: Index) -> Expr:
    """The element of a `rescale` at `index`."""
    *codes, scales = node.inputs
    first, *second = (cast(em.value(x, index), dt.float32) for x in codes)
    block, _ = affine.divide(index[-1], BLOCK)
    whole = first * float(STEP) + second[0] if second else first
    return em.b.let(whole, "code") * em.value(scales, (*index[:-1], block))


def numbers(b: Builder, form: Form, number: Callable[[str], Expr]) -> dict[str, Expr]:
    """Scales, and zeros or lows where the form has them, bound; `number` reads a part as f32."""
    found = {}
    for part in form.parts[len(form.planes) :]:
        if part.startswith("super_"):
            continue
        value = number(part)
        if form.super_group and part != "zeros":
            value = value * number(f"super_{part}")
        found[part] = b.let(value, part)
    return found


def finish(b: Builder, form: Form, value: Expr, beside: Mapping[str, Expr]) -> Expr:
    """Returns the weight for a code's value and its scale, zero or low in `beside`."""
    if form.shift == "zero":
        value = b.let(value - beside["zeros"], "value")
    value = value * beside["scales"]
    return b.let(value, "scaled") + beside["lows"] if form.shift == "low" else value


def value_of(b: Builder, form: Form, code: Expr, caps: Caps) -> Expr:
    """The value, as f32, of a code: int32, bound."""
    if form.values == "int":
        value = cast(code, dt.float32)
        return value - float(form.offset) if form.offset else value
    if form.values == "e4m3":
        return _e4m3(b, code)
    assert form.table is not None
    if "lookup" in caps.features and code.type.lanes == caps.lanes:
        return looked_up(form.table, code)
    f32 = Type(dt.float32, code.type.lanes)
    found: list[Expr] = [const(v, f32) for v in form.table]
    for i in range(form.bits):  # halves the table by a bit of the code
        bit = b.let(ne(code & (1 << i), 0), "bit")
        found = [b.let(select(bit, x, y), "value") for y, x in zip(found[::2], found[1::2])]
    return found[0]


def looked_up(table: Sequence[float], index: Expr) -> Expr:
    """The entries of a table that the lowest bits of `index` name, on a target with "lookup"."""
    return lookup(pack(*[const(float(v), F32) for v in table]), index)


def _e4m3(b: Builder, code: Expr) -> Expr:
    """An 8-bit float: 7 is its exponent's bias; subnormals are multiples of 2^-9."""
    size = b.let(code & 127, "size")
    normal = bitcast((size << 20) + (120 << 23), dt.float32)
    value = select(size < 8, cast(size, dt.float32) * 2.0**-9, normal)
    value = b.let(select(eq(size, 127), float("nan"), value), "value")
    return select(code > 127, -value, value)
