"""Tiles in the kernel IR: rules, meaning, text, JSON, expansion, and what dialects say of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from weft.backends.cpu import host
from weft.backends.llvm import cpu_target, render
from weft.backends.wgsl import render as render_wgsl
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import CompileError, FileFormatError, KernelError
from weft.kernel import interp, ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, load
from weft.kernel.printer import text
from weft.kernel.tiles import expand
from weft.kernel.verify import verify
from weft.program.kernel_json import kernel_body, kernel_head, read_kernel

BF16, F32 = dt.bfloat16, dt.float32
AMX = cpu_target("x86_64-linux", host.AMX | {"avx512f", "avx512vl"})


def product(
    m: int = 4, n: int = 8, depth: int = 8, pair: int = 2, dtype: dt.DType = BF16,
    threads: int = 1,
) -> ir.Kernel:  # fmt: skip
    """out[m, n] = x[m, 2 depth] . y, whose rows hold `pair` k each; two steps of depth."""
    b = Builder("product")
    acc = dt.int32 if dtype.is_int else F32
    x = b.buffer("x", dtype, m * 2 * depth)
    y = b.buffer("y", dtype, 2 * depth * n)
    out = b.buffer("out", acc, m * n, "w")
    c, left = b.tile("c", acc, m, n), b.tile("left", dtype, m, depth)
    right = b.tile("right", dtype, depth // pair, n * pair)
    b.tile_zero(c)
    with b.loop(2 * depth, step=depth, name="k") as k:
        b.tile_load(left, x, k, 2 * depth)
        b.tile_load(right, y, k * n, n * pair)
        b.mma(c, left, right)
    b.tile_store(out, 0, n, c)
    return b.kernel((1,), (threads,))


def arrays(kernel: ir.Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(-9, 10, b.size).astype(b.dtype.numpy) if b.access == "r"
        else np.zeros(b.size, b.dtype.numpy) for b in kernel.buffers
    ]  # fmt: skip


@pytest.mark.parametrize("way", [lambda k: k, expand], ids=["tiles", "expanded"])
def test_sums_of_tiles(way: Callable[[ir.Kernel], ir.Kernel]) -> None:
    b = Builder("sum")
    x, out = b.buffer("x", F32, 32), b.buffer("out", F32, 16, "w")
    first, second = b.tile("first", F32, 4, 4), b.tile("second", F32, 4, 4)
    b.tile_load(first, x, 0, 4)
    b.tile_load(second, x, 16, 4)
    b.tile_add(first, second)
    b.tile_store(out, 0, 4, first)
    kernel = way(b.kernel((1,), (1,)))
    verify(kernel)
    data = arrays(kernel)
    interp.run(kernel, data)
    np.testing.assert_array_equal(data[1], data[0][:16] + data[0][16:])


@pytest.mark.parametrize("way", [lambda k: k, expand], ids=["tiles", "expanded"])
@pytest.mark.parametrize("dtype", [F32, dt.int32])
def test_products_of_elements(dtype: dt.DType, way: Callable[[ir.Kernel], ir.Kernel]) -> None:
    """In one rounding, the integers rounded before; the factors are one row, for all rows."""
    b = Builder("fma")
    x, y, out = b.buffer("x", dtype, 16), b.buffer("y", F32, 4), b.buffer("out", F32, 16, "rw")
    c, d, e = b.tile("c", F32, 4, 4), b.tile("d", dtype, 4, 4), b.tile("e", F32, 4, 4)
    for tile, source, stride in ((c, out, 4), (d, x, 4), (e, y, 0)):
        b.tile_load(tile, source, 0, stride)
    b.tile_fma(c, d, e)
    b.tile_store(out, 0, 4, c)
    kernel = way(b.kernel((1,), (1,)))
    verify(kernel)
    rng = np.random.default_rng(0)
    left = (rng.standard_normal(16) * 2**28).astype(dtype.numpy)
    right, sums = (rng.standard_normal(n).astype(np.float32) for n in (4, 16))
    want = np.float64(np.float32(left)).reshape(4, 4) * right + sums.reshape(4, 4)
    interp.run(kernel, [left, right, sums])
    np.testing.assert_array_equal(sums.reshape(4, 4), want.astype(np.float32))


@pytest.mark.parametrize("way", [lambda k: k, expand], ids=["tiles", "expanded"])
@pytest.mark.parametrize("dtype,pair", [(BF16, 2), (F32, 1), (dt.float16, 2), (dt.int8, 4)])
def test_meaning(dtype: dt.DType, pair: int, way: Callable[[ir.Kernel], ir.Kernel]) -> None:
    kernel = way(product(4, 8, 8, pair, dtype))
    verify(kernel)
    x, y, out = arrays(kernel)
    interp.run(kernel, [x, y, out], caps=PRESETS["cpu-amx"])
    b = y.reshape(16 // pair, 8, pair).swapaxes(1, 2).reshape(16, 8).astype(np.float64)
    np.testing.assert_array_equal(out.reshape(4, 8), x.reshape(4, 16).astype(np.float64) @ b)


def test_a_subgroup_holds_one_tile() -> None:
    kernel = product(4, 8, 8, threads=32)
    verify(kernel)
    x, y, out = arrays(kernel)
    interp.run(kernel, [x, y, out], caps=PRESETS["cuda"])
    want = arrays(kernel)[2]
    interp.run(product(4, 8, 8), [x, y, want], caps=PRESETS["cpu-amx"])
    np.testing.assert_array_equal(out, want)
    with pytest.raises(KernelError, match="lack a portable form"):
        expand(kernel)


def unit_product(waves: int = 2, width: int = 32, guarded: bool = True) -> ir.Kernel:
    """As attention has it: per subgroup 16 rows of x . y^T scaled by rows, times v; through shared
    memory, with barriers only if `guarded`."""
    b = Builder("unit")
    x = b.buffer("x", BF16, waves * 256)
    y, v = b.buffer("y", BF16, 256), b.buffer("v", BF16, 256)
    factors = b.buffer("factors", F32, waves * 16)
    out = b.buffer("out", F32, waves * 256, "w")
    left, middle = (b.array(n, BF16, waves * 256, "shared") for n in ("left", "middle"))
    sums = b.array("sums", F32, waves * 256, "shared")
    thread = b.let(b.thread(0), "thread")
    own = b.let(thread // width * 256, "own")
    tiles = [b.tile(n, BF16, 16, 16) for n in ("a", "b", "w")]
    c, d = b.tile("c", F32, 16, 16), b.tile("d", F32, 16, 16)
    with b.loop(256 // width, name="i") as i:
        at = b.let(own + i * width + thread % width)
        b.store(left, at, load(x, at))
    if guarded:
        b.barrier()
    b.tile_load(tiles[0], left, own, 16)
    b.tile_load(tiles[1], y, 0, 16)
    b.tile_zero(c)
    b.mma_nt(c, *tiles[:2])
    b.tile_scale(c, factors, thread // width * 16)
    b.tile_store(sums, own, 16, c)
    b.barrier()
    with b.loop(256 // width, name="i") as i:
        at = b.let(own + i * width + thread % width)
        b.store(middle, at, cast(load(sums, at), BF16))
    b.barrier()
    b.tile_load(tiles[0], middle, own, 16)
    b.tile_load(tiles[2], v, 0, 16)
    b.tile_zero(d)
    b.mma(d, tiles[0], tiles[2])
    b.tile_store(out, own, 16, d)
    return b.kernel((1,), (waves * width,))


def want_unit(x: np.ndarray, y: np.ndarray, v: np.ndarray, factors: np.ndarray) -> np.ndarray:
    x, y, v = (t.reshape(-1, 16).astype(np.float64) for t in (x, y, v))
    sums = (x @ y.T * factors[:, None].astype(np.float64)).astype(BF16.numpy)
    return (sums.astype(np.float64) @ v).reshape(-1)


@pytest.mark.parametrize("caps", ["cuda", "hip-wave64", "hip-wave32"])
def test_tiles_of_several_subgroups(caps: str) -> None:
    kernel = unit_product(2, PRESETS[caps].subgroup)
    verify(kernel)
    *given, out = arrays(kernel)
    interp.run(kernel, [*given, out], caps=PRESETS[caps])
    np.testing.assert_array_equal(out, want_unit(*given).astype(np.float32))
    racy = unit_product(2, PRESETS[caps].subgroup, guarded=False)
    with pytest.raises(KernelError, match=r"race.*read here by group 0, a tile"):
        interp.run(racy, arrays(racy), caps=PRESETS[caps])


@pytest.mark.parametrize("dtype", [BF16, F32, dt.float16, dt.int8])
def test_the_expansion_of_transposed_and_scaled(dtype: dt.DType) -> None:
    b = Builder("turned")
    acc = dt.int32 if dtype.is_int else F32
    x, y = b.buffer("x", dtype, 4 * 8), b.buffer("y", dtype, 16 * 8)
    factors, out = b.buffer("factors", F32, 8), b.buffer("out", acc, 4 * 16, "w")
    c, left, right = b.tile("c", acc, 4, 16), b.tile("l", dtype, 4, 8), b.tile("r", dtype, 16, 8)
    b.tile_zero(c)
    b.tile_load(left, x, 0, 8)
    b.tile_load(right, y, 0, 8)
    b.mma_nt(c, left, right)
    if not dtype.is_int:
        b.tile_scale(c, factors, 1, 2)
    b.tile_store(out, 0, 16, c)
    kernel = b.kernel((1,))
    x, y, factors, out = arrays(kernel)
    want = x.reshape(4, 8).astype(np.float64) @ y.reshape(16, 8).astype(np.float64).T
    if not dtype.is_int:
        want *= factors[1::2, None]
    for way in (kernel, expand(kernel)):
        verify(way)
        out[:] = 0
        interp.run(way, [x, y, factors, out], caps=PRESETS["cpu-amx"])
        np.testing.assert_array_equal(out.reshape(4, 16), want)


@pytest.mark.parametrize("g", [1, 2, 4])
@pytest.mark.parametrize("dtype", [BF16, F32, dt.float16, dt.int8])
def test_outer_products(dtype: dt.DType, g: int) -> None:
    b = Builder("outer")
    acc = dt.int32 if dtype.is_int else F32
    x, y = b.buffer("x", dtype, 8 * 4 * g), b.buffer("y", dtype, 8 * 16 * g)
    out = b.buffer("out", acc, 4 * 16, "w")
    c = b.tile("c", acc, 4, 16)
    left, right = b.tile("l", dtype, 8, 4 * g), b.tile("r", dtype, 8, 16 * g)
    b.tile_zero(c)
    b.tile_load(left, x, 0, 4 * g)
    b.tile_load(right, y, 0, 16 * g)
    b.mma_tn(c, left, right)
    b.tile_store(out, 0, 16, c)
    kernel = b.kernel((1,))
    given = arrays(kernel)
    of_x, of_y = (
        v.astype(np.float64).reshape(8, -1, g).swapaxes(1, 2).reshape(8 * g, -1) for v in given[:2]
    )
    for way in (kernel, expand(kernel)):
        verify(way)
        given[2][:] = 0
        interp.run(way, given, caps=PRESETS["cpu-amx"])
        np.testing.assert_array_equal(given[2].reshape(4, 16), of_x.T @ of_y)
    assert "x86" not in render(kernel, PRESETS["cpu-amx"], AMX)  # no unit of its own


def test_text_and_json_keep_every_part() -> None:
    kernel = product(4, 8, 8)
    assert "tile right: bf16[4, 16]" in text(kernel)
    assert "tile.mma c, left, right" in text(kernel)
    assert "tile.load left, x[k by 16]" in text(kernel)
    head, body = json.loads(json.dumps(kernel_head(kernel))), kernel_body(kernel)
    assert text(read_kernel(head, lambda: body, 0)) == text(kernel)
    for good, bad in (('"c","left","right"', '"c","left","x"'), ('"left"],"x"', '"left"],"c"')):
        assert good in body
        with pytest.raises(FileFormatError):
            read_kernel(head, partial(body.replace, good, bad), 0)


def tile(b: Builder, rows: int, cols: int, dtype: dt.DType = BF16) -> ir.Tile:
    return b.tile("t", dtype, rows, cols)


def diverging(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    t = tile(b, 4, 4)
    with b.when(b.thread(0) < 3):
        b.tile_zero(t)


def private(b: Builder, x: ir.Buffer, y: ir.Buffer) -> None:
    b.tile_load(tile(b, 4, 4), b.array("a", BF16, 16), 0, 4)


BAD: dict[str, tuple[Callable[[Builder, ir.Buffer, ir.Buffer], None], str]] = {
    "size": (lambda b, x, y: b.emit(ir.Tile("t", BF16, 3, 4)), "a tile of"),
    "undeclared": (lambda b, x, y: b.tile_zero(ir.Tile("t", BF16, 4, 4)), "not declared"),
    "memory": (lambda b, x, y: b.emit(ir.TileOp("load", (tile(b, 4, 4),))), "needs memory"),
    "op": (lambda b, x, y: b.emit(ir.TileOp("turn", (tile(b, 4, 4),))), "no tile operation"),
    "count": (lambda b, x, y: b.emit(ir.TileOp("mma", (tile(b, 4, 4),))), "of 1 tiles"),
    "sum": (lambda b, x, y: b.tile_add(tile(b, 4, 4, F32), tile(b, 4, 4)), "a sum of tiles"),
    "dtype": (lambda b, x, y: b.tile_load(tile(b, 4, 4, F32), x, 0, 4), "memory of"),
    "read-only": (lambda b, x, y: b.tile_store(x, 0, 4, tile(b, 4, 4)), "access 'r'"),
    "overlap": (lambda b, x, y: b.tile_store(y, 0, 3, tile(b, 4, 4)), "overlap"),
    "load of a tile": (
        lambda b, x, y: b.store(y, 0, load(tile(b, 4, 4), 0)),  # type: ignore[arg-type]
        "not declared",
    ),
    "shapes": (
        lambda b, x, y: b.mma(tile(b, 4, 4, F32), tile(b, 4, 8), tile(b, 2, 8)),
        r"\[4, 4\] \+= \[4, 8\] . \[2, 8\]",
    ),
    "transposed": (
        lambda b, x, y: b.mma_nt(tile(b, 4, 8, F32), tile(b, 4, 4), tile(b, 4, 8)),
        r"\[4, 8\] \+= \[4, 4\] . \[4, 8\] transposed",
    ),
    "outer": (
        lambda b, x, y: b.mma_tn(tile(b, 4, 8, F32), tile(b, 2, 4), tile(b, 4, 8)),
        r"\[4, 8\] \+= \[2, 4\] transposed . \[4, 8\]",
    ),
    "scaled": (lambda b, x, y: b.tile_scale(tile(b, 4, 4), x, 0), "rows of bfloat16 scaled"),
    "products": (
        lambda b, x, y: b.mma(tile(b, 4, 4), tile(b, 4, 4), tile(b, 4, 4)), "into bfloat16",
    ),
    "index": (
        lambda b, x, y: b.tile_load(tile(b, 4, 4), x, const(0, ir.U32), 4), "expected i32",
    ),
    "divergence": (diverging, "differ"),
    "private": (private, "one thread's array"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_rules(name: str) -> None:
    body, message = BAD[name]
    b = Builder("kern")
    x, y = b.buffer("x", BF16, 64), b.buffer("y", BF16, 64, "w")
    body(b, x, y)
    with pytest.raises(KernelError, match=message):
        verify(b.kernel((1,), (4,)))


def run(
    body: Callable[[Builder, ir.Buffer], None], threads: int = 1, caps: str = "cpu-amx"
) -> None:
    b = Builder("kern")
    body(b, b.buffer("x", BF16, 64, "rw"))
    kernel = b.kernel((1,), (threads,))
    interp.run(kernel, [np.zeros(64, BF16.numpy)], caps=PRESETS[caps])


def test_the_interpreter_reports_misuse() -> None:
    with pytest.raises(KernelError, match="before it is zeroed or loaded"):
        run(lambda b, x: b.tile_store(x, 0, 4, tile(b, 4, 4)))
    with pytest.raises(KernelError, match=r"outside 0..63"):
        run(lambda b, x: b.tile_load(tile(b, 4, 4), x, 0, 21))
    with pytest.raises(KernelError, match="disagree on the index"):
        run(lambda b, x: b.tile_load(tile(b, 4, 4), x, b.thread(0), 4), 32, "cuda")
    with pytest.raises(KernelError, match="subgroups of 0"):
        run(lambda b, x: b.tile_zero(tile(b, 4, 4)), 32, "webgpu")


def test_the_llvm_dialect_uses_registers_or_the_expansion() -> None:
    ll = render(product(16, 16, 32), PRESETS["cpu-amx"], AMX)
    for name in ("ldtilecfg", "tileloadd64", "tdpbf16ps", "tilestored64", "tilerelease"):
        assert f"call void @llvm.x86.{name}(" in ll
    assert "tdpbssd" in render(product(16, 16, 32, 4, dt.int8), PRESETS["cpu-amx"], AMX)
    plain = render(product(), PRESETS["cpu-avx2"], cpu_target("aarch64-linux", frozenset()))
    assert "x86" not in plain and "llvm.fma" in plain
    b = Builder("many")
    for _ in range(9):
        b.tile("t", F32, 16, 16)
    with pytest.raises(CompileError, match="more than 8 tiles"):
        render(b.kernel((1,)), PRESETS["cpu-amx"], AMX)
    with pytest.raises(CompileError, match="16 rows of 64 bytes"):
        render(product(32, 16, 32), PRESETS["cpu-amx"], AMX)
    with pytest.raises(CompileError, match="no product of tiles"):
        render(product(16, 16, 32, 2, dt.float16), PRESETS["cpu-amx"], AMX)
    b = Builder("turned")
    tiles = [b.tile(n, t, 16, 16) for n, t in (("c", F32), ("a", BF16), ("b", BF16))]
    b.mma_nt(*tiles)
    with pytest.raises(CompileError, match=r"has no tile\.mma_nt"):
        render(b.kernel((1,)), PRESETS["cpu-amx"], AMX)


def test_wgsl_refuses_tiles_by_name() -> None:
    kernel = replace(product(4, 8, 8), name="wide")
    with pytest.raises(CompileError, match="wide: WGSL has no matrix registers"):
        render_wgsl(kernel, PRESETS["webgpu"])
