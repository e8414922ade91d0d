"""Packed weights in the order that a CPU's lanes read them: a band is as many rows as a vector has
lanes. Codes lie in 32-bit words (the first code lowest), a word of each row of the band side by
side; so do scales and what else a group has. See compile/interleave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import bitcast, cast, const, fma, load
from weft.kernel.ir import Expr
from weft.templates.packed import finish, looked_up, numbers, value_of

BYTES = 4  # bytes per word
WORD = 8 * BYTES


def step_of(form: Form, k: int) -> int:
    """Returns the number of k read together: whole words of codes, of one group. Returns 0 if none
    fits; the form is then not read in this order."""
    unit = WORD // min(form.planes)
    fits = (n for n in (32, 16, 8, 4) if n % unit == 0 and form.group % n == 0 and k % n == 0)
    return next(fits, 0)


@dataclass(frozen=True)
class PackedBands:
    """The packed right operand of a product over K = `k`, whose parts are in `buffers`. `starts`
    holds the start of each part of one band. The matrix begins at row `first`."""

    form: Form
    buffers: Mapping[str, ir.Buffer]
    k: int
    lanes: int
    caps: Caps
    starts: Mapping[str, Expr] | None = None
    first: Expr | int = 0  # the matrix's first row, a multiple of `lanes`

    @property
    def step(self) -> int:
        return step_of(self.form, self.k)

    def at(self, b: Builder, row: Expr) -> PackedBands:
        """The band that starts with row `row`, a multiple of `lanes`."""
        band = b.let((self.first + row) // self.lanes, "band")
        starts = {
            part: b.let(band * (buffer.size // self.rows * self.lanes), part)
            for part, buffer in self.buffers.items()
        }
        return replace(self, starts=starts)

    @property
    def rows(self) -> int:
        codes = self.buffers["codes"].size
        return codes * 8 // (self.k * self.form.planes[0])

    def vectors(self, b: Builder, k: Expr) -> Iterator[Expr]:
        """Yields the weights of `step` consecutive k of the band, a lane for each row: f32 vectors,
        bound. k is a multiple of `step`."""
        form = self.form
        beside = self.numbers(b, k)
        words: dict[tuple[str, int], Expr] = {}
        signed = form.values == "int" and form.planes == (form.bits,) and form.bits in (4, 8)
        signed = signed and form.offset == 1 << (form.bits - 1)
        for u in range(self.step):
            if self._by_tables:
                value = self._looked_up(b, words, k, u)
                if self._exact:
                    value = fma(value, beside["scales"], beside["lows"])
                else:
                    value = finish(b, form, b.let(value, "value"), beside)
                value = b.let(value, "w")
            elif signed:
                code = self._signed(b, words, k, u)
                value = b.let(finish(b, form, cast(code, dt.float32), beside), "w")
            elif self._exact:
                code = cast(self._code(b, words, k, u), dt.float32)
                value = b.let(fma(code, beside["scales"], beside["lows"]), "w")
            else:
                code = b.let(self._code(b, words, k, u), "code")
                value = b.let(finish(b, form, value_of(b, form, code, self.caps), beside), "w")
            yield value

    @property
    def _exact(self) -> bool:
        """True if code times scale is exact, so that a low can be added to it in the same step."""
        form, digits = self.form, {dt.float16: 11, dt.bfloat16: 8}
        top = self.buffers["super_scales" if form.super_group else "scales"].dtype
        used = form.bits + digits.get(top, 24) + (8 if form.super_group else 0)
        return form.shift == "low" and form.values == "int" and not form.offset and used <= 24

    @property
    def _by_tables(self) -> bool:
        """True if a code's value is a sum of table entries, one per plane, and a vector can hold
        the table."""
        form = self.form
        able = "lookup" in self.caps.features and self.lanes >= 1 << max(form.planes)
        return able and (form.values == "int" or len(form.planes) == 1)

    def _looked_up(self, b: Builder, words: dict[tuple[str, int], Expr], k: Expr, u: int) -> Expr:
        """Returns the value of code k + u. For integers each plane gives a part, so the sum is
        exact."""
        form, below = self.form, 0
        found: Expr | None = None
        for part, bits in zip(("codes", "high"), form.planes):
            number, place = divmod(u * bits, WORD)
            word = self.word(b, words, part, k, number)
            whole = [(i << below) - (0 if below else form.offset) for i in range(1 << bits)]
            entry = looked_up(form.table or whole, word >> place if place else word)
            found = entry if found is None else found + entry
            below += bits
        assert found is not None
        return found

    def word(
        self, b: Builder, words: dict[tuple[str, int], Expr], part: str, k: Expr, number: int,
        flip: int = 0,
    ) -> Expr:  # fmt: skip
        """Returns word `number` of the codes from k on; `flip` inverts bits of it."""
        if (part, number) not in words:
            bits = self.form.planes[part == "high"]
            assert self.starts is not None
            first = k // (WORD // bits) * (BYTES * self.lanes) + number * BYTES * self.lanes
            bytes_ = load(self.buffers[part], self.starts[part] + first, BYTES * self.lanes)
            word = b.let(bitcast(bytes_, dt.int32), "word")
            words[part, number] = b.let(word ^ const(flip, word.type), "word") if flip else word
        return words[part, number]

    def _field(
        self, b: Builder, words: dict[tuple[str, int], Expr], part: str, k: Expr, u: int
    ) -> Expr:
        """The bits of code k + u in one plane, where the code has them."""
        low, bits = (0, *self.form.planes)[part == "high"], self.form.planes[part == "high"]
        number, place = divmod(u * bits, WORD)
        word = self.word(b, words, part, k, number)
        moved = word >> (place - low) if place >= low else word << (low - place)
        return moved & (((1 << bits) - 1) << low)

    def _code(self, b: Builder, words: dict[tuple[str, int], Expr], k: Expr, u: int) -> Expr:
        code = self._field(b, words, "codes", k, u)
        if len(self.form.planes) > 1:
            code = code | self._field(b, words, "high", k, u)
        return code

    def _signed(self, b: Builder, words: dict[tuple[str, int], Expr], k: Expr, u: int) -> Expr:
        """Returns code k + u less half of its range: its highest bit becomes a sign."""
        bits = self.form.bits
        ones = sum(1 << (i + bits - 1) for i in range(0, WORD, bits))
        number, place = divmod(u * bits, WORD)
        word = self.word(b, words, "codes", k, number, ones - (1 << WORD))
        return (word << (WORD - bits - place)) >> (WORD - bits)

    def numbers(self, b: Builder, k: Expr) -> dict[str, Expr]:
        """Returns the scales, zeros and lows of the group of k, as f32."""
        return numbers(b, self.form, lambda part: cast(self.loaded(part, k), dt.float32))

    def loaded(self, part: str, k: Expr) -> Expr:
        """A part's numbers for the group of k, as they are in memory."""
        buffer = self.buffers[part]
        each = self.k * self.rows // buffer.size
        assert self.starts is not None
        group = k // each * self.lanes if each < self.k else const(0)
        return load(buffer, self.starts[part] + group, self.lanes)
