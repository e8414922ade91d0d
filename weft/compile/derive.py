"""Computes values that follow from weights alone once, when a Program is bound.

The scales of a batch norm move into the weights of the convolution before it, and its rest is one
shift per channel. Weights are put in the order of kernels (compile/channels_last). All this becomes
formulas of the Program (program/formula) where `graph.meta["frozen"]` promises that weights never
change. Views that kernels read in place stay unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from weft.core.caps import Caps
from weft.graph.ir import Graph, Node, toposort
from weft.ops import codes
from weft.ops.conv_last import CONV, DEPTHWISE
from weft.ops.winograd import WINOGRAD
from weft.program.formula import Formula, FormulaStep, takes
from weft.templates.view import PURE
from weft.transform.fold import simplify
from weft.transform.rebuild import kind_of, make, remake, rewrite, users

_FLOATS = (CONV, DEPTHWISE, WINOGRAD)
_CONVS = (*_FLOATS, codes.CONV_LAST, codes.DEPTHWISE_LAST)
NUMBERS = 64  # elements of a constant that a formula holds at most


def derive(graph: Graph, caps: Caps) -> Graph:
    """The graph of frozen weights with scales folded into convolutions, and with derived weights
    for what follows from weights. Others, and graphs without convolutions, stay as they are."""
    convs = (n for n in graph.nodes() if _is_conv(n))
    if not graph.meta.get("frozen") or next(convs, None) is None:
        return graph
    return _Derived(_scaled(graph)).graph()


def _is_conv(node: Node, names: tuple[str, ...] = _CONVS) -> bool:
    return node.op == "call" and node.attrs["name"] in names


def fixed(graph: Graph) -> set[int]:
    """The ids of values that follow from weights bound whole, and constants, by primitives."""
    found: set[int] = set()
    for node in graph.nodes():
        if node.op == "input":
            plain = node.attrs["role"] == "weight" and not {"part", "interleave"} & set(node.attrs)
            found |= {id(node)} if plain else set()
        elif _steps(node) and (node.op != "const" or node.size <= NUMBERS):
            found |= {id(node)} if all(id(x) in found for x in node.inputs) else set()
    return found


def _steps(node: Node) -> bool:
    """True if formulas have a step for this node."""
    if not node.inputs:
        return takes(node.op, None, node.dtype)
    x = node.inputs[0]
    return takes(node.op, x.dtype, node.dtype, x.size // max(node.size, 1))


# -- scales ---------------------------------------------------------------------------------------


def _scaled(graph: Graph) -> Graph:
    """(conv(x, w) + b) * s as conv(x, w * s) + b * s where b (or none) and s are fixed numbers per
    channel, and sums of several such b as one."""
    known, read = fixed(graph), users(graph)
    roots = {id(x) for x in graph.roots()}
    shifted: dict[int, tuple[Node, Node, Node]] = {}  # a sum (by id), its convolution and row

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        for i in (0, 1) if node.op in ("add", "mul") else ():
            old, new, other = node.inputs[i], inputs[i], node.inputs[1 - i]
            row = _per_channel(inputs[1 - i]) if id(other) in known else None
            if row is None or len(read[id(old)]) > 1 or id(old) in roots:
                continue
            plain = _is_conv(new, _FLOATS)
            conv, shift = (new, None) if plain else shifted.get(id(new), (None,) * 3)[1:]
            if conv is None:
                continue
            if shift is not None:
                shift = make(node.op, shift, row)
            if node.op == "mul":
                conv = _times(conv, row)
                return conv if shift is None else _plus(conv, shift, shifted)
            return _plus(conv, row if shift is None else shift, shifted)
        return remake(node, inputs)

    return rewrite(graph, visit)


def _plus(conv: Node, row: Node, shifted: dict[int, tuple[Node, Node, Node]]) -> Node:
    """The sum of a convolution and a row, noted in `shifted`."""
    made = make("add", conv, make("broadcast", row, shape=conv.shape), where=conv.where)
    shifted[id(made)] = made, conv, row
    return made


def _per_channel(node: Node) -> Node | None:
    """The row [C] that `node` repeats for every place, or None."""
    if not node.shape:  # the operand of a product of two numbers
        return None
    channels = node.shape[-1]
    # with a single place, the row is not repeated
    source = node.inputs[0] if node.op == "broadcast" else node
    if source.size == 1:
        flat = simplify(make("reshape", source, shape=(1,)))
        return simplify(make("broadcast", flat, shape=(channels,)))
    if source.shape[-1] != channels or source.size != channels:
        return None
    return simplify(make("reshape", source, shape=(channels,)))


def _times(conv: Node, row: Node) -> Node:
    """The convolution with each output's weights times its number in `row`."""
    x, w = conv.inputs
    if conv.attrs["name"] != DEPTHWISE:  # weights [..., bands, K, lanes]
        bands, _, lanes = w.shape[-3:]
        more = bands * lanes - row.shape[0]
        row = simplify(make("pad", row, low=(0,), high=(more,), value=0.0))
        lead = (1,) * (len(w.shape) - 3)
        row = simplify(make("reshape", row, shape=(*lead, bands, 1, lanes)))
    wide = simplify(make("broadcast", row, shape=w.shape))
    return remake(conv, (x, make("mul", w, wide)))


# -- derived weights ------------------------------------------------------------------------------


class _Derived:
    def __init__(self, graph: Graph) -> None:
        self.old, self.known = graph, fixed(graph)
        self.made: dict[str, Node] = {}  # keyed by a name that describes the inputs

    def graph(self) -> Graph:
        def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
            if id(node) in self.known:
                return remake(node, inputs)
            found = list(inputs)
            for i, x in enumerate(node.inputs):
                if id(x) in self.known:
                    found[i] = self._over(x, _is_conv(node) and i > 0)
            return remake(node, tuple(found))

        graph = rewrite(self.old, visit)
        return replace(graph, inputs=(*graph.inputs, *self.made.values()))

    def _over(self, node: Node, whole: bool) -> Node:
        """`node`, made of derived weights: what repeats elements stays above them."""
        if node.op in PURE and node.inputs[0].size < node.size:
            return remake(node, (self._over(node.inputs[0], False),))
        order = list(toposort((node,)))
        inputs = [x for x in order if x.op == "input"]
        moves = all(kind_of(x) in ("source", "movement") for x in order)
        if node.op in ("input", "const") or not inputs or (moves and not whole):
            return node
        made = _derived(node, inputs, order)
        return self.made.setdefault(made.attrs["name"], made)


def _derived(node: Node, inputs: list[Node], order: list[Node]) -> Node:
    """A weight with the formula of `node`."""
    number = {id(x): i for i, x in enumerate(inputs)}
    steps = []
    for x in order:
        if id(x) in number:
            continue
        attrs: Mapping[str, object] = x.attrs
        if x.op == "const":
            value = x.attrs["value"]
            numbers = tuple(value.reshape(-1).tolist())
            attrs = {"value": numbers, "dtype": x.dtype.name, "shape": value.shape}
        if x.op == "cast":
            attrs = {"dtype": x.dtype.name}
        number[id(x)] = len(number)
        steps.append(FormulaStep(x.op, tuple(number[id(y)] for y in x.inputs), attrs))
    sources = tuple((x.attrs["name"], x.shape, x.dtype.name) for x in inputs)
    formula = Formula(sources, tuple(steps))
    text = json.dumps(formula.plain(), sort_keys=True)
    label = f"{sources[0][0]}@{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    attrs = {"name": label, "role": "weight", "formula": formula}
    return Node("input", (), attrs, node.shape, node.dtype, where=node.where)
