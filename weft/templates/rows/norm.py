"""norm: composites of rows over the last axis, each as one kernel, forward and backward.

A formula (norm_formulas, grads) walks its row in passes; what its (fused) prologue computes is
kept in a private array between passes. CPU (here): explicit vectors, several rows to a group. GPU
(norm_gpu): a row in the registers of a subgroup or of a group, or one thread per row where barriers
are dear. Elementwise values of the prologue may be outputs too (a residual sum).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import builder as kb
from weft.kernel import ir
from weft.kernel.ir import Expr, Kernel, Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import useful_lanes, vector_loop
from weft.templates.registry import claims, template
from weft.templates.rows import grads, norm_gpu
from weft.templates.rows.folds import Accumulator, Fold, fold_lanes, fold_states
from weft.templates.rows.row import Row
from weft.templates.rows.styles import FORMULAS, Element, Rows
from weft.templates.view import Index

CHUNK = 16384  # elements per group on a CPU
UNROLL = 4  # accumulators per fold on a CPU
NEXT_BYTES = 8192  # of a row: the hardware itself runs ahead in longer ones


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
        return CpuRows(group, caps).kernel()
    return norm_gpu.build(group, caps)


class CpuRows(Rows):
    """One thread walks the row by vectors; kept values lie in private arrays (L1, L2)."""

    def __init__(self, group: Group, caps: Caps, em: Emitter | None = None) -> None:
        super().__init__(group, caps, em)
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

    def array(self, cheap: bool) -> ir.Array | None:
        if cheap:  # from the first cache, as the kept copy would be
            return None
        return self._row()

    def place(self, j: Affine) -> Expr:
        return self.em.address(j)

    def _row(self) -> ir.Array:
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


class _CpuColumns(CpuRows):
    """norm_weight_grads: one thread adds up a run of rows, column by column, in private arrays."""

    def kernel(self) -> Kernel:
        b, em = self.b, self.em
        chunks, count, _ = self.anchor.shape
        per = self.rows // chunks
        sums = [self._row() for _ in range(count)]
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
            terms = grads.weight_terms(Row(self, affine.unflatten(row, self.shape[:-1])))

            def add(j: Affine) -> None:
                for s, value in zip(sums, terms(j), strict=True):
                    before = kb.load(s, em.address(j), j.lanes)
                    b.store(s, em.address(j), before + value)

            self.each(add)
        self.each(write)
        return self.finished(chunks)
