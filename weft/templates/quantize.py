"""quantize: codes and scales of a row's blocks, each read once (see ops/quantize).

A block's largest element is found on the bits, where NaN is larger than infinity, and that larger
than every number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.expr import (
    bitcast,
    cast,
    ceil_div,
    const,
    extract,
    maximum,
    minimum,
    select,
    shuffle,
    unary,
)  # fmt: skip
from weft.kernel.ir import Expr, Kernel
from weft.ops.quantize import BLOCK, LARGEST, STEP, TINY
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import bounded_rows, kernel_name, traffic
from weft.templates.registry import template

_BITS = 0x7FFFFFFF  # all but the sign
_INFINITE = 0x7F800000
_TINY = int(math.log2(TINY) + 127) << 23
_ROUND = 1.5 * 2.0**23  # floats of this size are whole numbers, and its lowest bits are zeros
_CHUNK = 256  # blocks per group on a CPU


@template("quantize")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around one `quantize` call."""
    assert group.anchor is not None
    b, x = Builder(kernel_name(group)), group.anchor.inputs[0]
    em, blocks = Emitter(b, group, caps), x.size // BLOCK
    wanted = bounded_rows(group, x.shape[0]) * (blocks // x.shape[0])
    if not caps.is_cpu:
        threads = min(64, caps.max_threads)
        at = b.let(b.group(0) * threads + b.thread(0), "at")
        with b.when(at < wanted), em.scope():
            _block(em, group, em.axis(at, blocks), min(caps.lanes, 4))
        return b.kernel((ceil_div(wanted, threads),), (threads,), bytes=traffic(group))
    first = b.let(b.group(0) * _CHUNK, "first")
    with b.loop(b.let(minimum(first + _CHUNK, wanted), "stop"), first, name="at") as at, em.scope():
        _block(em, group, em.axis(at, blocks), min(caps.lanes, BLOCK))
    return b.kernel((ceil_div(wanted, _CHUNK),), bytes=traffic(group))


def _block(em: Emitter, group: Group, at: Affine, lanes: int) -> None:
    """One block: its place among all of them, and how many elements are one vector."""
    assert group.anchor is not None
    b, x = em.b, group.anchor.inputs[0]
    *codes, scales = group.results
    *lead, block = affine.unflatten(at, scales.shape)
    places = [(*lead, block * BLOCK + v + em.lane(lanes)) for v in range(0, BLOCK, lanes)]
    values = [b.let(em.value(x, place), "x") for place in places]
    top = b.let(_largest(b, values), "bits")
    n = float(LARGEST[len(codes)])
    usable = b.let((top >= _TINY) & (top < _INFINITE), "usable")
    size = b.let(bitcast(top, dt.float32), "top")
    inverse = b.let(select(usable, n / select(usable, size, 1.0), 0.0), "inverse")
    em.put(scales, (*lead, block), select(top < _TINY, 0.0, size * (1.0 / n)))
    if em.caps.is_cpu:
        _store_block(em, codes, (*lead, block * BLOCK + em.lane(BLOCK)), values, usable, inverse)
        return
    for place, value in zip(places, values):
        _store(em, codes, place, b.let(unary("rint", value * inverse), "code"))


def _largest(b: Builder, values: Sequence[Expr]) -> Expr:
    """The bits of the largest absolute value, as int32."""
    sizes = [bitcast(v, dt.int32) & _BITS for v in values]
    top = b.let(functools.reduce(maximum, sizes), "top")
    while (lanes := top.type.lanes) > 2:
        halves = (shuffle(range(h, h + lanes // 2), top) for h in (0, lanes // 2))
        top = b.let(maximum(*halves), "top")
    return top if lanes == 1 else maximum(extract(top, 0), extract(top, 1))


def _store_block(
    em: Emitter, codes: Sequence[Node], place: Sequence[Affine], values: Sequence[Expr],
    usable: Expr, inverse: Expr,
) -> None:  # fmt: skip
    """Stores all codes of a block. Adding _ROUND rounds to a whole number, which the lowest bits of
    the sum hold: no conversion checks its range. Unusable values become 0 first."""
    b = em.b
    kept = b.let(select(usable, const(-1), const(0)), "kept")
    planes: list[list[Expr]] = [[] for _ in codes]
    for value in values:
        number = bitcast(bitcast(value, dt.int32) & kept, dt.float32)
        whole = b.let(number * inverse + _ROUND, "code")
        found = [bitcast(whole, dt.int32)]
        if len(codes) == 2:
            high = b.let(bitcast((whole - _ROUND) * (1.0 / STEP) + _ROUND, dt.int32), "high")
            found = [high, b.let(found[0] - high * STEP, "low")]
        for plane, bits in zip(planes, found):
            plane.append(bits)
    for node, parts in zip(codes, planes):
        while len(parts) > 1:
            lanes = range(2 * parts[0].type.lanes)
            parts = [b.let(shuffle(lanes, *two), "codes") for two in zip(parts[::2], parts[1::2])]
        em.put(node, place, cast(parts[0], dt.int8))


def _store(em: Emitter, codes: Sequence[Node], place: Sequence[Affine], wide: Expr) -> None:
    """Whole numbers into one plane, or two."""
    if len(codes) == 1:
        em.put(codes[0], place, cast(wide, dt.int8))
        return
    high = em.b.let(unary("rint", wide * (1.0 / STEP)), "high")
    em.put(codes[0], place, cast(high, dt.int8))
    em.put(codes[1], place, cast(wide - high * const(float(STEP), high.type), dt.int8))
