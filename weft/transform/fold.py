"""Constant folding and algebra that is exact for every value, NaN and signed zeros included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.graph.ir import Graph, Node
from weft.ops.primitive import PRIMITIVES
from weft.transform.movement import simplify_movement
from weft.transform.rebuild import const, filled, kind_of, make, remake, rewrite, uniform

FOLD_ELEMENTS = 1 << 16  # folding does not grow constants beyond this

Rule = Callable[[Node], Node | None]


def fold(graph: Graph) -> Graph:
    """The graph after constant folding, identity removal and movement simplification."""
    return rewrite(graph, lambda node, inputs: simplify(remake(node, inputs)))


def simplify(node: Node) -> Node:
    """`node` in its simplest form; its inputs are simple already."""
    for _ in range(16):
        made = _once(node)
        if made is None:
            return node
        node = made
    return node


def _once(node: Node) -> Node | None:
    if node.op in ("input", "call", "result"):
        return None
    if node.op == "const":
        return _uniform_const(node)
    kind = kind_of(node)
    made = _constant(node, kind) or _empty(node)
    if made is not None:
        return made
    if kind == "elementwise":
        rule = _RULES.get(node.op)
        return rule(node) if rule else None
    if kind == "movement":
        return simplify_movement(node)
    if node.op in ("sum", "max"):
        return _trivial_reduce(node)
    return None


def _evaluate(node: Node, *values: np.ndarray) -> np.ndarray:
    rule = PRIMITIVES[node.op].numpy
    assert rule is not None
    with np.errstate(all="ignore"):
        return np.asarray(rule(*values, **node.attrs), node.dtype.numpy)


def _uniform_const(node: Node) -> Node | None:
    """Returns a broadcast 0-d constant for a large constant whose elements all have the same
    bits."""
    value = np.ascontiguousarray(node.attrs["value"])
    if value.size < 2:
        return None
    words = value.reshape(-1).view(f"u{value.dtype.itemsize}")
    return (
        filled(value.reshape(-1)[:1].reshape(()), node.shape) if (words == words[0]).all() else None
    )


def _constant(node: Node, kind: str) -> Node | None:
    """All-constant operands: computed now, unless that would make a large constant."""
    if not node.inputs or kind == "source" or 0 in node.shape:
        return None
    if kind == "elementwise":
        values = []
        for x in node.inputs:
            if (value := uniform(x)) is None:
                break
            values.append(value)
        else:
            return filled(_evaluate(node, *values), node.shape)
    if node.op == "broadcast" or node.size > FOLD_ELEMENTS:
        return None
    if all(x.op == "const" and x.size <= FOLD_ELEMENTS for x in node.inputs):
        return const(_evaluate(node, *(x.attrs["value"] for x in node.inputs)))
    return None


def _empty(node: Node) -> Node | None:
    """Returns a value that does not depend on its operands because one of them is empty."""
    if 0 in node.shape or not any(0 in x.shape for x in node.inputs):
        return None
    if node.op in ("sum", "dot"):
        return filled(np.zeros((), node.dtype.numpy), node.shape)
    if node.op == "pad":
        return filled(np.asarray(node.attrs["value"], node.dtype.numpy), node.shape)
    return node.inputs[0] if node.op in ("update", "scatter_add") else None


def _trivial_reduce(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.size and all(x.shape[a] == 1 for a in node.attrs["axes"]):
        return x if x.shape == node.shape else make("reshape", x, shape=node.shape)
    return None


# -- elementwise ----------------------------------------------------------------------------------


def _is(node: Node, value: float) -> bool:
    """True if every element of node is exactly `value` (0 and -0 differ)."""
    found = uniform(node)
    if found is None:
        return False
    number = float(found)
    return number == value and np.signbit(number) == np.signbit(value)


def _neutral(right: tuple[float, ...], left: tuple[float, ...] = ()) -> Rule:
    """x op value = x for each value in `right`, value op x = x for each in `left`."""

    def rule(node: Node) -> Node | None:
        x, y = node.inputs
        if any(_is(y, v) for v in right):
            return x
        return y if any(_is(x, v) for v in left) else None

    return rule


def _add(node: Node) -> Node | None:
    """x + -0.0 = x always; x + 0.0 loses the sign of -0.0, so it stays for floats."""
    zero = -0.0 if node.dtype.is_float else 0.0
    return _neutral((zero,), (zero,))(node)


def _pow(node: Node) -> Node | None:
    x, y = node.inputs
    if _is(y, 1.0):
        return x
    return make("mul", x, x, where=node.where) if _is(y, 2.0) else None


def _where(node: Node) -> Node | None:
    cond, a, b = node.inputs
    found = uniform(cond)
    if found is not None:
        return a if bool(found) else b
    return a if a is b else None


def _involution(op: str) -> Rule:
    def rule(node: Node) -> Node | None:
        (x,) = node.inputs
        return x.inputs[0] if x.op == op else None

    return rule


def _idempotent(op: str) -> Rule:
    def rule(node: Node) -> Node | None:
        (x,) = node.inputs
        return x if x.op == op else None

    return rule


_HOLDS: dict[DType, tuple[DType, ...]] = {
    dt.bool_: dt.ALL,
    dt.int8: (dt.int16, dt.int32, dt.int64, dt.float16, dt.bfloat16, dt.float32, dt.float64),
    dt.uint8: (*(d for d in dt.INTS if d.itemsize > 1), *(d for d in dt.ALL if d.is_float)),
    dt.int32: (dt.int64, dt.float64),
    dt.uint32: (dt.int64, dt.float64),
    dt.float16: (dt.float32, dt.float64),
    dt.bfloat16: (dt.float32, dt.float64),
    dt.float32: (dt.float64,),
}


def _cast(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.dtype is node.dtype:
        return x
    if x.op != "cast":
        return None
    source = x.inputs[0]
    narrow_int = node.dtype.is_int and source.dtype.is_int and x.dtype.is_float
    if x.dtype in _HOLDS.get(source.dtype, ()) and not narrow_int:
        return make("cast", source, dtype=node.attrs["dtype"], where=node.where)
    return None


_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _neutral((0.0,)),
    "mul": _neutral((1.0,), (1.0,)),
    "div": _neutral((1.0,)),
    "pow": _pow,
    "where": _where,
    "neg": _involution("neg"),
    "abs": _idempotent("abs"),
    "floor": _idempotent("floor"),
    "round": _idempotent("round"),
    "cast": _cast,
    "bitwise_or": _neutral((0.0,), (0.0,)),
    "bitwise_xor": _neutral((0.0,), (0.0,)),
    "shift_left": _neutral((0.0,)),
    "shift_right": _neutral((0.0,)),
}
