"""Tiles in a CPU's matrix unit (Intel AMX): eight registers of up to 16 rows of 64 bytes.

Shapes are set once per call of the kernel, by a constant configuration in memory; registers are
numbered in the order that the kernel declares its tiles.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 19.
"""

from __future__ import annotations

import struct

from weft.backends.llvm.memory import address
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.rules import Table

_TILES, _ROWS, _ROW_BYTES = 8, 16, 64
_MMA = {
    (dt.bfloat16, dt.bfloat16): "llvm.x86.tdpbf16ps",
    (dt.int8, dt.int8): "llvm.x86.tdpbssd",
}


def _tile(w: LlvmWriter, tile: ir.Tile) -> None:
    if tile.name in w.tiles:
        return
    if len(w.tiles) == _TILES:
        raise w.fail(f"more than {_TILES} tiles")
    if tile.rows > _ROWS or tile.cols * tile.dtype.itemsize > _ROW_BYTES:
        raise w.fail(
            f"tile {tile.name} of {tile.rows} x {tile.cols} {tile.dtype}: a register has "
            f"{_ROWS} rows of {_ROW_BYTES} bytes"
        )
    w.tiles[tile.name] = len(w.tiles), tile


def _tile_op(w: LlvmWriter, s: ir.TileOp) -> None:
    registers = [("i8", str(w.tiles[t.name][0])) for t in s.tiles]
    if s.op == "zero":
        w.call("llvm.x86.tilezero", "void", registers)
    elif s.op == "mma":
        name = _MMA.get((s.tiles[1].dtype, s.tiles[2].dtype))
        if name is None:
            raise w.fail(f"no product of tiles of {s.tiles[1].dtype}, {s.tiles[2].dtype}")
        w.call(name, "void", registers)
    elif s.op in ("mma_nt", "scale", "add", "fma"):
        raise w.fail(f"a CPU's matrix unit has no tile.{s.op}")
    else:
        assert s.memory is not None and s.index is not None
        pointer = address(w, s.memory, s.index)
        stride = s.stride * s.memory.dtype.itemsize
        name = "llvm.x86.tileloadd64" if s.op == "load" else "llvm.x86.tilestored64"
        w.call(name, "void", [*registers, ("ptr", pointer), ("i64", str(stride))])


def setup(w: LlvmWriter) -> tuple[list[str], list[str]]:
    """Configures the unit for a kernel with tiles: (lines at the body's start, at its end)."""
    if not (w.tiles and w.target.tiles):
        return [], []
    for name, args in (("ldtilecfg", "ptr"), ("tilerelease", "")):
        w.declared[name] = f"declare void @llvm.x86.{name}({args})"
    widths, heights = [0] * 16, [0] * 16
    for register, tile in w.tiles.values():
        widths[register] = tile.cols * tile.dtype.itemsize
        heights[register] = tile.rows
    data = struct.pack("<BB14x16H16B", 1, 0, *widths, *heights)
    text = "".join(f"\\{byte:02X}" for byte in data)
    w.globals.append(f'@tiles = internal constant [{len(data)} x i8] c"{text}", align 64')
    start = "  call void @llvm.x86.ldtilecfg(ptr @tiles)"
    return [start], ["  call void @llvm.x86.tilerelease()"]


RULES: Table = {ir.Tile: _tile, ir.TileOp: _tile_op}
