"""Chooses the values of a graph that get memory.

A value is *stored* when it is an anchor, an output, an operand that a template must read from
memory, or when computing it again for each user would cost more than storing it. Everything else is
fused into its users.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compile import analysis, cuts
from weft.compile.analysis import base, is_anchor, is_buffer, is_inline
from weft.core.caps import Caps
from weft.graph.ir import Graph, Node
from weft.ops.packed import form_of
from weft.ops.picks import counted
from weft.ops.quantize import takes_integers
from weft.templates.view import exact_cast
from weft.transform.rebuild import kind_of

CHEAP = 4  # operations per element that may be repeated wherever an element is repeated
AGAIN = 32  # ... repeated by other kernels: memory costs more than this on any target
ENDLESS = 1 << 20  # operations beyond which their exact number does not matter
MANY = 4  # operands beyond which their exact number does not matter
# templates that take operands as they come
READS_VALUES = ("norm", "pointwise", "quantize", "reduce", "scan")
READS_WHOLE = ("conv", "own")  # templates that read operands in place, not through views
_NOTHING = frozenset[int]()
Claimed = Callable[[Node], str | None]


class StoredValues:
    """The stored values of a simplified graph, with the `reason` of each (by id). `used` are the
    users of its values. Those of `forced` are stored in any case."""

    def __init__(
        self,
        graph: Graph,
        used: dict[int, list[Node]],
        caps: Caps,
        claimed: Claimed,
        forced: dict[int, str],
    ) -> None:
        self.graph, self.caps, self.claimed = graph, caps, claimed
        self.order = graph.nodes()
        self.fusible = [node for node in self.order if kind_of(node) in analysis.FUSIBLE]
        self.users = used
        self.forced = dict(forced)
        self.reason = dict(forced)
        self.roots = {id(base(r)) for r in graph.roots()}
        self.cost: dict[int, tuple[int, frozenset[int]]] = {}
        for node in self.order:
            self.cost[id(node)] = self._cost(node)
        self._require()
        required = set(self.reason)
        self.kernels: dict[int, set[int]] = {}  # id(node) -> ids of the values it helps compute
        self._choose()
        self._reconsider(required)

    def is_root(self, node: Node) -> bool:
        return id(node) in self.roots

    # -- what must be in memory ------------------------------------------------------------------

    def _cost(self, node: Node) -> tuple[int, frozenset[int]]:
        """(operations per element, large operands) of a node computed from anchors and buffers up,
        given the costs of its operands."""
        if is_anchor(node) or self.holds(node):
            return 0, frozenset((id(node),))
        if is_inline(node):
            return 0, _NOTHING
        ops, loads = analysis.own_cost(node), _NOTHING
        for x in node.inputs if len(node.inputs) == 1 else {id(x): x for x in node.inputs}.values():
            more, leaves = self.cost[id(x)]
            ops = min(ops + more, ENDLESS)
            if leaves and len(loads) <= MANY and _large(x, node):
                loads |= leaves
        return ops, loads

    def holds(self, node: Node) -> bool:
        return is_buffer(node) or id(node) in self.reason

    def _keep(self, node: Node, reason: str) -> None:
        if not is_buffer(node):
            self.reason.setdefault(id(node), reason)

    def _require(self) -> None:
        for root in self.graph.roots():
            self._keep(base(root), "it is an output")
        for node in self.order:
            if not is_anchor(node):
                continue
            self._keep(node, "it is an anchor")
            if node.op == "dot" or self.wants_strided(node):
                reason = f"{analysis.label_of(node)} reads it from memory"
                for i, x in enumerate(node.inputs):
                    if self.wants_whole(node):
                        self._keep(base(x), reason)
                    if self.wants_whole(node) or self.takes_once(node, i):
                        continue
                    for y in analysis.strided_bases(x, node.op == "dot" and i == 1):
                        self._keep(y, reason)
            elif node.op == "update":
                self._keep(base(node.inputs[0]), "update replaces rows of it")
            elif node.op == "sort" and self.cost[id(node.inputs[0])][0] > CHEAP:
                self._keep(node.inputs[0], "sort compares it many times")

    def wants_strided(self, node: Node) -> bool:
        kind = self.claimed(node) if node.op == "call" else None
        return kind is not None and kind not in READS_VALUES

    def wants_whole(self, node: Node) -> bool:
        return node.op == "call" and self.claimed(node) in READS_WHOLE

    def takes_once(self, node: Node, i: int) -> bool:
        """True for an operand of which a template reads each element once, as it comes."""
        decay = self.claimed(node) == "recurrence" and i == 3 if node.op == "call" else False
        return decay and node.inputs[i].shape[1:] == node.inputs[-1].shape[1:]

    # -- what is worth memory --------------------------------------------------------------------

    def _choose(self) -> None:
        for node in reversed(self.fusible):
            reached: set[int] = set()
            for user in self.users[id(node)]:
                reached |= {id(user)} if id(user) in self.reason else self.kernels[id(user)]
                if len(reached) > AGAIN + 1:
                    break  # more of them would not change a thing
            if id(node) not in self.reason and (why := self._worth(node, reached)):
                self.reason[id(node)] = why
            self.kernels[id(node)] = reached

    def _reconsider(self, required: set[int]) -> None:
        """Takes back choices that are cheap after all, given what else is stored."""
        for node in self.fusible:
            reason = None if id(node) in required else self.reason.pop(id(node), None)
            self.cost[id(node)] = self._cost(node)
            if reason is not None and self._worth(node, self.kernels[id(node)]):
                self.reason[id(node)] = reason
                self.cost[id(node)] = self._cost(node)

    def _worth(self, node: Node, reached: set[int]) -> str | None:
        """Returns the reason why a fusible node should be stored, or None."""
        ops, loads = self.cost[id(node)]
        if form_of(node) is not None:
            return None  # reading a few bits is faster than reading their float32
        if counted(node)[1] is not None or takes_integers(node):
            return None  # products read its operands
        if len(reached) > 1 and node.op != "reshape":
            if len(loads) > 1:
                return "several kernels use it and it has several operands"
            if ops * (len(reached) - 1) > AGAIN:
                return "several kernels use it and it is costly to compute again"
            if not exact_cast(node) and self._ends_anchor(node):  # reading its operand is as good
                return "several kernels use it and an anchor can write it"
        if ops > CHEAP and any(_expands(node, user) for user in self.users[id(node)]):
            return "a user repeats each element and it is costly to compute again"
        return None

    def _ends_anchor(self, node: Node) -> bool:
        """True if `node` follows, by elementwise ops, from an anchor without other uses."""
        stack = [node]
        while stack:
            at = stack.pop()
            if kind_of(at) != "elementwise":
                continue
            for x in at.inputs:
                if x.shape == node.shape and len(self.users[id(x)]) == 1:
                    if is_anchor(x):
                        return True
                    stack.append(x)
        return False

    def too_large(self) -> dict[int, Node]:
        """Returns further nodes to store, so that no kernel becomes too large."""
        return cuts.cut(self.order, self.users, self.holds, self.caps.max_bindings)


def _large(x: Node, node: Node) -> bool:
    """True if reading the operand `x` costs about as much as writing `node`."""
    return (x.shape == node.shape and node.size > 0) or x.size * 8 > node.size


def _expands(node: Node, user: Node) -> bool:
    """True if `user` reads each element of `node` several times."""
    repeats = user.op == "broadcast" or (user.op == "gather" and user.inputs[0] is node)
    return repeats and user.size > node.size
