"""Level "kernels", continued: what devices have beyond plain threads, against the interpreter:
matrix units, products of bytes, copies that arrive by themselves, shared memory beyond what code
may declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from weft.conform.report import Check, Skip
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, load
from weft.kernel.ir import Expr
from weft.program.device import Device

Compare = Callable[[Device, ir.Kernel, list[np.ndarray]], float]
_FEATURES = {dt.bfloat16: "mma16_bf16", dt.float16: "mma16_f16", dt.int8: "mma16_int8"}
_K = 64


def _product(
    device: Device, compare: Compare, dtype: DType, nt: bool, shared: bool, pad: int
) -> float:
    """Two subgroups multiply 16 x _K elements each by as many, from a sum that is there before,
    and scale its rows (of float sums). Small integers: every sum is exact, in any order."""
    if _FEATURES[dtype] not in device.caps.features or not device.supports(dtype):
        raise Skip(f"no matrix unit for {dtype}")
    wave = device.caps.subgroup
    b = Builder("product")
    left, right = _K + pad, (_K if nt else 16) + pad  # elements from row to row
    sizes = (16 * left, (16 if nt else _K) * right)
    given = [b.buffer(n, dtype, 2 * size) for n, size in zip("xy", sizes)]
    sums, deep = (dt.int32, 32) if dtype.is_int else (dt.float32, 16)
    start, factors = b.buffer("start", sums, 512), b.buffer("factors", dt.float32, 96)
    out = b.buffer("out", sums, 512, "w")
    t = b.let(b.thread(0), "t")
    own = b.let(t // wave, "own")
    memory: list[ir.Buffer | ir.Array] = list(given)
    if shared:
        memory = [b.array(f"s{x.name}", dtype, x.size, "shared") for x in given]
        for target, source in zip(memory, given):
            with b.loop(source.size, t, 2 * wave) as i:
                b.store(target, i, load(source, i))
        b.barrier()
    c = b.tile("c", sums, 16, 16)
    a, other = b.tile("a", dtype, 16, deep), b.tile("b", dtype, 16, deep)
    b.tile_load(c, start, own * 256, 16)
    with b.loop(_K, step=deep, name="k") as k:
        b.tile_load(a, memory[0], own * sizes[0] + k, left)
        b.tile_load(other, memory[1], own * sizes[1] + (k if nt else k * right), right)
        (b.mma_nt if nt else b.mma)(c, a, other)
    if dtype.is_float:
        b.tile_scale(c, factors, own * 48 + 1, 3)
    b.tile_store(out, own * 256, 16, c)
    rng = np.random.default_rng(0)
    kernel = b.kernel((1,), (2 * wave,))
    data = [rng.integers(-8, 9, x.size).astype(x.dtype.numpy) for x in kernel.buffers[:-1]]
    return compare(device, kernel, [*data, np.zeros(512, sums.numpy)])


def _scaled(device: Device, compare: Compare) -> float:
    """Sums of integers meet one row of factors, times a factor of each row, in a sum of floats."""
    wave = device.caps.subgroup
    if "mma16_int8" not in device.caps.features:
        raise Skip("no matrix unit for int8")
    b = Builder("scaled")
    ints, start = b.buffer("ints", dt.int32, 512), b.buffer("start", dt.float32, 512)
    columns, rows = b.buffer("columns", dt.float32, 32), b.buffer("rows", dt.float32, 32)
    out = b.buffer("out", dt.float32, 512, "w")
    own = b.let(b.thread(0) // wave, "own")
    whole, sums, factors = (
        b.tile(n, d, 16, 16) for n, d in (("i", dt.int32), ("c", dt.float32), ("f", dt.float32))
    )
    b.tile_load(whole, ints, own * 256, 16)
    b.tile_add(whole, whole)
    b.tile_load(sums, start, own * 256, 16)
    b.tile_load(factors, columns, own * 16, 0)
    b.tile_scale(factors, rows, own * 16)
    b.tile_fma(sums, whole, factors)
    b.tile_fma(sums, factors, factors)
    b.tile_store(out, own * 256, 16, sums)
    rng = np.random.default_rng(0)
    kernel = b.kernel((1,), (2 * wave,))
    data = [
        rng.integers(-(2**30), 2**30, x.size).astype(np.int32)
        if x.dtype.is_int
        else rng.standard_normal(x.size).astype(np.float32)
        for x in kernel.buffers[:-1]
    ]
    return compare(device, kernel, [*data, np.zeros(512, np.float32)])


def _dot4(device: Device, compare: Compare, dtype: DType, small: int) -> float:
    """Sums of four products of bytes, up to the largest that are promised (ir.Collective)."""
    caps = device.caps
    if not (caps.is_cpu or "dot4" in caps.features):
        raise Skip("no dot products of bytes")
    lanes, count = (caps.lanes if caps.is_cpu else 1), 8
    size, info = lanes * count, np.iinfo(dtype.numpy)
    top, least = (127, -127) if small else (info.max, -128)
    b = Builder("dot4")
    start, out = b.buffer("start", dt.int32, size), b.buffer("out", dt.int32, size, "w")
    x, y = b.buffer("x", dtype, 4 * size), b.buffer("y", dt.int8, 4 * size)
    at = b.let(b.group(0) * lanes, "at")
    args = load(start, at, lanes), load(x, 4 * at, 4 * lanes), load(y, 4 * at, 4 * lanes)
    b.store(out, at, ir.Collective("dot4", args, ir.Type(dt.int32, lanes), small))
    rng = np.random.default_rng(0)
    left = rng.integers(info.min, top + 1, 4 * size)
    right = rng.integers(least, 128, 4 * size)
    left[:4], right[:4], left[4:8] = top, least, info.min
    data = [rng.integers(-(2**31), 2**31, size).astype(np.int32), np.zeros(size, np.int32)]
    data += [left.astype(dtype.numpy), right.astype(np.int8)]
    return compare(device, b.kernel((count,)), data)


def _async_copies(device: Device, compare: Compare, stages: int, lanes: int) -> float:
    """Rows on their way to a ring in shared memory, asked for stages - 1 steps ahead."""
    if device.caps.is_cpu:
        raise Skip("a CPU group has one thread: nothing is shared")
    b, n, row = Builder("async_copy"), 7, 64 * lanes
    x, out = b.buffer("x", dt.float32, n * row), b.buffer("out", dt.float32, n * row, "w")
    ring, t = b.array("ring", dt.float32, stages * row, "shared"), b.let(b.thread(0), "t")

    def ask(k: Expr) -> None:
        to = b.let(k % stages * row + t * lanes, "to")
        b.copy_async(ring, to, x, k * row + t * lanes, lanes, barriers=stages - 1)

    for k in range(stages - 1):
        ask(const(k))
        b.barrier()
    with b.loop(n, name="k") as step:
        with b.when(step + (stages - 1) < n):
            ask(b.let(step + (stages - 1), "next"))
        value = load(ring, step % stages * row + (63 - t) * lanes, lanes)
        b.store(out, step * row + t * lanes, value)
        b.barrier()
    data = np.arange(n * row, dtype=np.float32)
    return compare(device, b.kernel((1,), (64,)), [data, np.zeros_like(data)])


def _large(device: Device, compare: Compare) -> float:
    """Two arrays that take all the shared memory there is."""
    if device.caps.is_cpu:
        raise Skip("a CPU group has one thread: nothing is shared")
    size = device.caps.shared_bytes // 4 - 68
    b = Builder("large")
    x, out = b.buffer("x", dt.float32, 64), b.buffer("out", dt.float32, 64, "w")
    first = b.array("first", dt.float32, size, "shared")
    last = b.array("last", dt.float32, 65, "shared")
    t = b.let(b.thread(0), "t")
    b.store(first, size - 1 - t, load(x, t))
    b.store(last, t, load(x, t) * 2.0)
    b.barrier()
    b.store(out, t, load(first, size - 64 + t) + load(last, 63 - t))
    data = np.arange(64, dtype=np.float32)
    return compare(device, b.kernel((1,), (64,)), [data, np.zeros_like(data)])


def _tiles(device: Device, compare: Compare) -> float:
    """Tile and TileOp zero, load, mma, store in one thread"""
    if not device.caps.is_cpu:
        raise Skip("for CPUs: subgroups have their own")
    if not device.supports(dt.bfloat16):
        raise Skip("no bfloat16")
    b, k = Builder("tiles"), 96
    x, y = b.buffer("x", dt.bfloat16, 16 * k), b.buffer("y", dt.bfloat16, 16 * k)
    out = b.buffer("out", dt.float32, 256, "w")
    c = b.tile("c", dt.float32, 16, 16)
    left, right = b.tile("left", dt.bfloat16, 16, 32), b.tile("right", dt.bfloat16, 16, 32)
    b.tile_zero(c)
    with b.loop(k, step=32, name="k") as at:
        b.tile_load(left, x, at, k)
        b.tile_load(right, y, at * 16, 32)
        b.mma(c, left, right)
    b.tile_store(out, 0, 16, c)
    rng = np.random.default_rng(0)  # small integers: every sum is exact, in any order
    data = [rng.integers(-8, 9, 16 * k).astype(dt.bfloat16.numpy) for _ in range(2)]
    return compare(device, b.kernel((1,)), [*data, np.zeros(256, np.float32)])


def _outer(device: Device, compare: Compare, left: DType, right: DType) -> float:
    if not device.caps.is_cpu:
        raise Skip("for CPUs: subgroups have their own")
    if not (device.supports(left) and device.supports(right)):
        raise Skip(f"no {left} or no {right}")
    b, g = Builder("outer"), 4 // left.itemsize
    acc = dt.int32 if left.is_int else dt.float32
    x, y = b.buffer("x", left, 256 * g), b.buffer("y", right, 256 * g)
    out = b.buffer("out", acc, 1024, "w")
    sums = [b.tile(f"c{i}", acc, 16, 16) for i in range(4)]
    lefts = [b.tile(f"l{i}", left, 2, 16 * g) for i in range(2)]
    rights = [b.tile(f"r{i}", right, 2, 16 * g) for i in range(2)]
    for tile in sums:
        b.tile_zero(tile)
    with b.loop(4, name="k") as k:
        for i in range(2):
            b.tile_load(lefts[i], x, k * 64 * g + i * 16 * g, 32 * g)
            b.tile_load(rights[i], y, k * 64 * g + i * 16 * g, 32 * g)
        for i, tile in enumerate(sums):
            b.mma_tn(tile, lefts[i // 2], rights[i % 2])
    for i, tile in enumerate(sums):
        b.tile_store(out, i * 256, 16, tile)
    rng = np.random.default_rng(0)
    data = [
        rng.integers(0 if t == dt.uint8 else -8, 9, 256 * g).astype(t.numpy) for t in (left, right)
    ]
    return compare(device, b.kernel((1,)), [*data, np.zeros(1024, acc.numpy)])


def checks(device: Device, compare: Compare) -> Iterator[Check]:
    """`compare(device, kernel, arrays)` runs a kernel on the device and in the interpreter."""
    yield _tiles.__doc__ or "", partial(_tiles, device, compare)
    for pair in ((dt.float32,) * 2, (dt.bfloat16,) * 2, (dt.int8,) * 2, (dt.uint8, dt.int8)):
        name = f"Tile mma_tn of {pair[0]} and {pair[1]}"
        yield name, partial(_outer, device, compare, *pair)
    for dtype in _FEATURES:
        for nt in (True, False) if dtype.is_float else (True,):
            for where, shared, pad in (
                ("shared", True, 16),
                ("odd", True, 1),
                ("buffers", False, 0),
            ):
                name = f"tiles {dtype} {'a.bT' if nt else 'a.b'} {where}"
                yield name, partial(_product, device, compare, dtype, nt, shared, pad)
    yield "tiles of sums, scaled", partial(_scaled, device, compare)
    for dtype in (dt.uint8, dt.int8):
        for small in (0, 1):
            yield f"dot4 {dtype}{' small' * small}", partial(_dot4, device, compare, dtype, small)
    for stages, lanes in ((2, 4), (3, 4), (4, 1)):
        yield (
            f"async copies {stages} x {lanes}",
            partial(_async_copies, device, compare, stages, lanes),
        )
    yield "all shared memory", partial(_large, device, compare)
