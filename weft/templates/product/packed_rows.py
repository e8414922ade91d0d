"""Packed weights in the order of their checkpoint, for threads that read rows of their own: a few
neighbours along K at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.packed import Form
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, extract, load
from weft.kernel.ir import Expr
from weft.templates.packed import finish, numbers, value_of

RUN = 8  # codes that are read together: whole bytes of every plane


def fits(form: Form, k: int) -> bool:
    """Whether rows of k weights are whole runs, each of one group."""
    return k % RUN == 0 and form.group % RUN == 0


@dataclass(frozen=True)
class PackedRows:
    """The packed right operand of a product over K = `k`, whose parts lie in `buffers`; `starts`
    says where the parts of one row begin."""

    form: Form
    buffers: Mapping[str, ir.Buffer]
    k: int
    caps: Caps
    starts: Mapping[str, Expr] | None = None

    @property
    def rows(self) -> int:
        return self.buffers["codes"].size * 8 // (self.k * self.form.planes[0])

    def at(self, b: Builder, row: Expr) -> PackedRows:
        """One row."""
        widths = {part: buffer.size // self.rows for part, buffer in self.buffers.items()}
        starts = {part: b.let(row * width, part) for part, width in widths.items()}
        return replace(self, starts=starts)

    def elements(self, b: Builder, k: Expr, count: int = RUN) -> list[Expr]:
        """`count` (RUN or half of it) weights of the row from k, a multiple of it, on: f32."""
        form = self.form
        beside = numbers(b, form, lambda part: self._number(part, k))
        codes = self._fields(b, "codes", form.planes[0], k, count)
        if len(form.planes) > 1:
            high = self._fields(b, "high", form.planes[1], k, count)
            codes = [low | (top << form.planes[0]) for low, top in zip(codes, high)]
        values = (value_of(b, form, b.let(code, "code"), self.caps) for code in codes)
        return [b.let(finish(b, form, value, beside), "w") for value in values]

    def _fields(self, b: Builder, part: str, bits: int, k: Expr, count: int) -> list[Expr]:
        """The bits of each code in one plane."""
        assert self.starts is not None
        size = max(count * bits // 8, 1)
        at = self.starts[part] + (k * bits // 8 if bits < 8 else k)
        found = b.let(cast(load(self.buffers[part], at, size), dt.int32), "bytes")
        if count * bits < 8:  # the run is a part of its byte
            found = b.let(found >> (k * bits % 8), "bits")
        each = [b.let(extract(found, i), "byte") for i in range(size)]
        mask = (1 << bits) - 1
        return [
            (each[u * bits // 8] >> (u * bits % 8)) & mask if bits < 8 else each[u]
            for u in range(count)
        ]

    def _number(self, part: str, k: Expr) -> Expr:
        """A part's number for the group of k, as f32."""
        buffer = self.buffers[part]
        each = self.k * self.rows // buffer.size
        assert self.starts is not None
        group = k // each if each < self.k else const(0)
        return cast(load(buffer, self.starts[part] + group), dt.float32)
