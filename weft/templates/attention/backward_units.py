"""The derivative of attention in the matrix units of GPUs: row statistics, dq, and dk with dv.

A block of rows stays in shared memory while blocks of the others pass: for dq query rows stay and
keys pass, for dk and dv keys stay and the query rows that see them pass, head after head. Both
products of a pair of blocks leave the units, threads make weights of them, and those return as f16
or bf16 to be multiplied by what passes. An element of a result is one sum in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import math
from weft.kernel.builder import (
    Expr,
    as_expr,
    cast,
    const,
    fma,
    iota,
    load,
    maximum,
    minimum,
    select,
    splat,
)
from weft.kernel.ir import Kernel
from weft.ops.attention_grad import UNSEEN
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.backward_gpu import G, K, Parts, Q, V
from weft.templates.attention.softmax import LOG2E, base_two
from weft.templates.attention.units import Units
from weft.templates.attention.units_tiles import (
    SIDE,
    WORD,
    Blocks,
    Need,
    Operand,
    Plan,
    others,
    plan_of,
)
from weft.templates.group import Group
from weft.templates.product.problem import operand

# (rows of a subgroup, subgroups, keys of a block), the quickest first
_SHAPES = ((16, 4, 64), (16, 4, 32), (16, 2, 32))
_LSE = ((32, 4, 64), (32, 4, 32), (16, 4, 32), (16, 2, 32))
_NEEDS = {
    "attention_lse": Need(weights=0, sums=0),
    "attention_dq": Need(held=2, scores=2, travelling=2),
    "attention_dkv": Need(held=2, scores=2, weights=2, sums=2, travelling=2, most=192),
}


def plan_for(group: Group, node: Node, caps: Caps, config: Mapping[str, Any]) -> Plan | None:
    """How the units take an `attention_lse`, `attention_dq` or `attention_dkv` call, or None."""
    name = node.attrs["name"]
    forward = name == "attention_lse"
    views = [operand(group, x) for x in node.inputs[: 2 if forward else 4]]
    dtype, depth = node.inputs[0].dtype, node.inputs[0].shape[-1]
    shapes = _LSE if forward else _SHAPES
    return plan_of(dtype, depth, views, caps, config, shapes, _NEEDS[name])


def candidates(group: Group, node: Node, caps: Caps) -> list[dict[str, Any]]:
    """Other numbers of subgroups for the call; a row's sums stay as they are."""
    depth, need = node.inputs[0].shape[-1], _NEEDS[node.attrs["name"]]
    return others(plan_for(group, node, caps, {}), depth, caps, need)


def build(group: Group, node: Node, caps: Caps, plan: Plan) -> Kernel:
    """The kernel of a call for which there is a plan."""
    kind = {"attention_lse": _Lse, "attention_dq": _Dq, "attention_dkv": _Dkv}
    return kind[node.attrs["name"]](group, node, caps, plan).kernel()


class _Grad(Parts):
    """What the kernels share: `first` is the group's first row (or key)."""

    def __init__(self, group: Group, node: Node, caps: Caps, plan: Plan) -> None:
        super().__init__(group, node, caps)
        self.caps, self.plan = caps, plan
        self.dtype = node.inputs[0].dtype
        self.first = self.b.let(self.b.group(0) * plan.rows, "first_item")

    def kernel(self) -> Kernel:
        """The finished kernel."""
        raise NotImplementedError

    def operand_of(self, i: int, head: Affine) -> Operand:
        view = self.views[i]
        return Operand(self.em.buffers[id(view.node)], self.base(i, head), view.strides[2])

    def key_range(self) -> tuple[Expr, Expr]:
        """The keys that the group's rows see (the same in every thread)."""
        last = self.b.let(minimum(self.first + (self.plan.rows - 1), self.t - 1), "last")
        return self.limits(self.first)[0], self.limits(last)[1]

    def seen(self, row: Expr) -> tuple[Expr, Expr]:
        """The keys that a row sees: none where there is no row."""
        low, high = self.limits(row)
        return low, self.b.let(select(row < self.t, high, 0), "high")

    def write(
        self, index: tuple[Affine, ...], at: Expr, items: int, column: Expr, value: Expr
    ) -> None:
        """Eight columns of row (or key) `at`, where both exist."""
        b, em = self.b, self.em
        with b.when((at < items) & (column < as_expr(self.depth))), em.scope():
            c = em.axis(column, self.depth - WORD + 1, WORD) + em.lane(WORD)
            self.store((*index, em.axis(at, items), c), value)


class _Lse(_Grad):
    """The forward kernel without its values."""

    def kernel(self) -> Kernel:
        b, params = self.b, self.params
        units = Units(
            b, self.caps, self.plan, self.dtype, self.depth, params["scale"], params["softcap"],
            values=False,
        )  # fmt: skip
        head, kv = self.head()
        row = b.let(self.first + units.row, "row")
        low, high = self.seen(row)
        units.take_rows(self.operand_of(Q, head), self.first, const(self.t - 1))
        start, stop = self.key_range()
        units.sweep(self.operand_of(K, kv), None, start, stop, low, high)
        lse, some = units.log_sum()
        value = b.let(select(some, lse, UNSEEN), "lse")
        with b.when((units.part < 1) & (row < self.t)), self.em.scope():
            self.store((self.bi, head, self.em.axis(row, self.t)), value)
        return self.kernel_of(self.t, (self.plan.threads,), self.plan.rows)


class _Pairs(_Grad):
    """Both products of what stays and what passes, and the weights of every pair. `sees` are the
    first item of what passes that this thread's row (or key) meets and the one after the last."""

    sees: tuple[Expr, Expr]

    def __init__(self, group: Group, node: Node, caps: Caps, plan: Plan) -> None:
        super().__init__(group, node, caps, plan)
        b, dtype = self.b, self.dtype
        self.blocks = blocks = Blocks(b, caps, plan, dtype, self.depth)
        self.held = [blocks.staged("held", plan.rows) for _ in range(2)]
        self.passing = [blocks.staged("passing", plan.keys) for _ in range(2)]
        self.fetched = [blocks.travelling("fetched") for _ in range(2)]
        size = plan.rows * blocks.s_ld
        self.products = [b.array("product", dt.float32, size, "shared") for _ in range(2)]
        self.ds = b.array("ds", dtype, plan.rows * blocks.p_ld, "shared")
        self.lefts = [b.tile("left", dtype, SIDE, SIDE) for _ in range(plan.per_wave // SIDE)]
        self.by, self.turned = b.tile("by", dtype, SIDE, SIDE), b.tile("turned", dtype, SIDE, SIDE)
        self.pairs = [blocks.tiles("pair", plan.keys) for _ in range(2)]
        self.results = [blocks.tiles("sum", plan.wide)]
        self.factor = base_two(self.params["scale"], self.params["softcap"])

    def meet(self, sources: tuple[Operand, Operand], start: Expr, stop: Expr) -> None:
        """Items start .. stop of what passes (bound, the same in every thread) go by."""
        b, blocks, keys = self.b, self.blocks, self.plan.keys
        begin = b.let(start - start % keys, "begin")
        last = b.let(maximum(stop - 1, 0), "last")
        for source, target in zip(sources, self.fetched):
            blocks.fetch(source, begin, last, target)
        with b.loop(stop, begin, step=keys, name="at") as at, self.em.scope():
            b.barrier()
            for fetched, target in zip(self.fetched, self.passing):
                blocks.keep(fetched, target)
            self.note(at)
            b.barrier()
            for i, pair in enumerate(self.pairs):
                blocks.against(
                    pair, self.held[i], self.passing[i], self.lefts, self.by, self.products[i]
                )
            b.barrier()
            for source, target in zip(sources, self.fetched):
                blocks.fetch(source, at + keys, last, target)
            self._weigh(at)
            b.barrier()
            self.collect()

    def note(self, at: Expr) -> None:
        """What threads must know of the items that pass, to shared memory."""

    def collect(self) -> None:
        """The weights return to the units."""
        self.blocks.add(self.results[0], self.ds, self.passing[0], self.lefts, self.turned)

    def statistics(self, j: Expr) -> tuple[Expr, Expr]:
        """lse (in base 2) and delta of eight pairs, the first with item j of the block."""
        raise NotImplementedError

    def keep_weight(self, at: Expr, p: Expr) -> None:
        """Eight weights p at [row][item]."""

    def _weigh(self, at: Expr) -> None:
        b, blocks = self.b, self.blocks
        count = self.plan.keys // self.plan.parts
        offset = b.let(blocks.part * count, "offset")
        low, high = (b.let(splat(b.let(x - at, "bound"), WORD), "bound") for x in self.sees)
        with b.loop(count, step=WORD, name="j") as step:
            j = b.let(offset + step, "j")
            item = b.let(splat(j, WORD) + iota(WORD), "item")
            seen = b.let((item >= low) & (item < high), "seen")
            spot = b.let(blocks.row * blocks.s_ld + j, "spot")
            lse, delta = self.statistics(j)
            product = b.let(load(self.products[0], spot, WORD), "product")
            change = load(self.products[1], spot, WORD) - delta
            p, ds = self._pair(product, lse, change, seen)
            target = b.let(blocks.row * blocks.p_ld + j, "target")
            b.store(self.ds, target, cast(ds, self.dtype))
            self.keep_weight(target, p)

    def _pair(self, product: Expr, lse: Expr, change: Expr, seen: Expr) -> tuple[Expr, Expr]:
        """p and scale * ds (both bound), zeros where a pair is not seen."""
        b, scale = self.b, self.params["scale"]
        slope = None
        if self.factor:
            gap = fma(product, self.factor, -lse)
        else:
            score, slope = self.score(product)
            gap = score * LOG2E - lse
        gap = b.let(gap, "gap")
        p = fma(gap, 0.0, math.exp2_below(b, gap))  # NaN stays NaN
        p = b.let(select(seen, b.let(p, "p"), 0.0), "p")
        ds = p * change * scale
        ds = b.let(ds if slope is None else ds * slope, "ds")
        return p, b.let(select(seen, ds, 0.0), "ds")


class _Dq(_Pairs):
    """Query rows and their gradients stay, keys and values pass."""

    def kernel(self) -> Kernel:
        b, em, blocks = self.b, self.em, self.blocks
        blocks.clear(self.results[0])
        head, kv = self.head()
        row = b.let(self.first + blocks.row, "row")
        self.sees = self.seen(row)
        near = b.let(minimum(row, self.t - 1), "near")
        lse = b.let(self.sum_of(0, head, near) * LOG2E, "lse")
        delta = self.sum_of(1, head, near)
        self.own = tuple(b.let(splat(x, WORD), "own") for x in (lse, delta))
        for i, target in zip((Q, G), self.held):
            blocks.take(self.operand_of(i, head), self.first, const(self.t - 1), target)
        start, stop = self.key_range()
        self.meet((self.operand_of(K, kv), self.operand_of(V, kv)), start, stop)

        def write(row: Expr, column: Expr, value: Expr) -> None:
            at = b.let(self.first + row, "at")
            with em.scope():
                self.write((self.bi, head), at, self.t, column, value)

        blocks.leave(self.results[0], self.products[0], write)
        return self.kernel_of(self.t, (self.plan.threads,), self.plan.rows)

    def statistics(self, j: Expr) -> tuple[Expr, Expr]:
        lse, delta = self.own
        return lse, delta


class _Dkv(_Pairs):
    """Keys and values stay, the query rows that see them and their gradients pass."""

    def __init__(self, group: Group, node: Node, caps: Caps, plan: Plan) -> None:
        super().__init__(group, node, caps, plan)
        b, blocks = self.b, self.blocks
        self.p = b.array("p", self.dtype, plan.rows * blocks.p_ld, "shared")
        self.noted = [b.array("noted", dt.float32, plan.keys, "shared") for _ in range(2)]
        self.results.append(blocks.tiles("sum", plan.wide))

    def kernel(self) -> Kernel:
        b, em, blocks = self.b, self.em, self.blocks
        for sums in self.results:
            blocks.clear(sums)
        kv_at = b.let(b.group(1), "kv")
        kv = em.axis(kv_at, self.groups)
        key = b.let(self.first + blocks.row, "key")
        first, stop = self.rows_of(key, 1)
        self.sees = first, b.let(select(key < self.length, stop, 0), "stop_row")
        for i, target in zip((K, V), self.held):
            blocks.take(self.operand_of(i, kv), self.first, const(self.s - 1), target)
        start, end = self.rows_of(self.first, self.plan.rows)
        end = b.let(select(self.first < self.length, end, 0), "end_row")
        with b.loop(self.share, name="h") as h, em.scope():
            self.passes = em.axis(kv_at * self.share + h, self.heads)
            sources = self.operand_of(Q, self.passes), self.operand_of(G, self.passes)
            self.meet(sources, start, end)
        for part, sums in enumerate(self.results):

            def write(row: Expr, column: Expr, value: Expr, part: int = part) -> None:
                at = b.let(self.first + row, "at")
                with em.scope():
                    index = (affine.number(part), self.bi, kv)
                    self.write(index, at, self.s, column, value)

            blocks.leave(sums, self.products[0], write)
        return self.kernel_of(self.s, (self.plan.threads,), self.plan.rows)

    def note(self, at: Expr) -> None:
        """lse and delta of the rows that pass."""
        b = self.b
        with b.when(self.blocks.t < self.plan.keys), self.em.scope():
            row = b.let(minimum(at + self.blocks.t, self.t - 1), "row")
            for i, target in enumerate(self.noted):
                value = self.sum_of(i, self.passes, row)
                b.store(target, self.blocks.t, value * LOG2E if i == 0 else value)

    def collect(self) -> None:
        super().collect()
        self.blocks.add(self.results[1], self.p, self.passing[1], self.lefts, self.turned)

    def statistics(self, j: Expr) -> tuple[Expr, Expr]:
        lse, delta = (load(x, j, WORD) for x in self.noted)
        return self.b.let(lse, "lse"), delta

    def keep_weight(self, at: Expr, p: Expr) -> None:
        self.b.store(self.p, at, cast(p, self.dtype))
