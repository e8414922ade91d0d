"""Few rows times a large matrix: the weights are read once, at memory bandwidth.

A group may carry several dots over the same left operand (q, k, v projections; gate and up of a
feed-forward layer). Dots whose values meet in an output form one segment and must agree in shape;
segments may differ in N and share the launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.ir import Kernel
from weft.templates.emit import Emitter
from weft.templates.group import Group, reached
from weft.templates.loops import traffic
from weft.templates.product import blocked_amx, stream_cpu, stream_gpu
from weft.templates.product.epilogue import count_flops, row_limit
from weft.templates.product.problem import Problem, Segment, find_dots, problem_of
from weft.templates.product.stream_amx import TileStreamer
from weft.templates.product.stream_cpu import Streamer
from weft.templates.registry import template


def segments_of(group: Group) -> tuple[Segment, ...]:
    """The group's dots and outputs, split where no output needs both sides.

    Raises CompileError where dots disagree in the left operand or in the rows.
    """
    dots = find_dots(group)
    stop = {id(n) for n in (*group.inputs, *dots)}
    parts: list[tuple[set[int], list[Node]]] = []
    for out in group.outputs:
        needs = {id(n) for n in reached([out], stop)} & {id(d) for d in dots}
        joined: list[Node] = [out]
        for part in [p for p in parts if p[0] & needs]:
            needs |= part[0]
            joined = part[1] + joined
            parts.remove(part)
        parts.append((needs, joined))
    found = []
    for needs, outs in parts:
        own = tuple(d for d in dots if id(d) in needs)
        found.append(Segment(problem_of(group, own), tuple(outs)))
    first = found[0].problem
    for s in found[1:]:
        p = s.problem
        if (p.a, p.m, p.batch) != (first.a, first.m, first.batch):
            raise CompileError("dots of one matvec group must share the left operand")
    return tuple(found)


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """What `weft tune` may choose from for this group; any of it sums a row in the same way for
    every number of rows."""
    variant = stream_cpu if caps.is_cpu else stream_gpu
    return variant.candidates(segments_of(group), caps)


def _maker(p: Problem, caps: Caps) -> type[Streamer]:
    return TileStreamer if blocked_amx.suits(p, caps) else Streamer


@template("matvec")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group of dots with at most 16 rows."""
    segments = segments_of(group)
    if not caps.is_cpu:
        return stream_gpu.build(group, segments, caps, config)
    b = Builder(group.name or "matvec")
    em = Emitter(b, group, caps)
    makers = [_maker(s.problem, caps)(em, caps, s, config) for s in segments]
    first = segments[0].problem
    batches: Any = max(first.batches, 1)
    if first.batch and group.rows is not None:
        batches = row_limit(group, first.batches // first.batch[0], first.batches)
    index = b.let(b.group(0), "block")
    bi = em.axis(b.group(2), max(first.batches, 1))
    start = 0
    for maker in makers:
        stop = start + maker.groups
        if len(makers) == 1:
            maker.emit(index, bi)
        else:
            inside = index < stop if start == 0 else (index >= start) & (index < stop)
            with b.when(inside), em.scope():
                maker.emit(b.let(index - start, "own"), bi)
        start = stop
    flops = sum(count_flops(s.problem) for s in segments)
    return b.kernel((start, 1, batches), (1,), flops, traffic(group))
