"""Grouping: which nodes each kernel computes (fusion), given what values are in memory (stored).

Elementwise work that follows an anchor becomes its epilogue. Last, groups are joined where one
kernel does their work better (merge).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from weft.compile import analysis, cuts
from weft.compile.analysis import base, is_anchor, is_buffer, row_bounds
from weft.compile.merge import bindings, merged
from weft.compile.refused import Refusals
from weft.compile.stored import Claimed, StoredValues
from weft.core.caps import Caps
from weft.core.errors import LimitError
from weft.core.order import stream_rows
from weft.graph.ir import Graph, Node, toposort
from weft.templates.group import Group
from weft.templates.view import views
from weft.transform.rebuild import kind_of, users


@dataclass
class Partition:
    """Groups in an order that respects data, and why each value is in memory (id -> reason)."""

    groups: list[Group]
    reasons: dict[int, str] = field(default_factory=dict)


def partition(
    graph: Graph, caps: Caps, claimed: Claimed, refused: Refusals | None = None
) -> Partition:
    """The groups that compute every output and state assignment of a simplified graph. `refused`
    is what templates are known not to write.

    Raises LimitError, naming the node, when a kernel needs more.
    """
    refused = refused or Refusals()
    forced, used = dict(refused.stored), users(graph)
    while True:
        stored = StoredValues(graph, used, caps, claimed, forced)
        forced |= dict.fromkeys(stored.too_large(), cuts.REASON)
        if len(forced) > len(stored.forced):
            continue
        grouper = _Grouper(stored, caps, refused.alone)
        groups = grouper.groups()
        if narrower := grouper.narrower(groups):
            forced |= {id(n): "an anchor writes it in a byte each" for n in narrower}
            continue
        over = [g for g in groups if bindings(g) > caps.max_bindings]
        points = [grouper.cut_points(g, caps.max_bindings) for g in over]
        for group, found in zip(over, points):
            if not found:
                raise LimitError(
                    f"{group.name} needs {bindings(group)} buffers, {caps.name} allows "
                    f"{caps.max_bindings} per kernel"
                )
        if not any(points):
            groups = merged(groups, caps, stored.users, stored.is_root)
            return Partition(groups, stored.reason)
        why = "to stay within the buffers a kernel may use"
        forced |= {id(n): why for found in points for n in found}


class _Grouper:
    """The groups that compute the stored values. `alone` are those to be kept apart."""

    def __init__(self, stored: StoredValues, caps: Caps, alone: Collection[int]) -> None:
        self.stored, self.caps, self.alone = stored, caps, alone
        self.order, self.users, self.claimed = stored.order, stored.users, stored.claimed
        self.place = {id(node): i for i, node in enumerate(self.order)}
        self.rows = row_bounds(self.order)
        self.slots = {name: i for i, name in enumerate(analysis.scalar_names(stored.graph))}

    def groups(self) -> list[Group]:
        stored = [n for n in self.order if id(n) in self.stored.reason and n.size]
        # A call's kernel writes its results.
        stored = [n for n in stored if not is_buffer(n) and n.op != "result"]
        absorbed: set[int] = set()  # anchors whose epilogue writes another value
        made = []
        for node in stored:
            anchor = node if is_anchor(node) else self._epilogue_of(node, absorbed)
            if anchor is not None and anchor is not node:
                absorbed.add(id(anchor))
            made.append((node, anchor))
        found = [self._group(node, anchor) for node, anchor in made if id(node) not in absorbed]
        for key in absorbed:
            self.stored.reason.pop(key)
        return found

    def narrower(self, groups: list[Group]) -> list[Node]:
        """Bytes that follow, element by element, from what an anchor's kernel writes as it is, and
        which it can write in its place."""
        if not any(x.op == "cast" and x.dtype.itemsize == 1 for x in self.order):
            return []
        alone = [g.anchor for g in groups if g.anchor is not None and g.outputs == (g.anchor,)]
        able = (a for a in alone if analysis.takes_epilogue(a) and a.dtype.itemsize > 1)
        found = (self._in_bytes(a) for a in able if not self.stored.is_root(a))
        return [x for x in found if x is not None and id(x) not in self.stored.forced]

    def _in_bytes(self, anchor: Node) -> Node | None:
        """Returns the last cast to bytes through which every use of an anchor goes, and which
        follows from that anchor alone."""
        found, after, seen = [], [anchor], {id(anchor)}
        while after:
            for user in self.users[id(after.pop())]:
                fits = kind_of(user) == "elementwise" and user.shape == anchor.shape
                if fits and id(user) not in seen and not self.stored.holds(user):
                    seen.add(id(user))
                    after.append(user)
                    found += [user] if user.op == "cast" and user.dtype.itemsize == 1 else []
        able = [x for x in found if self._leads_to(anchor, x) and self._made_of(x, anchor)]
        return max(able, key=lambda x: self.place[id(x)], default=None)

    def _leads_to(self, anchor: Node, root: Node) -> bool:
        """True if every path from anchor leads to root through elementwise ops of its shape."""
        return self._all_uses(anchor, self._only_through(root, self._before(root)[0]))

    def _made_of(self, node: Node, anchor: Node) -> bool:
        """True if `anchor` is the only one whose kernel can compute `node`."""
        inside = self._inside(node, anchor)
        return not any(
            is_anchor(x) and x is not anchor and not self.stored.holds(x) for x in inside
        )

    def _epilogue_of(self, root: Node, absorbed: set[int]) -> Node | None:
        """The anchor that `root` can be the epilogue of: the costliest one used by root alone."""
        if root.op in ("reshape", "transpose"):
            return self._moved_anchor(root)
        if kind_of(root) != "elementwise":
            return None
        inner, ends = self._before(root)
        found = [a for a in ends if analysis.takes_epilogue(a) and not self.stored.is_root(a)]
        found = [a for a in found if id(a) not in absorbed and id(a) not in self.stored.forced]
        if found:
            through = self._only_through(root, inner)
            found = [a for a in found if self._all_uses(a, through)]
        found = [a for a in found if _writes_all(root, _row_counts(a))]
        rank = {"dot": 2, "call": 1, "reduce": 0}
        work = {id(a): (rank[kind_of(a)], sum(x.size for x in a.inputs)) for a in found}
        return max(found, key=lambda a: work[id(a)], default=None)

    def _moved_anchor(self, root: Node) -> Node | None:
        """The attention whose heads `root` only puts in another order (no other use)."""
        at = root
        while at.op in ("reshape", "transpose"):
            at = at.inputs[0]
            if len(self.users[id(at)]) != 1 or self.stored.is_root(at):
                return None
            if is_anchor(at):
                able = analysis.takes_epilogue(at) and id(at) not in self.stored.forced
                moved = self.stored.wants_strided(at) and not self.stored.wants_whole(at)
                return at if able and moved else None
            if self.stored.holds(at):
                return None
        return None

    def _before(self, root: Node) -> tuple[list[Node], list[Node]]:
        """The elementwise values of root's shape that its kernel computes on the way to it, and
        the other values of that shape which they read."""
        inner, ends, stack, seen = [], [], [root], {id(root)}
        while stack:
            for x in stack.pop().inputs:
                if id(x) in seen or x.shape != root.shape:
                    continue
                seen.add(id(x))
                if kind_of(x) == "elementwise" and not self.stored.holds(x):
                    inner.append(x)
                    stack.append(x)
                else:
                    ends.append(x)
        return inner, ends

    def _only_through(self, root: Node, inner: Iterable[Node]) -> set[int]:
        """The ids of root and of the inner values that root alone needs. One walk serves
        all anchors: a sum of many losses has as many."""
        through = {id(root)}
        for x in sorted(inner, key=lambda x: self.place[id(x)], reverse=True):
            if self._all_uses(x, through):
                through.add(id(x))
        return through

    def _all_uses(self, node: Node, through: Collection[int]) -> bool:
        """True if `node` has users, all of them among `through`."""
        users = self.users[id(node)]
        return bool(users) and all(id(user) in through for user in users)

    def _inside(self, root: Node, anchor: Node | None) -> Iterator[Node]:
        """The nodes that the kernel of `root` computes, then its buffers, found depth first."""
        stack, seen = [root], {id(root)}
        while stack:
            at = stack.pop()
            yield at
            if at is not root and self._given(at, anchor):
                continue
            for x in reversed(at.inputs):
                if id(x) not in seen:
                    seen.add(id(x))
                    stack.append(x)

    def aliased(self, node: Node) -> bool:
        """True if node's content is already in memory (perhaps under another shape)."""
        while not self.stored.holds(node):
            if node.op != "reshape" or "interleave" in node.inputs[0].attrs:
                return False
            node = node.inputs[0]
        return True

    def _given(self, node: Node, anchor: Node | None) -> bool:
        """True if a kernel reads node's content; it computes that of its own anchor."""
        return self.aliased(node) and (anchor is None or base(node) is not anchor)

    def _group(self, root: Node, anchor: Node | None) -> Group:
        nodes = list(self._inside(root, anchor))
        inputs = self._ordered_inputs(nodes, root, anchor)
        claimed = self.claimed(anchor) if anchor is not None and anchor.op == "call" else None
        kind = "map"
        if anchor is not None:
            few = stream_rows(self.caps, self.rows[id(anchor)] is not None)
            kind = analysis.kind_for(anchor, claimed, few)
        rows_of = anchor.inputs[1] if anchor is not None and kind == "scatter" else root
        bound = self.rows[id(rows_of)]
        return Group(
            kind,
            inputs,
            analysis.written(root, self.users) if root is anchor else (root,),
            anchor,
            rows=bound[0] if bound else None,
            rows_scale=bound[1] if bound else 1,
            slots=self.slots,
            name=analysis.group_name(kind, nodes, anchor, set(map(id, inputs))),
            alone=id(root) in self.alone,
        )

    def _ordered_inputs(
        self, nodes: list[Node], root: Node, anchor: Node | None
    ) -> tuple[Node, ...]:
        """Anchor operands first (in operand order), then the rest as met."""
        found = [n for n in nodes if n is not root and self._given(n, anchor)]
        if anchor is None or anchor is root:
            return tuple(found)
        below = {id(n) for x in anchor.inputs for n in self._inside(x, None)}
        below |= {id(x) for x in anchor.inputs}
        return tuple(sorted(found, key=lambda n: id(n) not in below))

    def cut_points(self, group: Group, limit: int) -> list[Node]:
        """Inner nodes of a group that needs too many buffers, to be stored until it does not: each
        time the one that helps most. A product that reads packed weights or integers as they are
        goes on doing so: what comes after it is cut off instead."""
        root, anchor = group.outputs[0], group.anchor
        inside = list(self._inside(root, anchor))
        stop = {id(n) for n in inside if n is not root and self.aliased(n)}
        able = [n for n in inside if kind_of(n) in analysis.FUSIBLE and not self.aliased(n)]
        if anchor is not None and anchor.op == "dot":
            seen = [list(views(x, picks=True)) for x in anchor.inputs]
            read = {id(v.node) for each in seen if each[-1].parted for v in each}
            able = [n for n in able if id(n) not in read]
        found: list[Node] = []
        while True:
            order = list(toposort(group.outputs, stop - {id(anchor)}))
            reads = sum(id(n) in stop and n is not anchor for n in order)
            if reads + len(group.outputs) <= limit:
                return found
            # one fewer: what is cut off may end an anchor's kernel, which reads one operand more
            best = cuts.neediest(order, able, stop, limit - 1)
            if best is None:
                return found if anchor is None or anchor is root else [*found, anchor]
            found.append(best)
            stop.add(id(best))


def _row_counts(node: Node) -> Node | None:
    """Returns the counts of the rows that a product computes (`first_rows`); None if it computes
    all."""
    if node.op != "dot":
        return None
    *_, view = views(node.inputs[1], picks=True)
    return None if view.pick is None else view.pick.count


def _writes_all(root: Node, counts: Node | None) -> bool:
    """True if a product that computes `counts` rows may write `root`: every elementwise input of
    root has meaning in these rows alone."""
    stack, seen = [root], {id(root)}
    while counts is not None and stack:
        for x in stack.pop().inputs:
            if id(x) in seen or x.shape != root.shape or x.op == "broadcast":
                continue
            seen.add(id(x))
            if kind_of(x) == "elementwise":
                stack.append(x)
            elif _row_counts(x) is not counts:
                return False
    return True
