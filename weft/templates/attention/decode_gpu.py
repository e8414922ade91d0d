"""A few query rows over a KV cache on a GPU with subgroups: each key and value is read once.

A group takes one row and one key/value head with the query heads that share it (some of them, where
they are many), over the whole cache or over one part of it. A block of keys and values is asked for
at once, 16 bytes per thread; threads along a key's components give its scores, a subgroup a head's
weights, and at the end the threads' sums of weighted values meet. Blocks start at multiples of a
size that depends on dtype and depth alone, so a row's result is the same bit for bit in any batch.
"""

from __future__ import annotations

import math as pymath
from dataclasses import dataclass

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import ir, math
from weft.kernel.builder import (
    Builder,
    Expr,
    binary,
    cast,
    const,
    eq,
    extract,
    fma,
    load,
    maximum,
    minimum,
    select,
)
from weft.kernel.ir import F32, Kernel, Type
from weft.templates import affine
from weft.templates.attention.softmax import FLOOR, HIDDEN, capped
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import traffic
from weft.templates.product.epilogue import row_limit, store_all
from weft.templates.product.problem import View, operand

THREADS = 256
BLOCK = 256  # keys of a block at most,
STEPS = 8  # of which a thread meets this many at most
LANES = 32  # threads along a key at most: a block holds a subgroup's worth of keys
HEADS = 8  # query heads of a group at most


@dataclass(frozen=True)
class Plan:
    """`lanes` threads along the components of a key, `vector` of them each; `steps` keys per thread
    and block; `heads` query heads per group."""

    lanes: int
    vector: int
    steps: int
    heads: int

    @property
    def spots(self) -> int:
        """Keys that the group meets at once."""
        return THREADS // self.lanes

    @property
    def block(self) -> int:
        return self.spots * self.steps


def suits(node: Node, caps: Caps) -> bool:
    """Whether threads work in subgroups, and at most LANES of them read a key's components."""
    vector = 16 // node.inputs[1].dtype.itemsize
    lanes = -(-node.inputs[0].shape[-1] // _even(node, vector))
    return caps.subgroup > 0 and caps.max_threads >= THREADS and lanes <= LANES


def _even(node: Node, vector: int) -> int:
    """The most components, up to a vector, that divide the depth."""
    return pymath.gcd(node.inputs[0].shape[-1], vector)


def _plan(node: Node) -> Plan:
    depth, share = node.inputs[0].shape[-1], node.shape[1] // node.inputs[1].shape[1]
    vector = _even(node, 16 // node.inputs[1].dtype.itemsize)
    lanes = 1 << (-(-depth // vector) - 1).bit_length()
    heads = max(h for h in range(1, HEADS + 1) if share % h == 0)
    return Plan(lanes, vector, min(STEPS, BLOCK * lanes // THREADS) or 1, heads)


def build(group: Group, node: Node, caps: Caps) -> Kernel:
    """The kernel for one `cached_attention` or `cached_attention_parts` call that `suits`."""
    return _Decode(group, node, caps).kernel()


class _Decode:
    def __init__(self, group: Group, node: Node, caps: Caps) -> None:
        self.group, self.node, self.caps = group, node, caps
        self.plan = plan = _plan(node)
        self.b = b = Builder(group.name or node.attrs["name"])
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.q, self.k, self.v = (operand(group, x) for x in node.inputs[:3])
        self.n, self.heads, self.depth = node.inputs[0].shape
        self.slots, self.groups, self.length, _ = node.inputs[1].shape
        self.share = self.heads // self.groups
        self.part = self.params.get("part", 0)
        self.waves = THREADS // caps.subgroup
        self.wide = plan.lanes * plan.vector  # D padded
        self.scores = b.array("scores", dt.float32, plan.heads * plan.block, "shared")
        self.fade = b.array("fade", dt.float32, plan.heads, "shared")
        self.stats = b.array("stats", dt.float32, 2 * plan.heads, "shared")
        size = self.waves * plan.heads * self.wide
        self.sums = b.array("sums", dt.float32, size, "shared")
        dtype = node.inputs[1].dtype
        self.keys = b.array("keys", dtype, plan.steps * plan.vector)
        self.values = b.array("values", dtype, plan.steps * plan.vector)

    def kernel(self) -> Kernel:
        b, plan = self.b, self.plan
        t = self.t = b.let(b.thread(0), "t")
        self.wave = b.let(t // self.caps.subgroup, "wave")
        self.lane = b.let(t % self.caps.subgroup, "lane")
        self.spot = b.let(t // plan.lanes, "spot")
        self.column = b.let(t % plan.lanes * plan.vector, "column")
        chunks = self.share // plan.heads
        self.place = b.let(b.group(0) // chunks, "part") if self.part else const(0)
        chunk = b.let(b.group(0) % chunks, "chunk")
        self.row = self.em.axis(b.group(2), self.n)
        self.kv = self.em.axis(b.group(1), self.groups)
        self.first_head = affine.combine(
            [(self.kv, self.share), (self.em.axis(chunk, chunks), plan.heads)]
        )
        self._start()
        begin = b.let(self.low - self.low % plan.block, "begin")
        with b.loop(self.high, begin, step=plan.block, name="k0") as k0:
            self._read(k0)
            self._scores(k0)
            b.barrier()
            self._weigh()
            b.barrier()
            self._add_values()
            b.barrier()
        self._finish()
        parts = -(-self.length // self.part) if self.part else 1
        grid = (parts * chunks, self.groups, row_limit(self.group, 1, self.n))
        flops = 4 * self.n * self.heads * self.length * self.depth
        return b.kernel(grid, (THREADS,), flops, traffic(self.group))

    def _start(self) -> None:
        """Where the row's keys lie and which it sees; its query heads in registers."""
        b, em, plan, node = self.b, self.em, self.plan, self.node
        slot = minimum(maximum(em.value(node.inputs[3], (self.row,)), 0), self.slots - 1)
        place = em.axis(slot, self.slots)
        pos = b.let(minimum(em.value(node.inputs[4], (self.row,)), self.length - 1), "pos")
        window = self.params["window"]
        low: Expr = maximum(pos - (window - 1), 0) if window else const(0)
        high = maximum(pos + 1, 0)
        if self.part:
            low = maximum(low, self.place * self.part)
            high = minimum(high, (self.place + 1) * self.part)
        self.low, self.high = b.let(low, "low"), b.let(high, "high")
        self.bases = [
            b.let(em.expr(affine.flatten((place, self.kv), x.strides[:2], x.offset)), "base")
            for x in (self.k, self.v)
        ]
        real = b.let(minimum(self.column, self.depth - plan.vector), "real")
        self.offsets = [b.let(real * x.strides[3], "offset") for x in (self.k, self.v)]
        inside = b.let(self.column < self.depth, "inside")
        self.query, self.acc = [], []
        zero = const(0.0, Type(dt.float32, plan.vector))
        for h in range(plan.heads):
            lead = (self.row, self.first_head + h)
            base = b.let(em.expr(affine.flatten(lead, self.q.strides[:2], self.q.offset)), "q")
            q = self._components(self.q, base + real * self.q.strides[-1])
            q = select(inside, cast(q, dt.float32), zero)
            self.query.append(b.let(q, "q"))
            self.acc.append(b.var(zero, "acc", zero.type))
        passes = range(-(-plan.heads // self.waves))
        self.top = [b.var(FLOOR, "top") for _ in passes]
        self.total = [b.var(0.0, "total") for _ in passes]

    def _components(self, view: View, at: Expr) -> Expr:
        """This thread's components, from the element where they start."""
        source, step, n = self.em.buffers[id(view.node)], view.strides[-1], self.plan.vector
        if step == 1 or n == 1:
            return load(source, at, n)
        at = self.b.let(at, "at")
        parts = tuple(load(source, at + i * step) for i in range(n))
        return ir.Vec("pack", parts, Type(source.dtype, n))

    # -- a block

    def _read(self, k0: Expr) -> None:
        """Keys and values of the block, all under way at once; those not seen repeat another."""
        b, plan = self.b, self.plan
        last = b.let(self.high - 1, "last")
        for u in range(plan.steps):
            key = b.let(minimum(k0 + u * plan.spots + self.spot, last), "key")
            for view, base, offset, target in zip(
                (self.k, self.v), self.bases, self.offsets, (self.keys, self.values)
            ):
                at = base + key * view.strides[2] + offset
                b.store(target, u * plan.vector, self._components(view, at))

    def _scores(self, k0: Expr) -> None:
        """scores[h][key] = q_h . key: multiply-adds along the thread's components, then the sum
        over the threads of the key."""
        b, plan, n = self.b, self.plan, self.plan.vector
        for u in range(plan.steps):
            key = b.let(k0 + u * plan.spots + self.spot, "key")
            seen = b.let((key >= self.low) & (key < self.high), "seen")
            k = b.let(cast(load(self.keys, u * n, n), dt.float32), "k")
            for h, q in enumerate(self.query):
                dot = extract(q, 0) * extract(k, 0)
                for i in range(1, n):
                    dot = fma(extract(q, i), extract(k, i), dot)
                dot = b.let(dot, "dot")
                distance = plan.lanes // 2
                while distance:
                    other = ir.Collective("subgroup_xor", (dot,), F32, distance)
                    dot = b.let(dot + other, "dot")
                    distance //= 2
                score = capped(b, dot, self.params["scale"], self.params["softcap"])
                at = h * plan.block + u * plan.spots + self.spot
                with b.when(eq(self.column, 0)):
                    b.store(self.scores, at, select(seen, score, HIDDEN))

    def _weigh(self) -> None:
        """A subgroup per head: scores become weights under the head's new maximum."""
        b, plan, width = self.b, self.plan, self.caps.subgroup
        spread = range(0, plan.block, width)
        for turn, (top, total) in enumerate(zip(self.top, self.total)):
            mine = b.let(self.wave + turn * self.waves, "head")
            busy = b.let(mine < plan.heads, "busy")  # other subgroups only meet
            start = b.let(mine * plan.block + self.lane, "start")
            s = [b.let(load(self.scores, start + i, 1, busy), "s") for i in spread]
            best = s[0]
            for x in s[1:]:
                best = maximum(best, x)
            best = b.let(best, "best")
            new = maximum(top, ir.Collective("subgroup_max", (best,), F32))
            new = b.let(new, "new")
            fade = b.let(math.exp(b, b.let(top - new, "fall")), "fade")
            b.assign(top, new)
            p = [b.let(math.exp(b, b.let(x - new, "gap")), "p") for x in s]
            added = p[0]
            for x in p[1:]:
                added = added + x
            added = b.let(added, "added")
            b.assign(total, fma(total, fade, ir.Collective("subgroup_add", (added,), F32)))
            with b.when(busy):
                for i, x in zip(spread, p):
                    b.store(self.scores, start + i, x)
                with b.when(eq(self.lane, 0)):
                    b.store(self.fade, mine, fade)

    def _add_values(self) -> None:
        """Each thread adds its keys' values, under the weights of each head."""
        b, plan, n = self.b, self.plan, self.plan.vector
        for h, acc in enumerate(self.acc):
            b.assign(acc, acc * load(self.fade, h))
        for u in range(plan.steps):
            v = b.let(cast(load(self.values, u * n, n), dt.float32), "v")
            for h, acc in enumerate(self.acc):
                at = h * plan.block + u * plan.spots + self.spot
                b.assign(acc, fma(load(self.scores, at), v, acc))

    # -- results

    def _finish(self) -> None:
        """Sums meet in the subgroup, then over the subgroups; results go out."""
        b, plan, n = self.b, self.plan, self.plan.vector
        for h, acc in enumerate(self.acc):
            total: Expr = b.let(acc, "acc")
            distance = plan.lanes
            while distance < self.caps.subgroup:
                other = ir.Collective("subgroup_xor", (total,), total.type, distance)
                total = b.let(total + other, "acc")
                distance *= 2
            with b.when(self.lane < plan.lanes):
                at = (self.wave * plan.heads + h) * self.wide + self.lane * n
                b.store(self.sums, at, total)
        for turn, (top, sum_) in enumerate(zip(self.top, self.total)):
            mine = b.let(self.wave + turn * self.waves, "head")
            with b.when(eq(self.lane, 0) & (mine < plan.heads)):
                b.store(self.stats, mine * 2, top)
                b.store(self.stats, mine * 2 + 1, sum_)
        b.barrier()
        columns = self.depth + 2 if self.part else self.depth
        with b.loop(plan.heads * columns, self.t, THREADS, name="e") as e, self.em.scope():
            self._write(b.let(e // columns, "h"), b.let(e % columns, "c"), columns)

    def _write(self, h: Expr, column: Expr, columns: int) -> None:
        """One element: of the result, or (with parts) of the sums, the maximum and the total."""
        b, em = self.b, self.em
        spot = b.let(h * self.wide + minimum(column, self.depth - 1), "spot")
        step = self.plan.heads * self.wide
        y = load(self.sums, spot)
        for w in range(1, self.waves):
            y = y + load(self.sums, spot + w * step)
        head = self.first_head + em.axis(h, self.plan.heads)
        index: tuple[affine.Affine, ...] = (self.row, head)
        if self.part:
            stat = load(self.stats, h * 2 + maximum(column - self.depth, 0))
            y = select(column < self.depth, y, stat)
            index = (*index, em.axis(self.place, -(-self.length // self.part)))
        else:
            total = b.let(load(self.stats, h * 2 + 1), "total")
            some = b.let(total > 0.0, "some")
            inverse = select(some, binary("div", const(1.0, F32), select(some, total, 1.0)), 0.0)
            y = y * inverse
        store_all(em, self.node, (*index, em.axis(column, columns)), b.let(y, "y"), None)
