"""Joins groups where one kernel does their work better.

Dots that share their left operand become one kernel: the operand is read once. Two shapes of it:
silu(x@Wg) * (x@Wu), where one dot meets another in its epilogue; and q, k, v projections of one x,
which become one kernel with several outputs.

A norm joins the product that it follows, where the template's groups own whole rows. The rows are
normalised while they are in the cache. Other readers of the product's own result still find it in
memory: the kernel then has two outputs.

An elementwise kernel joins the elementwise kernel of its shape that it feeds first. A value may
have to be in memory for another reason (the new state of an optimiser, an output, later readers).
Its first reader among the kernels then computes and writes it, so it does not read it from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from weft.compile.analysis import base, straight
from weft.compile.cuts import WORK, fit_together
from weft.compile.order import Order
from weft.compile.tuning import config_for
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.ops.quantize import run_of
from weft.templates.emit_special import emits
from weft.templates.group import Group, reached
from weft.templates.product.blocked import takes_norm
from weft.templates.product.then_norm import is_norm, normalised
from weft.templates.view import views
from weft.transform.rebuild import kind_of

PRODUCTS = ("matmul", "matvec")  # templates that compute several dots of one left operand
MAX_DOTS = 4  # accumulators of this many dots still fit the registers


def merged(
    groups: list[Group],
    caps: Caps,
    users: dict[int, list[Node]],
    is_output: Callable[[Node], bool],
) -> list[Group]:
    """The groups, joined where that pays, in an order that respects data."""
    groups = _merge_norms(_merge_dots(groups, caps, users, is_output), caps, is_output)
    return _merge_maps(groups, caps)


def _merge_dots(
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
    if a.kind != b.kind or a.kind not in (PRODUCTS if caps.is_cpu else ("matvec",)):
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


def _one_product(a: Group, b: Group, outputs: tuple[Node, ...], drop: Node | None) -> Group:
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
            joined = _one_product(groups[j], groups[i], (root,), x)
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
    found = [g for g in groups if g.kind in PRODUCTS]
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
        joined = _one_product(first, group, (*first.outputs, *group.outputs), None)
        if bindings(joined) <= caps.max_bindings:
            order.join(i, j, joined)
            return True
    return False


# -- a norm after a product ---------------------------------------------------------------------


def _merge_norms(groups: list[Group], caps: Caps, is_output: Callable[[Node], bool]) -> list[Group]:
    """The groups with such norms joined to their products, in an order that respects data."""
    norms = [g for g in groups if _is_norm(g)]
    if not norms:
        return groups
    order = Order(groups)
    products = {id(g.outputs[0]): g for g in groups if _is_product(g)}
    readers = Counter(id(base(y)) for g in groups for y in g.inputs)
    for norm in norms:
        for x in map(base, reversed(norm.inputs)):
            product = products.get(id(x))
            if product is None or not _norm_fits(product, norm, order):
                continue
            own = sum(base(y) is x for y in norm.inputs)
            joined = _with_norm(product, norm, is_output(x) or readers[id(x)] > own)
            if bindings(joined) <= caps.max_bindings and _norm_taken(joined, caps):
                order.join(order.place[id(product)], order.place[id(norm)], joined)
                readers.subtract(id(base(y)) for g in (product, norm) for y in g.inputs)
                readers.update(id(base(y)) for y in joined.inputs)
                del products[id(x)]
                break
    return order.result()


def _is_product(group: Group) -> bool:
    return group.kind == "matmul" and len(group.outputs) == 1 and not group.alone


def stranger(group: Group) -> Node | None:
    """The first node inside the group that its kernel cannot compute; None where it can compute
    all: what the emitter writes, the anchor, further dots of a product, one norm after it."""
    norms = 0
    for node in group.inside():
        if node is group.anchor or node.op == "result" or emits(node):
            continue
        if node.op == "dot" and group.kind in PRODUCTS:
            continue
        norms += is_norm(node)
        if not is_norm(node) or group.kind != "matmul" or norms > 1:
            return node
    return None


def _norm_taken(joined: Group, caps: Caps) -> bool:
    return stranger(joined) is None and takes_norm(joined, caps, config_for(joined, caps)[0])


def _is_norm(group: Group) -> bool:
    return group.anchor is not None and is_norm(group.anchor) and not group.alone


def _norm_fits(product: Group, norm: Group, order: Order) -> bool:
    """True if the norm reads only the element of the product that it normalises, and needs no value
    that another kernel computes from the product."""
    call, (x,) = norm.anchor, product.outputs
    assert call is not None
    value = normalised(call)
    whole = value.shape == x.shape and x.shape[-1] == call.shape[-1]
    if not whole or (product.rows, product.rows_scale) != (norm.rows, norm.rows_scale):
        return False
    if value is not x and not value.dtype == x.dtype == dt.float32:
        return False  # a separate kernel would read x rounded
    if not straight(replace(norm, outputs=(value,)), {id(x)}):
        return False
    stop = {id(call), *(id(y) for y in norm.inputs)}
    beside = reached((*norm.outputs, *call.inputs[1:]), stop)
    if any(base(y) is x for y in beside):
        return False
    at, end = order.place[id(product)], order.place[id(norm)]
    return end in order.near(at) and not order.leads_around(at, end)


def _with_norm(product: Group, norm: Group, wanted: bool) -> Group:
    (x,) = product.outputs
    inputs = {id(y): y for y in (*product.inputs, *norm.inputs) if base(y) is not x}
    outputs = (x, *norm.outputs) if wanted else norm.outputs
    name = f"{product.name}+{norm.name}"
    return replace(product, inputs=tuple(inputs.values()), outputs=outputs, name=name)


# -- elementwise kernels -------------------------------------------------------------------------


def _merge_maps(groups: list[Group], caps: Caps) -> list[Group]:
    """The groups with such pairs joined, as long as the buffers fit the target's bindings and the
    work one kernel."""
    readers: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        for x in group.inputs:
            if i not in (found := readers.setdefault(id(base(x)), []))[-1:]:
                found.append(i)
    merged: dict[int, Group] = {}  # keyed by the position of the group that absorbed the others
    gone: set[int] = set()
    for i, group in enumerate(groups):
        users = readers.get(id(base(group.outputs[-1])), [])
        if not users or group.kind != "map" or group.alone or i in gone:
            continue
        mine = merged.pop(i, group)
        user = merged.get(users[0], groups[users[0]])
        # it moves to where `user` is, which must be before whatever else reads what it writes
        others = (at for o in mine.outputs for at in readers.get(id(base(o)), []))
        first = min(at for at in others if at > i)
        joined = _as_one(mine, user)
        fits = joined is not None and len(joined.inputs) + len(joined.outputs) <= caps.max_bindings
        if joined is None or not fits or first < users[0] or not fit_together(mine, user):
            if mine is not group:
                merged[i] = mine
            continue
        merged[users[0]] = joined
        gone.add(i)
    return [merged.get(i, g) for i, g in enumerate(groups) if i not in gone]


def _as_one(first: Group, user: Group) -> Group | None:
    """One kernel for both; None where `user` reads what `first` makes at other positions."""
    alike = (
        user.kind == "map"
        and not user.alone
        and (first.rows, first.rows_scale) == (user.rows, user.rows_scale)
    )
    shape = user.outputs[0].shape
    if not alike or any(o.shape != shape for o in (*first.outputs, *user.outputs)):
        return None
    made = {id(o) for o in first.outputs}
    reshaped = any(id(base(x)) in made and id(x) not in made for x in user.inputs)
    if reshaped or not straight(user, made):
        return None
    inputs = {id(x): x for x in (*first.inputs, *user.inputs) if id(x) not in made}
    name = f"{user.name}+{len(first.outputs)}" if len(first.outputs) > 1 else user.name
    return replace(
        user, inputs=tuple(inputs.values()), outputs=(*first.outputs, *user.outputs), name=name
    )
