"""attention_merge: parts of a decoding step meet, in ascending order of their keys. A thread takes
an element of the result; its parts lie next to its neighbours'."""

from __future__ import annotations

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import math
from weft.kernel.builder import Builder, Expr, ceil_div, const, eq, fma, load, maximum, select
from weft.kernel.ir import F32, Kernel
from weft.templates import affine
from weft.templates.attention.softmax import FLOOR
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import operand

THREADS = 128


def build(group: Group, node: Node, caps: Caps) -> Kernel:
    """The kernel for one `attention_merge` call (see weft.ops.attention_parts)."""
    b = Builder(group.name or "attention_merge")
    em = Emitter(b, group, caps)
    view = operand(group, node.inputs[0])
    n, heads, parts, _ = node.inputs[0].shape
    depth, source = node.shape[-1], em.buffers[id(view.node)]
    threads = 1 if caps.is_cpu else min(THREADS, caps.max_threads)
    count = row_limit(group, heads * depth, n * heads * depth)
    e = b.let(b.group(0) * threads + b.thread(0), "e")
    with b.when(e < count), em.scope():
        row, head, column = affine.unflatten(em.axis(e, n * heads * depth), (n, heads, depth))
        at = affine.flatten((row, head), view.strides[:2], view.offset)
        start, step, along = b.let(em.expr(at), "start"), view.strides[2], view.strides[3]

        def read(part: Expr, component: Expr | int) -> Expr:
            return load(source, start + part * step + component * along)

        top = b.var(FLOOR, "top")
        with b.loop(parts, name="p") as p:
            b.assign(top, maximum(top, read(p, const(depth))))
        total, value = b.var(0.0, "total"), b.var(0.0, "value")
        mine = b.let(em.expr(column), "column")
        with b.loop(parts, name="p") as p:
            by = b.let(math.exp(b, b.let(read(p, const(depth)) - top, "gap")), "by")
            b.assign(total, fma(by, read(p, const(depth + 1)), total))
            b.assign(value, fma(by, read(p, mine), value))
        whole = b.let(total, "whole")
        y = value / select(eq(whole, 0.0), const(1.0, F32), whole)
        store_all(em, node, (row, head, column), b.let(y, "y"), None)
    grid = ceil_div(row_limit(group, heads * depth, n * heads * depth), threads)
    return b.kernel((grid,), (threads,), 4 * parts * n * heads * depth, traffic(group))
