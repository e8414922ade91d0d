"""Playing one kernel on the CPU device, and what Programs of it are made of, for this folder."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from weft.backends.cpu import CpuDevice
from weft.backends.cpu.host import Host
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, load
from weft.program.program import BufferRef, BufferSpec, Dispatch, Program

# What other x86-64 machines would run: AVX-512 without bf16 and VNNI, AVX2, and the bare base.
_LESSER = {
    "avx512": ("skylake-avx512", "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx2,+fma,+f16c"),
    "avx2": ("haswell", "+avx2,+fma,+f16c"),
    "base": ("x86-64", "+sse2"),
}


@functools.cache
def device(threads: int = 2, target: str = "host") -> CpuDevice:
    native = CpuDevice(threads=threads)
    if target == "host":
        return native
    cpu, features = _LESSER[target]
    wanted = {f[1:] for f in features.split(",")}
    if native.host.arch != "x86_64" or not wanted <= native.host.enabled | {"sse2"}:
        pytest.skip(f"this CPU cannot run {target} code")
    lesser = Host(native.host.triple, cpu, features, native.host.version)
    return CpuDevice(threads=threads, target=lesser)


def program_of(kernel: ir.Kernel, scalars: tuple[str, ...] = (), repeat: int = 1) -> Program:
    """One buffer per kernel parameter, and `repeat` dispatches."""
    specs, refs = [], []
    for i, b in enumerate(kernel.buffers):
        nbytes = b.size * b.dtype.itemsize
        specs.append(BufferSpec(b.name, "input", b.dtype, (b.size,), nbytes))
        refs.append(BufferRef(i, 0, nbytes))
    steps = (Dispatch(0, tuple(refs)),) * repeat
    return Program(kernel.name, tuple(specs), (kernel,), steps, scalars, (), ())


def play(
    kernel: ir.Kernel,
    arrays: Sequence[np.ndarray],
    scalars: Sequence[int] = (),
    threads: int = 2,
    target: str = "host",
) -> list[np.ndarray]:
    """Copies of the arrays after the kernel has run on them; the memory after each one must
    stay as it was."""
    d = device(threads, target)
    guard = np.full(64, 0xA5, np.uint8)
    buffers = []
    for a in arrays:
        buffers.append(d.alloc(a.nbytes + 64))
        d.write(buffers[-1], a)
        d.write(buffers[-1], guard, a.nbytes)
    names = tuple(f"s{i}" for i in range(len(scalars)))
    d.submit(d.bind(program_of(kernel, names), buffers), scalars)
    for a, b in zip(arrays, buffers):
        assert (d.view(b, (64,), dt.uint8, a.nbytes) == 0xA5).all(), "wrote beyond its buffer"
    return [d.read(b, a.shape, buf.dtype) for a, b, buf in zip(arrays, buffers, kernel.buffers)]


def scale_kernel(n: int, factor: float, block: int = 64) -> ir.Kernel:
    """y = x * factor + group, `block` elements per group."""
    b = Builder("scale")
    x, y = b.buffer("x", dt.float32, n), b.buffer("y", dt.float32, n, "w")
    g = b.let(b.group(0), "g")
    with b.loop(block) as i:
        b.store(y, g * block + i, load(x, g * block + i) * factor + cast(g, dt.float32))
    return b.kernel((n // block,))


def two_buffers(n: int, name: str = "p", **parts: object) -> Program:
    specs = tuple(BufferSpec(k, "input", dt.float32, (n,), 4 * n) for k in "xy")
    return Program(name, specs, parts["kernels"], parts["steps"], (), (0,), (1,))  # type: ignore[arg-type]
