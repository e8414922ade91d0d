"""Cuts fused work, so that no kernel grows with the length of a program.

A compiler's time for one kernel grows faster than the kernel. A fused value that movement reads at
many places is computed at each of them. So a kernel's work is counted as the emitter will write it:
every (node, place) once, by its cost. The count is exact for elementwise ops, and an upper bound
where two chains of movement lead to the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from weft.compile import analysis
from weft.graph.ir import Node, toposort
from weft.templates.group import Group
from weft.templates.view import PURE
from weft.transform.rebuild import kind_of

WORK = 1024  # operations per element in one kernel: a compiler takes up to a second for this many
NESTED = 32  # nested movement ops: each may put a division into the next one's index
READS = 4  # times the buffers that a kernel may have; the grouper cuts what is left
WRITTEN = {"sin": 48, "cos": 48, "pow": 72}  # much more code than time, in the measure of tanh: 8
REASON = "the kernel of all that leads to it would be too large"


@dataclass(slots=True)
class KernelWork:
    """The work of a kernel that reads a value: operations (a number for each), buffers (ids of
    nodes), and the depth of nested movement ops."""

    ops: set[int] = field(default_factory=set)
    reads: set[int] = field(default_factory=set)
    nested: int = 0


def cut(
    order: Iterable[Node],
    users: Mapping[int, list[Node]],
    in_memory: Callable[[Node], bool],
    max_bindings: int,
) -> dict[int, Node]:
    """The values (by id) to store besides those `in_memory`, so that every kernel stays within
    bounds. `order` has operands first. Time grows with the number of nodes alone."""
    return _Cutter(in_memory, READS * max_bindings).run(order, users)


def work_of(group: Group) -> int:
    """The operations per element of a group's kernel."""
    stop = {id(x) for x in group.inputs}
    found: dict[int, KernelWork] = {id(x): KernelWork() for x in group.inputs}
    for node in toposort(group.outputs, stop):
        if id(node) not in stop:
            found[id(node)] = _joined(node, {id(x): found[id(x)] for x in node.inputs})
    return len(set[int]().union(*(found[id(x)].ops for x in group.outputs)))


def fit_together(a: Group, b: Group) -> bool:
    """True if one kernel may do the work of both groups."""
    return _bound(a) + _bound(b) <= WORK or work_of(a) + work_of(b) <= WORK


def _bound(group: Group) -> int:
    """A number that `work_of` does not exceed, or one above WORK; found without sets."""
    found = {id(x): 0 for x in group.inputs}
    for node in toposort(group.outputs, frozenset(found)):
        if id(node) not in found:
            below = sum(found[id(x)] for x in node.inputs)
            found[id(node)] = min(below + _own(node), WORK + 1)
    return sum(found[id(x)] for x in group.outputs)


class _Cutter:
    def __init__(self, in_memory: Callable[[Node], bool], most_reads: int):
        self.in_memory, self.most_reads = in_memory, most_reads
        self.found: dict[int, Node] = {}
        self.work: dict[int, KernelWork] = {}  # values whose users are not all visited

    def run(self, order: Iterable[Node], users: Mapping[int, list[Node]]) -> dict[int, Node]:
        left: dict[int, int] = {}
        near = self._near(list(order))
        for node, counted in near.values():
            last = []
            for key in {id(x) for x in node.inputs} if counted else ():
                left[key] -= 1
                if not left[key]:
                    last.append(key)
            self.work[id(node)] = self._of(node, last) if counted else KernelWork(reads={id(node)})
            left[id(node)] = sum(near.get(id(x), (x, False))[1] for x in users[id(node)])
            for key in last:
                del self.work[key]
        return self.found

    def _near(self, order: list[Node]) -> dict[int, tuple[Node, bool]]:
        """The nodes of kernels that may be too large, by id, operands first. True: the node's work
        counts. False: it is only read. Numbers bound the work of all others, without sets."""
        bounds: dict[int, tuple[int, int, int]] = {}  # operations, buffers, depth
        large: set[int] = set()
        for node in order:
            if not node.inputs:
                bounds[id(node)] = 0, int(not analysis.is_inline(node)), 0
                continue
            kind = kind_of(node)
            ops, reads, nested = _code(node) if kind in analysis.FUSIBLE else 0, 0, 0
            for x in node.inputs:
                more, others, below = bounds[id(x)]
                ops, reads = ops + more, reads + others
                if below > nested:
                    nested = below
            if ops > WORK or reads > self.most_reads or nested >= NESTED:
                large.add(id(node))
            if kind not in analysis.LOOSE or self.in_memory(node):
                bounds[id(node)] = 0, 1, 0
            else:
                nested += kind in ("movement", "gather")
                bounds[id(node)] = min(ops, WORK + 1), min(reads, self.most_reads + 1), nested
        found: dict[int, tuple[Node, bool]] = {}
        read: set[int] = set()
        for node in reversed(order) if large else ():
            me = id(node)
            if me in large or me in read:
                stored = analysis.is_anchor(node) or self.in_memory(node)
                counted = me in large or not stored
                found[me] = node, counted
                read.update(id(x) for x in node.inputs if counted)
        return dict(reversed(found.items()))

    def _of(self, node: Node, last: Collection[int]) -> KernelWork:
        if analysis.is_buffer(node):
            return KernelWork(reads={id(node)})
        if analysis.is_inline(node):
            return KernelWork()
        parts = {id(x): self.work[id(x)] for x in node.inputs}
        if sum(len(part.ops) for part in parts.values()) + _own(node) > WORK or self._wide(parts):
            kept, parts = parts, self._within(node, parts)
            last = last if parts is kept else ()
        if analysis.is_anchor(node) or self.in_memory(node):
            return KernelWork(reads={id(node)})
        return _joined(node, parts, last)

    def _wide(self, parts: Mapping[int, KernelWork]) -> bool:
        reads = sum(len(part.reads) for part in parts.values())
        return reads > self.most_reads or any(p.nested >= NESTED for p in parts.values())

    def _within(self, node: Node, parts: dict[int, KernelWork]) -> dict[int, KernelWork]:
        """The parts of a kernel for `node` after storing what makes it too large."""
        operands = {id(x): x for x in node.inputs}
        while self._too_large(_joined(node, parts)):
            able = {id(x): x for x in map(_moved, operands.values()) if self._computed(x)}
            if not able:
                break
            best = min(able.values(), key=lambda x: self._rest(node, operands, parts, x))
            self.found[id(best)] = best
            parts = _storing(best, operands, parts)
        return parts

    def _computed(self, node: Node) -> bool:
        """True if the kernel computes a value that could be stored."""
        stored = self.in_memory(node) or id(node) in self.found
        return kind_of(node) in analysis.FUSIBLE and not stored

    def _too_large(self, work: KernelWork) -> bool:
        large = len(work.ops) > WORK or work.nested > NESTED
        return large or len(work.reads) > self.most_reads

    def _rest(
        self, node: Node, operands: dict[int, Node], parts: dict[int, KernelWork], x: Node
    ) -> tuple[bool, int, int]:
        """Returns the work left when x is stored; less is better."""
        work = _joined(node, _storing(x, operands, parts))
        return self._too_large(work), len(work.ops), len(work.reads)


def _joined(node: Node, parts: Mapping[int, KernelWork], last: Collection[int] = ()) -> KernelWork:
    """The work for a value, given that for each of its operands (by id). The sets of operands that
    are not wanted any more (`last`) are taken over instead of copied."""
    kind, me = kind_of(node), id(node)
    moves = kind in ("movement", "gather")
    work = KernelWork()
    if not moves and parts:
        largest = max(parts, key=lambda key: len(parts[key].ops))
        if largest in last:
            work = parts[largest]
    for i, x in enumerate(node.inputs):
        part = parts[id(x)]
        if part is not work:
            # at another place than the node's own, each operation is one more
            work.ops |= {hash((me, i, op)) for op in part.ops} if moves else part.ops
            work.reads |= part.reads
            work.nested = max(work.nested, part.nested)
    work.ops.update(_numbers(me, _own(node)))
    work.nested += moves
    return work


def _own(node: Node) -> int:
    """Returns the amount of code for the node alone."""
    return _code(node) if kind_of(node) in analysis.FUSIBLE else 0


def _code(node: Node) -> int:
    return max(analysis.own_cost(node), WRITTEN.get(node.op, 1))


def _numbers(key: int, count: int) -> list[int]:
    return [hash((key, k)) for k in range(count)]


def _moved(node: Node) -> Node:
    """Returns the value behind pure movement; storing it serves every view of it."""
    while node.op in PURE:
        node = node.inputs[0]
    return node


def _storing(
    stored: Node, operands: Mapping[int, Node], parts: Mapping[int, KernelWork]
) -> dict[int, KernelWork]:
    """The work for operands when `stored`, one of them or what one shows, is read from memory."""
    before, (mark,) = parts.get(id(stored), KernelWork()), _numbers(id(stored), 1)
    after = {}
    for key, x in operands.items():
        part = parts[key]
        if _moved(x) is stored and part.ops:
            after[key] = KernelWork(
                {hash((key, id(stored)))} if x is not stored else set(), {id(stored)}
            )
        elif mark in part.ops:
            after[key] = KernelWork(part.ops - before.ops, part.reads - before.reads | {id(stored)})
        else:
            after[key] = part
    return after


def neediest(
    order: Iterable[Node], able: Iterable[Node], stop: Collection[int], limit: int
) -> Node | None:
    """Returns the node of `able`, if still in `order`, that needs the most buffers below `limit`,
    the number that one kernel may have. Walking ends at `stop`, whose nodes are in buffers."""
    leaves: dict[int, set[int]] = {}  # the buffers that each node needs
    for node in order:
        found = (leaves[id(x)] if id(x) not in stop else {id(x)} for x in node.inputs)
        leaves[id(node)] = set[int]().union(*found) if id(node) not in stop else set()
    best, score = None, 1
    for node in able:
        if score < len(leaves.get(id(node), ())) < limit:
            best, score = node, len(leaves[id(node)])
    return best
