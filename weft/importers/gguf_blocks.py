"""GGUF's block types: the content of one block, and the values that it encodes.

A row of weights is a run of equal blocks, each with a fixed number of elements in a fixed number of
bytes. Layouts: https://github.com/ggml-org/ggml (src/ggml-common.h). Every value is computed in
float32 in the order of ggml and of its Python package `gguf`, so the bits are theirs. A scale that
is NaN or infinite gives the result of IEEE 754, as it does there; `bad_block` finds one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import numpy as np

from weft.core.errors import ShapeError
from weft.core.records import dataclass
from weft.host.mapped import release
from weft.importers import gguf_codebooks as c, gguf_decode as d

CHUNK = 1 << 18  # elements decoded at a time: intermediate values stay in the cache


@dataclass(frozen=True)
class BlockType:
    """`elements` values in the bytes that `layout` names. `decode` takes blocks [n] of that layout
    and gives float32 [n, elements]."""

    id: int
    name: str
    elements: int
    layout: np.dtype[Any] = field(repr=False)
    decode: Callable[[np.ndarray], np.ndarray] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes per block."""
        return self.layout.itemsize

    def __str__(self) -> str:
        return self.name


def _type(
    id: int, name: str, elements: int, decode: Callable[[np.ndarray], np.ndarray], **fields: str
) -> BlockType:
    layout = np.dtype([(k, np.dtype(f).newbyteorder("<")) for k, f in fields.items()])
    return BlockType(id, name, elements, layout, decode)


def _book(id: int, name: str, **fields: str) -> BlockType:
    return _type(id, name, 256, c.decoder(name), **fields)


_ALL = (
    _type(0, "F32", 1, d.plain, x="f4"),
    _type(1, "F16", 1, d.plain, x="f2"),
    _type(30, "BF16", 1, d.bf16, x="u2"),
    _type(28, "F64", 1, d.plain, x="f8"),
    _type(24, "I8", 1, d.plain, x="i1"),
    _type(25, "I16", 1, d.plain, x="i2"),
    _type(26, "I32", 1, d.plain, x="i4"),
    _type(27, "I64", 1, d.plain, x="i8"),
    _type(2, "Q4_0", 32, d.q4_0, d="f2", qs="16u1"),
    _type(3, "Q4_1", 32, d.q4_1, d="f2", m="f2", qs="16u1"),
    _type(6, "Q5_0", 32, d.q5_0, d="f2", qh="4u1", qs="16u1"),
    _type(7, "Q5_1", 32, d.q5_1, d="f2", m="f2", qh="4u1", qs="16u1"),
    _type(8, "Q8_0", 32, d.q8, d="f2", qs="32i1"),
    _type(10, "Q2_K", 256, d.q2_k, scales="16u1", qs="64u1", d="f2", dmin="f2"),
    _type(11, "Q3_K", 256, d.q3_k, hmask="32u1", qs="64u1", scales="12u1", d="f2"),
    _type(12, "Q4_K", 256, d.q4_k, d="f2", dmin="f2", scales="12u1", qs="128u1"),
    _type(13, "Q5_K", 256, d.q5_k, d="f2", dmin="f2", scales="12u1", qh="32u1", qs="128u1"),
    _type(14, "Q6_K", 256, d.q6_k, ql="128u1", qh="64u1", scales="16i1", d="f2"),
    _type(15, "Q8_K", 256, d.q8, d="f4", qs="256i1", sums="16i2"),
    _type(20, "IQ4_NL", 32, d.iq4_nl, d="f2", qs="16u1"),
    _type(23, "IQ4_XS", 256, d.iq4_xs, d="f2", scales_h="u2", scales_l="4u1", qs="128u1"),
    _type(34, "TQ1_0", 256, d.tq1_0, qs="48u1", qh="4u1", d="f2"),
    _type(35, "TQ2_0", 256, d.tq2_0, qs="64u1", d="f2"),
    _type(39, "MXFP4", 32, d.mxfp4, e="u1", qs="16u1"),
    _type(40, "NVFP4", 64, d.nvfp4, e="4u1", qs="32u1"),
    _type(41, "Q1_0", 128, d.q1_0, d="f2", qs="16u1"),
    _type(42, "Q2_0", 64, d.q2_0, d="f2", qs="16u1"),
    _book(16, "IQ2_XXS", d="f2", pairs="(8,2)u4"),
    _book(17, "IQ2_XS", d="f2", qs="32u2", scales="8u1"),
    _book(22, "IQ2_S", d="f2", qs="32u1", signs="32u1", qh="8u1", scales="8u1"),
    _book(18, "IQ3_XXS", d="f2", qs="64u1", words="8u4"),
    _book(21, "IQ3_S", d="f2", qs="64u1", qh="8u1", signs="32u1", scales="4u1"),
    _book(19, "IQ1_S", d="f2", qs="32u1", qh="8u2"),
    _book(29, "IQ1_M", qs="32u1", qh="16u1", scales="4u2"),
)
TYPES = {kind.id: kind for kind in _ALL}
BY_NAME = {kind.name: kind for kind in _ALL}


def dequantize(kind: BlockType, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The values of uint8 `data` (whole blocks, row-major) as float32 [shape]: a view of the data
    for F32, else a new array. Integers and F64 are rounded to the nearest float32.

    Raises ShapeError where data and shape differ.
    """
    count = math.prod(shape)
    if not shape or shape[-1] % kind.elements or data.size * kind.elements != count * kind.nbytes:
        raise ShapeError(
            f"{data.size} bytes of {kind.name} do not make {shape}: {kind.elements} elements of a "
            f"row take {kind.nbytes} bytes"
        )
    if kind.name == "F32":
        return np.ascontiguousarray(data).reshape(-1).view("<f4").reshape(shape)
    out = np.empty((count // kind.elements, kind.elements), np.float32)
    with np.errstate(all="ignore"):  # a NaN or an infinity is passed on as it is
        for start, blocks in _chunks(kind, data):
            out[start : start + len(blocks)] = kind.decode(blocks)
    return out.reshape(shape)


def bad_block(kind: BlockType, data: np.ndarray) -> int | None:
    """The first block of `data` whose scale is NaN or infinite (of plain floats: whose value is),
    or None. Such a block poisons every product with its row. Gives pages of a mapped file back."""
    floats = [name for name in kind.layout.names or () if kind.layout[name].kind == "f"]
    with np.errstate(all="ignore"):
        for start, blocks in _chunks(kind, data):
            if kind.name == "MXFP4":
                bad = blocks["e"] == 255  # NaN in the format's own standard
            elif floats:
                bad = ~np.all([np.isfinite(blocks[name]) for name in floats], axis=0)
            else:
                bad = ~np.isfinite(kind.decode(blocks)).all(axis=-1)
            if bad.any():
                return start + int(bad.argmax())
            release(blocks)
    return None


def _chunks(kind: BlockType, data: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(first block, blocks [n] of the layout), in turn."""
    blocks = np.ascontiguousarray(data).reshape(-1).view(kind.layout)
    step = max(1, CHUNK // kind.elements)
    for start in range(0, len(blocks), step):
        yield start, blocks[start : start + step]
