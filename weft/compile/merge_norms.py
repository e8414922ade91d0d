"""Joins norms to the product they follow, where the template's groups own whole rows.

The rows are normalised while they are in the cache. Other readers of the product's own result still
find it in memory: the kernel then has two outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from weft.compile.analysis import base, straight
from weft.compile.merge import bindings
from weft.compile.order import Order
from weft.compile.tuning import config_for
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.templates.group import Group, reached
from weft.templates.product.blocked import takes_norm
from weft.templates.product.then_norm import is_norm, normalised
from weft.templates.writable import stranger


def merge_norms(groups: list[Group], caps: Caps, is_output: Callable[[Node], bool]) -> list[Group]:
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
            if product is None or not _fits(product, norm, order):
                continue
            own = sum(base(y) is x for y in norm.inputs)
            joined = _joined(product, norm, is_output(x) or readers[id(x)] > own)
            if bindings(joined) <= caps.max_bindings and _taken(joined, caps):
                order.join(order.place[id(product)], order.place[id(norm)], joined)
                readers.subtract(id(base(y)) for g in (product, norm) for y in g.inputs)
                readers.update(id(base(y)) for y in joined.inputs)
                del products[id(x)]
                break
    return order.result()


def _is_product(group: Group) -> bool:
    return group.kind == "matmul" and len(group.outputs) == 1 and not group.alone


def _taken(joined: Group, caps: Caps) -> bool:
    return stranger(joined) is None and takes_norm(joined, caps, config_for(joined, caps)[0])


def _is_norm(group: Group) -> bool:
    return group.anchor is not None and is_norm(group.anchor) and not group.alone


def _fits(product: Group, norm: Group, order: Order) -> bool:
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


def _joined(product: Group, norm: Group, wanted: bool) -> Group:
    (x,) = product.outputs
    inputs = {id(y): y for y in (*product.inputs, *norm.inputs) if base(y) is not x}
    outputs = (x, *norm.outputs) if wanted else norm.outputs
    name = f"{product.name}+{norm.name}"
    return replace(product, inputs=tuple(inputs.values()), outputs=outputs, name=name)
