"""norm: softmax, log_softmax, layer_norm and rms_norm over the last axis, each as one kernel.

A row is read once: its (fused) prologue values are kept in a private array while the statistics
are folded, then the results go through the epilogue. CPU: explicit vectors, several rows to a
group. GPU: one group per row folding through shared memory, or one thread per row where barriers
are dear. Elementwise values of the prologue may be outputs too (a residual sum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node, toposort
from weft.kernel import builder as kb
from weft.kernel import ir
from weft.kernel import math as km
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.folds import (
    Accumulator,
    Fold,
    fold_group,
    fold_lanes,
    fold_states,
    sum_fold,
    top_fold,
)
from weft.templates.group import Group
from weft.templates.loops import (
    bounded_rows,
    kernel_name,
    times,
    traffic,
    useful_lanes,
    vector_loop,
)  # fmt: skip
from weft.templates.map import streams
from weft.templates.reduce import group_threads
from weft.templates.registry import claims, template
from weft.templates.view import Index

CHUNK = 16384  # elements per group on a CPU
TOP = top_fold()
UNROLL = 4


Body = Callable[[Affine], None]


@claims("softmax", "log_softmax", "layer_norm", "rms_norm", kind="norm")
def claim_norm(node: Node, caps: Caps) -> bool:
    """Every row is taken that has elements and, on a CPU, fits the scratch memory."""
    return node.size > 0 and (not caps.is_cpu or 4 * node.shape[-1] <= _room(caps))


def _room(caps: Caps) -> int:
    """Bytes that a CPU row kept between passes may take."""
    return max(caps.scratch_bytes // 2, 16 << 10) - 4096


@template("norm")
def build_norm(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a row composite (a "call" node over its last axis)."""
    assert group.anchor is not None
    if caps.is_cpu:
        return _CpuRows(group, caps).kernel()
    if caps.cheap_barrier and group.anchor.shape[-1] > 32:
        return _GroupRows(group, caps).kernel()
    return _ThreadRows(group, caps).kernel()


class _Rows:
    """What the three styles share: the row's loops are theirs, the formulas stand here.

    `each(body)` runs body(j) over the row's elements, `fold(fold, element)` folds a value of each
    element to one scalar that the whole row sees.
    """

    def __init__(self, group: Group, caps: Caps) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        self.name = self.anchor.attrs["name"]
        self.params = self.anchor.attrs.get("params", {})
        self.x = self.anchor.inputs[0]
        self.n = self.anchor.shape[-1]
        self.rows = self.anchor.size // self.n
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)
        after = _after(group)
        self.late = [o for o in group.outputs if id(o) in after]
        self.early = [o for o in group.outputs if id(o) not in after]
        self.large = dict(zip(map(id, group.outputs), streams(group, caps)))
        for o in group.outputs:
            if o.size != self.anchor.size:
                raise CompileError(f"{o!r} cannot be an output of {self.name} {self.anchor!r}")

    # -- loops, by style

    def each(self, body: Body) -> None:
        raise NotImplementedError

    def fold(self, fold: Fold, element: Callable[[Affine], Expr]) -> Expr:
        raise NotImplementedError

    def keep(self, j: Affine, value: Expr) -> None:
        """Stores a value of element j for the passes to come."""
        raise NotImplementedError

    def kept(self, j: Affine) -> Expr:
        raise NotImplementedError

    # -- formulas

    def wanted(self) -> Expr | int:
        """How many rows a run wants."""
        shape = self.anchor.shape
        if self.group.rows is None or len(shape) < 2:
            return self.rows
        return times(bounded_rows(self.group, shape[0]), self.rows // shape[0])

    def run(self, row: Affine) -> None:
        """Emits one row."""
        self.lead = affine.unflatten(row, self.anchor.shape[:-1])
        formula = {
            "softmax": self._softmax,
            "log_softmax": self._log_softmax,
            "layer_norm": self._layer_norm,
            "rms_norm": self._rms_norm,
        }[self.name]
        formula()

    def first(self, j: Affine) -> Expr:
        """Element j on first sight: computed, kept, and written where it is an output."""
        index = (*self.lead, j)
        for node in self.early:
            self._write(node, index)
        value = self.em.value(self.x, index)
        self.keep(j, value)
        return value

    def _write(self, node: Node, index: Index) -> None:
        at = affine.reshape_index(index, self.anchor.shape, node.shape)
        linear = affine.flatten(index, affine.contiguous(self.anchor.shape))
        self.em.store(node, at, self.large[id(node)] and linear.aligned(linear.lanes))

    def write(self, j: Affine, result: Expr) -> None:
        """Runs the epilogue on one (or a vector) of the row's results."""
        index = (*self.lead, j)
        value = self.b.let(result, "y")
        self.em.define(self.anchor, self.em.only(self.anchor, index, value))
        for node in self.late:
            self._write(node, index)

    def weight(self, k: int, j: Affine) -> Expr:
        """Element j of the anchor's k-th operand, in f32."""
        return self.em.value(self.anchor.inputs[k], (j,))

    def _exps(self) -> tuple[Expr, Expr]:
        """The row's maximum and the sum of exp(x - maximum); both are NaN if the row holds one."""
        b = self.b
        top = b.let(self.fold(TOP, self.first), "top")
        total = b.let(self.fold(sum_fold(dt.float32), lambda j: self._exp(j, top)), "total")
        return top, b.let(kb.select(km.isnan(b, top), top, total), "total")

    def _exp(self, j: Affine, top: Expr) -> Expr:
        e = self.b.let(km.exp_below(self.b, self.kept(j) - top), "e")
        if self.name == "softmax":
            self.keep(j, e)
        return e

    def _softmax(self) -> None:
        _, total = self._exps()
        scale = self.b.let(1.0 / total, "scale")
        self.each(lambda j: self.write(j, self.kept(j) * scale))

    def _log_softmax(self) -> None:
        b = self.b
        top, total = self._exps()
        log = b.let(km.log(b, total), "log")
        self.each(lambda j: self.write(j, self.kept(j) - top - log))

    def _layer_norm(self) -> None:
        b, n = self.b, self.n
        mean = b.let(self.fold(sum_fold(dt.float32), self.first) * (1.0 / n), "mean")

        def square(j: Affine) -> Expr:
            d = b.let(self.kept(j) - mean, "d")
            return d * d

        var = self.fold(sum_fold(dt.float32), square) * (1.0 / n)
        r = b.let(1.0 / kb.unary("sqrt", var + self.params["eps"]), "r")

        def result(j: Affine) -> None:
            d = (self.kept(j) - mean) * r
            self.write(j, kb.fma(d, self.weight(1, j), self.weight(2, j)))

        self.each(result)

    def _rms_norm(self) -> None:
        b, n, offset = self.b, self.n, self.params.get("offset", 0.0)

        def square(j: Affine) -> Expr:
            x = self.first(j)
            return x * x

        mean = self.fold(sum_fold(dt.float32), square) * (1.0 / n)
        r = b.let(1.0 / kb.unary("sqrt", mean + self.params["eps"]), "r")

        def result(j: Affine) -> None:
            w = self.weight(1, j)
            w = w + offset if offset else w
            self.write(j, self.kept(j) * r * w)

        self.each(result)

    def finished(self, grid: Expr | int, threads: int = 1) -> Kernel:
        flops = 8 * self.anchor.size
        return self.b.kernel((grid,), (threads,), flops=flops, bytes=traffic(self.group))


def _after(group: Group) -> set[int]:
    """ids of the nodes that depend on the anchor, itself included."""
    after = {id(group.anchor)}
    for node in toposort(group.outputs):
        if any(id(x) in after for x in node.inputs):
            after.add(id(node))
    return after


class _CpuRows(_Rows):
    """One thread walks the row by vectors; kept values lie in a private array (L1, L2)."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        self.lanes = useful_lanes(caps, self.n)
        self.unroll = max(1, min(UNROLL, self.n // self.lanes))
        self.row: ir.Array | None = None

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        wide = self.lanes * self.unroll
        padded = -(-self.n // wide) * wide
        if 4 * self.n > _room(self.caps):
            raise CompileError(f"a row of {self.n} elements does not fit the scratch memory")
        self.row = b.array("row", dt.float32, padded)
        per = max(1, CHUNK // self.n)
        wanted = self.wanted()
        low = b.let(b.group(0) * per, "low")
        high = kb.minimum(low + per, wanted)
        with b.loop(high, low, name="r") as r, em.scope():
            self.run(em.axis(r, self.rows))
        return self.finished(kb.ceil_div(wanted, per))

    def each(self, body: Body) -> None:
        vector_loop(self.em, 0, self.n, self.n, body, self.lanes, self.unroll)

    def fold(self, fold: Fold, element: Callable[[Affine], Expr]) -> Expr:
        b = self.b
        accs = [Accumulator(b, fold, self.lanes) for _ in range(self.unroll)]
        rest = Accumulator(b, fold) if self.lanes > 1 else accs[0]
        turn = iter(range(1 << 30))

        def body(j: Affine) -> None:
            value = element(j)
            if j.lanes == 1 and self.lanes > 1:
                rest.add(value)
            else:
                accs[next(turn) % self.unroll].add(value, None, self.em.mask)

        self.each(body)
        state = fold_lanes(b, fold, fold_states(b, fold, [a.state() for a in accs]))
        if self.lanes > 1:
            state = fold.combine(b, state, rest.state())
        return fold.finish(b, state)

    def keep(self, j: Affine, value: Expr) -> None:
        assert self.row is not None
        self.b.store(self.row, self.em.address(j), kb.splat(value, j.lanes))

    def kept(self, j: Affine) -> Expr:
        assert self.row is not None
        return self.b.let(kb.load(self.row, self.em.address(j), j.lanes), "x")


class _ThreadRows(_Rows):
    """One thread per row; nothing is kept but the statistics: values are computed again."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        self.top: Expr | None = None

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        threads = min(64, self.caps.max_threads)
        wanted = self.wanted()
        at = b.let(b.group(0) * threads + b.thread(0), "at")
        with b.when(at < wanted), em.scope():
            self.run(em.axis(at, self.rows))
        return self.finished(kb.ceil_div(wanted, threads), threads)

    def each(self, body: Body) -> None:
        with self.b.loop(self.n, name="j") as j, self.em.scope():
            body(self.em.axis(j, self.n))

    def fold(self, fold: Fold, element: Callable[[Affine], Expr]) -> Expr:
        acc = Accumulator(self.b, fold)
        self.each(lambda j: acc.add(element(j)))
        return fold.finish(self.b, acc.state())

    def keep(self, j: Affine, value: Expr) -> None:
        """Nothing: `kept` computes it again."""

    def kept(self, j: Affine) -> Expr:
        return self.em.value(self.x, (*self.lead, j))

    def _softmax(self) -> None:
        b = self.b
        top, total = self._exps()
        scale = b.let(1.0 / total, "scale")
        self.each(lambda j: self.write(j, km.exp_below(b, self.kept(j) - top) * scale))


class _GroupRows(_ThreadRows):
    """One group per row: thread t takes elements t, t + threads, ..., kept in registers when they
    are few."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        self.threads = group_threads(caps, self.n)
        self.t = self.b.let(self.b.thread(0), "t")

    def kernel(self) -> Kernel:
        self.run(self.em.axis(self.b.group(0), self.rows))
        return self.finished(self.wanted(), self.threads)

    def each(self, body: Body) -> None:
        with self.b.loop(self.n, self.t, self.threads, name="j") as j, self.em.scope():
            body(self.em.axis(j, self.n))

    def fold(self, fold: Fold, element: Callable[[Affine], Expr]) -> Expr:
        b = self.b
        acc = Accumulator(b, fold)
        self.each(lambda j: acc.add(element(j)))
        state = fold_group(b, fold, acc.state(), self.t, self.threads, self.caps)
        return fold.finish(b, state)
