"""Attention over whole sequences on a CPU: one group per (query block, head, batch entry)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.builder import Builder, Expr, const, minimum
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.attention.flash import Operand
from weft.templates.attention.flash_amx import flash_for
from weft.templates.attention.places import length_of, visible_keys
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import View, operand


def build(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel for one `attention` call (see the composite for its meaning)."""
    b = Builder(group.name or "attention")
    em = Emitter(b, group, caps)
    params = node.attrs["params"]
    q, k, v = (operand(group, x) for x in node.inputs[:3])
    batch, heads, t, depth = node.shape
    groups, s = node.inputs[1].shape[1:3]
    rows = rows_of(caps, config, batch * heads, t)

    bi = em.axis(b.group(2), batch)
    head = b.let(b.group(1), "head")
    kv_head = em.axis(b.let(head // (heads // groups), "kv_head"), groups)
    h = em.axis(head, heads)
    blocks = -(-t // rows)
    block: Expr = b.group(0)
    if params["causal"]:
        block = (blocks - 1) - block  # the longest rows first
    t0 = b.let(block * rows, "t0")
    bases = [
        b.let(em.expr(affine.flatten((bi, x), view.strides[:2], view.offset)), "base")
        for view, x in ((q, h), (k, kv_head), (v, kv_head))
    ]
    flash = flash_for(
        b, caps, (_operand(em, q), _operand(em, k), _operand(em, v)), depth, rows, s, params
    )
    length = length_of(em, node, 3, bi)

    def limits(row: Expr) -> tuple[Expr, Expr]:
        return visible_keys(b, t0 + row, t, s, length, params["causal"], params["window"])

    count = b.let(minimum(t - t0, rows), "count")
    flash.start(b.let(bases[0] + t0 * q.strides[2], "q0"), count)
    first, _ = limits(const(0))
    _, stop = limits(b.let(count - 1, "last"))

    flash.walk(bases[1:], b.let(first, "first"), b.let(stop, "stop"), limits)

    def write(row: Expr, column: int, mask: Expr | None, value: Expr) -> None:
        ti = em.axis(t0 + row, t)
        lane = em.lane(value.type.lanes)
        with em.scope():
            store_all(em, node, (bi, h, ti, lane + column), value, mask)

    flash.finish(write)
    batches = row_limit(group, 1, batch)
    flops = 4 * batch * heads * t * s * depth // (2 if params["causal"] else 1)
    return b.kernel((blocks, heads, batches), (1,), flops, traffic(group))


def _operand(em: Emitter, view: View) -> Operand:
    return Operand(em.buffers[id(view.node)], view.strides[2], view.strides[3])


def rows_of(caps: Caps, config: Mapping[str, Any], planes: int, t: int) -> int:
    """Query rows per block: large blocks share a packed K, small ones fill the cores."""
    rows: int = config.get("rows", 128)
    while rows > 16 and planes * -(-t // rows) < 4 * caps.cores:
        rows //= 2
    return min(rows, t)
