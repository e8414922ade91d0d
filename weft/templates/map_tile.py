"""Transposing maps on a CPU: tiles that are transposed in registers.

When every load runs along another axis than the stores, values are computed with lanes along that
axis. The registers are transposed before they are stored, so that each cache line is read and
written once. Tiles are squares of `lanes` vectors. Where the last axis has a few elements (the
channels of a picture), a tile takes all of them, interleaved into one run of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine, Sym
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import Space, kernel_name, traffic
from weft.templates.registers import interleave, transpose_block
from weft.templates.view import Index

THIN = (2, 4, 8)  # elements of a last loop that are interleaved
WOVEN = 8192  # elements per group


def turned_axis(group: Group, caps: Caps, space: Space) -> int | None:
    """The loop of `space` that every load follows instead of the last one; None when tiles would
    not help."""
    axis = _followed(group, space)
    if axis is None:
        return None
    depth, n = space.dims[axis], space.dims[-1]
    large = min(depth, n) >= caps.lanes > 1
    return axis if large or _is_thin(caps, space.dims, axis) else None


def _is_thin(caps: Caps, dims: Sequence[int], axis: int) -> bool:
    """True if the last loop has few elements and `axis` is the one before it."""
    return axis == len(dims) - 2 and dims[-1] in THIN and dims[axis] >= caps.lanes > dims[-1]


def _followed(group: Group, space: Space) -> int | None:
    """Returns a loop other than the last along which all loads are contiguous, if they depend on
    the last."""
    if group.rows is not None or group.in_place or len(space.dims) < 2:
        return None
    syms = [space.axes[stop - 1].terms[0][0] for _, stop in space.spans]
    flat = [x for x in space.loads if any(_reads(x, s) for s in syms)]
    found = {_leading(x, syms) for x in flat if _reads(x, syms[-1])}
    if len(found) != 1 or None in found:
        return None
    (axis,) = found
    assert axis is not None
    others = [x for x in flat if not _reads(x, syms[-1])]
    if any(x.coefficient(syms[axis]) not in (0, 1) for x in others):
        return None
    nested = any(_reads(s.src, syms[axis]) for x in flat for s, _ in x.terms if s.src is not None)
    return axis if axis != len(syms) - 1 and not nested else None


def _reads(x: Affine, sym: Sym) -> bool:
    """True if `sym` counts in x, be it in a quotient or remainder (of interleaved values)."""
    return any(s == sym or (s.src is not None and _reads(s.src, sym)) for s, _ in x.terms)


def _leading(x: Affine, syms: Sequence[Sym]) -> int | None:
    return next((k for k, s in enumerate(syms) if x.coefficient(s) == 1), None)


def build_tiles(group: Group, caps: Caps, space: Space, axis: int, large: Sequence[bool]) -> Kernel:
    """The kernel of a map that follows loop `axis` where it reads."""
    if _is_thin(caps, space.dims, axis):
        return _build_woven(group, caps, space)
    return _build_squares(group, caps, space, axis, large)


def _build_woven(group: Group, caps: Caps, space: Space) -> Kernel:
    """Some `lanes` values of the loop before the last at a time, with all of the last one."""
    b = Builder(kernel_name(group))
    em = Emitter(b, group, caps)
    *outer, depth, n = space.dims
    lanes, stripes = caps.lanes, -(-depth // caps.lanes)
    step = min(stripes, max(1, WOVEN // (lanes * n)))  # stripes per group
    parts = -(-stripes // step)
    place, part = affine.divide(em.axis(b.group(0), math.prod(outer) * parts), parts)
    rest = affine.unflatten(place, outer)
    low = b.let(em.expr(part) * step, "low")
    with b.loop(kb.minimum(low + step, stripes), low, name="s") as s, em.scope():
        first = em.axis(
            kb.minimum(s * lanes, depth - lanes), depth - lanes + 1
        )  # the last one overlaps
        for node in group.outputs:
            _woven(em, node, space, rest, first)
    return b.kernel((math.prod(outer) * parts,), bytes=traffic(group))


def _woven(em: Emitter, node: Node, space: Space, rest: Sequence[Affine], first: Affine) -> None:
    """Computes the vectors of one stripe of an output and stores them as one."""
    shape, lanes = em.group.outputs[0].shape, em.caps.lanes
    depth, n = space.dims[-2:]
    rows: list[Expr] = []
    for c in range(n):
        index = space.index([*rest, first + em.lane(lanes), affine.ZERO + c])
        value = em.value(node, affine.reshape_index(index, shape, node.shape))
        rows.append(em.b.let(kb.splat(value, lanes), "row"))
    while len(rows) > 1:
        half = len(rows) // 2
        rows = [em.b.let(interleave(em.b, *pair), "w") for pair in zip(rows[:half], rows[half:])]
    flat = first * n + em.lane(lanes * n)
    index = space.index([*rest, *affine.unflatten(flat, (depth, n))])
    em.put(node, affine.reshape_index(index, shape, node.shape), rows[0])


def _build_squares(
    group: Group, caps: Caps, space: Space, axis: int, large: Sequence[bool]
) -> Kernel:
    """One group per stripe: `lanes` values of loop `axis`, all of the last loop."""
    b = Builder(kernel_name(group))
    em = Emitter(b, group, caps)
    dims, lanes = space.dims, caps.lanes
    depth, n = dims[axis], dims[-1]
    outer = [d for k, d in enumerate(dims[:-1]) if k != axis]
    stripes = -(-depth // lanes)
    place, stripe = affine.divide(em.axis(b.group(0), math.prod(outer) * stripes), stripes)
    rest = affine.unflatten(place, outer)
    first = stripe * lanes
    left = None
    if depth % lanes:
        left = b.let(depth - em.expr(first), "left")

    def at(i: Affine, j: Affine) -> Index:
        coords = [*rest[:axis], i, *rest[axis:], j]
        return space.index(coords)

    with b.loop(n, step=lanes, name="j") as j, em.scope():
        start = em.axis(j, (n - 1) // lanes * lanes + 1, lanes)
        if n % lanes:  # the last tile overlaps the one before
            start = em.axis(kb.minimum(j, n - lanes), n - lanes + 1)
        for k, node in enumerate(group.outputs):
            stream = large[k] and n % lanes == 0
            _tile(em, node, at, first, start, left, stream)
    return b.kernel((math.prod(outer) * stripes,), bytes=traffic(group))


def _tile(
    em: Emitter,
    node: Node,
    at: Callable[[Affine, Affine], Index],
    first: Affine,
    start: Affine,
    left: Expr | None,
    stream: bool,
) -> None:
    """Computes, turns and stores one square of an output."""
    shape = em.group.outputs[0].shape
    b, lanes = em.b, em.caps.lanes
    mask = None if left is None else b.let(kb.binary("lt", kb.iota(lanes), left), "mask")
    rows: list[Expr] = []
    with em.masked(mask):
        for c in range(lanes):
            index = at(first + em.lane(lanes), start + c)
            value = em.value(node, affine.reshape_index(index, shape, node.shape))
            rows.append(b.let(kb.splat(value, lanes), "row"))
    for r, column in enumerate(transpose_block(b, rows)):
        index = at(first + r, start + em.lane(lanes))
        index = affine.reshape_index(index, shape, node.shape)
        if left is None:
            em.put(node, index, column, stream)
        else:
            with b.when(left > r), em.scope():
                em.put(node, index, column)
