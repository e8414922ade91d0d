"""A map that puts many pieces below one another, on a CPU: one loop for each piece.

As one loop over the result, each element would choose among all pieces, which takes time quadratic
in their number. A recurrent layer joins a piece for each step.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

from weft.core.caps import Caps
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import kernel_name, traffic, useful_lanes, vector_loop

FEW = 8  # pieces among which an element may choose


def pieces(group: Group, chunk: int) -> list[list[tuple[int, int]]]:
    """The pieces, each as (first element, number of elements), in runs of about `chunk` elements
    for one worker each. Empty if the group is not a concatenation of many."""
    node = group.outputs[0]
    while node.op == "reshape" and node not in group.inputs:
        node = node.inputs[0]
    one = len(group.outputs) == 1 and group.rows is None and not group.in_place
    if node.op != "concat" or node in group.inputs or not one or len(node.inputs) <= FEW:
        return []
    if math.prod(node.shape[: node.attrs["axis"]]) != 1:
        return []
    runs: list[list[tuple[int, int]]] = [[]]
    start = taken = 0
    for x in node.inputs:
        if runs[-1] and taken + x.size > chunk:
            runs.append([])
            taken = 0
        if x.size:
            runs[-1].append((start, x.size))
        start, taken = start + x.size, taken + x.size
    return runs


def build_pieces(group: Group, caps: Caps, runs: list[list[tuple[int, int]]]) -> Kernel:
    """The kernel; each run of pieces is one group's work."""
    b = Builder(kernel_name(group))
    em = Emitter(b, group, caps)
    (out,) = group.outputs

    def element(start: int, at: Affine) -> None:
        em.store(out, affine.unflatten(at + start, out.shape))

    for number, run in enumerate(runs):
        mine = b.when(kb.binary("eq", b.group(0), kb.as_expr(number)))
        with mine if len(runs) > 1 else nullcontext(), em.scope():
            for start, size in run:
                lanes = useful_lanes(caps, size)
                vector_loop(em, 0, size, size, partial(element, start), lanes)
    return b.kernel(grid=(len(runs),), bytes=traffic(group))
