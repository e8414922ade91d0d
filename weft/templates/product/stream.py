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
from weft.kernel.ir import Kernel
from weft.templates.group import Group
from weft.templates.product import stream_cpu, stream_gpu
from weft.templates.product.problem import find_dots, problem_of
from weft.templates.product.stream_cpu import Segment
from weft.templates.registry import template


def _reaches(group: Group, output: Node, dots: tuple[Node, ...]) -> set[int]:
    stop = {id(n) for n in group.inputs}
    wanted, found, seen = {id(d) for d in dots}, set(), set()
    stack = [output]
    while stack:
        node = stack.pop()
        if id(node) in seen or id(node) in stop:
            continue
        seen.add(id(node))
        if id(node) in wanted:
            found.add(id(node))
        else:
            stack.extend(node.inputs)
    return found


def segments_of(group: Group) -> tuple[Segment, ...]:
    """The group's dots and outputs, split where no output needs both sides.

    Raises CompileError where dots disagree in the left operand or in the rows.
    """
    dots = find_dots(group)
    parts: list[tuple[set[int], list[Node]]] = []
    for out in group.outputs:
        needs = _reaches(group, out, dots)
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


@template("matvec")
def build(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group of dots with at most 16 rows."""
    segments = segments_of(group)
    variant = stream_cpu if caps.is_cpu else stream_gpu
    return variant.build(group, segments, caps, config)
