"""norm: composites of rows over the last axis, each as one kernel, forward and backward.

A formula (norm_formulas, norm_grad) walks its row in passes; what its (fused) prologue computes is
kept in a private array between passes. CPU: explicit vectors, several rows to a group. GPU: one
group per row folding through shared memory, or one thread per row where barriers are dear.
Elementwise values of the prologue may be outputs too (a residual sum).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.graph.ir import Node, toposort
from weft.kernel import builder as kb
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel, Type
from weft.templates import affine, norm_formulas, norm_grad
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.folds import (
    Accumulator,
    Fold,
    State,
    fold_group,
    fold_lanes,
    fold_states,
    several,
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
from weft.templates.norm_row import Formula, Row
from weft.templates.reduce import group_threads
from weft.templates.registry import claims, template
from weft.templates.view import Index

CHUNK = 16384  # elements per group on a CPU
UNROLL = 4  # accumulators per fold on a CPU
NEXT_BYTES = 8192  # of a row: the hardware itself runs ahead in longer ones

Element = Callable[[Affine], tuple[Expr, ...]]

FORMULAS: dict[str, Formula] = {
    "softmax": norm_formulas.softmax,
    "log_softmax": norm_formulas.log_softmax,
    "layer_norm": norm_formulas.layer_norm,
    "rms_norm": norm_formulas.rms_norm,
    "cross_entropy": norm_formulas.cross_entropy,
    "moments": norm_formulas.moments,
    "rms_scale": norm_formulas.rms_scale,
    "softmax_grad": norm_grad.softmax_grad,
    "log_softmax_grad": norm_grad.log_softmax_grad,
    "layer_norm_grad": norm_grad.layer_norm_grad,
    "rms_norm_grad": norm_grad.rms_norm_grad,
    "cross_entropy_grad": norm_grad.cross_entropy_grad,
}


@claims(*FORMULAS, kind="norm")
def claim_norm(node: Node, caps: Caps) -> bool:
    """Every row is taken that has elements and, on a CPU, fits the scratch memory."""
    x = node.inputs[0]
    kept = sum(4 * x.shape[-1] for operand in node.inputs if operand.shape == x.shape)
    return x.size > 0 and (not caps.is_cpu or kept <= _room(caps))


@claims("norm_weight_grads", kind="norm")
def claim_weight_grads(node: Node, caps: Caps) -> bool:
    """On a CPU, where one thread can add up rows; elsewhere the body is inlined: moments, sums."""
    n = node.shape[-1]
    return node.inputs[0].size > 0 and caps.is_cpu and 16 * n <= _room(caps)


def _room(caps: Caps) -> int:
    """Bytes that the CPU rows kept between passes may take."""
    return max(caps.scratch_bytes // 2, 16 << 10) - 4096


@template("norm")
def build_norm(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a row composite (a "call" node over its last axis)."""
    assert group.anchor is not None
    if group.anchor.attrs["name"] == "norm_weight_grads":
        return _CpuColumns(group, caps).kernel()
    if caps.is_cpu:
        return _CpuRows(group, caps).kernel()
    if caps.cheap_barrier and group.anchor.inputs[0].shape[-1] > 32:
        return _GroupRows(group, caps).kernel()
    return _ThreadRows(group, caps).kernel()


class _Rows:
    """What the three styles share; the loops over a row (`fold`, `each`) are theirs."""

    def __init__(self, group: Group, caps: Caps) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        self.shape = self.anchor.inputs[0].shape
        self.n = self.shape[-1]
        self.rows = self.anchor.inputs[0].size // self.n
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)
        after = _after(group)
        self.late = [o for o in group.outputs if id(o) in after]
        self.early = [o for o in group.outputs if id(o) not in after]
        self.large = dict(zip(map(id, group.outputs), streams(group, caps)))
        for o in group.outputs:
            size = self.anchor.size if id(o) in after else self.anchor.inputs[0].size
            if o.size != size:
                name = self.anchor.attrs["name"]
                raise CompileError(f"{o!r} cannot be an output of {name} {self.anchor!r}")

    def fold(self, folds: Sequence[Fold], element: Element) -> tuple[Expr, ...]:
        raise NotImplementedError

    def each(self, body: Callable[[Affine], None]) -> None:
        raise NotImplementedError

    def run(self, row: Affine) -> None:
        """Emits one row."""
        lead = affine.unflatten(row, self.shape[:-1])
        FORMULAS[self.anchor.attrs["name"]](Row(self, lead))

    def wanted(self) -> Expr | int:
        """How many rows a run wants."""
        if self.group.rows is None or len(self.shape) < 2:
            return self.rows
        return times(bounded_rows(self.group, self.shape[0]), self.rows // self.shape[0])

    def array(self) -> ir.Array | None:
        return None

    def see(self, index: Index) -> None:
        for node in self.early:
            self._write(node, index, self.shape)

    def ahead(self, index: Index) -> None:
        """Nothing: on a GPU other groups run while one waits."""

    def put(self, index: Index, value: Expr) -> None:
        """Runs the epilogue on one (or a vector) of the results."""
        bound = self.b.let(value, "y")
        self.em.define(self.anchor, self.em.only(self.anchor, index, bound))
        for node in self.late:
            self._write(node, index, self.anchor.shape)

    def _write(self, node: Node, index: Index, shape: tuple[int, ...]) -> None:
        at = affine.reshape_index(index, shape, node.shape)
        linear = affine.flatten(index, affine.contiguous(shape))
        self.em.store(node, at, self.large[id(node)] and linear.aligned(linear.lanes))

    def finished(self, grid: Expr | int, threads: int = 1) -> Kernel:
        flops = 8 * self.rows * self.n
        return self.b.kernel((grid,), (threads,), flops=flops, bytes=traffic(self.group))


def _after(group: Group) -> set[int]:
    """ids of the nodes that depend on the anchor, itself included."""
    after = {id(group.anchor)}
    for node in toposort(group.outputs):
        if any(id(x) in after for x in node.inputs):
            after.add(id(node))
    return after


class _CpuRows(_Rows):
    """One thread walks the row by vectors; kept values lie in private arrays (L1, L2)."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        self.lanes = useful_lanes(caps, self.n)
        self.unroll = max(1, min(UNROLL, self.n // self.lanes))

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        per = max(1, CHUNK // self.n)
        wanted = self.wanted()
        low = b.let(b.group(0) * per, "low")
        high = kb.minimum(low + per, wanted)
        with b.loop(high, low, name="r") as r, em.scope():
            self.run(em.axis(r, self.rows))
        return self.finished(kb.ceil_div(wanted, per))

    def ahead(self, index: Index) -> None:
        """Asks for the next row's operands and for where this row's results go."""
        if index[-1].lanes < self.lanes or self.rows == 1 or 4 * self.n > NEXT_BYTES:
            return
        at = self.em.address(affine.flatten(index, affine.contiguous(self.shape)))
        for node in self.group.inputs:
            if node.shape == self.shape:
                self.b.prefetch(self.em.buffers[id(node)], at + self.n)
        for k, node in enumerate(self.group.outputs):
            if (
                node.shape == self.shape
                and not self.large[id(node)]
                and k not in self.group.in_place
            ):
                self.b.prefetch(self.em.buffers[~id(node)], at)

    def array(self) -> ir.Array:
        wide = self.lanes * self.unroll
        return self.b.array("row", dt.float32, -(-self.n // wide) * wide)

    def each(self, body: Callable[[Affine], None]) -> None:
        vector_loop(self.em, 0, self.n, self.n, body, self.lanes, self.unroll)

    def fold(self, folds: Sequence[Fold], element: Element) -> tuple[Expr, ...]:
        b, lanes = self.b, self.lanes
        vectors = [[Accumulator(b, f, lanes) for f in folds] for _ in range(self.unroll)]
        rest = [Accumulator(b, f) for f in folds] if self.n % lanes else []
        turn = itertools.cycle(vectors)

        def body(j: Affine) -> None:
            values = element(j)
            if j.lanes < lanes:
                for acc, value in zip(rest, values, strict=True):
                    acc.add(value)
            else:
                for acc, value in zip(next(turn), values, strict=True):
                    acc.add(value, None, self.em.mask)

        self.each(body)
        found = []
        for k, fold in enumerate(folds):
            state = fold_lanes(b, fold, fold_states(b, fold, [v[k].state() for v in vectors]))
            if rest:
                state = fold.combine(b, state, rest[k].state())
            found.append(b.let(fold.finish(b, state), fold.name))
        return tuple(found)


class _CpuColumns(_CpuRows):
    """norm_weight_grads: one thread adds up a run of rows, column by column, in private arrays."""

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        chunks, count, _ = self.anchor.shape
        per = self.rows // chunks
        sums = [self.array() for _ in range(count)]
        chunk = em.axis(b.group(0), chunks)

        def clear(j: Affine) -> None:
            for s in sums:
                b.store(s, em.address(j), kb.const(0.0, Type(dt.float32, j.lanes)))

        def write(j: Affine) -> None:
            for k, s in enumerate(sums):
                value = kb.load(s, em.address(j), j.lanes)
                self.put((chunk, affine.number(k), j), value)

        self.each(clear)
        with b.loop(per, name="r") as r, em.scope():
            row = chunk * per + em.axis(r, per)
            terms = norm_grad.weight_terms(Row(self, affine.unflatten(row, self.shape[:-1])))

            def add(j: Affine) -> None:
                for s, value in zip(sums, terms(j), strict=True):
                    before = kb.load(s, em.address(j), j.lanes)
                    b.store(s, em.address(j), before + value)

            self.each(add)
        self.each(write)
        return self.finished(chunks)


class _ThreadRows(_Rows):
    """One thread per row; nothing is kept but the statistics: values are computed again."""

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        threads = min(64, self.caps.max_threads)
        wanted = self.wanted()
        at = b.let(b.group(0) * threads + b.thread(0), "at")
        with b.when(at < wanted), em.scope():
            self.run(em.axis(at, self.rows))
        return self.finished(kb.ceil_div(wanted, threads), threads)

    def each(self, body: Callable[[Affine], None]) -> None:
        with self.b.loop(self.n, name="j") as j, self.em.scope():
            body(self.em.axis(j, self.n))

    def joined(self, folds: Sequence[Fold], states: Sequence[State]) -> Sequence[State]:
        """The states of all threads of a row."""
        return states

    def fold(self, folds: Sequence[Fold], element: Element) -> tuple[Expr, ...]:
        b = self.b
        accs = [Accumulator(b, fold) for fold in folds]

        def body(j: Affine) -> None:
            for acc, value in zip(accs, element(j), strict=True):
                acc.add(value)

        self.each(body)
        states = self.joined(folds, [acc.state() for acc in accs])
        return tuple(b.let(f.finish(b, s), f.name) for f, s in zip(folds, states))


class _GroupRows(_ThreadRows):
    """One group per row: thread t takes elements t, t + threads, ..."""

    def __init__(self, group: Group, caps: Caps) -> None:
        super().__init__(group, caps)
        self.threads = group_threads(caps, self.n)
        self.t = self.b.let(self.b.thread(0), "t")

    def kernel(self) -> Kernel:
        self.run(self.em.axis(self.b.group(0), self.rows))
        return self.finished(self.wanted(), self.threads)

    def each(self, body: Callable[[Affine], None]) -> None:
        with self.b.loop(self.n, self.t, self.threads, name="j") as j, self.em.scope():
            body(self.em.axis(j, self.n))

    def joined(self, folds: Sequence[Fold], states: Sequence[State]) -> Sequence[State]:
        flat = tuple(v for state in states for v in state)
        flat = fold_group(self.b, several(folds), flat, self.t, self.threads, self.caps)
        parts = iter(flat)
        return [tuple(itertools.islice(parts, len(f.dtypes))) for f in folds]

    def put(self, index: Index, value: Expr) -> None:
        if len(index) == len(self.shape) and self.anchor.shape == self.shape:
            super().put(index, value)
            return
        with self.b.when(kb.eq(self.t, 0)), self.em.scope():  # a number of the row: one thread
            super().put(index, value)
