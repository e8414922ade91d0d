"""Iteration spaces: which axes collapse into one loop, and the loops themselves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from weft.core.caps import Caps
from weft.core.records import dataclass
from weft.graph.ir import Node, Shape
from weft.kernel import expr as kb, ir
from weft.kernel.builder import Builder
from weft.kernel.ir import I32, Expr
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.view import Index

Body = Callable[[Affine], None]
STRETCHES = 8  # parts of a loop that have code of their own
Bound = Expr | int  # a loop's end or an extent: known now, or when the kernel runs


@dataclass(frozen=True)
class Space:
    """The axes of `shape` collapsed into as few loops as the accesses allow.

    Loop k runs over `dims[k]` values and covers the axes `spans[k]` = (first, last + 1) of the
    shape; axes of size 1 take part in none. `probed` holds the affine values that one element's
    code uses, over the symbols of `axes`; `loads` those that are addresses of loads. `tests` are
    the values of which the code asks if they lie between two numbers.
    """

    shape: Shape
    dims: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    axes: tuple[Affine, ...]
    probed: tuple[Affine, ...]
    loads: tuple[Affine, ...] = ()
    tests: tuple[tuple[Affine, int, int], ...] = ()

    def index(self, coords: Sequence[Affine]) -> Index:
        """The index on every axis of the shape, given one coordinate per loop."""
        out = [affine.ZERO] * len(self.shape)
        for c, (first, stop) in zip(coords, self.spans):
            out[first:stop] = affine.unflatten(c, self.shape[first:stop])
        return tuple(out)

    @property
    def unit_inner(self) -> bool:
        """True if consecutive values of the last loop touch only consecutive or equal elements."""
        if not self.spans:
            return False
        last = self.axes[self.spans[-1][1] - 1]
        (sym, _), *_ = last.terms
        nested = any(_mentions(s.src, sym) for x in self.probed for s, _ in x.terms if s.src)
        return not nested and all(x.coefficient(sym) in (0, 1) for x in self.probed)

    def stretches(self, least: int) -> list[tuple[int, int]]:
        """Parts of the last loop (start, stop) inside which no test of its number changes. There
        are a few of at least `least` values, or one of all."""
        if not self.dims:
            return [(0, 1)]
        whole, (first, stop) = self.dims[-1], self.spans[-1]
        number = affine.flatten(self.axes[first:stop], affine.contiguous(self.shape[first:stop]))
        cuts = {0, whole}
        for x, low, high in self.tests:
            if x.terms == number.terms:
                cuts |= {end - x.const for end in (low, high) if 0 < end - x.const < whole}
        ends = sorted(cuts)
        parts = list(itertools.pairwise(ends))
        if len(parts) > STRETCHES or min(b - a for a, b in parts) < least:
            return [(0, whole)]
        return parts


def _mentions(x: Affine | None, sym: affine.Sym) -> bool:
    return x is not None and any(s == sym or _mentions(s.src, sym) for s, _ in x.terms)


def probe(
    group: Group,
    caps: Caps,
    shape: Shape,
    emit: Callable[[Emitter, Index], object],
    kinds: Sequence[object] | None = None,
) -> Space:
    """Emits one element's code into a scratch kernel and collapses the axes that every access
    walks through as one. Axes of different `kinds` (one entry per axis) never join."""
    em = Emitter(Builder("probe"), group, caps)
    axes = tuple(em.axis(ir.Var(f"axis{i}", I32), d) for i, d in enumerate(shape))
    emit(em, axes)
    spans: list[tuple[int, int]] = []
    for i, d in enumerate(shape):
        if d == 1:
            continue
        outer = spans[-1][1] - 1 if spans else None
        alike = outer is not None and (kinds is None or kinds[outer] == kinds[i])
        if outer is not None and alike and _joins(em.addresses, axes, shape, outer, i):
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
    dims = tuple(math.prod(shape[a:z]) for a, z in spans)
    used = tuple(em.addresses), tuple(em.loads), tuple(em.tests)
    return Space(shape, dims, tuple(spans), axes, *used)


def _joins(uses: Sequence[Affine], axes: Index, shape: Shape, outer: int, inner: int) -> bool:
    (o, _), *_ = axes[outer].terms
    (i, _), *_ = axes[inner].terms
    return all(x.coefficient(o) == x.coefficient(i) * shape[inner] for x in uses)


def bounded_rows(group: Group, extent: int) -> Bound:
    """Returns the number of rows of axis 0, of `extent` in all, that a run wants."""
    if group.rows is None:
        return extent
    rows = ir.Param(group.rows, group.slots[group.rows]) * group.rows_scale
    return kb.minimum(rows, extent)


def first_extent(group: Group, space: Space) -> Bound:
    """The run-time extent of the space's first loop (axis 0 is its outermost axis)."""
    dims, shape = space.dims, space.shape
    if not dims or space.spans[0][0] != 0:
        return dims[0] if dims else 1
    return bounded_rows(group, shape[0]) * (dims[0] // shape[0])


def vector_loop(
    em: Emitter,
    start: Bound,
    stop: Bound,
    extent: int,
    body: Body,
    lanes: int,
    unroll: int = 1,
    pair: int = 1,
) -> None:
    """Calls `body(index with lanes)` for start <= index < stop < extent, `lanes` at a time.

    The main loop is unrolled (`pair` vectors become one with `pair` times the lanes). The rest uses
    masked lanes where vectors are wide, else single elements. `start` must be a multiple of
    `lanes`; the body runs inside its own scope and mask.
    """
    b, wide = em.b, lanes * unroll
    if isinstance(start, int) and isinstance(stop, int):
        length = stop - start
        main, full = start + length // wide * wide, start + length // lanes * lanes
        if main > start:
            _vectors(em, start, main, extent, body, lanes, unroll, pair)
        if full > main:
            _vectors(em, main, full, extent, body, lanes, 1)
        _rest(em, full, stop, extent, body, lanes, lanes >= 16 and stop - full > 1)
        return
    steps = (stop - start) // wide * wide
    middle = b.let(start + steps, "main")
    _vectors(em, start, middle, extent, body, lanes, unroll, pair)
    if lanes >= 16:
        _rest(em, middle, stop, extent, body, lanes, True)
        return
    last = b.let(start + (stop - start) // lanes * lanes, "full")
    _vectors(em, middle, last, extent, body, lanes, 1)
    _rest(em, last, stop, extent, body, lanes, False)


def _vectors(
    em: Emitter,
    start: Bound,
    stop: Bound,
    extent: int,
    body: Body,
    lanes: int,
    times: int,
    pair: int = 1,
) -> None:
    lanes, times = lanes * pair, times // pair
    with em.b.loop(stop, start, lanes * times) as i, em.scope():
        at = em.axis(i, max(extent - lanes * times, 0) + 1, lanes)
        for u in range(times):
            with em.masked(None):
                body(at + u * lanes + em.lane(lanes))


def _rest(
    em: Emitter,
    start: Bound,
    stop: Bound,
    extent: int,
    body: Body,
    lanes: int,
    masked: bool,
) -> None:
    if isinstance(start, int) and start == stop:
        return
    if not masked:
        with em.b.loop(stop, start, 1) as i, em.scope():
            body(em.axis(i, extent))
        return
    with em.b.loop(stop, start, lanes) as i, em.scope():
        left = kb.as_expr(stop) - i
        with em.masked(em.b.let(kb.binary("lt", kb.iota(lanes), left), "mask")):
            body(em.axis(i, (extent - 1) // lanes * lanes + 1, lanes) + em.lane(lanes))


def useful_lanes(caps: Caps, n: int) -> int:
    """The widest vector worth using on n consecutive elements."""
    lanes = caps.lanes
    while lanes > 1 and lanes // 2 >= n:
        lanes //= 2
    return lanes


def traffic(group: Group) -> int:
    """Returns the least bytes a kernel moves at full size: each output written once, each input
    read once. A gathered or sliced input counts only the taken elements, and an update in place
    only its rows."""
    inputs = {id(n): n for n in group.inputs}
    in_place = {id(group.outputs[k]) for k in group.in_place}
    shares: dict[int, float] = {}  # what part of each value is wanted
    read: dict[tuple[int, int], tuple[int, float]] = {}  # by user and operand
    stack = [(n, 1.0) for n in group.outputs]
    while stack:
        node, share = stack.pop()
        if id(node) in inputs or share <= shares.get(id(node), 0.0):
            continue
        shares[id(node)] = share
        for k, x in enumerate(node.inputs):
            part = 1.0 if k else _taken(node, share)
            stack.append((x, part))
            written = not k and id(node) in in_place
            read[id(node), k] = id(x), 0.0 if written else part * x.nbytes
    totals: dict[int, float] = dict.fromkeys(inputs, 0.0)
    for i, nbytes in read.values():
        if i in totals:
            totals[i] = min(totals[i] + nbytes, inputs[i].nbytes)
    return round(sum(totals.values())) + sum(_written(n, id(n) in in_place) for n in group.outputs)


_WHOLE = ("reshape", "transpose", "cast")  # ops with every element of their operand


def _taken(node: Node, share: float) -> float:
    """Returns the part of a node's first operand that `share` of its elements need."""
    if node.op in ("gather", "slice"):
        return min(share * node.size / max(node.inputs[0].size, 1), 1.0)
    return share if node.op in _WHOLE else 1.0


def _written(node: Node, in_place: bool) -> int:
    return node.inputs[2].nbytes if in_place and node.op == "update" else node.nbytes


def kernel_name(group: Group) -> str:
    """The group's name as an identifier."""
    name = group.name or (group.anchor.op if group.anchor else group.outputs[0].op)
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
