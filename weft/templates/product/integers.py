"""Products of integers with scales: x from `quantize`, w packed (core/packed).

A run is the k that share both scales: 32, or 16 where a group of w is shorter. Its products add up
exactly in int32; core/order defines how runs add up. Codes of w are multiplied in their packed
order, the fields of a word at once, so x is rearranged into their order. An offset or zero,
subtracted from every code, becomes a multiple of the sum of the run's codes of x.

Two planes of x are multiplied one after the other, or joined: `dot2_int16` multiplies pairs of
their 15-bit codes. The even codes of a word of four are one pair, the odd ones the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.packed import Form
from weft.core.records import dataclass
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import (
    bitcast,
    cast,
    const,
    extract,
    fma,
    load,
    shuffle,
    splat,
)
from weft.kernel.ir import Expr, Type
from weft.ops.quantize import BLOCK, STEP, run_of
from weft.templates.product.bands import BYTES, WORD, PackedBands
from weft.templates.product.code_words import least_of

SLOTS = BLOCK // 4  # fours of codes in a block
# How codes of w are multiplied: as bytes (`codes_of`), as signed bytes (code_words.signed), or in
# pairs of 16 bits by joined planes of x.
Way = Literal["bytes", "pairs", "signed"]
_SIGN = 128


def way_of(caps: Caps, planes: int) -> Way:
    """Returns the target's way: planes of x are joined where only pairs have an instruction."""
    return "pairs" if planes == 2 and "dot2_int16" in caps.features else "bytes"


def halves(b: Builder, four: Expr) -> list[Expr]:
    """The even and the odd bytes of words, as pairs of 16-bit numbers."""
    words = b.let(bitcast(four, dt.int32), "words")
    return [b.let((words >> 8 * i if i else words) & 0x00FF00FF, "pair") for i in range(2)]


def joined(b: Builder, high: Expr, low: Expr) -> list[Expr]:
    """The codes 128 high + low of words of four, the even and the odd ones as pairs. Halves of
    words hold them plus 2^15 at first, so that no carry leaves one."""
    found: list[Expr] = []
    top, rest = (b.let(bitcast(v, dt.int32) ^ _wrapped(0x80808080), "bytes") for v in (high, low))
    for first in ((top & 0x00FF00FF) << 7, (top >> 1) & 0x7F807F80):
        second = (rest >> 8 if found else rest) & 0x00FF00FF
        whole = first + second + 0x3F803F80  # 2^15 - 128 * 128 - 128 in both
        found.append(b.let(whole ^ _wrapped(0x80008000), "pair"))
    return found


def _wrapped(bits: int) -> int:
    return bits - (1 << WORD)


def codes_of(caps: Caps, form: Form, value: Expr) -> tuple[Expr, int]:
    """Bytes of codes as `dot4` takes them best on the target, and its promise (ir.Collective):
    8-bit ones less 128 where it multiplies signed bytes."""
    if form.bits < 8:
        return value, 1
    if "dot4_mixed" in caps.features:
        return value, 0
    return bitcast(value ^ const(_SIGN, value.type), dt.int8), 1


def taken_of(caps: Caps, form: Form, way: Way) -> int:
    """Returns the number still to subtract from every code that is multiplied this way."""
    if way == "signed":
        return form.offset - least_of(form)
    signed = form.bits == 8 and "dot4_mixed" not in caps.features and way == "bytes"
    return form.offset - _SIGN * signed


def factors(caps: Caps, forms: Sequence[Form], way: Way) -> list[int]:
    """Returns the factors of sums of codes of x that subtract offsets from the codes of w; 1 where
    each group has its own."""
    found = (1 if form.shift == "zero" else -taken_of(caps, form, way) for form in forms)
    return sorted({*found} - {0})


def dot4(acc: Expr, a: Expr, x: Expr, promise: int) -> Expr:
    """acc + four products in each lane: the bytes a of a lane with the four of x."""
    lanes = acc.type.lanes
    fours = shuffle([0, 1, 2, 3] * lanes, x)
    return ir.Collective("dot4", (acc, a, fours), acc.type, promise)


def dot2(acc: Expr, a: Expr, x: Expr) -> Expr:
    """acc + the products of a pair in each lane."""
    return ir.Collective("dot2_int16", (acc, a, x), acc.type)


@dataclass(frozen=True)
class LeftCodes:
    """Rows of x, rearranged. `codes`: for each plane, by the bits of a field of w; with `joined`
    their pairs, of even and of odd bytes. `scales`: per
    block. `sums`: per run, the sum of the codes times each of `factors`. `totals`: per run, the sum
    of x itself. Row m of codes starts at m * `k`; other rows likewise."""

    k: int
    run: int
    codes: Mapping[int, Sequence[ir.Array]]
    scales: ir.Array
    sums: Mapping[int, ir.Array]
    totals: ir.Array | None
    joined: bool = False

    def pair(self, bits: int, half: int, row: Expr, k: Expr, slot: int) -> Expr:
        return load(self.codes[bits][half], (row * self.k + k) // 4 + slot)

    def four(self, bits: int, plane: int, row: Expr, k: Expr, slot: int) -> Expr:
        """Four codes that go with a field of `bits`, of the block of k or of its half."""
        return load(self.codes[bits][plane], row * self.k + k + 4 * slot, 4)

    def scale(self, row: Expr, k: Expr) -> Expr:
        return load(self.scales, (row * self.k + k) // BLOCK)

    def of_run(self, source: ir.Array, row: Expr, k: Expr) -> Expr:
        return load(source, (row * self.k + k) // self.run)


def stage(
    b: Builder, forms: Sequence[Form], sources: Sequence[ir.Buffer], base: Expr, stride: int,
    rows: Expr, most: int, k: int, caps: Caps,
) -> LeftCodes:  # fmt: skip
    """Brings `rows` (`most` of them at the most) of x into scratch; `sources` are planes of codes
    and the scales, rows of codes start at `base`, `stride` apart."""
    *planes, scales = sources
    run = min(run_of(form, k) for form in forms)
    bits = sorted({p for form in forms for p in form.planes})
    size = max(most * k, 1)
    way = way_of(caps, len(planes))
    join = way == "pairs"
    kind, each = (dt.int32, size // 4) if join else (dt.int8, size)
    codes = {p: [b.array(f"x{p}", kind, each) for _ in planes] for p in bits}
    left = LeftCodes(
        k, run, codes,
        b.array("sx", dt.float32, size // BLOCK),
        {n: b.array("sums", dt.int32, size // run) for n in factors(caps, forms, way)},
        b.array("totals", dt.float32, size // run)
        if any(form.shift == "low" for form in forms)
        else None,
        join,
    )  # fmt: skip
    with b.loop(rows, name="row") as row:
        start = b.let(base + row * stride, "from")
        with b.loop(k, step=BLOCK, name="k") as at:
            goal = b.let(row * k + at, "to")
            values = [b.let(load(x, start + at, BLOCK), "x") for x in planes]
            scale = b.let(load(scales, (start + at) // BLOCK), "scale")
            b.store(left.scales, goal // BLOCK, scale)
            for p in bits:
                ordered = [shuffle(_fields(p), x) if p < 8 else x for x in values]
                for array, value in zip(codes[p], joined(b, *ordered) if join else ordered):
                    b.store(array, goal // 4 if join else goal, value)
            if left.sums or left.totals is not None:
                total = totals_of(b, values, run)
                for factor, sums in left.sums.items():
                    b.store(sums, goal // run, total * factor)
                if left.totals is not None:
                    b.store(left.totals, goal // run, cast(total, dt.float32) * scale)
    return left


def _fields(bits: int) -> list[int]:
    """The codes of a block in the order of the fields of words: those of one place in each of a
    word's bytes side by side."""
    per, word = 8 // bits, WORD // bits
    return [
        u + s + per * i for u in range(0, BLOCK, word) for s in range(per) for i in range(BYTES)
    ]


def totals_of(b: Builder, planes: Sequence[Expr], run: int) -> Expr:
    """The sum of the codes of each run, of runs that lie side by side."""
    lanes = planes[0].type.lanes // 4
    found: Expr = const(0, Type(dt.int32, lanes))
    for i, value in enumerate(planes):
        first, ones = found * STEP if i else found, const(1, Type(dt.uint8, 4 * lanes))
        found = b.let(ir.Collective("dot4", (first, ones, value), found.type, 1), "fours")
    for _ in range((run // 4).bit_length() - 1):
        n = found.type.lanes
        even, odd = (
            extract(found, i) if n == 2 else shuffle(range(i, n, 2), found) for i in (0, 1)
        )
        found = b.let(even + odd, "sums")
    return found


@dataclass(frozen=True)
class IntegerBands(PackedBands):
    """A packed operand whose codes are multiplied as integers."""

    way: Way = "bytes"

    @classmethod
    def of(cls, w: PackedBands, way: Way) -> IntegerBands:
        return cls(w.form, w.buffers, w.k, w.lanes, w.caps, w.starts, w.first, way)

    def fields(self, b: Builder, k: Expr, run: int) -> list[tuple[int, int, int, Expr, int]]:
        """(shift of its plane, bits, slot of x, bytes, promise) of each four of codes of the run
        from k on, in the order in which they lie."""
        assert self.starts is not None
        found, shift = [], 0
        for part, bits in zip(("codes", "high"), self.form.planes):
            for word in range(run * bits // WORD):
                size = BYTES * self.lanes
                first = k // (WORD // bits) * size + word * size
                value = b.let(load(self.buffers[part], self.starts[part] + first, size), "word")
                for s in range(8 // bits):
                    a, promise = value, 1
                    if bits == 8 and self.way == "bytes":
                        a, promise = codes_of(self.caps, self.form, value)
                    else:
                        a = a >> const(s * bits, a.type) if s else a
                        a = a & const((1 << bits) - 1, a.type) if (s + 1) * bits < 8 else a
                    slot = word * (8 // bits) + s
                    found.append((shift, bits, slot, b.let(a, "codes"), promise))
            shift += bits
        return found

    def add(
        self, b: Builder, left: LeftCodes, rows: Sequence[Expr], k: Expr, accs: Sequence[ir.Var]
    ) -> None:
        """Adds the run from k on to each row's sum."""
        form, lanes, run = self.form, self.lanes, run_of(self.form, self.k)
        type_ = Type(dt.int32, lanes)
        many = 1 if left.joined else len(left.codes[form.planes[0]])
        fields = self.fields(b, k, run)
        zeros = self.taken(b, k) if form.shift == "zero" else None
        less = left.sums.get(-taken_of(self.caps, form, self.way) if zeros is None else 1)
        sums = []
        for row in rows:
            ints = {}
            for shift in dict.fromkeys(f[0] for f in fields):
                for plane in range(many):
                    first: Expr = const(0, type_)
                    if shift == 0 and plane == many - 1 and less is not None:
                        first = splat(left.of_run(less, row, k), lanes)
                        first = first if zeros is None else first * zeros
                    ints[shift, plane] = b.var(first, "int", type_)
            sums.append(ints)
        for shift, bits, slot, a, promise in fields:
            for half, pair in enumerate(halves(b, a) if left.joined else ()):
                for row, ints in zip(rows, sums):
                    x = splat(b.let(left.pair(bits, half, row, k, slot), "x"), lanes)
                    b.assign(ints[shift, 0], dot2(ints[shift, 0], pair, x))
            for row, ints in zip(rows, sums if not left.joined else ()):
                for plane in range(many):
                    var, x = ints[shift, plane], left.four(bits, plane, row, k, slot)
                    b.assign(var, dot4(var, a, b.let(x, "x"), promise))
        beside = self.numbers(b, k)
        for row, ints, acc in zip(rows, sums, accs):
            of_x = None if left.totals is None else left.of_run(left.totals, row, k)
            finish(b, acc, _joined(ints, many), left.scale(row, k), beside, of_x)

    def taken(self, b: Builder, k: Expr) -> Expr:
        """Returns the factor of the sum of x that subtracts a group's zeros, and offsets, from
        codes."""
        least = const(-taken_of(self.caps, self.form, self.way), Type(dt.int32, self.lanes))
        return b.let(least - cast(self.loaded("zeros", k), dt.int32), "taken")


def _joined(ints: Mapping[tuple[int, int], Expr], planes: int) -> Expr:
    """The integer of a run: planes of w and of x put together."""
    found = None
    for plane in range(planes):
        total = None
        for (shift, of), value in ints.items():
            if of == plane:
                part = value << const(shift, value.type) if shift else value
                total = part if total is None else total + part
        assert total is not None
        found = total if found is None else found * const(STEP, found.type) + total
    assert found is not None
    return found


def finish(
    b: Builder, acc: ir.Var, total: Expr, scale: Expr, beside: Mapping[str, Expr], of_x: Expr | None
) -> None:
    """acc = fma(total, sx * sw, acc), then fma(sum of x, low, acc) where w has lows; `scale` is sx,
    `of_x` the sum."""
    both = b.let(splat(scale, acc.type.lanes) * beside["scales"], "scale")
    b.assign(acc, fma(cast(total, dt.float32), both, acc))
    if "lows" in beside:
        assert of_x is not None
        b.assign(acc, fma(of_x, beside["lows"], acc))
