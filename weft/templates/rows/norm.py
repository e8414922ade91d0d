"""norm: row-wise composites over the last axis, each as one kernel, forward and backward.

A formula (formulas, grads) walks its row in passes. The values of its (fused) prologue are kept
between passes: in an array of a CPU's thread, or in the registers of the threads that share the row
(walk, walk_gpu). Elementwise values of the prologue may be outputs too (a residual sum). A row's
sums follow core/order.py on every target, so its bits depend on its elements alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel import expr as kb
from weft.kernel.ir import Kernel, Type
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.group import Group
from weft.templates.registry import claims, template
from weft.templates.rows import grads
from weft.templates.rows.row import AnchorRow
from weft.templates.rows.rows import FORMULAS, GroupRows
from weft.templates.rows.walk import CpuWalk

PASSES = 4  # passes over a row, by one thread at worst
TURNS = 8  # most steps per iteration of a loop (kernel/turns.py)


@claims(*FORMULAS, kind="norm")
def claim_norm(node: Node, caps: Caps) -> bool:
    """True if rows have elements and, on a CPU, fit the scratch memory. On a target that ends
    loops, the rows must also be short enough to walk."""
    x = node.inputs[0]
    if caps.max_turns and PASSES * x.shape[-1] > TURNS * caps.max_turns:
        return False
    kept = sum(4 * x.shape[-1] for operand in node.inputs if operand.shape == x.shape)
    return x.size > 0 and (not caps.is_cpu or kept <= _room(caps))


@claims("norm_weight_grads", kind="norm")
def claim_weight_grads(node: Node, caps: Caps) -> bool:
    """True on a CPU, where one thread can add up rows; elsewhere the body is inlined: moments,
    sums."""
    n = node.shape[-1]
    return node.inputs[0].size > 0 and caps.is_cpu and 16 * n <= _room(caps)


def _room(caps: Caps) -> int:
    """Bytes that the CPU rows kept between passes may take."""
    return max(caps.scratch_bytes // 2, 16 << 10) - 4096


@template("norm")
def build_norm(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a row composite (a "call" node over its last axis)."""
    assert group.anchor is not None
    kind = WeightGradients if group.anchor.attrs["name"] == "norm_weight_grads" else GroupRows
    return kind(group, caps).kernel()


class WeightGradients(GroupRows):
    """norm_weight_grads: one thread adds up a run of rows, column by column, in private arrays."""

    def kernel(self) -> Kernel:
        b, em, walk = self.b, self.em, self.walk
        assert isinstance(walk, CpuWalk)
        chunks = self.anchor.shape[0]
        per = self.rows // chunks
        sums = [walk.array() for _ in self.group.results]
        chunk = em.axis(b.group(0), chunks)

        def clear(j: Affine) -> None:
            for s in sums:
                b.store(s, em.address(j), kb.const(0.0, Type(dt.float32, j.lanes)))

        def write(j: Affine) -> None:
            self.put((chunk, j), *(kb.load(s, em.address(j), j.lanes) for s in sums))

        self.each(clear)
        with b.loop(per, name="r") as r, em.scope():
            row = chunk * per + em.axis(r, per)
            terms = grads.weight_terms(AnchorRow(self, affine.unflatten(row, self.shape[:-1])))

            def add(j: Affine) -> None:
                for s, value in zip(sums, terms(j), strict=True):
                    before = kb.load(s, em.address(j), j.lanes)
                    b.store(s, em.address(j), before + value)

            self.each(add)
        self.each(write)
        return self.finished(chunks)
