"""Packed codes as words of four bytes in ascending k, which `dot4` multiplies (see integers)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.core.packed import Form
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import bitcast, const, splat
from weft.kernel.ir import Expr, Type
from weft.ops.quantize import BLOCK, STEP
from weft.templates.product.bands import WORD

ONES = const(0x01010101)  # four codes of one, which sum x up


def natural(b: Builder, form: Form, word: Callable[[str, int], Expr]) -> list[Expr]:
    """Returns the codes of a block, four in ascending order to a word. `word` gives a part's words
    as packed."""
    found = []
    for g in range(BLOCK // 4):
        whole: Expr | None = None
        shift = 0
        for part, bits in zip(("codes", "high"), form.planes):
            number, place = divmod(4 * g * bits, WORD)
            packed = word(part, number)
            four = _spread(b, packed >> place if place else packed, bits)
            whole = four if whole is None else whole | (four << shift)
            shift += bits
        assert whole is not None
        found.append(b.let(whole, "four"))
    return found


def _spread(b: Builder, word: Expr, bits: int) -> Expr:
    """The lowest four fields of a word in its four bytes."""
    if bits == 8:
        return word
    mask = (1 << bits) - 1
    if bits == 4:
        half = b.let(word & 0xFFFF, "half")
        pair = b.let((half | (half << 8)) & 0x00FF00FF, "pair")
        return (pair | (pair << 4)) & 0x0F0F0F0F
    low = b.let(word & ((1 << 4 * bits) - 1), "fields")
    step = 8 - bits
    spread = low | (low << step) | (low << (2 * step)) | (low << (3 * step))
    return spread & (mask * 0x01010101)


def least_of(form: Form) -> int:
    """Returns the number that `signed` subtracts from every code."""
    return 128 if form.bits == 8 else min(form.offset, 128)


def signed(form: Form, four: Expr) -> Expr:
    """Returns the bytes of a word of codes less `least_of`: added without overflow, then the
    highest bit of each becomes a sign."""
    least = least_of(form)
    if not least:
        return four
    moved = four + (128 - least) * 0x01010101 if least < 128 else four
    return moved ^ const(0x80808080 - (1 << WORD), four.type)


def dot(acc: Expr, w: Expr, x: Expr) -> Expr:
    """acc + the four products of signed bytes of each lane's word in w with those of x, one word
    for all; those of x are never -128."""
    both = (bitcast(w, dt.int8), bitcast(splat(x, w.type.lanes), dt.int8))
    return ir.Collective("dot4", (acc, *both), acc.type, 1)


def whole(b: Builder, planes: Sequence[Sequence[Expr]], fours: Sequence[Expr]) -> Expr:
    """The integer of a run: its words in each plane of x times those of w."""
    found: Expr = const(0, Type(dt.int32, fours[0].type.lanes))
    for i, plane in enumerate(planes):
        found = b.let(found * STEP, "int") if i else found
        for x, w in zip(plane, fours):
            found = b.let(dot(found, w, x), "int")
    return found
