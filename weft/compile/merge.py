"""Dots that share their left operand become one kernel: the operand is read once.

Two shapes of it: silu(x@Wg) * (x@Wu), where one dot meets another in its epilogue; and q, k, v
projections of one x, which become one kernel with several outputs.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.templates.group import Group
from weft.transform.rebuild import kind_of

MAX_DOTS = 4  # accumulators of so many dots still fit the registers


def merge_dots(
    groups: list[Group],
    caps: Caps,
    users: dict[int, list[Node]],
    is_output: Callable[[Node], bool],
) -> list[Group]:
    """The groups with dots over one left operand joined where that pays: on a CPU, and for a few
    rows on GPUs with subgroups, where launches are a large part of a step."""
    if not caps.is_cpu and not caps.subgroup:
        return groups
    groups = _meet(groups, caps, users, is_output)
    return _side_by_side(groups, caps)


def _alike(a: Group, b: Group, caps: Caps) -> bool:
    """Whether the kernels of two groups can be one."""
    if a.kind != b.kind or a.kind not in (("matmul", "matvec") if caps.is_cpu else ("matvec",)):
        return False
    if (a.rows, a.rows_scale) != (b.rows, b.rows_scale):
        return False
    x, y = a.anchor, b.anchor
    assert x is not None and y is not None
    same = x.inputs[0] is y.inputs[0] and x.inputs[1].dtype is y.inputs[1].dtype
    if not same or len(_dots(a)) + len(_dots(b)) > MAX_DOTS:
        return False
    return x.shape == y.shape or (a.kind == "matvec" and x.shape[:-1] == y.shape[:-1])


def _dots(group: Group) -> list[Node]:
    """The dots that a group computes."""
    stop = {id(x) for x in group.inputs}
    found, stack, seen = [], list(group.outputs), set(stop)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op == "dot":
            found.append(node)
        else:
            stack.extend(node.inputs)
    return found


def _joined(a: Group, b: Group, outputs: tuple[Node, ...], drop: Node | None) -> Group:
    inputs = {id(x): x for x in (*a.inputs, *b.inputs) if x is not drop}
    return Group(
        a.kind,
        tuple(inputs.values()),
        outputs,
        a.anchor,
        a.rows,
        a.rows_scale,
        a.slots,
        name="+".join(dict.fromkeys([*a.name.split("+"), *b.name.split("+")])),
    )


def bindings(group: Group) -> int:
    """How many buffers the group's kernel has."""
    return len(group.inputs) + len(group.outputs)


# -- one dot meets another in an epilogue -----------------------------------------------------


def _meet(
    groups: list[Group],
    caps: Caps,
    users: dict[int, list[Node]],
    is_output: Callable[[Node], bool],
) -> list[Group]:
    groups = list(groups)
    by_output = {id(g.outputs[0]): i for i, g in enumerate(groups)}
    gone: set[int] = set()
    for i, group in enumerate(groups):
        for x in group.inputs:
            j = by_output.get(id(x))
            if j is None or j in gone or not _alike(groups[i], groups[j], caps):
                continue
            root = group.outputs[0]
            if is_output(x) or x.shape != root.shape or not _only_pointwise(x, root, users):
                continue
            joined = _joined(groups[j], groups[i], (root,), x)
            if bindings(joined) <= caps.max_bindings:
                groups[i] = joined
                gone.add(j)
    return [g for i, g in enumerate(groups) if i not in gone]


def _only_pointwise(x: Node, root: Node, users: dict[int, list[Node]]) -> bool:
    """Whether x is used for `root` alone, through elementwise ops of its shape."""
    stack = [x]
    while stack:
        for user in users[id(stack.pop())]:
            if kind_of(user) != "elementwise" or user.shape != x.shape:
                return False
            if user is not root:
                if not users[id(user)]:
                    return False
                stack.append(user)
    return True


# -- dots side by side --------------------------------------------------------------------------


def _side_by_side(groups: list[Group], caps: Caps) -> list[Group]:
    groups = list(groups)
    i = 0
    while i < len(groups):
        if groups[i].kind in ("matmul", "matvec"):
            before = ancestors(groups)
            for j in range(i + 1, len(groups)):
                if not _alike(groups[i], groups[j], caps) or before[j] >> i & 1:
                    continue
                outputs = (*groups[i].outputs, *groups[j].outputs)
                joined = _joined(groups[i], groups[j], outputs, None)
                if bindings(joined) > caps.max_bindings:
                    continue
                groups = _replaced(groups, i, j, joined)
                before = ancestors(groups)
                i -= 1
                break
        i += 1
    return groups


def _replaced(groups: list[Group], i: int, j: int, joined: Group) -> list[Group]:
    """Groups i and j as one, in an order that respects data: what i's users need of j comes
    first, since neither depends on the other."""
    rest = [g for k, g in enumerate(groups) if k not in (i, j)]
    return ordered([*rest[:i], joined, *rest[i:]])


def ordered(groups: list[Group]) -> list[Group]:
    """The groups in a data order, as near to the given one as that allows."""
    writer = writers(groups)
    placed: list[Group] = []
    done: set[int] = set()
    for start in range(len(groups)):
        stack = [start]
        while stack:
            k = stack[-1]
            if k in done:
                stack.pop()
                continue
            needs = [n for n in needed(groups[k], writer) if n not in done and n != k]
            if needs:
                stack.extend(needs)
                continue
            done.add(k)
            placed.append(groups[k])
            stack.pop()
    return placed


def writers(groups: list[Group]) -> dict[int, int]:
    """id of each value that is written -> the place of its group."""
    return {id(o): i for i, g in enumerate(groups) for o in g.outputs}


def needed(group: Group, writer: dict[int, int]) -> list[int]:
    """The places of the groups that write what `group` reads."""
    found = []
    for x in group.inputs:
        while id(x) not in writer and x.op == "reshape":
            x = x.inputs[0]
        if id(x) in writer:
            found.append(writer[id(x)])
    return found


def ancestors(groups: list[Group]) -> list[int]:
    """Bit masks: which groups each group needs, directly or not (groups are in a data order)."""
    writer = writers(groups)
    masks: list[int] = []
    for group in groups:
        mask = 0
        for k in needed(group, writer):
            mask |= masks[k] | 1 << k
        masks.append(mask)
    return masks
