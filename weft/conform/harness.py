"""Playing single kernels on a device, with guard words around and poison inside every output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.conform.report import Check, CheckFailed, Skip
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.tolerance import compare
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import iota, load, minimum
from weft.program.device import Device
from weft.program.program import BufferRef, BufferSpec, Dispatch, Program

_GUARD = 256  # bytes before and after each buffer: the alignment every device can bind at


# One comparison: a label, a function of values, its operands, and the kind of tolerance.
Case = tuple[str, Callable[..., Any], list[np.ndarray], str]


def each(
    run: Callable[..., float], device: Device, cases: Iterable[Case], prefix: str = ""
) -> Iterator[Check]:
    """A check per case: `run` on the device."""
    for label, *case in cases:
        yield prefix + label, partial(run, device, *case)


def need(device: Device, dtypes: Iterable[DType]) -> None:
    """Raises Skip unless the device stores them all."""
    for d in dtypes:
        if not device.supports(d):
            raise Skip(f"{device.info.id} does not store {d}")


def check_equal(got: np.ndarray, want: np.ndarray) -> None:
    """Raises Mismatch unless the arrays hold the same values (NaN equal to NaN)."""
    result = compare(np.asarray(got), np.asarray(want), "exact")
    if not result.ok:
        raise CheckFailed(result.message)


def check_close(got: np.ndarray, want: np.ndarray, kind: str, dtype: DType) -> float:
    """Raises Mismatch unless within the tolerance table; returns the largest absolute error."""
    result = compare(np.asarray(got), np.asarray(want), kind, dtype)
    if not result.ok:
        raise CheckFailed(result.message)
    return result.max_abs


def elementwise_kernel(
    name: str,
    caps: Caps,
    n: int,
    inputs: Sequence[DType],
    output: DType,
    body: Callable[..., ir.Expr],
    access: ir.Access = "w",
) -> ir.Kernel:
    """out[i] = body(builder, index, *loaded inputs) for i < n, spread the way this target likes:
    masked vectors of caps.lanes on a CPU, one element per thread elsewhere."""
    b = Builder(name)
    sources = [b.buffer(f"x{k}", d, n) for k, d in enumerate(inputs)]
    out = b.buffer("out", output, n, access)
    if caps.is_cpu:
        lanes = caps.lanes
        first = b.let(b.group(0) * lanes, "first")
        index = b.let(first + iota(lanes), "index")
        mask = b.let(index < n, "mask")
        values = [b.let(load(s, first, lanes, mask)) for s in sources]
        # A kernel that updates in place reads its own lanes only: the clamped tail is harmless.
        at: Any = first if access == "w" else b.let(minimum(index, n - 1))
        b.store(out, first, body(b, at, *values), mask)
        return b.kernel(grid=(-(-n // lanes),))
    threads = min(64, caps.max_threads)
    i = b.let(b.group(0) * threads + b.thread(0), "i")
    with b.when(i < n):
        b.store(out, i, body(b, i, *[b.let(load(s, i)) for s in sources]))
    return b.kernel(grid=(-(-n // threads),), threads=(threads,))


def program_of(
    kernel: ir.Kernel, repeat: int = 1, scalars: tuple[str, ...] = (), guard: int = 0, sets: int = 1
) -> tuple[Program, list[int]]:
    """A Program that runs one kernel `repeat` times, in turn over `sets` of one buffer per
    parameter, each starting `guard` bytes into its allocation; and the allocation sizes."""
    specs: list[BufferSpec] = []
    refs = []
    for buf in kernel.buffers * sets:
        nbytes = buf.size * buf.dtype.itemsize
        refs.append(BufferRef(len(specs), guard, nbytes))
        specs.append(BufferSpec(buf.name, "input", buf.dtype, (buf.size,), nbytes + 2 * guard))
    wide = len(kernel.buffers)
    args = [tuple(refs[i * wide : (i + 1) * wide]) for i in range(sets)]
    steps = tuple(Dispatch(0, args[i % sets], kernel.name) for i in range(repeat))
    sizes = [s.nbytes for s in specs]
    everything = tuple(range(len(specs)))
    return Program(kernel.name, tuple(specs), (kernel,), steps, scalars, everything, ()), sizes


def run_kernel(
    device: Device, kernel: ir.Kernel, arrays: Sequence[np.ndarray], scalars: Sequence[int] = ()
) -> list[np.ndarray]:
    """Runs a kernel on copies of `arrays` (one per buffer) and returns what they become. Guard
    bytes on both sides of every buffer must survive: a kernel that writes outside fails here."""
    names = tuple(f"s{i}" for i in range(len(scalars)))
    program, sizes = program_of(kernel, scalars=names, guard=_GUARD)
    buffers = []
    for array, nbytes in zip(arrays, sizes):
        image = np.full(nbytes + (-nbytes) % 4, 0xA5, np.uint8)
        image[_GUARD : _GUARD + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
        buffers.append(device.alloc(image.nbytes))
        device.write(buffers[-1], image)
    device.submit(device.bind(program, buffers), scalars)
    results = []
    for array, buffer, buf, nbytes in zip(arrays, buffers, kernel.buffers, sizes):
        got = device.read(buffer, (nbytes,), dt.uint8)
        inside = buf.size * buf.dtype.itemsize
        guards = np.concatenate([got[:_GUARD], got[_GUARD + inside + (-inside) % 4 :]])
        if not (guards == 0xA5).all():
            raise CheckFailed(f"{kernel.name} wrote outside buffer {buf.name}")
        data = got[_GUARD : _GUARD + inside].copy()
        results.append(data.view(buf.dtype.numpy).reshape(array.shape))
    return results
