"""The best performance of a device, measured with weft's own kernels: the yardstick of every
figure.

A benchmark figure means little alone, so it comes with its share of the roofline (Williams,
Waterman, Patterson, "Roofline", CACM 2009). That is FLOPs over the measured FMA peak, or bytes over
the measured read bandwidth, whichever is larger. A share above 1 is beyond any device's peak: the
data came from caches, or there was less work than at full size, so tables leave it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.conform.harness import program_of
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import ceil_div, const, fma, load
from weft.kernel.ir import Type
from weft.program.device import Device

_ITERATIONS = 2048


@dataclass(frozen=True)
class Roofline:
    """Peaks of one device.

    `gflops`: f32 FMA rate in GFLOP/s.
    `read_gbs`: read bandwidth in GB/s.
    `tile_gflops`: rate of bf16 products in matrix units in GFLOP/s (0: the device lacks them).
    `copy_gbs`: bandwidth of a copy in GB/s, each byte counted once as read and once as written (0:
    not measured).
    """

    gflops: float
    read_gbs: float
    tile_gflops: float = 0.0
    copy_gbs: float = 0.0

    def share(self, flops: float, nbytes: float, seconds: float, tiles: bool = False) -> float:
        """Returns the share of the roofline that a run of `seconds` reached (1 is the roof).
        `tiles` says that its FLOPs run in matrix units, if the device has them."""
        peak = self.tile_gflops if tiles and self.tile_gflops else self.gflops
        floor = max(flops / (peak * 1e9), nbytes / (self.read_gbs * 1e9))
        return floor / seconds if seconds > 0 else 0.0


def shown(share: float) -> str:
    """The share as tables print it: "-" where it is above 1, and so says nothing."""
    return f"{share:.2f}" if round(share, 2) <= 1 else "-"


def _width(caps: Caps) -> tuple[int, int]:
    """(threads per group, lanes per thread): how one group spans the machine's vector."""
    return (1, caps.lanes) if caps.is_cpu else (min(64, caps.max_threads), 1)


def fma_kernel(caps: Caps, groups: int) -> tuple[ir.Kernel, int]:
    """A loop of independent FMA chains and the FLOPs of one run."""
    threads, lanes = _width(caps)
    chains = 12
    b = Builder("peak_fma")
    out = b.buffer("out", dt.float32, groups * threads * lanes, "w")
    seed = b.let(ir.Cast(b.group(0) * threads + b.thread(0), ir.F32), "seed")
    type_ = Type(dt.float32, lanes)
    sums = [b.var(const(float(i), type_), "acc", type_) for i in range(chains)]
    scale = b.var(seed * 1e-9 + 0.5, "scale")
    with b.loop(_ITERATIONS):
        for acc in sums:
            b.assign(acc, fma(acc, scale, 0.25))
    total: ir.Expr = sums[0]
    for acc in sums[1:]:
        total = total + acc
    b.store(out, (b.group(0) * threads + b.thread(0)) * lanes, total)
    kernel = b.kernel(grid=(groups,), threads=(threads,))
    return kernel, 2 * chains * _ITERATIONS * groups * threads * lanes


def dot4_kernel(caps: Caps, groups: int) -> tuple[ir.Kernel, int]:
    """A loop of dot products of four bytes, and the operations of one run (two for each product, as
    FLOPs are counted). The left operands come from a few lines of memory, so that no compiler can
    move a product out of the loop."""
    threads, lanes = _width(caps)
    number, size, steps = Type(dt.int32, lanes), 4 * lanes, 64
    b = Builder("peak_dot4")
    x = b.buffer("x", dt.uint8, steps * 2 * size)
    y = b.buffer("y", dt.int8, 3 * size)
    out = b.buffer("out", dt.int32, groups * threads * lanes, "w")
    rights = [b.let(load(y, i * size, size), "right") for i in range(3)]
    sums = [b.var(const(i, number), "acc", number) for i in range(6)]
    with b.loop(_ITERATIONS) as i:
        at = b.let(i % steps * (2 * size), "at")
        lefts = [b.let(load(x, at + n * size, size), "left") for n in range(2)]
        for n, acc in enumerate(sums):
            args = (acc, lefts[n // 3], rights[n % 3])
            b.assign(acc, ir.Collective("dot4", args, number, 1))
    total: ir.Expr = sums[0]
    for acc in sums[1:]:
        total = total + acc
    b.store(out, (b.group(0) * threads + b.thread(0)) * lanes, total)
    kernel = b.kernel(grid=(groups,), threads=(threads,))
    return kernel, 2 * 4 * len(sums) * _ITERATIONS * groups * threads * lanes


def tile_kernel(groups: int) -> tuple[ir.Kernel, int]:
    """A loop of products of tiles into four sums, and the FLOPs of one run (a CPU's registers)."""
    b = Builder("peak_tiles")
    x = b.buffer("x", dt.bfloat16, 1024)
    out = b.buffer("out", dt.float32, groups * 256, "w")
    sums, operands = _tiles(b, x, 32)
    with b.loop(_ITERATIONS):
        for i, tile in enumerate(sums):
            b.mma(tile, operands[i // 2], operands[2 + i % 2])
    for tile in sums:
        b.tile_store(out, b.group(0) * 256, 16, tile)
    return b.kernel(grid=(groups,)), 2 * 4 * 16 * 16 * 32 * _ITERATIONS * groups


def unit_kernel(caps: Caps, groups: int) -> tuple[ir.Kernel, int]:
    """The same for a GPU's matrix units: every subgroup of a group has four sums of its own."""
    b = Builder("peak_units")
    waves = 4
    x = b.buffer("x", dt.bfloat16, 1024)
    out = b.buffer("out", dt.float32, groups * waves * 256, "w")
    sums, operands = _tiles(b, x, 16)
    with b.loop(_ITERATIONS):
        for i, tile in enumerate(sums):
            b.mma_nt(tile, operands[i // 2], operands[2 + i % 2])
    at = b.let((b.group(0) * waves + b.thread(0) // caps.subgroup) * 256, "at")
    for tile in sums:
        b.tile_store(out, at, 16, tile)
    kernel = b.kernel(grid=(groups,), threads=(waves * caps.subgroup,))
    return kernel, 2 * 4 * 16 * 16 * 16 * _ITERATIONS * groups * waves


def _tiles(b: Builder, x: ir.Buffer, width: int) -> tuple[list[ir.Tile], list[ir.Tile]]:
    """Four sums, zero, and four operands of 16 x `width` bf16."""
    sums = [b.tile(f"c{i}", dt.float32, 16, 16) for i in range(4)]
    operands = [b.tile(f"a{i}", dt.bfloat16, 16, width) for i in range(4)]
    for tile in operands:
        b.tile_load(tile, x, 0, width)
    for tile in sums:
        b.tile_zero(tile)
    return sums, operands


def copy_kernel(caps: Caps, size: int) -> ir.Kernel:
    """Copies `size` floats, a vector per thread (on a CPU 1,024 of them per group)."""
    threads, lanes = (1, caps.lanes) if caps.is_cpu else (min(256, caps.max_threads), 4)
    each = 1024 if caps.is_cpu else 1
    per_group = threads * lanes * each
    assert size % per_group == 0
    b = Builder("peak_copy")
    x, out = b.buffer("x", dt.float32, size), b.buffer("out", dt.float32, size, "w")
    first = b.let(b.group(0) * per_group + b.thread(0) * lanes, "first")
    with b.loop(each * lanes, step=lanes) as i:
        at = b.let(first + i, "at")
        b.store(out, at, load(x, at, lanes), nontemporal=caps.is_cpu)
    return b.kernel(grid=(size // per_group,), threads=(threads,), bytes=size * 8)


def read_kernel(caps: Caps, size: int) -> ir.Kernel:
    """Sums `size` floats in fixed chunks: every byte is read once."""
    threads, lanes = (1, caps.lanes) if caps.is_cpu else (min(64, caps.max_threads), 4)
    streams = 8 if caps.is_cpu else 1
    step = threads * lanes * streams
    per_group = step * (1024 if caps.is_cpu else 16)
    groups = ceil_div(size, per_group)
    assert isinstance(groups, int) and size % per_group == 0
    b = Builder("peak_read")
    x = b.buffer("x", dt.float32, size)
    out = b.buffer("out", dt.float32, groups * threads * lanes, "w")
    type_ = Type(dt.float32, lanes)
    sums = [b.var(const(0.0, type_), "acc", type_) for _ in range(streams)]
    first = b.let(b.group(0) * per_group + b.thread(0) * lanes, "first")
    with b.loop(per_group, step=step) as i:
        base = b.let(first + i, "base")
        for s, acc in enumerate(sums):
            b.assign(acc, acc + load(x, base + s * threads * lanes, lanes))
    total: ir.Expr = sums[0]
    for acc in sums[1:]:
        total = total + acc
    b.store(out, (b.group(0) * threads + b.thread(0)) * lanes, total)
    return b.kernel(grid=(groups,), threads=(threads,), bytes=size * 4)


def bound(device: Device, kernel: ir.Kernel) -> Callable[[], float]:
    """A function that runs a kernel once, over buffers of its own, and returns the seconds."""
    program, sizes = program_of(kernel)
    buffers = [device.alloc(nbytes) for nbytes in sizes]
    for buf, buffer in zip(kernel.buffers, buffers):
        if buf.access == "r":
            device.write(buffer, np.ones(buf.size, buf.dtype.numpy))
    ready = device.bind(program, buffers)

    def play() -> float:
        start = time.perf_counter()
        device.submit(ready, ())
        device.sync()
        return time.perf_counter() - start

    return play


def _time(device: Device, kernel: ir.Kernel, repeats: int) -> float:
    """Best seconds of one run of a kernel."""
    play = bound(device, kernel)
    return min(play() for _ in range(repeats))


def measure(device: Device, repeats: int = 12) -> Roofline:
    """Measures the roofline of a device in about a second (best of `repeats`)."""
    caps, slow = device.caps, device.info.software
    gpu = not (caps.is_cpu or slow)
    runs = 2 if slow else repeats
    # A GPU needs enough groups for all of its processors, and memory that its caches cannot hold.
    groups = 64 * caps.cores if caps.is_cpu else 1 << 14 if gpu else 256
    kernel, flops = fma_kernel(caps, groups)
    gflops = flops / _time(device, kernel, runs) / 1e9
    size = _floats(caps, 1 << 22 if slow else 1 << 28 if gpu else 1 << 26)
    seconds = _time(device, read_kernel(caps, size), runs)
    copied = _time(device, copy_kernel(caps, size // 2), runs)
    tiles = 0.0
    found = None if slow else _unit(caps, groups // 4)
    if found is not None:
        kernel, flops = found
        tiles = flops / _time(device, kernel, runs) / 1e9
    return Roofline(gflops, size * 4 / seconds / 1e9, tiles, size * 4 / copied / 1e9)


def _unit(caps: Caps, groups: int) -> tuple[ir.Kernel, int] | None:
    """The kernel that measures the matrix unit of a target, if it has one."""
    if "mma_bf16" in caps.features:
        return tile_kernel(groups * 4)
    if "mma16_bf16" in caps.features:
        return unit_kernel(caps, groups)
    return None


def _floats(caps: Caps, wanted: int) -> int:
    """A power of two of floats, at most `wanted`, that one buffer and one binding can hold."""
    limit = min(caps.max_binding_bytes, caps.max_buffer_bytes) // 4
    return min(wanted, 1 << (limit.bit_length() - 1))
