"""Few rows times a large matrix: the weights are read once, at memory bandwidth.

A group may carry several dots over the same left operand (q, k, v projections; gate and up of a
feed-forward layer). Dots whose values meet in an output form one segment and must agree in shape;
segments may differ in N and share the launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.ir import Kernel
from weft.templates.emit import Emitter
from weft.templates.group import Group, reached
from weft.templates.loops import traffic
from weft.templates.product import (
    blocked_amx,
    blocked_units,
    stream_amx,
    stream_cpu,
    stream_gpu,
)
from weft.templates.product.blocked_units import TILE
from weft.templates.product.kernel import StreamedProduct, nothing
from weft.templates.product.problem import DotSegment, MatmulProblem, find_dots, problem_of
from weft.templates.product.stream_cpu import IntegerStreamer, Streamer
from weft.templates.registry import template


def segments_of(group: Group) -> tuple[DotSegment, ...]:
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
        found.append(DotSegment(problem_of(group, own), tuple(outs)))
    first = found[0].problem
    for s in found[1:]:
        p = s.problem
        if (p.a, p.m, p.batch) != (first.a, first.m, first.batch):
            raise CompileError("dots of one matvec group must share the left operand")
    return tuple(found)


def candidates(group: Group, caps: Caps) -> list[dict[str, Any]]:
    """Returns the choices of `weft tune` for this group. Each of them sums a row in the same way
    for every number of rows."""
    segments = segments_of(group)
    if caps.is_cpu:
        tiles = blocked_amx.suits(segments[0].problem, caps)
        return [] if tiles else stream_cpu.candidates(segments, caps)
    if blocked_units.streams(segments[0].problem, caps):
        return stream_gpu.unit_candidates(caps)
    return stream_gpu.candidates(segments, caps)


def _streamer(p: MatmulProblem, caps: Caps) -> type[Streamer]:
    if p.a.whole:
        return IntegerStreamer
    return stream_amx.TileStreamer if blocked_amx.suits(p, caps) else Streamer


def _parts(
    em: Emitter, segments: Sequence[DotSegment], config: Mapping[str, Any]
) -> tuple[Sequence[StreamedProduct], int]:
    """Returns the part that computes each segment, and the threads of a group. A product takes the
    same unit as with many rows."""
    caps = em.caps
    if caps.is_cpu:
        rows = [_streamer(s.problem, caps)(em, s, config) for s in segments]
        if tiled := [part for part in rows if isinstance(part, stream_amx.TileStreamer)]:
            shared = stream_amx.registers(em.b)
            for part in tiled:
                part.tiles = shared
        return rows, 1
    units = [s.problem for s in segments if blocked_units.streams(s.problem, caps)]
    team = stream_gpu.team(segments[0].problem, caps, config)
    if not units:
        whole = segments[0].problem.a.whole
        made = stream_gpu.IntegerColumnStreamer if whole else stream_gpu.ColumnStreamer
        return [made(em, s, team, config) for s in segments], team[0] * team[1]
    plan = stream_gpu.plan_of(units, caps, config)
    threads, few = plan.across * caps.subgroup, {"rows": TILE}
    return [
        stream_gpu.UnitStreamer(em, s, plan)
        if s.problem in units
        else stream_gpu.ColumnStreamer(em, s, (threads, 1), few)
        for s in segments
    ], threads


@template("matvec")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group of dots with few rows."""
    segments = segments_of(group)
    b = Builder(group.name or "matvec")
    em = Emitter(b, group, caps)
    if (empty := nothing(em, *(s.problem for s in segments))) is not None:
        return empty
    parts, threads = _parts(em, segments, config)
    down = parts[0].down
    # Groups of the same weights start together where caches are large enough to share them.
    axis, other = (1, 0) if caps.subgroup and down > 1 else (0, 1)
    size = max(part.shared_size for part in parts)
    sums = b.array("parts", parts[0].acc, size, "shared") if size else None
    index, rows = b.let(b.group(axis), "block"), b.group(other)
    entry = b.let(b.group(2), "entry")
    start = 0
    for part in parts:
        stop = start + part.groups
        if len(parts) == 1:
            part.emit(index, rows, entry, sums)
        else:
            inside = index < stop if start == 0 else (index >= start) & (index < stop)
            with b.when(inside), em.scope():
                part.emit(b.let(index - start, "own"), rows, entry, sums)
        start = stop
    flops = sum(s.problem.flops for s in segments)
    entries = parts[0].entries()
    grid = (down, start, entries) if axis else (start, down, entries)
    return b.kernel(grid, (threads,), flops, traffic(group))
