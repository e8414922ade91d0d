"""The matrix units of GPUs as data: the lane of a subgroup that holds each element of a tile.

A unit takes tiles of 16 x 16. Both operands have rows along k ("operand"), so a right operand
stored with rows of n is held transposed. Sums are float32 ("result").

Sources: NVIDIA "PTX ISA", "Matrix Fragments for mma.m16n8k16 with floating point type"; AMD "CDNA3
Instruction Set Architecture", "Matrix Arithmetic Instructions", and AMD's matrix instruction
calculator (v_mfma_f32_16x16x16); AMD GPUOpen "How to accelerate AI applications on RDNA 3 using
WMMA".
"""

from __future__ import annotations

from weft.core import dtypes as dt
from weft.core.records import dataclass

SIDE = 16  # rows, columns and k of a tile


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
    """A kind of matrix unit. `products` maps the operands' dtype to an intrinsic and the LLVM type
    of an operand's register in it."""

    operand: LaneLayout
    result: LaneLayout
    products: dict[dt.DType, tuple[str, str]]


_MMA = "llvm.nvvm.mma.m16n8k16.row.col"
UNITS = {
    "mma": Unit(
        LaneLayout(
            LaneOffset(4, 8),
            LaneOffset(1, 4, 2),
            tuple(tuple((r % 2 * 8, r // 2 * 8 + e) for e in range(2)) for r in range(4)),
        ),
        LaneLayout(
            LaneOffset(4, 8),
            LaneOffset(1, 4, 2),
            tuple(((r // 2 % 2 * 8, r // 4 * 8 + r % 2),) for r in range(8)),
        ),
        {dt.bfloat16: (f"{_MMA}.bf16", "i32"), dt.float16: (f"{_MMA}.f32.f32", "<2 x half>")},
    ),
    "mfma": Unit(
        LaneLayout(LaneOffset(1, 16), LaneOffset(16, 4, 4), (tuple((0, e) for e in range(4)),)),
        LaneLayout(LaneOffset(16, 4, 4), LaneOffset(1, 16), (tuple((e, 0) for e in range(4)),)),
        {
            dt.bfloat16: ("llvm.amdgcn.mfma.f32.16x16x16bf16.1k", "<4 x i16>"),
            dt.float16: ("llvm.amdgcn.mfma.f32.16x16x16f16", "<4 x half>"),
        },
    ),
    "wmma": Unit(  # lanes 16 to 31 hold the same operands as lanes 0 to 15
        LaneLayout(LaneOffset(1, 16), LaneOffset(1, 1), (tuple((0, e) for e in range(16)),)),
        LaneLayout(LaneOffset(16, 2), LaneOffset(1, 16), (tuple((2 * e, 0) for e in range(8)),)),
        {
            dt.bfloat16: ("llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16", "<16 x i16>"),
            dt.float16: ("llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16", "<16 x half>"),
        },
    ),
}
