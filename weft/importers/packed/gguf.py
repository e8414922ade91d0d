"""GGUF's blocks as packed weights: the same bits, in weft.core.packed's one form.

`dequantized` of the result equals `gguf_blocks.dequantize` of the blocks, bit for bit. The
exception is an MXFP4 scale of 255: it is NaN here, as its standard has it, and 2^128 there, as in
ggml.

A block that holds its codes in halves (code j in a low nibble, code j + 16 in the high one) gets
consecutive codes along K. Scales of six bits get a byte each. Points of a codebook become the codes
of their coordinates, which takes more memory. Nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import DTypeError, ShapeError
from weft.core.packed import TABLES, Form, Packed, pack, packed_codes
from weft.host.mapped import release
from weft.host.pages import fresh
from weft.importers.gguf_blocks import CHUNK, BlockType
from weft.importers.gguf_codebooks import BOOKS
from weft.importers.gguf_decode import flat, halves, in_turn, six_bits, split, trits, unsigned_e4m3
from weft.importers.packed.layer import e8m0

Parts = dict[str, np.ndarray]


def runs(values: np.ndarray) -> np.ndarray:
    """[..., k] seen as [...], each item k adjacent values, which are copied together."""
    return values.view(np.dtype((np.void, values.shape[-1] * values.itemsize)))[..., 0]


def neighbours(packed: np.ndarray, bits: int) -> np.ndarray:
    """Rearranges bytes [..., k] that hold the codes j, j + k, j + 2k, ... in the fields of byte j,
    lowest first. The result is bytes [..., 8 / bits, k * bits / 8] of consecutive codes."""
    per = 8 // bits
    packed = runs(packed).copy()[..., None].view(np.uint8)
    out = np.empty((*packed.shape[:-1], per, packed.shape[-1] // per), np.uint8)
    into = runs(out)
    for i in range(per):
        into[..., i] = runs(pack(packed >> np.uint8(bits * i), bits))
    return out


def bit_planes(packed: np.ndarray) -> np.ndarray:
    """Bytes [..., k] to the planes of their bits [..., 8, k / 8], the first bit lowest. It
    transposes squares of 8 x 8 bits in a word by halving three times (Hacker's Delight, 7-3)."""
    x = np.ascontiguousarray(packed).view("<u8")
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0xF0F0F0F0)):
        t = (x ^ x >> np.uint64(shift)) & np.uint64(mask)
        x = x ^ t ^ t << np.uint64(shift)
    return x[..., None].view(np.uint8).swapaxes(-1, -2)


def _half(b: np.ndarray) -> np.ndarray:
    return flat(neighbours(b["qs"], 4))


def _d(b: np.ndarray) -> np.ndarray:
    return b["d"][:, None]


def _q4_0(b: np.ndarray) -> Parts:
    return {"codes": _half(b), "scales": _d(b)}


def _q4_1(b: np.ndarray) -> Parts:
    return {"codes": _half(b), "scales": _d(b), "lows": b["m"][:, None]}


def _q5_0(b: np.ndarray) -> Parts:
    return {**_q4_0(b), "high": b["qh"]}


def _q5_1(b: np.ndarray) -> Parts:
    return {**_q4_1(b), "high": b["qh"]}


def _q8(b: np.ndarray) -> Parts:
    return {"codes": b["qs"].view(np.uint8) ^ np.uint8(128), "scales": _d(b)}


def _in_turn(b: np.ndarray) -> Parts:
    return {"codes": b["qs"], "scales": _d(b)}


def _two_bits(qs: np.ndarray) -> np.ndarray:
    """Each half of the bytes holds four runs of 32 codes."""
    return flat(neighbours(qs.reshape(-1, 2, 32), 2))


def _q2_k(b: np.ndarray) -> Parts:
    scales, lows = b["scales"] & 15, b["scales"] >> 4
    return {
        "codes": _two_bits(b["qs"]), "scales": scales, "lows": lows,
        "super_scales": _d(b), "super_lows": -b["dmin"][:, None],
    }  # fmt: skip


def _q3_k(b: np.ndarray) -> Parts:
    packed = b["scales"]
    scales = halves(packed[:, :8]) | split(packed[:, 8:], 2).reshape(-1, 16) << 4
    return {
        "codes": _two_bits(b["qs"]), "high": flat(bit_planes(b["hmask"])),
        "scales": scales.view(np.int8) - np.int8(32), "super_scales": _d(b),
    }  # fmt: skip


def _q4_k(b: np.ndarray) -> Parts:
    scales, lows = six_bits(b["scales"])
    return {
        "codes": flat(neighbours(b["qs"].reshape(-1, 4, 32), 4)), "scales": scales, "lows": lows,
        "super_scales": _d(b), "super_lows": -b["dmin"][:, None],
    }  # fmt: skip


def _q5_k(b: np.ndarray) -> Parts:
    return {**_q4_k(b), "high": flat(bit_planes(b["qh"]))}


def _q6_k(b: np.ndarray) -> Parts:
    codes = flat(neighbours(b["ql"].reshape(-1, 2, 64), 4))
    high = _two_bits(b["qh"])
    return {"codes": codes, "high": high, "scales": b["scales"], "super_scales": _d(b)}


def _iq4_xs(b: np.ndarray) -> Parts:
    high = b["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = in_turn(b["scales_l"], 4) | high.astype(np.uint8) << 4
    codes = flat(neighbours(b["qs"].reshape(-1, 8, 16), 4))
    return {"codes": codes, "scales": scales.view(np.int8) - np.int8(32), "super_scales": _d(b)}


def _tq1_0(b: np.ndarray) -> Parts:
    return {"codes": pack(trits(b), 2), "scales": _d(b)}


def _tq2_0(b: np.ndarray) -> Parts:
    return {"codes": _two_bits(b["qs"]), "scales": _d(b)}


def _one_zero(codes: np.ndarray) -> np.ndarray:
    """ggml's table of E2M1 has one zero, the format's two: of two codes in a byte, 8, which is -0
    there, becomes 0."""
    sizes = codes & 0x77
    made: np.ndarray = sizes | codes & sizes + 0x77 & 0x88
    return made


def _mxfp4(b: np.ndarray) -> Parts:
    return {"codes": _one_zero(_half(b)), "scales": e8m0(b["e"])[:, None]}


def _nvfp4(b: np.ndarray) -> Parts:
    codes = _one_zero(flat(neighbours(b["qs"].reshape(-1, 4, 8), 4)))
    return {"codes": codes, "scales": unsigned_e4m3(b["e"]).astype(bfloat16.numpy)}


def _of_book(name: str) -> tuple[Form, Callable[[np.ndarray], Parts]]:
    """A code for every weight in place of one for a point of several: 3 or 4 bits."""
    read, table, group = BOOKS[name]
    bits = len(TABLES[table]).bit_length() - 1
    form = Form(bits, group, table, super_group=_K)

    def parts(b: np.ndarray) -> Parts:
        found = read(b)
        codes = packed_codes(form, found.codes)
        return {**codes, "scales": found.steps, "super_scales": found.d}

    return form, parts


_K = 256
FORMS: dict[str, tuple[Form, Callable[[np.ndarray], Parts]]] = {
    "Q4_0": (Form(4, 32, offset=8), _q4_0),
    "Q4_1": (Form(4, 32, shift="low"), _q4_1),
    "Q5_0": (Form(5, 32, offset=16), _q5_0),
    "Q5_1": (Form(5, 32, shift="low"), _q5_1),
    "Q8_0": (Form(8, 32, offset=128), _q8),
    "Q8_K": (Form(8, _K, offset=128), _q8),
    "Q2_K": (Form(2, 16, shift="low", super_group=_K), _q2_k),
    "Q3_K": (Form(3, 16, offset=4, super_group=_K), _q3_k),
    "Q4_K": (Form(4, 32, shift="low", super_group=_K), _q4_k),
    "Q5_K": (Form(5, 32, shift="low", super_group=_K), _q5_k),
    "Q6_K": (Form(6, 16, offset=32, super_group=_K), _q6_k),
    "IQ4_NL": (Form(4, 32, "iq4_nl"), _q4_0),
    "IQ4_XS": (Form(4, 32, "iq4_nl", super_group=_K), _iq4_xs),
    "TQ1_0": (Form(2, _K, offset=1), _tq1_0),
    "TQ2_0": (Form(2, _K, offset=1), _tq2_0),
    "MXFP4": (Form(4, 32, "e2m1"), _mxfp4),
    "NVFP4": (Form(4, 16, "e2m1"), _nvfp4),
    "Q1_0": (Form(1, 128, "sign"), _in_turn),
    "Q2_0": (Form(2, 64, offset=1), _in_turn),
    **{name: _of_book(name) for name in BOOKS},
}


def outline_of(kind: BlockType, shape: tuple[int, int]) -> Packed:
    """Returns what `packed_of` makes of a matrix, without content."""
    form, _ = FORMS[kind.name]
    sizes, empty = form.shapes(*shape), _empty(kind)
    return Packed(form, {p: np.broadcast_to(empty[p], sizes[p]) for p in form.parts})


@cache
def _empty(kind: BlockType) -> Parts:
    """Returns an array without axes, in the dtype of each part of a block type's packed form."""
    _, read = FORMS[kind.name]
    return {part: np.empty((), v.dtype) for part, v in read(np.zeros(1, kind.layout)).items()}


def packed_of(kind: BlockType, data: np.ndarray, shape: tuple[int, ...]) -> Packed:
    """The packed weights of uint8 `data` (whole blocks, row-major), new arrays; pages of a mapped
    file are given back. `shape` is [..., K]; all axes but the last count as rows.

    Raises ShapeError if data and shape differ, DTypeError for a type without a packed form (`FORMS`
    names those with one).
    """
    if kind.name not in FORMS:
        raise DTypeError(f"weft lacks a packed form for {kind}; it has: {', '.join(FORMS)}")
    count = math.prod(shape)
    if not shape or shape[-1] % kind.elements or data.size * kind.elements != count * kind.nbytes:
        raise ShapeError(
            f"{data.size} bytes of {kind.name} do not make {shape}: {kind.elements} elements of a "
            f"row take {kind.nbytes} bytes"
        )
    form, read = FORMS[kind.name]
    blocks = np.ascontiguousarray(data).reshape(-1).view(kind.layout)
    step = max(1, CHUNK // kind.elements)
    made: dict[str, np.ndarray[Any, Any]] = {}
    for start in range(0, max(1, len(blocks)), step):
        some = blocks[start : start + step]
        found = read(some)
        for part, value in found.items():
            if part not in made:
                made[part] = fresh((len(blocks), value.shape[-1]), value.dtype)
            runs(made[part])[start : start + step] = runs(value)
        release(some)
    sizes = form.shapes(math.prod(shape[:-1]), shape[-1])
    return Packed(form, {part: made[part].reshape(sizes[part]) for part in form.parts})
