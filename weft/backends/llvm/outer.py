"""Tiles in a matrix unit that adds outer products (Arm's SME): four registers of sums, each as wide
and as high as a vector, and operands in vectors of the unit's own length.

A kernel with such tiles runs in the processor's streaming mode as a whole, where LLVM makes code of
SVE's instructions for all else it does. Sums are numbered in the order that the kernel declares
them; each row of an operand is a vector.
Source: Arm Architecture Reference Manual Supplement, The Scalable Matrix Extension (DDI 0616).
"""

from __future__ import annotations

from dataclasses import replace

from weft.backends.llvm.memory import address
from weft.backends.llvm.target import LlvmTarget
from weft.backends.llvm.writer import LlvmWriter
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.rules import Table
from weft.kernel.tiles import PRODUCTS
from weft.kernel.walk import statements

_SUMS = 4
_ZERO = 0x11  # the bits of register 0 for llvm.aarch64.sme.zero
# dtype of a and b -> lanes of a vector per 128 bits, element, intrinsic. None of bytes: QEMU 7.2's
# smopa is wrong (gitlab.com/qemu-project/qemu, issue 2083), so its use could not be proven.
_MMA = {
    dt.float32: (4, "float", "mopa.nxv4f32"),
    dt.bfloat16: (8, "bfloat", "mopa.wide.nxv8bf16"),
}


def takes(kernel: ir.Kernel, target: LlvmTarget) -> bool:
    """True if the target has such a unit, and it can do all of a kernel's products of tiles."""
    ops = [s for s in statements(kernel.body) if isinstance(s, ir.TileOp) and s.op in PRODUCTS]
    known = (s.op == "mma_tn" and s.tiles[1].dtype in _MMA for s in ops)
    return bool(target.outer and ops) and all(known)


def streaming(target: LlvmTarget) -> LlvmTarget:
    """Returns the target in streaming mode, where NEON's sums of four products do not exist."""
    return replace(target, dot4={}, dot4_signed={})


def attributes(target: LlvmTarget) -> str:
    """The attributes of a function in streaming mode from its first instruction to its last, with
    sums of its own."""
    length = target.outer // 4
    return (
        '"aarch64_pstate_sm_body" "aarch64_new_za" noinline nounwind '
        f"vscale_range({length},{length})"
    )


def _tile(w: LlvmWriter, tile: ir.Tile) -> None:
    n = w.target.outer
    if tile.name in w.tiles:
        return
    if _is_sum(w, tile):
        number = sum(_is_sum(w, t) for _, t in w.tiles.values())
        if number == _SUMS:
            raise w.fail(f"more than {_SUMS} tiles of sums")
        w.tiles[tile.name] = number, tile
        return
    if tile.dtype not in _MMA or tile.cols * tile.dtype.itemsize != 4 * n:
        raise w.fail(
            f"tile {tile.name} of {tile.rows} x {tile.cols} {tile.dtype}: sums are {n} x {n} "
            f"of 32 bits, rows of operands {4 * n} bytes of floats"
        )
    w.tiles[tile.name] = -1, tile
    for row in range(tile.rows):
        place = f"  %{tile.name}.row{row} = alloca {_vector(tile.dtype)}"
        w.prologue.append(place)


def _tile_op(w: LlvmWriter, s: ir.TileOp) -> None:
    number, tile = w.tiles[s.tiles[0].name]
    if s.op == "mma_tn":
        _add_outer(w, *s.tiles)
    elif s.op == "zero" and number >= 0:
        w.call("llvm.aarch64.sme.zero", "void", [("i32", str(_ZERO << number))])
    elif s.op in ("load", "store") and s.memory is not None and s.index is not None:
        stride = s.stride * tile.dtype.itemsize
        rows = _row_places(w, address(w, s.memory, s.index), stride, tile.rows)
        if number >= 0:
            _move_sums(w, s.op, number, rows)
        else:
            _move_operand(w, s.op, tile, rows)
    else:
        raise w.fail(f"a unit of outer products lacks tile.{s.op} of {tile.name}")


def _is_sum(w: LlvmWriter, tile: ir.Tile) -> bool:
    n = w.target.outer
    return (tile.rows, tile.cols, tile.dtype.itemsize) == (n, n, 4)


def _row_places(w: LlvmWriter, first: str, stride: int, rows: int) -> list[str]:
    return [first] + [
        w.emit(f"getelementptr i8, ptr {first}, i64 {row * stride}") for row in range(1, rows)
    ]


def _move_sums(w: LlvmWriter, op: str, number: int, rows: list[str]) -> None:
    name = f"llvm.aarch64.sme.{'ld1w' if op == 'load' else 'st1w'}.horiz"
    for row, at in enumerate(rows):
        args = [("<vscale x 4 x i1>", "splat (i1 true)"), ("ptr", at)]
        w.call(name, "void", [*args, ("i32", str(number)), ("i32", str(row))])


def _move_operand(w: LlvmWriter, op: str, tile: ir.Tile, rows: list[str]) -> None:
    kind, align = _vector(tile.dtype), tile.dtype.itemsize
    for row, at in enumerate(rows):
        place = f"%{tile.name}.row{row}"
        source, target = (at, place) if op == "load" else (place, at)
        value = w.emit(f"load {kind}, ptr {source}, align {align}")
        w.lines.append(f"  store {kind} {value}, ptr {target}, align {align}")


def _add_outer(w: LlvmWriter, c: ir.Tile, a: ir.Tile, b: ir.Tile) -> None:
    lanes, element, name = _MMA[a.dtype]
    kind, mask = f"<vscale x {lanes} x {element}>", f"<vscale x {lanes} x i1>"
    number = str(w.tiles[c.name][0])
    for row in range(a.rows):
        values = [(kind, w.emit(f"load {kind}, ptr %{t.name}.row{row}")) for t in (a, b)]
        all_ = (mask, "splat (i1 true)")
        w.call(f"llvm.aarch64.sme.{name}", "void", [("i32", number), all_, all_, *values])


def _vector(dtype: dt.DType) -> str:
    lanes, element, _ = _MMA[dtype]
    return f"<vscale x {lanes} x {element}>"


RULES: Table = {ir.Tile: _tile, ir.TileOp: _tile_op}
