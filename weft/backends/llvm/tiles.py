"""Tiles in a CPU's matrix unit (Intel AMX): eight registers of up to 16 rows of 64 bytes.

Shapes are set once per call of the kernel, by a constant configuration in memory; registers are
numbered in the order that the kernel declares its tiles.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 19.
"""

from __future__ import annotations

import struct

from weft.backends.llvm.memory import Memory
from weft.backends.llvm.target import LlvmTarget
from weft.core import dtypes as dt
from weft.kernel import ir

_TILES, _ROWS, _ROW_BYTES = 8, 16, 64
_MMA = {(dt.bfloat16, dt.bfloat16): "llvm.x86.tdpbf16ps"}


class Tiles(Memory):
    """Adds tile statements to the emitter."""

    def __init__(self, kernel: ir.Kernel, target: LlvmTarget, scratch_bytes: int) -> None:
        super().__init__(kernel, target, scratch_bytes)
        self.tiles: dict[str, tuple[int, ir.Tile]] = {}  # name -> register number and tile

    def declare_tile(self, tile: ir.Tile) -> None:
        if tile.name in self.tiles:
            return
        if len(self.tiles) == _TILES:
            raise self.fail(f"more than {_TILES} tiles")
        if tile.rows > _ROWS or tile.cols * tile.dtype.itemsize > _ROW_BYTES:
            raise self.fail(
                f"tile {tile.name} of {tile.rows} x {tile.cols} {tile.dtype}: a register has "
                f"{_ROWS} rows of {_ROW_BYTES} bytes"
            )
        self.tiles[tile.name] = len(self.tiles), tile

    def tile_op(self, s: ir.TileOp) -> None:
        registers = [("i8", str(self.tiles[t.name][0])) for t in s.tiles]
        if s.op == "zero":
            self.call("llvm.x86.tilezero", "void", registers)
        elif s.op == "mma":
            name = _MMA.get((s.tiles[1].dtype, s.tiles[2].dtype))
            if name is None:
                raise self.fail(f"no product of tiles of {s.tiles[1].dtype}, {s.tiles[2].dtype}")
            self.call(name, "void", registers)
        elif s.op in ("mma_nt", "scale", "add"):
            raise self.fail(f"a CPU's matrix unit has no tile.{s.op}")
        else:
            assert s.memory is not None and s.index is not None
            pointer = self.address(s.memory, s.index)
            stride = s.stride * s.memory.dtype.itemsize
            name = "llvm.x86.tileloadd64" if s.op == "load" else "llvm.x86.tilestored64"
            self.call(name, "void", [*registers, ("ptr", pointer), ("i64", str(stride))])

    @property
    def body_attributes(self) -> str:
        """Attributes of the function that has the tiles."""
        return "#0 "

    def tile_setup(self) -> tuple[list[str], list[str], list[str]]:
        """(module lines, lines at the body's start, lines at its end) for a kernel with tiles."""
        if not self.tiles:
            return [], [], []
        for name, args in (("ldtilecfg", "ptr"), ("tilerelease", "")):
            self.declared[name] = f"declare void @llvm.x86.{name}({args})"
        widths, heights = [0] * 16, [0] * 16
        for register, tile in self.tiles.values():
            widths[register] = tile.cols * tile.dtype.itemsize
            heights[register] = tile.rows
        data = struct.pack("<BB14x16H16B", 1, 0, *widths, *heights)
        text = "".join(f"\\{byte:02X}" for byte in data)
        constant = f'@tiles = internal constant [{len(data)} x i8] c"{text}", align 64'
        start = "  call void @llvm.x86.ldtilecfg(ptr @tiles)"
        return [constant], [start], ["  call void @llvm.x86.tilerelease()"]
