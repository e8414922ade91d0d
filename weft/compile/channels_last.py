"""Images with their channels last: the memory layout of convolutions.

A convolution's kernel reads neighbouring channels of one place, and writes neighbouring channels of
another. With channels last both are one stream, and no window matrix is written. So each `conv`
becomes a `conv_last` on its operand's transpose. Transposes move down the graph, past
elementwise ops, pools and means, until they meet each other or a node that needs the old order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Graph, Node, toposort
from weft.ops import codes
from weft.ops.composite import COMPOSITES, body_graph
from weft.ops.conv_last import CONV, DEPTHWISE
from weft.ops.primitive import Aval
from weft.ops.winograd import TILE, WEIGHTS, WINOGRAD
from weft.templates.conv.sizes import bands, fewer_products, shape_of
from weft.templates.registry import claimed_by
from weft.transform.fold import simplify
from weft.transform.inline import inline
from weft.transform.rebuild import const, kind_of, make, remake

LAST = (0, 2, 3, 1)  # axes of [N, C, H, W] in the order [N, H, W, C]
FIRST = (0, 3, 1, 2)
OFTEN = 128  # results per channel that pay for new bands of weights


def channels_last(graph: Graph, caps: Caps) -> Graph:
    """The graph whose convolutions by weights read and write channels last; every other `conv` is
    replaced by its body."""
    if any(_is(node, "conv", codes.CONV) for node in graph.nodes()):
        graph = _Moves(graph, caps).graph()
    return inline(graph, lambda node: claimed_by(node, caps) is not None)


def _is(node: Node, *names: str) -> bool:
    return node.op == "call" and node.attrs["name"] in names


def call(name: str, *inputs: Node, where: str = "", **params: Any) -> Node:
    """A call node of a composite."""
    avals = tuple(Aval(x.shape, x.dtype) for x in inputs)
    found = COMPOSITES[name].abstract(*avals, **params)
    assert isinstance(found, Aval)
    body = body_graph(name, avals, params)
    attrs = {"name": name, "params": params}
    return Node("call", inputs, attrs, found.shape, found.dtype, body, where)


def _transposed(node: Node, perm: Sequence[int]) -> Node:
    return simplify(make("transpose", node, perm=tuple(perm)))


class _Moves:
    """The rewriting: `new` has each value as it was, `moved` also as (base, perm) where it is the
    transpose of a base that is at hand."""

    def __init__(self, graph: Graph, caps: Caps) -> None:
        self.old, self.caps = graph, caps
        self.new: dict[int, Node] = {id(x): x for x in graph.inputs}
        self.moved: dict[int, tuple[Node, tuple[int, ...]]] = {}
        self.fixed: set[int] = set()  # values that follow from weights alone

    def graph(self) -> Graph:
        g = self.old
        # Convolutions first: what else reads their images, such as gradients, finds them moved.
        convs = [node for node in g.nodes() if _is(node, "conv", codes.CONV)]
        for node in toposort((*convs, *g.roots())):
            if self._follows_weights(node):
                self.fixed.add(id(node))
            if id(node) in self.new:
                continue
            if (found := self._move(node)) is not None:
                base, perm = found
                if perm == tuple(range(len(perm))):
                    self.new[id(node)] = base
                else:
                    self.moved[id(node)] = base, perm
            else:
                inputs = tuple(map(self._plain, node.inputs))
                self.new[id(node)] = simplify(remake(node, inputs))
        outputs = tuple(map(self._plain, g.outputs))
        assigns = tuple((state, self._plain(x)) for state, x in g.assigns)
        return Graph(g.inputs, outputs, assigns, g.name, g.meta)

    def _follows_weights(self, node: Node) -> bool:
        if not node.inputs:
            return node.op == "const" or node.attrs.get("role") == "weight"
        return all(id(x) in self.fixed for x in node.inputs)

    def _plain(self, node: Node) -> Node:
        if id(node) not in self.new:
            self.new[id(node)] = _transposed(*self.moved[id(node)])
        return self.new[id(node)]

    def _as(self, node: Node, perm: tuple[int, ...]) -> Node:
        """The base of which `node` is the transpose by `perm`."""
        base, known = self.moved.get(id(node), (None, None))
        if base is not None and known == perm:
            return base
        back = [perm.index(i) for i in range(len(perm))]
        if node.op == "broadcast" and id(node) not in self.new:
            return self._broadcast(node, back)
        found = self._plain(node)
        if found.op == "broadcast":
            return _broadcast_as(found.inputs[0], found.shape, back)
        return _transposed(found, back)

    def _broadcast(self, node: Node, back: Sequence[int]) -> Node:
        return _broadcast_as(self._plain(node.inputs[0]), node.shape, back)

    # -- rules, each the (base, perm) of a node's value

    def _move(self, node: Node) -> tuple[Node, tuple[int, ...]] | None:
        if _is(node, "conv", codes.CONV):
            return self._conv(node)
        perm = next((self.moved[id(x)][1] for x in node.inputs if id(x) in self.moved), None)
        if perm is None or not node.size:
            return None
        kind = kind_of(node)
        if kind == "elementwise":
            made = simplify(remake_as(node, tuple(self._as(x, perm) for x in node.inputs), perm))
            return made, perm
        rule = getattr(self, f"_{node.op}", None)
        if rule is None or node.op in ("conv", "broadcast"):
            return self._widened(node, perm) if node.op == "broadcast" else None
        found: tuple[Node, tuple[int, ...]] | None = rule(node, perm)
        return found

    def _widened(self, node: Node, perm: tuple[int, ...]) -> tuple[Node, tuple[int, ...]] | None:
        """A broadcast along axes that the operand has."""
        if len(node.inputs[0].shape) != len(node.shape):
            return None
        shape = _base_shape(node.shape, perm)
        return simplify(make("broadcast", self._as(node.inputs[0], perm), shape=shape)), perm

    def _reshape(self, node: Node, perm: tuple[int, ...]) -> tuple[Node, tuple[int, ...]] | None:
        """Moves a transpose past a reshape whose split or joined axes are adjacent in the base."""
        runs = [(tuple(perm[a] for a in old), new) for old, new in _runs(node)]
        if any(spots != tuple(range(spots[0], spots[0] + len(spots))) for spots, _ in runs):
            return None
        order = [a for _, new in sorted(runs) for a in new]
        base = self._as(node.inputs[0], perm)
        made = _reshaped(base, tuple(node.shape[a] for a in order))
        return made, tuple(order.index(a) for a in range(len(order)))

    def _pad(self, node: Node, perm: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
        sides: dict[str, Any] = {k: _base_shape(node.attrs[k], perm) for k in ("low", "high")}
        base = self._as(node.inputs[0], perm)
        return simplify(make("pad", base, **sides, value=node.attrs["value"])), perm

    def _slice(self, node: Node, perm: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
        cut: dict[str, Any] = {
            k: _base_shape(node.attrs[k], perm) for k in ("starts", "stops", "steps")
        }
        return simplify(make("slice", self._as(node.inputs[0], perm), **cut)), perm

    def _concat(self, node: Node, perm: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
        parts = [self._as(x, perm) for x in node.inputs]
        return simplify(make("concat", *parts, axis=perm[node.attrs["axis"]])), perm

    def _sum(self, node: Node, perm: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
        """A sum over some axes: those left keep their new order."""
        axes = {perm[a] for a in node.attrs["axes"]}
        base = self._as(node.inputs[0], perm)
        reduced = make(node.op, base, axes=tuple(sorted(axes)))
        left = [a for a in range(len(perm)) if a not in axes]
        kept = [perm[a] for a in range(len(perm)) if a not in node.attrs["axes"]]
        return simplify(reduced), tuple(left.index(a) for a in kept)

    _max = _sum

    def _gather(self, node: Node, perm: tuple[int, ...]) -> tuple[Node, tuple[int, ...]] | None:
        """Slices along one axis, by a line of numbers."""
        x, index = node.inputs
        if id(x) not in self.moved or len(index.shape) != 1:
            return None
        made = make("gather", self._as(x, perm), self._plain(index), axis=perm[node.attrs["axis"]])
        return simplify(made), perm

    # -- convolutions

    def _conv(self, node: Node) -> tuple[Node, tuple[int, ...]] | None:
        x, w, *more = node.inputs
        params = node.attrs["params"]
        depthwise = w.shape[1] == 1 and params["groups"] == x.shape[1] == w.shape[0]
        often = id(w) in self.fixed or (not depthwise and _pays(node))
        wanted = often and len(w.shape) in (3, 4) and (bool(more) or node.dtype == dt.float32)
        if not wanted or not (params["groups"] == 1 or depthwise) or not (node.size and x.size):
            return None
        rank = len(w.shape) - 2
        perm = LAST if rank == 2 else (0, 2, 1)
        back = FIRST if rank == 2 else (0, 2, 1)
        base, weight = self._as(x, back), self._plain(w)
        lead = (1,) * (2 - rank)  # a line is an image of one row
        image = _reshaped(base, (base.shape[0], *lead, *base.shape[1:]))
        window: dict[str, Any] = {
            "kernel": (*lead, *w.shape[2:]), "stride": (*lead, *params["stride"]),
            "padding": ((0, 0),) * len(lead) + tuple(params["padding"]),
            "dilation": (*lead, *params["dilation"]),
        }  # fmt: skip
        if more:
            window["zero"] = params["zero"]
        places, start = math.prod(w.shape[2:]), tuple(map(self._plain, more))
        if depthwise and node.dtype == dt.float32:
            kernel = _transposed(_reshaped(weight, (w.shape[0], places)), (1, 0))
            name = codes.DEPTHWISE_LAST if more else DEPTHWISE
            made = call(name, image, kernel, *start, where=node.where, **window)
        else:
            ordered = _transposed(weight, perm)
            if more:
                image, ordered = (_in_fours(v, 0) for v in (image, ordered))
            rows = _reshaped(ordered, (w.shape[0], places * image.shape[-1]))
            banded = _banded(rows, *bands(w.shape[0], self.caps), codes.FOUR if more else 1)
            name, window["channels"] = codes.CONV_LAST if more else CONV, w.shape[0]
            made = call(name, image, banded, *start, where=node.where, **window)
            # frozen weights: the matrices are not computed in each run
            if name == CONV and self.old.meta.get("frozen") and fewer(made, self.caps):
                made = self._fewer(image, weight, node, window["padding"])
        if claimed_by(made, self.caps) is None:
            return None
        self.moved.setdefault(id(x), (base, back))  # in memory now: its other users read it so too
        return _reshaped(made, (node.shape[0], *node.shape[2:], node.shape[1])), back

    def _fewer(self, image: Node, weight: Node, node: Node, padding: Any) -> Node:
        """The convolution with fewer products (ops/winograd)."""
        outputs = weight.shape[0]
        made = _matrices(weight, *bands(outputs, self.caps))
        return call(WINOGRAD, image, made, where=node.where, channels=outputs, padding=padding)


def _pays(node: Node) -> bool:
    """True if a conv by weights that a run computes is worth their bands in each run: where there
    are many results, of windows that overlap (others are no more than x in another order)."""
    w, params = node.inputs[1], node.attrs["params"]
    overlap = any(k > s for k, s in zip(w.shape[2:], params["stride"]))
    return overlap and node.size >= OFTEN * w.shape[0]


def fewer(node: Node, caps: Caps) -> bool:
    """True if a `conv_last` should become a `winograd_last`."""
    return fewer_products(shape_of(node), caps)


def remake_as(node: Node, inputs: tuple[Node, ...], perm: Sequence[int]) -> Node:
    """An elementwise node over the bases of its operands."""
    return Node(node.op, inputs, node.attrs, inputs[0].shape, node.dtype, node.body, node.where)


def _runs(node: Node) -> list[tuple[list[int], list[int]]]:
    """The axes of a reshape's operand and of its result that hold the same elements, run by run."""
    old, new = node.inputs[0].shape, node.shape
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        left, right = [i], [j]
        while (a := math.prod(old[k] for k in left)) != (b := math.prod(new[k] for k in right)):
            (left if a < b else right).append((left if a < b else right)[-1] + 1)
        runs.append((left, right))
        i, j = left[-1] + 1, right[-1] + 1
    if runs:  # remaining axes of one element
        runs[-1][0].extend(range(i, len(old)))
        runs[-1][1].extend(range(j, len(new)))
    return runs


def _base_shape(sizes: Sequence[Any], perm: Sequence[int]) -> tuple[Any, ...]:
    """Returns values given per axis of transpose(base, perm), reordered per axis of the base."""
    found = [None] * len(perm)
    for size, axis in zip(sizes, perm):
        found[axis] = size
    return tuple(found)


def _broadcast_as(source: Node, shape: Sequence[int], back: Sequence[int]) -> Node:
    """transpose(broadcast(source, shape), back), with the transpose below."""
    full = _reshaped(source, (1,) * (len(shape) - len(source.shape)) + source.shape)
    small, wide = _transposed(full, back), tuple(shape[i] for i in back)
    return simplify(make("broadcast", small, shape=wide))


def _reshaped(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else simplify(make("reshape", node, shape=shape))


def _in_fours(node: Node, value: int) -> Node:
    """Zeros after the last axis, up to a multiple of four."""
    more = -node.shape[-1] % codes.FOUR
    if not more:
        return node
    none = (0,) * (len(node.shape) - 1)
    return simplify(make("pad", node, low=(*none, 0), high=(*none, more), value=value))


def _banded(rows: Node, count: int, lanes: int, pack: int) -> Node:
    """rows[O, K] as [count, K, lanes], or [count, K / pack, lanes, pack]: bands of `lanes` rows,
    zeros beyond the last."""
    o, k = rows.shape
    more = (count * lanes - o, 0)
    padded = rows if more == (0, 0) else make("pad", rows, low=(0, 0), high=more, value=0.0)
    if pack == 1:
        return _transposed(_reshaped(padded, (count, lanes, k)), (0, 2, 1))
    return _transposed(_reshaped(padded, (count, lanes, k // pack, pack)), (0, 2, 1, 3))


def _matrices(w: Node, count: int, lanes: int) -> Node:
    """w[O, C, 3, 3] as the 16 matrices of ops/winograd, each in bands: [16, count, C, lanes]."""
    o, c = w.shape[:2]
    size, places = WEIGHTS.shape
    found = _transposed(w, (2, 3, 0, 1))
    for i in (0, 1):  # each axis in turn: sums over the places of a window
        before, after = found.shape[:i], found.shape[i + 1 :]
        # [..., 4, 3, ...]: what a sum adds lies apart, so that it adds rows
        wide = _reshaped(found, (*before, 1, places, *after))
        wide = make("broadcast", wide, shape=(*before, size, places, *after))
        factor = _reshaped(const(WEIGHTS), (*(1,) * i, size, places, *(1,) * len(after)))
        factor = make("broadcast", factor, shape=wide.shape)
        found = make("sum", make("mul", wide, factor), axes=(i + 1,))
    rows = _reshaped(found, (TILE**2, o, c))
    more = (0, count * lanes - o, 0)
    padded = rows if not any(more) else make("pad", rows, low=(0, 0, 0), high=more, value=0.0)
    return _transposed(_reshaped(padded, (TILE**2, count, lanes, c)), (0, 1, 3, 2))
