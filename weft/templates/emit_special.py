"""Ops that the emitter treats by hand: sources, casts, and movement that depends on data or bounds.

pad and concat guard what they read, so nothing is loaded outside a buffer, even speculatively.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.core import dtypes as dt
from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.kernel import expr as kb, ir
from weft.kernel.ir import Expr, Type
from weft.ops.indexing import missing
from weft.ops.primitive import PRIMITIVES
from weft.templates import packed
from weft.templates.view import PURE, Index

if TYPE_CHECKING:
    from weft.templates.emit import Emitter


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """The conjunction of conditions; None of none."""
    result: Expr | None = None
    for c in conditions:
        result = c if result is None else result & c
    return result


def _const(em: Emitter, node: Node, index: Index) -> Expr:
    value = node.attrs["value"]
    if value.size != 1:
        raise CompileError(f"a constant of shape {list(node.shape)} needs a buffer")
    return kb.const(value.reshape(()).item(), Type(dt.compute_dtype(node.dtype)))


def _scalar(em: Emitter, node: Node, index: Index) -> Expr:
    name = node.attrs["name"]
    if node.attrs.get("role") != "scalar" or name not in em.group.slots:
        raise CompileError(f"input {name!r} has no buffer in its group")
    return ir.Param(name, em.group.slots[name])


def _cast(em: Emitter, node: Node, index: Index) -> Expr:
    """Emits a cast. A cast to a narrow float rounds, though the value stays f32."""
    wide = kb.cast(em.value(node.inputs[0], index), dt.compute_dtype(node.dtype))
    return kb.cast(wide, node.dtype)


def _iota(em: Emitter, node: Node, index: Index) -> Expr:
    at = em.expr(index[node.attrs.get("axis", 0)])
    return kb.cast(at, dt.compute_dtype(node.dtype))


def _pad(em: Emitter, node: Node, index: Index) -> Expr:
    (x,) = node.inputs
    dtype = dt.compute_dtype(node.dtype)
    fill = kb.const(dtype.numpy.type(node.attrs["value"]).item(), Type(dtype))
    if x.size == 0:
        return fill
    bounds = list(zip(index, x.shape, node.attrs["low"]))
    if any(i.high < low or i.low >= low + d for i, d, low in bounds):
        return fill
    tests = []
    for i, d, low in bounds:
        test = em.between(i, low, low + d)
        if test is not None:
            tests.append(test)
    moved = [i - low for i, low in zip(index, node.attrs["low"])]
    with em.guarded(tests):
        inner = em.value(x, moved)
    inside = all_of(tests)
    return inner if inside is None else kb.select(inside, inner, fill)


def _concat(em: Emitter, node: Node, index: Index) -> Expr:
    axis = node.attrs["axis"]
    at, start = index[axis], 0
    result: Expr | None = None
    for x in node.inputs:
        stop = start + x.shape[axis]
        if stop == start or at.high < start or at.low >= stop:
            start = stop
            continue
        test = em.between(at, start, stop)
        with em.guarded([] if test is None else [test]):
            part = em.value(x, (*index[:axis], at - start, *index[axis + 1 :]))
        if result is None or test is None:
            result = part
        else:
            result = em.b.let(kb.select(test, part, result), "concat")
        start = stop
    assert result is not None, "an index outside the concatenation"
    return result


def _gather(em: Emitter, node: Node, index: Index) -> Expr:
    x, ids = node.inputs
    axis, rank = node.attrs["axis"], len(ids.shape)
    extent = x.shape[axis]
    middle = index[axis : axis + rank]
    key = ("row", id(ids), middle, extent, tuple(id(g) for g in em._guards))
    found = em.find(key)
    if found is None:
        picked = em.b.let(kb.cast(em.value(ids, middle), dt.int32), "picked")
        row = em.axis(kb.minimum(kb.maximum(picked, 0), extent - 1), extent)
        inside = em.b.let((picked >= 0) & (picked < extent), "inside")
        found = em.remember(key, (row, inside))
    row, inside = found
    taken = em.value(x, (*index[:axis], row, *index[axis + rank :]))
    return kb.select(inside, taken, kb.const(missing(node.dtype), Type(taken.type.dtype)))


def _skewed(em: Emitter, node: Node, index: Index) -> Expr:
    axis, by = node.attrs["params"]["axis"], node.attrs["params"]["by"]
    moved = index[axis + 1] + index[axis] * by
    return em.value(node.inputs[0], (*index[: axis + 1], moved, *index[axis + 2 :]))


def _same(em: Emitter, node: Node, index: Index) -> Expr:
    return em.value(node.inputs[0], index)


_CALLS: Mapping[str, Callable[[Emitter, Node, Index], Expr]] = {
    "barrier": _same,
    "dequantize": packed.element,
    "first_rows": _same,
    "rescale": packed.rescaled,
    "skewed": _skewed,
}


def _call(em: Emitter, node: Node, index: Index) -> Expr:
    return _CALLS[node.attrs["name"]](em, node, index)


SPECIAL: Mapping[str, Callable[[Emitter, Node, Index], Expr]] = {
    "const": _const,
    "input": _scalar,
    "cast": _cast,
    "iota": _iota,
    "pad": _pad,
    "concat": _concat,
    "gather": _gather,
    "call": _call,
}


def emits(node: Node) -> bool:
    """True if the emitter can compute one element of the node from elements of its operands."""
    if node.op == "call":
        return node.attrs["name"] in _CALLS
    return node.op in SPECIAL or node.op in PURE or PRIMITIVES[node.op].lower is not None
