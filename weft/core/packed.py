"""Packed weights: codes of a few bits and the scales that turn them into numbers.

A packed matrix w[N, K] is a set of ordinary arrays, its parts, and a `Form` that says how to read
them:

    w[n, k] = (value(code[n, k]) - zero[n, g]) * scale[n, g]      g = k // form.group
    w[n, k] =  value(code[n, k]) * scale[n, g] + low[n, g]        with form.shift == "low"

`value` is the code less `offset`, or an entry of a table. Where scales have scales of their own
(GGUF's K types), scale[n, g] = scales[n, g] * super_scales[n, k // form.super_group]. The same
holds for `low`. Everything is computed in float32, rounded after each operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.dtypes import bfloat16, float16, float32
from weft.core.errors import DTypeError, ShapeError

_PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
_SHIFTS = ("none", "zero", "low")
_FLOATS = (float16.numpy, bfloat16.numpy, float32.numpy)


def _e4m3() -> tuple[float, ...]:
    """Every 8-bit float of E4M3FN: bias 7, no infinities, NaN where all bits below the sign are
    set (Micikevicius et al., arXiv:2209.05433)."""
    found = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
        found.append(float("nan") if code & 127 == 127 else -size if code > 127 else size)
    return tuple(found)


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_IQ3_XXS = (4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0)
TABLES: Mapping[str, tuple[float, ...]] = {
    # Dettmers et al., arXiv:2305.14314, appendix E
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    # OCP Microscaling Formats (MX) v1.0, 5.3.3
    "e2m1": (*_E2M1, *(-v for v in _E2M1)),
    # https://github.com/ggml-org/ggml, src/ggml-common.h
    "iq4_nl": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    # GGUF's codebooks: magnitudes, then their negatives (IQ1: moved up by 1/8, then down)
    "iq1": (-0.875, 0.125, 1.125, 0.0, -1.125, -0.125, 0.875, 0.0),
    "iq2": (8.0, 25.0, 43.0, 0.0, -8.0, -25.0, -43.0, 0.0),
    "iq3_xxs": (*_IQ3_XXS, *(-v for v in _IQ3_XXS)),
    "iq3_s": (*range(1, 16, 2), *range(-1, -16, -2)),
    "e4m3": _e4m3(),
    "sign": (-1.0, 1.0),
}  # fmt: skip


class Form(NamedTuple):
    """The layout of the parts of a packed matrix w[N, K].

    `bits`: the width of a code: 1 to 6, or 8. A part holds 8, 4, 2 or 1 bits of every code. "codes"
    holds the low ones (4 of 5 or 6, 2 of 3) and "high" the bits above them. Codes run along K, the
    first in the lowest bits.
    `group`: the number of k that share a scale; K itself means one scale per row.
    `values`: "int" (the code less `offset`), or the name of a table.
    `shift`: "none"; "zero" (an integer per group, subtracted from the value); or "low" (a number
    per
    group, added after scaling).
    `super_group`: the number of k that share a scale of the scales, or 0 where there is none.
    """

    bits: int
    group: int
    values: str = "int"
    offset: int = 0
    shift: str = "none"
    super_group: int = 0

    @property
    def planes(self) -> tuple[int, ...]:
        """Bits per code of "codes", and of "high" where there is one."""
        return _PLANES[self.bits]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, in the order in which `dequantize` takes them."""
        found = [*("codes", "high")[: len(self.planes)], "scales"]
        found += [] if self.shift == "none" else [self.shift + "s"]
        if self.super_group:
            found += ["super_scales"] + (["super_lows"] if self.shift == "low" else [])
        return tuple(found)

    def shapes(self, n: int, k: int) -> dict[str, tuple[int, int]]:
        """The shape of each part of w[n, k]. Raises ShapeError where the form does not divide k."""
        for size in (self.group, self.super_group or k, *(8 // p for p in self.planes)):
            if size < 1 or k % size:
                raise ShapeError(f"a packed row of {k} weights is not whole runs of {size}")
        sizes = {"codes": k * self.planes[0] // 8, "high": k * self.planes[-1] // 8}
        groups, supers = k // self.group, k // (self.super_group or k)
        return {p: (n, sizes.get(p, supers if "super" in p else groups)) for p in self.parts}

    def known(self) -> None:
        """Raises DTypeError for bits, a shift or a table that no form has."""
        if self.bits not in _PLANES or self.shift not in _SHIFTS:
            raise DTypeError(f"no packed form has {self.bits} bits and shift {self.shift!r}")
        if self.values != "int" and len(TABLES.get(self.values, ())) != 1 << self.bits:
            raise DTypeError(f"no table {self.values!r} of {self.bits} bits")

    def check(self, parts: Mapping[str, np.ndarray], n: int, k: int) -> None:
        """Raises ShapeError or DTypeError where the parts are not those of w[n, k]."""
        self.known()
        wanted = self.shapes(n, k)
        found = {p: v.shape for p, v in parts.items()}
        if found != wanted:
            raise ShapeError(f"parts of a packed [{n}, {k}] are {wanted}, got {found}")
        whole = {"codes", "high", "zeros"} | ({"scales", "lows"} if self.super_group else set())
        for part, value in parts.items():
            ok = value.dtype in (np.uint8, np.int8) if part in whole else value.dtype in _FLOATS
            if not ok or (part in ("codes", "high") and value.dtype != np.uint8):
                raise DTypeError(f"part {part!r} of packed weights has dtype {value.dtype}")

    def text(self) -> str:
        """The form in a few words: "4-bit int, 32 to a scale and a low"."""
        beside = {"none": "a scale", "zero": "a scale and a zero", "low": "a scale and a low"}
        text = f"{self.bits}-bit {self.values}, {self.group} to {beside[self.shift]}"
        return f"{text}, {self.super_group} to a scale of scales" if self.super_group else text

    @property
    def table(self) -> tuple[float, ...] | None:
        """The values of the codes, or None for integers."""
        return None if self.values == "int" else TABLES[self.values]


class Packed(NamedTuple):
    """A packed matrix: its form and its parts, by name."""

    form: Form
    parts: Mapping[str, np.ndarray]

    @property
    def shape(self) -> tuple[int, int]:
        n, width = self.parts["codes"].shape
        return n, width * 8 // self.form.planes[0]

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parts.values())


def stacked(each: Sequence[Packed]) -> Packed:
    """Matrices of one form, one under the other."""
    first = each[0]
    if len(each) == 1:
        return first
    parts = {p: np.concatenate([x.parts[p] for x in each]) for p in first.form.parts}
    return Packed(first.form, parts)


def split(whole: Packed, count: int) -> list[Packed]:
    """The reverse of `stacked`: `count` matrices of as many rows each."""
    rows = whole.shape[0] // count
    return [
        Packed(whole.form, {p: v[i * rows : (i + 1) * rows] for p, v in whole.parts.items()})
        for i in range(count)
    ]


_SPREAD = {8: 1, 4: 0x0110, 2: 0x01041040, 1: 0x0102040810204080}


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Codes uint8 [..., K] of `bits` (1, 2, 4 or 8) as bytes [..., K * bits / 8], the first of a
    byte in its lowest bits. Bits above are dropped."""
    per = 8 // bits
    words = (np.ascontiguousarray(values) & np.uint8((1 << bits) - 1)).view(f"<u{per}")
    words *= words.dtype.type(_SPREAD[bits])  # moves the codes of a word into its highest byte
    packed: np.ndarray = words >> words.dtype.type(8 * (per - 1))
    return packed.astype(np.uint8)


def unpack(part: np.ndarray, bits: int) -> np.ndarray:
    """The reverse of `pack`: uint8 [N, K]."""
    if bits == 8:
        return part
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = part[:, :, None] >> shifts & ((1 << bits) - 1)
    return fields.reshape(len(part), -1).astype(np.uint8)


def packed_codes(form: Form, codes: np.ndarray) -> dict[str, np.ndarray]:
    """The parts "codes" and "high" of codes uint8 [N, K]."""
    low, *high = form.planes
    found = {"codes": pack(codes, low)}
    return {**found, "high": pack(codes >> low, high[0])} if high else found


def codes_of(form: Form, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """The codes uint8 [N, K] of packed parts."""
    low, *high = form.planes
    codes = unpack(parts["codes"], low)
    return codes | unpack(parts["high"], high[0]) << low if high else codes


def dequantized(form: Form, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the float32 matrix [N, K] that the packed parts encode, as the module's text defines
    it. NaN and infinities of scales are passed on."""
    codes = codes_of(form, parts)
    n, k = codes.shape
    table = form.table
    value: np.ndarray
    if table is None:
        value = codes.astype(np.float32) - np.float32(form.offset)
    else:
        value = np.asarray(table, np.float32)[codes]
    value = value.reshape(n, -1, form.group)

    def wide(part: str) -> np.ndarray:
        found = parts[part].astype(np.float32)
        if form.super_group and part != "zeros":
            top = parts[f"super_{part}"].astype(np.float32)
            found = found * np.repeat(top, form.super_group // form.group, axis=1)
        return found[:, :, None]

    with np.errstate(all="ignore"):
        if form.shift == "zero":
            value = value - wide("zeros")
        value = value * wide("scales")
        if form.shift == "low":
            value = value + wide("lows")
    return value.reshape(n, k)
