"""Convolutions and products between dequantize_linear and quantize_linear, on the codes themselves.

conv(dequantize(x), dequantize(w)) is an exact sum of products of codes times both scales. So it
becomes `conv_codes` and a product by one number per output. The sums of the weights remove a zero
point of x; they follow from weights alone. A product by such a matrix is a convolution of a line by
windows of one. The scale of a following quantize_linear moves into the earlier numbers, through
sums and upper or lower bounds. Movement passes by dequantize_linear. Any remaining call of the two
is replaced by its body.

Codes are shifted by 128 to the sign that the target multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.compile.channels_last import call
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.graph.ir import Graph, Node
from weft.ops.codes import BYTES, CONV, DEQUANTIZE, QUANTIZE
from weft.templates.conv.depthwise import PLACES
from weft.transform.fold import simplify
from weft.transform.inline import inline
from weft.transform.rebuild import const, filled, make, remake, rewrite, uniform

PAIR = (QUANTIZE, DEQUANTIZE)
POOL = "max_pool"
_HALF = 128  # difference between unsigned and signed codes


def convolve_codes(graph: Graph, caps: Caps) -> Graph:
    """The graph with products of codes, and without calls of PAIR and POOL."""
    order = list(graph.nodes())
    if any(is_call(node, *PAIR) or _of_bytes(node) for node in order):
        graph = rewrite(graph, _Rules(caps).visit)
    elif not any(is_call(node, POOL) for node in order):
        return graph
    return inline(graph, lambda node: not is_call(node, *PAIR, POOL))


def _of_bytes(node: Node) -> bool:
    return node.op == "dot" and node.inputs[0].dtype in BYTES


def is_call(node: Node, *names: str) -> bool:
    return node.op == "call" and node.attrs["name"] in names


def _number(node: Node) -> float | None:
    """The one number that a value has everywhere, where the graph shows it."""
    found = uniform(node)
    if found is None and node.op == "const" and node.size == 1:
        found = node.attrs["value"].reshape(())
    return None if found is None else float(found)


class _Rules:
    def __init__(self, caps: Caps) -> None:
        self.sign = dt.uint8 if "dot4_mixed" in caps.features else dt.int8
        # id -> (node, True if it depends on weights alone)
        self.known: dict[int, tuple[Node, bool]] = {}

    def visit(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """Returns the replacement of a node over new inputs."""
        made = simplify(remake(node, inputs))
        if is_call(made, *PAIR, "conv"):
            rule = {QUANTIZE: self._quantized, DEQUANTIZE: self._reals, "conv": self._conv}
            made = rule[made.attrs["name"]](made) or made
        elif made.op == "dot":
            made = self._product(made) or made
        elif is_call(made, POOL) and is_call(made.inputs[0], DEQUANTIZE):
            made = _pooled(made) or made
        elif made.op in _MOVES and any(is_call(x, DEQUANTIZE) for x in made.inputs):
            made = _MOVES[made.op](made) or made
        self._fixed(made)
        return made

    def _fixed(self, node: Node) -> bool:
        if id(node) not in self.known:
            if node.inputs:
                found = all(self._fixed(x) for x in node.inputs)
            else:
                found = node.op == "const" or node.attrs.get("role") == "weight"
            self.known[id(node)] = node, found
        return self.known[id(node)][1]

    # -- codes

    def _quantized(self, node: Node) -> Node | None:
        """quantize_linear whose scale is folded into what it reads."""
        x, scale, zero = node.inputs
        if is_call(x, DEQUANTIZE) and _same(x.inputs[1:], (scale, zero)):
            return x.inputs[0]
        by, least = _number(scale), _number(zero)
        if by is None or least is None or not 0 < by < math.inf:
            return None
        wide = self._scaled(x, 1.0 / by, True) or simplify(make("div", x, filled_like(by, x)))
        turned = self.sign != node.dtype
        if turned:
            least += _HALF if self.sign == dt.uint8 else -_HALF
        wide = simplify(make("add", make("round", wide), filled_like(least, x)))
        made = make("cast", wide, dtype=self.sign)
        return _turned(made) if turned else made

    def _reals(self, node: Node) -> Node | None:
        """dequantize_linear of codes of the target's sign, where they were made so."""
        codes, scale, zero = node.inputs
        source = _before_turn(codes)
        least = _number(zero)
        if source is None or least is None:
            return None
        least += _HALF if source.dtype == dt.uint8 else -_HALF
        return call(DEQUANTIZE, source, scale, _int(least, source.dtype, zero.shape))

    def _scaled(self, x: Node, by: float, first: bool = False) -> Node | None:
        """x * by, the factor worked into the numbers that x is made of; None where x is the first
        and none of them."""
        if (number := _number(x)) is not None:
            return filled_like(number * by, x)
        if is_call(x, DEQUANTIZE):
            codes, scale, zero = x.inputs
            return call(DEQUANTIZE, codes, _times(scale, by), zero, where=x.where)
        if self._fixed(x):
            return _times(x, by)
        if x.op in ("add", "sub", "maximum", "minimum"):
            parts = [self._scaled(y, by) for y in x.inputs]
            return make(x.op, *(y for y in parts if y is not None), where=x.where)
        if x.op == "mul":
            i = next((i for i in (0, 1) if self._fixed(x.inputs[i])), None)
            if i is not None:
                both = list(x.inputs)
                both[i] = _times(both[i], by)
                return simplify(make("mul", *both, where=x.where))
        if x.op in ("reshape", "transpose", "broadcast", "slice"):
            made = self._scaled(x.inputs[0], by)
            assert made is not None
            return simplify(remake(x, (made,)))
        return None if first else make("mul", x, filled_like(by, x))

    # -- products

    def _conv(self, node: Node) -> Node | None:
        x, w = node.inputs
        params = node.attrs["params"]
        deep = w.shape[1] == 1 and params["groups"] == x.shape[1] == w.shape[0]
        plain = params["groups"] == 1 or (deep and math.prod(w.shape[2:]) <= PLACES)
        if not plain or len(w.shape) not in (3, 4) or not (node.size and x.size):
            return None
        return self._codes(x, w, params, deep, node.where)

    def _codes(
        self, x: Node, w: Node, params: dict[str, Any], deep: bool, where: str
    ) -> Node | None:
        """The convolution of what two values are dequantized from, times their scales."""
        if not (is_call(x, DEQUANTIZE) and is_call(w, DEQUANTIZE) and self._fixed(w)):
            return None
        codes, scale, zero = x.inputs
        by, least, weights = _number(scale), _number(zero), _signed(w)
        if by is None or least is None or weights is None or codes.dtype not in BYTES:
            return None
        made = self._sums(codes, least, weights, params, deep, where)
        factor, o = _times(w.inputs[1], by), w.shape[0]
        if factor.size > 1:
            factor = simplify(make("reshape", factor, shape=(1, o, *([1] * (len(w.shape) - 2)))))
        else:
            factor = simplify(make("reshape", factor, shape=()))
        wide = simplify(make("broadcast", factor, shape=made.shape))
        made = simplify(make("cast", made, dtype=dt.float32))
        return simplify(make("mul", made, wide, where=where))

    def _sums(
        self, codes: Node, least: float, w: Node, params: dict[str, Any], deep: bool, where: str
    ) -> Node:
        """The convolution of codes less `least` with weights w, in whole numbers."""
        if codes.dtype != self.sign:
            codes = _before_turn(codes) or _turned(codes)
            least += _HALF if self.sign == dt.uint8 else -_HALF
        o, axes = w.shape[0], tuple(range(1, len(w.shape)))
        total = simplify(make("sum", simplify(make("cast", w, dtype=dt.int32)), axes=axes))
        start = simplify(make("mul", total, const(np.full(o, -least, np.int32))))
        if deep:
            start = simplify(make("cast", start, dtype=dt.float32))
        window = {**params, "zero": int(least)}
        return call(CONV, codes, w, start, where=where, **window)

    def _product(self, node: Node) -> Node | None:
        """a[..., M, K] times a matrix [K, N] that follows from weights: of reals, or of codes."""
        a, b = node.inputs
        if b.op == "broadcast" and b.inputs[0].size == math.prod(b.shape[-2:]):
            b = simplify(make("reshape", b.inputs[0], shape=b.shape[-2:]))
            b = self._sunk(b)
        whole = a.dtype in BYTES and b.dtype == dt.int8 and node.dtype == dt.int32
        reals = is_call(a, DEQUANTIZE) and is_call(b, DEQUANTIZE)
        if math.prod(b.shape[:-2]) != 1 or not node.size or not (reals or whole):
            return None
        (k, n), rows = b.shape[-2:], math.prod(a.shape[:-1])
        line = self._sunk(simplify(make("reshape", a, shape=(1, rows, k))))
        line = self._sunk(make("transpose", line, perm=(0, 2, 1)))
        b = self._sunk(simplify(make("reshape", b, shape=(k, n))))
        b = self._sunk(make("transpose", b, perm=(1, 0)))
        b = self._sunk(make("reshape", b, shape=(n, k, 1)))
        params = {"stride": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
        made: Node | None = None
        if reals:
            made = self._codes(line, b, params, False, node.where)
        elif self._fixed(b):
            made = self._sums(line, 0, b, params, False, node.where)
        if made is None:
            return None
        made = simplify(make("transpose", made, perm=(0, 2, 1)))
        return simplify(make("reshape", made, shape=node.shape))

    def _sunk(self, node: Node) -> Node:
        """Movement below a dequantize_linear, where it can be."""
        below = node.op in _MOVES and any(is_call(x, DEQUANTIZE) for x in node.inputs)
        return (_MOVES[node.op](node) or node) if below else node


def filled_like(number: float, x: Node) -> Node:
    return filled(np.asarray(number, x.dtype.numpy), x.shape)


def _int(number: float, dtype: DType, shape: tuple[int, ...]) -> Node:
    return filled(np.asarray(int(number), dtype.numpy), shape)


def _times(x: Node, by: float) -> Node:
    """x * by below what repeats its elements."""
    if (number := _number(x)) is not None:
        return filled_like(number * by, x)
    if x.op in ("broadcast", "reshape", "transpose"):
        return simplify(remake(x, (_times(x.inputs[0], by),)))
    return make("mul", x, filled_like(by, x))


def _same(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """True if scale and zero point are known to equal the other's, and the scale is positive."""
    pairs = [(_number(x), _number(y)) for x, y in zip(a, b)]
    known = all(x is not None and x == y for x, y in pairs)
    scale = pairs[0][0]
    return known and a[1].dtype == b[1].dtype and scale is not None and 1e-30 < scale < 1e30


def _turned(codes: Node) -> Node:
    """Codes of the other sign."""
    other, by = (dt.uint8, _HALF) if codes.dtype == dt.int8 else (dt.int8, -_HALF)
    wide = make("cast", codes, dtype=dt.int32)
    return make("cast", make("add", wide, filled_like(by, wide)), dtype=other)


def _before_turn(codes: Node) -> Node | None:
    """Returns the codes from which `_turned` made these, or None."""
    if codes.op != "cast" or codes.inputs[0].op != "add":
        return None
    wide, by = codes.inputs[0].inputs
    if wide.op != "cast" or wide.dtype != dt.int32 or wide.inputs[0].dtype not in BYTES:
        return None
    wanted = _HALF if codes.dtype == dt.uint8 else -_HALF
    turned = _number(by) == wanted and {codes.dtype, wide.inputs[0].dtype} == {*BYTES}
    return wide.inputs[0] if turned else None


def _signed(w: Node) -> Node | None:
    """The weights' int8 codes, with a zero point of 0; None for others. Scales are one for all, or
    one per output."""
    codes, scale, zero = w.inputs
    per_output = scale.size == 1 or (
        len(scale.shape) == len(w.shape) and scale.size == scale.shape[0]
    )
    least = _number(zero)
    if not per_output or least is None:
        return None
    if codes.dtype == dt.int8:
        return codes if least == 0 else None
    return _turned(codes) if codes.dtype == dt.uint8 and least == _HALF else None


# -- movement of what was dequantized -------------------------------------------------------------


def _moved(node: Node) -> Node | None:
    """reshape, transpose, slice or pad of dequantize_linear as dequantize_linear of that."""
    codes, scale, zero = node.inputs[0].inputs
    parts = []
    for part in (scale, zero):
        if part.size == 1:
            parts.append(simplify(make("reshape", part, shape=())))
        elif node.op == "transpose":
            parts.append(simplify(make("transpose", part, perm=node.attrs["perm"])))
        elif node.op == "reshape" and (kept := _kept(part, node)) is not None:
            parts.append(kept)
        else:
            return None
    attrs = dict(node.attrs)
    if node.op == "pad":
        least = _number(zero)
        if node.attrs["value"] != 0 or least is None:
            return None
        attrs["value"] = int(least)
    return call(DEQUANTIZE, simplify(make(node.op, codes, **attrs)), *parts, where=node.where)


def _pooled(node: Node) -> Node | None:
    """max_pool of what has one positive scale: the largest of the codes."""
    codes, scale, zero = node.inputs[0].inputs
    by = _number(scale)
    if by is None or not 0 < by < math.inf or zero.size != 1:
        return None
    made = call("max_pool", codes, where=node.where, **node.attrs["params"])
    parts = (simplify(make("reshape", p, shape=())) for p in (scale, zero))
    return call(DEQUANTIZE, made, *parts, where=node.where)


def _kept(part: Node, node: Node) -> Node | None:
    """One number per slice of axis 0 after a reshape that keeps this axis."""
    old, new = node.inputs[0].shape, node.shape
    if part.size != part.shape[0] or old[0] != new[0]:
        return None
    return simplify(make("reshape", part, shape=(new[0], *([1] * (len(new) - 1)))))


def _joined(node: Node) -> Node | None:
    """concat of what has one scale and zero point."""
    first = node.inputs[0].inputs[1:]
    if not all(is_call(x, DEQUANTIZE) and _same(x.inputs[1:], first) for x in node.inputs):
        return None
    codes = make("concat", *(x.inputs[0] for x in node.inputs), **node.attrs)
    parts = (simplify(make("reshape", p, shape=())) for p in first)
    return call(DEQUANTIZE, codes, *parts, where=node.where)


_MOVES = {
    "reshape": _moved, "transpose": _moved, "slice": _moved, "pad": _moved, "concat": _joined,
}  # fmt: skip
