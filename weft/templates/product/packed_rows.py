"""Packed weights in the order of their checkpoint, for threads that read rows of their own: a few
neighbours along K at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import bitcast, cast, const, extract, load
from weft.kernel.ir import Expr
from weft.ops.quantize import BLOCK
from weft.templates.lanes import WORD
from weft.templates.packed import finish, numbers, value_of
from weft.templates.product.code_words import least_of, natural, signed

RUN = 8  # codes that are read together: whole bytes of every plane


def fits(form: Form, k: int) -> bool:
    """True if rows of k weights are whole runs, each of one group."""
    return k % RUN == 0 and form.group % RUN == 0


@dataclass(frozen=True)
class PackedRows:
    """The packed right operand of a product over K = `k`, whose parts are in `buffers`: `items`
    rows from row `first` on, and `rows` in all. `starts` holds the start of each part of one
    row."""

    form: Form
    buffers: Mapping[str, ir.Buffer]
    items: int
    k: int
    caps: Caps
    starts: Mapping[str, Expr] | None = None
    first: Expr | int = 0
    dtype = dt.float32  # dtype of the elements that `parts` returns
    along_k = True

    @property
    def rows(self) -> int:
        return self.buffers["codes"].size * 8 // (self.k * self.form.planes[0])

    def line(self, b: Builder, item: Expr, name: str = "start") -> PackedRows:
        widths = {part: buffer.size // self.rows for part, buffer in self.buffers.items()}
        row = b.let(self.first + item, "row")
        starts = {part: b.let(row * width, part) for part, width in widths.items()}
        return replace(self, starts=starts)

    def lanes(self, items: int, bk: int) -> int:
        return RUN if bk % RUN == 0 else RUN // 2

    def parts(self, b: Builder, k: Expr, count: int) -> list[Expr]:
        """`count` (RUN or half of it) weights of the row from k, a multiple of it, on."""
        form, k = self.form, b.let(k, "at_k")
        beside = self.numbers(b, k)
        codes = self._fields(b, "codes", form.planes[0], k, count)
        if len(form.planes) > 1:
            high = self._fields(b, "high", form.planes[1], k, count)
            codes = [low | (top << form.planes[0]) for low, top in zip(codes, high)]
        values = (value_of(b, form, b.let(code, "code"), self.caps) for code in codes)
        return [b.let(finish(b, form, value, beside), "w") for value in values]

    def fours(self, b: Builder, k: Expr) -> list[Expr]:
        """The codes of the row's block of k less `least_of`, four signed bytes to a word."""
        words = {
            part: words_at(b, self.buffers[part], self._start(part, bits, k), BLOCK * bits // 8)
            for part, bits in zip(("codes", "high"), self.form.planes)
        }
        found = natural(b, self.form, lambda part, number: words[part][number])
        return [b.let(signed(self.form, four), "four") for four in found]

    def numbers(self, b: Builder, k: Expr) -> dict[str, Expr]:
        """Returns the scales, zeros and lows of the group of k, as f32."""
        return numbers(b, self.form, lambda part: self._number(part, k))

    def taken(self, b: Builder, k: Expr) -> Expr | None:
        """Returns the factor of the sum of x that subtracts from `fours` the rest of an offset, and
        the zero of the group of k. Returns None if nothing is subtracted."""
        left = least_of(self.form) - self.form.offset
        if self.form.shift == "zero":
            return b.let(left - cast(self._load("zeros", k), dt.int32), "taken")
        return const(left) if left else None

    def _start(self, part: str, bits: int, k: Expr) -> Expr:
        """Returns the place of the bits of the codes from k on."""
        assert self.starts is not None
        return self.starts[part] + (k * bits // 8 if bits < 8 else k)

    def _fields(self, b: Builder, part: str, bits: int, k: Expr, count: int) -> list[Expr]:
        """The bits of each code in one plane."""
        size = max(count * bits // 8, 1)
        at = self._start(part, bits, k)
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
        return cast(self._load(part, k), dt.float32)

    def _load(self, part: str, k: Expr) -> Expr:
        buffer = self.buffers[part]
        each = self.k * self.rows // buffer.size
        assert self.starts is not None
        group = k // each if each < self.k else const(0)
        return load(buffer, self.starts[part] + group)


def words_at(b: Builder, source: ir.Buffer, at: Expr, size: int) -> list[Expr]:
    """Returns the int32 words of `size` bytes from an index on, loaded a vector at a time."""
    found: list[Expr] = []
    at = b.let(at, "at")
    for first in range(0, size, WORD):
        step = min(size, WORD)
        words = b.let(bitcast(load(source, at + first, step), dt.int32), "words")
        found += [b.let(extract(words, i), "word") for i in range(step // 4)]
    return found
