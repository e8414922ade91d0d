"""Packed weights times a few rows of integers on a CPU: a band of rows after the other, each word
of codes read once and multiplied where it lies (see integers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.kernel import ir
from weft.kernel.expr import minimum
from weft.kernel.ir import Expr
from weft.ops.quantize import run_of
from weft.templates.emit import Emitter
from weft.templates.operand import Reader
from weft.templates.product.integers import BLOCK, Weights, stage
from weft.templates.product.problem import Segment
from weft.templates.product.stream_cpu import Streamer

_AHEAD = 1024  # bytes of codes that are prefetched ahead


class IntegerStreamer(Streamer):
    """Emits the part of the kernel that computes one segment."""

    def __init__(self, em: Emitter, segment: Segment, config: Mapping[str, Any]) -> None:
        super().__init__(em, segment, config)
        p, caps = self.p, self.caps
        self.mb = min(p.m, 8 if caps.registers >= 32 else 4)
        self.width = self.lanes
        self.bands = p.n // self.lanes
        self.per_group = min(
            config.get("bands", max(1, self.bands // (16 * caps.cores))), self.bands
        )
        self.groups = -(-self.bands // self.per_group)

    def _left(self) -> Reader:
        b, p = self.b, self.p
        sources = [self.em.buffers[id(x)] for x in p.a.stored]
        forms = [w.form for w in self.packed if w is not None]
        self.ints = stage(b, forms, sources, self.x.base, p.a_m, self.limit, p.m, p.k, self.caps)
        return self.x

    def _columns(self, rows: Sequence[Expr], n0: Expr) -> None:
        """A band of rows of w."""
        b, p = self.b, self.p
        sums = self._chains(rows, 1)
        near = [r if isinstance(r, ir.Const) else b.let(minimum(r, self.limit - 1)) for r in rows]
        bands = []
        for w in self.packed:
            assert w is not None
            own = Weights.of(w).at(b, n0)
            assert isinstance(own, Weights)
            bands.append(own)

        def chunk(first: Expr, stop: Expr) -> None:
            with b.loop(stop, first, step=BLOCK, name="k") as k:
                for w, dot in zip(bands, sums.acc):
                    self._ask(w, k)
                    run = run_of(w.form, p.k)
                    for half in range(0, BLOCK, run):
                        at = b.let(k + half, "k") if half else k
                        w.add(b, self.ints, near, at, [line for (line,) in dot])

        sums.chunks(chunk)
        self.store(rows, n0, self.lanes, [[v for (v,) in dot] for dot in sums.result])

    def _ask(self, w: Weights, k: Expr) -> None:
        """Asks for the codes that come some lines later."""
        if not self.ahead:
            return
        assert w.starts is not None
        for part, bits in zip(("codes", "high"), w.form.planes):
            size = BLOCK * bits // 8 * self.lanes
            first = self.b.let(w.starts[part] + k // BLOCK * size + _AHEAD, "coming")
            for line in range(0, size, 64):
                self.b.prefetch(w.buffers[part], first + line)
