"""scan: running sums, products and extremes along any axis, and the kernels of a long one.

See ops/scan and ops/scan_blocks for what they compute, transform/scan for when a scan becomes
three, scan_base for the order of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.core.caps import Caps
from weft.kernel import expr as kb
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.loops import bounded_rows, kernel_name, traffic
from weft.templates.registry import template
from weft.templates.rows.folds import Accumulator, State, bind
from weft.templates.scan import scan_cpu, scan_gpu
from weft.templates.scan.folds import beginning, kept, restored, scan_fold
from weft.templates.view import Index

ROWS = 64  # rows per group
AHEAD = 16  # states read together: a single GPU thread would wait for each
NEAR = 4  # ... on a CPU


@template("scan")
def build_scan(group: Group, caps: Caps, config: Mapping[str, Any]) -> Kernel:
    """The kernel of a group around a scan or a part of one."""
    assert group.anchor is not None
    if group.anchor.attrs["name"] in ("scan_carries", "scan_joined"):
        return _BlockTotals(group, caps).kernel()
    return scan_cpu.build(group, caps) if caps.is_cpu else scan_gpu.build(group, caps)


class _BlockTotals:
    """The totals of blocks, one row of them to a thread, one after the other."""

    def __init__(self, group: Group, caps: Caps) -> None:
        assert group.anchor is not None
        self.group, self.caps, self.anchor = group, caps, group.anchor
        params = self.anchor.attrs["params"]
        (self.totals,) = self.anchor.inputs
        self.axis: int = params["axis"]
        shape = self.totals.shape[:-1]
        self.count = shape[self.axis]
        self.others = (*shape[: self.axis], *shape[self.axis + 1 :])
        self.rows = math.prod(self.others)
        self.b = Builder(kernel_name(group))
        self.em = Emitter(self.b, group, caps)
        self.fold = scan_fold(params["op"], self.totals.dtype)
        self.parts = range(self.totals.shape[-1])
        self.exclusive: bool = params.get("exclusive", False)
        self.each = self.anchor.attrs["name"] == "scan_carries"  # otherwise the whole alone

    def kernel(self) -> Kernel:
        b, em, caps = self.b, self.em, self.caps
        threads = 1 if caps.is_cpu else min(ROWS, caps.max_threads)
        each = ROWS if caps.is_cpu else 1
        wanted: Expr | int = self.rows
        if self.group.rows is not None and self.axis:
            first = self.others[0]
            wanted = bounded_rows(self.group, first) * (self.rows // first)
        low = b.let((b.group(0) * threads + b.thread(0)) * each, "low")
        with b.loop(kb.minimum(low + each, wanted), low, name="row") as at, em.scope():
            self.row(affine.unflatten(em.axis(at, self.rows), self.others))
        grid = kb.ceil_div(wanted, threads * each)
        return b.kernel((grid,), (threads,), bytes=traffic(self.group))

    def row(self, lead: Index) -> None:
        b, em = self.b, self.em
        first = beginning(self.fold, self.exclusive)
        run = Accumulator(b, first)
        ahead = NEAR if self.caps.is_cpu else AHEAD
        whole = self.count // ahead * ahead

        def join(places: list[Affine]) -> None:
            indices = [(*lead[: self.axis], p, *lead[self.axis :]) for p in places]
            for index, state in zip(indices, [self.state(i) for i in indices]):
                if self.each:
                    self.put(index, run.state())
                run.join(state)

        if whole:
            with b.loop(whole, step=ahead, name="k") as k, em.scope():
                at = em.axis(k, whole - ahead + 1, ahead)
                join([at + i for i in range(ahead)])
        with em.scope():
            join([affine.number(i) for i in range(whole, self.count)])
        if not self.each:
            value = self.fold.finish(b, run.state())
            self.write(lead, value)

    def state(self, index: Index) -> State:
        values = [self.em.value(self.totals, (*index, affine.number(k))) for k in self.parts]
        return bind(self.b, restored(self.b, self.fold, values), "total")

    def put(self, index: Index, state: State) -> None:
        for k, value in zip(self.parts, kept(self.b, self.fold, state)):
            self.write((*index, affine.number(k)), value)

    def write(self, index: Index, value: Expr) -> None:
        with self.em.scope():
            self.em.define(self.anchor, self.em.only(self.anchor, index, self.b.let(value, "y")))
            for node in self.group.outputs:
                self.em.store(node, affine.reshape_index(index, self.anchor.shape, node.shape))
