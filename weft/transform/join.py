"""Turns sums of zero-padded pieces, which derivatives of slices produce, into one concatenation.

Values are equal; a piece's -0.0 stays -0.0 (added to a padding's 0.0 it would become 0.0).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from weft.core.records import dataclass
from weft.graph.ir import Graph, Node
from weft.transform.rebuild import make, remake, rewrite

MANY = 16  # pads of one sum that are looked at


@dataclass(frozen=True)
class _Run:
    """Pieces side by side, which start at element `start` of an axis."""

    start: int
    stop: int
    pieces: tuple[Node, ...]


def join_pads(graph: Graph) -> Graph:
    """Returns the graph with a sum of pad(x), pad(y) and others that do not overlap along one axis
    as a concat (padded where something is left on either side). Where there are gaps between them,
    it is a sum of such."""

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = remake(node, inputs)
        return (_joined(node) or node) if node.op == "add" else node

    return rewrite(graph, visit, lambda node: node.op == "pad")


def _joined(node: Node) -> Node | None:
    pads = _pads(node)
    axes = {_axis(pad) for pad in pads}
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None:
        return None
    runs: list[_Run] = []
    for run in sorted((_run(pad, axis) for pad in pads), key=lambda run: run.start):
        if runs and runs[-1].stop > run.start:
            return None
        if runs and runs[-1].stop == run.start:
            before = runs.pop()
            run = _Run(before.start, run.stop, (*before.pieces, *run.pieces))
        runs.append(run)
    if len(runs) == len(pads):
        return None
    return functools.reduce(lambda a, b: make("add", a, b), _padded(runs, node, axis))


def _pads(node: Node) -> list[Node]:
    """The pads that a tree of sums adds; empty where it adds something else, or many."""
    found: list[Node] = []
    stack = [node]
    while stack:
        at = stack.pop()
        if at.op == "add":
            stack += at.inputs
        elif at.op == "pad":
            found.append(at)
        if at.op not in ("add", "pad") or len(found) > MANY:
            return []
    return found


def _axis(node: Node) -> int | None:
    """The one axis along which `node` is padded with zeros."""
    if node.attrs["value"] != 0:
        return None
    ends = zip(node.attrs["low"], node.attrs["high"])
    axes = [i for i, (low, high) in enumerate(ends) if low or high]
    return axes[0] if len(axes) == 1 else None


def _run(pad: Node, axis: int) -> _Run:
    (x,), low = pad.inputs, pad.attrs["low"][axis]
    inner = x.op == "concat" and x.attrs["axis"] == axis
    return _Run(low, low + x.shape[axis], x.inputs if inner else (x,))


def _padded(runs: Sequence[_Run], like: Node, axis: int) -> list[Node]:
    """Each run as a value of the shape of `like`."""
    found = []
    for run in runs:
        x = run.pieces[0]
        if len(run.pieces) > 1:
            x = make("concat", *run.pieces, axis=axis, where=like.where)
        high = like.shape[axis] - run.stop
        if run.start or high:
            ends = [[n * (i == axis) for i in range(len(like.shape))] for n in (run.start, high)]
            low, up = map(tuple, ends)
            x = make("pad", x, low=low, high=up, value=0.0, where=like.where)
        found.append(x)
    return found
