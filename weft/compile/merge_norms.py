"""Norms that become the end of the product they follow, where the template's groups own whole rows.

The rows are normalised while they are in the cache. What else reads the product's own result still
finds it in memory: the kernel then has two outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.compile.analysis import base, straight
from weft.compile.merge import ancestors, bindings, needed, ordered, writers
from weft.compile.tuning import config_for
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.templates.group import Group, reached
from weft.templates.matmul import takes_norm
from weft.templates.matmul_norm import NORMS, normalised


def merge_norms(groups: list[Group], caps: Caps, is_output: Callable[[Node], bool]) -> list[Group]:
    """The groups with such norms joined to their products, in an order that respects data."""
    for norm in [g for g in groups if _is_norm(g)]:
        for x in map(base, reversed(norm.inputs)):
            product = next((g for g in groups if g.kind == "matmul" and g.outputs == (x,)), None)
            if product is None or not _fits(product, norm, groups):
                continue
            others = (y for g in groups if g is not norm for y in g.inputs)
            wanted = is_output(x) or any(base(y) is x for y in others)
            joined = _joined(product, norm, wanted)
            if bindings(joined) <= caps.max_bindings and _taken(joined, caps):
                rest = [joined if g is product else g for g in groups if g is not norm]
                groups = ordered(rest)
                break
    return groups


def _taken(joined: Group, caps: Caps) -> bool:
    return takes_norm(joined, caps, config_for(joined, caps)[0])


def _is_norm(group: Group) -> bool:
    return group.anchor is not None and group.anchor.attrs.get("name") in NORMS


def _fits(product: Group, norm: Group, groups: list[Group]) -> bool:
    """Whether what the norm reads of the product is the element that it normalises, and it needs
    nothing that another kernel computes from the product."""
    call, (x,) = norm.anchor, product.outputs
    assert call is not None
    value = normalised(call)
    whole = value.shape == x.shape and x.shape[-1] == call.shape[-1]
    if not whole or (product.rows, product.rows_scale) != (norm.rows, norm.rows_scale):
        return False
    if value is not x and not value.dtype == x.dtype == dt.float32:
        return False  # a kernel of its own would read x rounded
    if not straight(replace(norm, outputs=(value,)), {id(x)}):
        return False
    stop = {id(call), *(id(y) for y in norm.inputs)}
    beside = reached((*norm.outputs, *call.inputs[1:]), stop)
    if any(base(y) is x for y in beside):
        return False
    masks, at = ancestors(groups), groups.index(product)
    return not any(k != at and masks[k] >> at & 1 for k in needed(norm, writers(groups)))


def _joined(product: Group, norm: Group, wanted: bool) -> Group:
    (x,) = product.outputs
    inputs = {id(y): y for y in (*product.inputs, *norm.inputs) if base(y) is not x}
    outputs = (x, *norm.outputs) if wanted else norm.outputs
    name = f"{product.name}+{norm.name}"
    return replace(product, inputs=tuple(inputs.values()), outputs=outputs, name=name)
