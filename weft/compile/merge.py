"""Dots that share their left operand become one kernel: the operand is read once.

Two shapes of it: silu(x@Wg) * (x@Wu), where one dot meets another in its epilogue; and q, k, v
projections of one x, which become one kernel with several outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from weft.compile.cuts import WORK
from weft.compile.order import Order
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.ops.quantize import run_of
from weft.templates.group import Group
from weft.templates.view import views
from weft.transform.rebuild import kind_of

MAX_DOTS = 4  # accumulators of this many dots still fit the registers


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
    """True if the kernels of two groups can be joined."""
    if a.alone or b.alone:
        return False
    if a.kind != b.kind or a.kind not in (("matmul", "matvec") if caps.is_cpu else ("matvec",)):
        return False
    if (a.rows, a.rows_scale) != (b.rows, b.rows_scale):
        return False
    x, y = a.anchor, b.anchor
    assert x is not None and y is not None
    same = x.inputs[0] is y.inputs[0] and x.inputs[1].dtype is y.inputs[1].dtype
    if not same or len(_dots(a)) + len(_dots(b)) > MAX_DOTS:
        return False
    if _order(x) != _order(y):
        return False
    return x.shape == y.shape or (a.kind == "matvec" and x.shape[:-1] == y.shape[:-1])


def _order(dot: Node) -> tuple[int, bool, int]:
    """Returns the number of interleaved rows of the right operand, a flag for a packed one, and the
    run of a product of integers."""
    *_, left = views(dot.inputs[0])
    *_, view = views(dot.inputs[1])
    run = run_of(view.form, view.node.shape[1]) if view.form and left.whole else 0
    return view.run, view.form is not None, run


def _dots(group: Group) -> list[Node]:
    """The dots that a group computes."""
    return [n for n in group.inside() if n.op == "dot"]


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
    """Returns the number of buffers of the group's kernel."""
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
    """True if x is used for `root` alone, through a limited number of elementwise ops of its
    shape."""
    stack, seen = [x], {id(root)}
    while stack:
        for user in users[id(stack.pop())]:
            if id(user) in seen:
                continue
            seen.add(id(user))
            fits = kind_of(user) == "elementwise" and user.shape == x.shape
            if not fits or not users[id(user)] or len(seen) > WORK:
                return False
            stack.append(user)
    return True


# -- dots side by side --------------------------------------------------------------------------


def _side_by_side(groups: list[Group], caps: Caps) -> list[Group]:
    found = [g for g in groups if g.kind in ("matmul", "matvec")]
    read = Counter(id(g.anchor.inputs[0]) for g in found if g.anchor is not None)
    order = Order(groups)
    i = 0
    while i < len(order.groups):
        group = order.groups[i]
        anchor = group.anchor if group is not None else None
        if anchor is None or read[id(anchor.inputs[0])] < 2 or not _join_next(order, i, caps):
            i += 1
    return order.result()


def _join_next(order: Order, i: int, caps: Caps) -> bool:
    """Joins group i with the next one that is like it and does not need it, if there is one."""
    first, later = order.groups[i], None
    assert first is not None
    for j in order.near(i):
        group = order.groups[j]
        if group is None or not _alike(first, group, caps):
            continue
        later = order.users_of(i) if later is None else later
        if j in later:
            continue
        joined = _joined(first, group, (*first.outputs, *group.outputs), None)
        if bindings(joined) <= caps.max_bindings:
            order.join(i, j, joined)
            return True
    return False
