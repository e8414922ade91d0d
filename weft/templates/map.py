"""map: elementwise, movement, gather and concat groups with any number of outputs.

CPU: groups of about 32 KiB per buffer; explicit vectors, unrolled, non-temporal stores for large
outputs. GPU: 16 bytes at a time where accesses allow, several of them per thread in large maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.lanes import vector_lanes
from weft.templates.loops import (
    Bound,
    Space,
    first_extent,
    kernel_name,
    probe,
    traffic,
    useful_lanes,
    vector_loop,
)  # fmt: skip
from weft.templates.map_pieces import build_pieces, pieces
from weft.templates.map_tile import build_tiles, turned_axis
from weft.templates.registry import template
from weft.templates.view import Index

CHUNK = 8192  # elements per group on a CPU: 32 KiB of f32 per buffer
UNROLL = 2
LEAST = 4  # vectors of a part of a row that has code of its own
# Vectors that go as one of twice the lanes where registers are few (measured on AVX2 only): side by
# side each hides what the other waits for, as a processor looks no further than one long chain.
PAIR = 2
FILL = 1024  # groups that a GPU should have before its threads take more than one vector each
Element = Callable[[Sequence[Affine]], None]
NONTEMPORAL_BYTES = 8 << 20  # outputs from this size on bypass the cache


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """Returns the choices of `weft tune` on GPUs whose threads work in subgroups."""
    if not caps.subgroup:
        return []
    return [{"threads": t, "vectors": v} for t in (128, 256, 512) for v in (1, 2, 4)]


@template("barrier")  # a copy of its first operand, in a kernel that waits for the others
@template("map")
def build_map(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group without anchor. Every output has as many elements as the first; one of
    another shape is the first's index reshaped. config: chunk (CPU), threads and vectors (GPU)."""
    shape = group.outputs[0].shape
    if any(o.size != group.outputs[0].size for o in group.outputs):
        raise CompileError("the outputs of a map group must have one size")
    space = probe(group, caps, shape, lambda em, index: store_all(em, group.outputs, index))
    if not caps.is_cpu:
        return _gpu(group, caps, space, config)
    if runs := pieces(group, config.get("chunk", CHUNK)):
        return build_pieces(group, caps, runs)
    axis = turned_axis(group, caps, space)
    if axis is not None:
        return build_tiles(group, caps, space, axis, streams(group, caps))
    return _cpu(group, caps, space, config)


def store_all(
    em: Emitter, outputs: Sequence[Node], index: Index, nontemporal: Sequence[bool] | None = None
) -> None:
    """Computes and stores every output at the same element (indices are reshaped as needed)."""
    shape = outputs[0].shape
    for k, node in enumerate(outputs):
        at = index if node.shape == shape else affine.reshape_index(index, shape, node.shape)
        em.store(node, at, nontemporal is not None and nontemporal[k])


def streams(group: Group, caps: Caps) -> tuple[bool, ...]:
    """Returns, per output, True if it is so large that its stores should bypass the cache."""
    able = "nontemporal" in caps.features
    return tuple(
        able and o.nbytes >= NONTEMPORAL_BYTES and k not in group.in_place
        for k, o in enumerate(group.outputs)
    )


def _cpu(group: Group, caps: Caps, space: Space, config: Mapping[str, Any]) -> Kernel:
    b = Builder(kernel_name(group))
    em = Emitter(b, group, caps)
    dims = space.dims or (1,)
    first = first_extent(group, space)
    lanes = useful_lanes(caps, dims[-1])
    chunk = config.get("chunk", CHUNK)
    large = streams(group, caps)
    pair = PAIR if caps.registers < 32 and space.unit_inner else 1

    def element(coords: Sequence[Affine]) -> None:
        aligned = affine.flatten(coords, affine.contiguous(dims)).aligned(lanes)
        index = space.index(coords[: len(space.dims)])
        store_all(em, group.outputs, index, [aligned and flag for flag in large])

    def row(coords: Sequence[Affine]) -> None:
        """A whole row of the last loop, part by part where pads and pieces begin and end."""
        for start, stop in space.stretches(LEAST * lanes):
            n, part = stop - start, partial(_from, start, coords, element)
            vector_loop(em, 0, n, n, part, lanes, UNROLL, pair)

    if len(dims) == 1:
        grid = _flat(em, dims[0], first, chunk, lanes, pair, element, row)
    else:
        grid = _rows(em, dims, first, chunk, lanes, pair, element, row)
    return b.kernel(grid=(grid,), bytes=traffic(group))


def _from(start: int, coords: Sequence[Affine], element: Element, i: Affine) -> None:
    element([*coords, i + start])


def _flat(
    em: Emitter, n: int, limit: Bound, chunk: int, lanes: int, pair: int, element: Element,
    row: Element,
) -> Bound:  # fmt: skip
    """One loop over all elements, `chunk` to a group."""
    b = em.b
    if n <= chunk and isinstance(limit, int):
        row([])
        return 1
    start = b.let(b.group(0) * chunk, "start")
    block = em.axis(start, n, chunk)
    if n % chunk == 0 and isinstance(limit, int):
        vector_loop(em, 0, chunk, chunk, lambda i: element([block + i]), lanes, UNROLL, pair)
    else:
        size = b.let(kb.minimum(chunk, kb.as_expr(limit) - start), "size")
        vector_loop(em, 0, size, chunk, lambda i: element([block + i]), lanes, UNROLL, pair)
    return kb.ceil_div(limit, chunk)


def _rows(
    em: Emitter, dims: Sequence[int], first: Bound, chunk: int, lanes: int, pair: int,
    element: Element, row: Element,
) -> Bound:  # fmt: skip
    """Rows of the last loop: several to a group when short, parts of one when long."""
    b = em.b
    *outer, n = dims
    total = math.prod(outer)
    rows = first * (total // outer[0])
    if n >= chunk * 2:
        parts = -(-n // chunk)
        size = -(-n // parts)
        size = -(-size // (lanes * UNROLL)) * lanes * UNROLL
        parts = -(-n // size)
        g = em.axis(b.group(0), total * parts)
        number, part = affine.divide(g, parts)
        start = part * size
        coords = affine.unflatten(number, outer)
        stop: Bound = size
        if n % size:
            stop = b.let(kb.minimum(size, n - em.expr(start)), "size")
        vector_loop(em, 0, stop, size, lambda i: element([*coords, start + i]), lanes, UNROLL, pair)
        return rows * parts
    step = max(1, chunk // n)
    low = b.let(b.group(0) * step, "low")
    high = kb.minimum(low + step, rows)
    with b.loop(high, low, name="row") as r, em.scope():
        row(affine.unflatten(em.axis(r, total), outer))
    return kb.ceil_div(rows, step)


def _gpu(group: Group, caps: Caps, space: Space, config: Mapping[str, Any]) -> Kernel:
    b = Builder(kernel_name(group))
    em = Emitter(b, group, caps)
    dims = space.dims or (1,)
    size = math.prod(dims)
    like = [x for x in (*group.inputs, *group.outputs) if x.size == size]
    lanes = vector_lanes(caps, dims[-1], like) if space.unit_inner else 1
    threads = min(config.get("threads", 256), caps.max_threads)
    total = kb.ceil_div(first_extent(group, space) * (size // dims[0]), lanes)
    per = _vectors_per_thread(caps, total, threads, config)
    at = b.let(b.group(0) * (threads * per) + b.thread(0), "at")

    def place(vector: Expr) -> Index:
        linear = em.axis(vector, size // lanes) * lanes + em.lane(lanes)
        coords = affine.unflatten(linear, dims)
        return space.index(coords[: len(space.dims)])

    if per == 1:
        with b.when(at < total), em.scope():
            store_all(em, group.outputs, place(at))
    else:
        _together(em, [place(at + u * threads) for u in range(per)])
    grid = kb.ceil_div(total, threads * per)
    return b.kernel(grid=(grid,), threads=(threads,), bytes=traffic(group))


def _vectors_per_thread(caps: Caps, total: Bound, threads: int, config: Mapping[str, Any]) -> int:
    """Several where that leaves enough groups to fill a large GPU, and none half full."""
    if not caps.subgroup or not isinstance(total, int):
        return 1
    per: int = config.get("vectors", 4)
    fill = 1 if "vectors" in config else FILL
    while per > 1 and (total % (threads * per) or total < fill * threads * per):
        per //= 2
    return per


def _together(em: Emitter, places: Sequence[Index]) -> None:
    """Writes every output at several places: all loads come before any store."""
    outputs = em.group.outputs
    found = []
    for index in places:
        for node in outputs:
            at = affine.reshape_index(index, outputs[0].shape, node.shape)
            found.append((node, at, em.b.let(em.stored(node, at), "y")))
    for node, at, value in found:
        em.put(node, at, value)
