"""attention_merge: the spans of a decoding step joined, in ascending order. A thread takes an
element of the result; its parts lie next to its neighbours'."""

from __future__ import annotations

from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.builder import Builder
from weft.kernel.expr import ceil_div
from weft.kernel.ir import Kernel
from weft.templates import affine
from weft.templates.attention.softmax import FLOOR, inverse, join, joined
from weft.templates.emit import Emitter
from weft.templates.following import store_all
from weft.templates.group import Group
from weft.templates.loops import bounded_rows, traffic

THREADS = 128


def build(group: Group, node: Node, caps: Caps) -> Kernel:
    """The kernel for one `attention_merge` call (see weft.ops.attention_parts)."""
    b = Builder(group.name or "attention_merge")
    em = Emitter(b, group, caps)
    sums, stats = node.inputs
    n, heads, parts, depth = sums.shape
    threads = 1 if caps.is_cpu else min(THREADS, caps.max_threads)
    count = bounded_rows(group, n) * (heads * depth)
    e = b.let(b.group(0) * threads + b.thread(0), "e")
    with b.when(e < count), em.scope():
        row, head, column = affine.unflatten(em.axis(e, n * heads * depth), (n, heads, depth))
        top, total, value = b.var(FLOOR, "top"), b.var(0.0, "total"), b.var(0.0, "value")
        with b.loop(parts, name="p") as p, em.scope():
            at = (row, head, em.axis(p, parts))
            best, weight = (em.value(stats, (*at, affine.number(i))) for i in range(2))
            new, fade, by = join(b, top, best)
            b.assign(top, new)
            b.assign(total, joined(total, weight, fade, by))
            b.assign(value, joined(value, em.value(sums, (*at, column)), fade, by))
        y = value * inverse(b, b.let(total, "whole"))
        store_all(em, node, (row, head, column), b.let(y, "y"), None)
    grid = (ceil_div(count, threads),)
    return b.kernel(grid, (threads,), 4 * parts * n * heads * depth, traffic(group))
