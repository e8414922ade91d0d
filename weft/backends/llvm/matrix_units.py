"""The matrix units of GPUs as data: the lane of a subgroup that holds each element of a tile.

A unit takes tiles of 16 x 16, or 16 x 32 of bytes. Both operands have rows along k ("operand"), so
a right operand stored with rows of n is held transposed. Sums are float32 or int32 ("result").

Sources: NVIDIA "PTX ISA", "Matrix Fragments for mma.m16n8k16 with floating point type" and "for
mma.m16n8k32"; AMD "CDNA3 Instruction Set Architecture", "Matrix Arithmetic Instructions", and AMD's
matrix instruction calculator (v_mfma_f32_16x16x16, v_mfma_i32_16x16x16 and 16x16x32); AMD GPUOpen
"How to accelerate AI applications on RDNA 3 using WMMA".
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.core.records import dataclass

SIDE = 16  # rows and columns of sums
_ROW_BYTES = 32  # of a row of k


@dataclass(frozen=True)
class LaneOffset:
    """A lane's offset to a row or column: lane / `div` % `mod` * `times`."""

    div: int
    mod: int
    times: int = 1


Place = tuple[int, int]  # row and column


@dataclass(frozen=True)
class LaneLayout:
    """The places of the elements in a lane's registers: each has its own place plus the lane's
    parts."""

    row: LaneOffset
    col: LaneOffset
    registers: tuple[tuple[Place, ...], ...]


@dataclass(frozen=True)
class Unit:
    """A kind of matrix unit. `operand` is the layout of 2-byte elements, `bytes` that of 1-byte
    elements. `products` maps the operands' dtype to an intrinsic and the LLVM type of an operand's
    register in it."""

    operand: LaneLayout
    bytes: LaneLayout
    result: LaneLayout
    products: dict[dt.DType, tuple[str, str]]

    def layout(self, dtype: dt.DType) -> LaneLayout:
        return self.bytes if dtype.itemsize == 1 else self.operand


def depth(dtype: dt.DType) -> int:
    """Returns the k of an operand's tile."""
    return _ROW_BYTES // dtype.itemsize


_MMA = "llvm.nvvm.mma.m16n8k16.row.col"
_MFMA = LaneLayout(LaneOffset(16, 4, 4), LaneOffset(1, 16), (tuple((e, 0) for e in range(4)),))


def _run(first: int, count: int) -> tuple[Place, ...]:
    """Neighbours along k."""
    return tuple((0, first + e) for e in range(count))


UNITS = {
    "mma": Unit(
        LaneLayout(
            LaneOffset(4, 8),
            LaneOffset(1, 4, 2),
            tuple(tuple((r % 2 * 8, r // 2 * 8 + e) for e in range(2)) for r in range(4)),
        ),
        LaneLayout(
            LaneOffset(4, 8),
            LaneOffset(1, 4, 4),
            tuple(tuple((r % 2 * 8, r // 2 * 16 + e) for e in range(4)) for r in range(4)),
        ),
        LaneLayout(
            LaneOffset(4, 8),
            LaneOffset(1, 4, 2),
            tuple(((r // 2 % 2 * 8, r // 4 * 8 + r % 2),) for r in range(8)),
        ),
        {
            dt.bfloat16: (f"{_MMA}.bf16", "i32"),
            dt.float16: (f"{_MMA}.f32.f32", "<2 x half>"),
            dt.int8: ("llvm.nvvm.mma.m16n8k32.row.col.s8", "i32"),
        },
    ),
    "mfma": Unit(
        LaneLayout(LaneOffset(1, 16), LaneOffset(16, 4, 4), (_run(0, 4),)),
        LaneLayout(LaneOffset(1, 16), LaneOffset(16, 4, 4), (_run(0, 4), _run(SIDE, 4))),
        _MFMA,
        {
            dt.bfloat16: ("llvm.amdgcn.mfma.f32.16x16x16bf16.1k", "<4 x i16>"),
            dt.float16: ("llvm.amdgcn.mfma.f32.16x16x16f16", "<4 x half>"),
            dt.int8: ("llvm.amdgcn.mfma.i32.16x16x16i8", "i32"),
        },
    ),
    "mfma3": Unit(  # of CDNA 3: twice the k of bytes at once
        LaneLayout(LaneOffset(1, 16), LaneOffset(16, 4, 4), (_run(0, 4),)),
        LaneLayout(LaneOffset(1, 16), LaneOffset(16, 4, 8), (_run(0, 8),)),
        _MFMA,
        {
            dt.bfloat16: ("llvm.amdgcn.mfma.f32.16x16x16bf16.1k", "<4 x i16>"),
            dt.float16: ("llvm.amdgcn.mfma.f32.16x16x16f16", "<4 x half>"),
            dt.int8: ("llvm.amdgcn.mfma.i32.16x16x32.i8", "i64"),
        },
    ),
    "wmma": Unit(  # lanes 16 to 31 hold the same operands as lanes 0 to 15
        LaneLayout(LaneOffset(1, 16), LaneOffset(1, 1), (_run(0, 16),)),
        LaneLayout(LaneOffset(1, 16), LaneOffset(1, 1), (_run(0, 16), _run(SIDE, 16))),
        LaneLayout(LaneOffset(16, 2), LaneOffset(1, 16), (tuple((2 * e, 0) for e in range(8)),)),
        {
            dt.bfloat16: ("llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16", "<16 x i16>"),
            dt.float16: ("llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16", "<16 x half>"),
            dt.int8: ("llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v4i32", "<4 x i32>"),
        },
    ),
}
