"""Kernels that differ by numbers alone become one kernel, which reads them from memory.

A program that unrolls a loop has a kernel for each value of its counter: x + 1, x + 2, ...; x[1],
x[2], ... Compiling each takes longer than running it ever will. Where there are many, the numbers
that differ (constants, and where slices start) become small buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.compile.signature import Number, described
from weft.core.caps import Caps
from weft.core.dtypes import int32
from weft.graph.ir import Node
from weft.templates.group import Group

KINDS = ("map", "reduce")  # templates that read all they need through the emitter
MANY = 32  # kernels alike, from which on a load is cheaper than a kernel each


def share(groups: list[Group], caps: Caps) -> list[Group]:
    """The groups, with numbers read from memory where that makes many kernels one."""
    if len(groups) <= MANY:
        return groups
    alike: dict[tuple[Any, ...], list[int]] = {}
    numbers: dict[int, list[Number]] = {}
    for i, group in enumerate(groups):
        if group.kind in KINDS:
            found: list[Number] = []
            alike.setdefault(described(group, found), []).append(i)
            numbers[i] = found
    made, starts = list(groups), _Starts()
    for members in alike.values():
        columns = list(zip(*(numbers[i] for i in members)))
        varying = [
            k for k, column in enumerate(columns) if len({repr(n.value) for n in column}) > 1
        ]
        rows = {tuple(repr(numbers[i][k].value) for k in varying) for i in members}
        first = groups[members[0]]
        room = caps.max_bindings - len(first.inputs) - len(first.outputs)
        if len(rows) > MANY and len(varying) <= room:
            for i in members:
                made[i] = _reading(groups[i], [numbers[i][k] for k in varying], starts)
    return made


class _Starts:
    """0-d consts for the starts of slices: one per column and value."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], Node] = {}

    def of(self, column: int, start: int) -> Node:
        if (column, start) not in self._nodes:
            value = np.asarray(start, int32.numpy)
            value.flags.writeable = False
            self._nodes[column, start] = Node("const", (), {"value": value}, (), int32)
        return self._nodes[column, start]


def _reading(group: Group, numbers: Sequence[Number], made: _Starts) -> Group:
    """The group with these numbers among its inputs."""
    inputs = list(group.inputs)
    starts: dict[int, tuple[tuple[int, Node], ...]] = {}
    for column, number in enumerate(numbers):
        node = number.node
        if number.axis is not None:
            node = made.of(column, number.value)
            key = id(number.node)
            starts[key] = (*starts.get(key, ()), (number.axis, node))
        inputs.append(node)
    return replace(group, inputs=tuple(inputs), starts=starts)
