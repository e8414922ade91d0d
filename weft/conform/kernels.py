"""Level "kernels": every Kernel IR node and dtype on the device, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from weft.conform import units
from weft.conform.harness import check_close, check_equal, elementwise_kernel, need, run_kernel
from weft.conform.report import Check, Skip
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel import interp, ir
from weft.kernel.builder import Builder
from weft.kernel.expr import (
    any_,
    binary,
    bitcast,
    cast,
    const,
    eq,
    extract,
    fma,
    iota,
    load,
    lookup,
    pack,
    select,
    shuffle,
    unary,
)
from weft.program.device import Device

_N = 150  # not a multiple of any vector width, and several groups
_WIDE = (dt.float32, dt.int32, dt.uint32)
_F32_SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.4e38, -3.4e38, 1e-38, 65504.0, 65520.0,
     -7e4, 2147483520.0, -2147483648.0, 3e9, 255.5, -128.7, 1e10, np.inf, -np.inf],
    np.float32,
)  # fmt: skip


def sample(dtype: DType, seed: int = 0, n: int = _N) -> np.ndarray:
    """Returns values of a dtype with its corners among them (no NaN: its payload is undefined)."""
    rng = np.random.default_rng(seed)
    if dtype is dt.bool_:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        data = rng.integers(info.min, info.max, n, endpoint=True).astype(dtype.numpy)
        data[:4] = (info.min, info.max, 0, 1)
        return data
    data = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(np.float32)
    data[: len(_F32_SPECIAL)] = np.roll(_F32_SPECIAL, seed)
    with np.errstate(over="ignore"):
        return data.astype(dtype.numpy)


def _against_interp(
    device: Device, kernel: ir.Kernel, arrays: list[np.ndarray], scalars: tuple[int, ...] = ()
) -> float:
    """Runs on the device and in the interpreter; every written buffer must agree."""
    want = [a.copy().ravel() for a in arrays]
    interp.run(kernel, want, scalars, caps=device.caps)
    got = run_kernel(device, kernel, arrays, scalars)
    worst = 0.0
    for buf, g, w in zip(kernel.buffers, got, want):
        if buf.dtype.is_float:
            worst = max(worst, check_close(g.ravel(), w, "elementwise", buf.dtype))
        else:
            check_equal(g.ravel(), w)
    return worst


def _elementwise(
    device: Device,
    name: str,
    inputs: list[DType],
    output: DType,
    body: Callable[..., ir.Expr],
    arrays: list[np.ndarray] | None,
) -> float:
    need(device, (*inputs, output))
    kernel = elementwise_kernel(name, device.caps, _N, inputs, output, body)
    arrays = arrays or [sample(d, seed) for seed, d in enumerate(inputs)]
    return _against_interp(device, kernel, [*arrays, np.zeros(_N, output.numpy)])


def _unary() -> Iterator[tuple[Any, ...]]:
    table = {
        dt.float32: ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "keep"),
        dt.int32: ("neg", "abs", "not"),
        dt.uint32: ("not",),
    }
    for d, ops in table.items():
        for op in ops:
            arrays = [np.abs(sample(d))] if op == "sqrt" else None
            body = lambda b, i, x, op=op: unary(op, x)  # noqa: E731
            yield f"Unary {op} {d}", op, [d], d, body, arrays


def _binary() -> Iterator[tuple[Any, ...]]:
    for d in _WIDE:
        for op in ir.BINARY:
            if d.is_float and op in ("and", "or", "xor", "shl", "shr", "rem"):
                continue
            a, c = sample(d), sample(d, 5)
            if op in ("shl", "shr"):
                c = (np.abs(c.astype(np.int64)) % 32).astype(d.numpy)
            if op in ("div", "rem"):
                c = np.where(c == 0, 3, c).astype(d.numpy)
                if d is dt.int32:
                    c = np.where(c == -1, 7, c).astype(d.numpy)  # INT_MIN / -1 overflows
            if d.is_float and op in ("add", "sub", "mul", "div"):
                a, c = np.clip(a, -1e15, 1e15), np.clip(c, -1e15, 1e15)  # no inf - inf
            out = dt.bool_ if op in ir.COMPARE else d
            body = lambda b, i, x, y, op=op: binary(op, x, _divisor(op, y))  # noqa: E731
            yield f"Binary {op} {d}", op, [d, d], out, body, [a, c]


def _divisor(op: str, y: ir.Expr) -> ir.Expr:
    """Lanes beyond the end hold 0, which the caller of div and rem must avoid."""
    return select(eq(y, 0), 1, y) if op in ("div", "rem") and not y.type.dtype.is_float else y


def _casts() -> Iterator[tuple[Any, ...]]:
    for src in dt.DEVICE:
        for dst in dt.DEVICE:
            if src is dst:
                continue

            def body(b: Builder, i: ir.Expr, x: ir.Expr, dst: DType = dst) -> ir.Expr:
                narrow = x.type.dtype in (dt.float16, dt.bfloat16)
                return cast(cast(x, dt.float32) if narrow else x, dst)

            yield f"Cast {src} to {dst}", f"cast_{src}_{dst}", [src], dst, body, None


def _others() -> Iterator[tuple[Any, ...]]:
    f = dt.float32
    three = [np.clip(sample(f, s), -1e6, 1e6) for s in range(3)]
    yield "Fma", "fma", [f] * 3, f, lambda b, i, x, y, z: fma(x, y, z), three
    choose = lambda b, i, c, x, y: select(c, x, y)  # noqa: E731
    yield "Select", "select", [dt.bool_, f, f], f, choose, None
    for src, dst in ((f, dt.int32), (dt.uint32, f), (dt.int32, dt.uint32)):
        arrays = [np.abs(sample(dt.int32) % 1000).astype(np.uint32)] if dst is f else None
        body = lambda b, i, x, dst=dst: bitcast(x, dst)  # noqa: E731
        yield f"Bitcast {src} to {dst}", "bitcast", [src], dst, body, arrays
    for d in dt.DEVICE:
        yield f"Load and Store {d}", f"copy_{d}", [d], d, lambda b, i, x: x, None


def _gather(device: Device) -> float:
    """Load at computed indices"""
    index = np.random.default_rng(3).permutation(_N).astype(np.int32)

    def body(b: Builder, i: ir.Expr, at: ir.Expr) -> ir.Expr:
        return load(b.buffers[0], at)

    kernel = elementwise_kernel("gather", device.caps, _N, [dt.int32], dt.int32, body)
    return _against_interp(device, kernel, [index, np.zeros(_N, np.int32)])


def _loop(device: Device) -> float:
    """For with a runtime bound, Let, Assign"""
    b = Builder("loop")
    out = b.buffer("out", dt.int32, _N, "w")
    total = b.var(const(0), "total", ir.I32)
    with b.loop(ir.Param("n", 0), start=3, step=2) as i:
        b.assign(total, total + i * b.group(0))
    b.store(out, b.group(0), total)
    kernel = b.kernel(grid=(_N,))
    return max(_against_interp(device, kernel, [np.zeros(_N, np.int32)], (n,)) for n in (0, 4, 40))


def _branch(device: Device) -> float:
    """If, else"""
    b = Builder("branch")
    out = b.buffer("out", dt.int32, _N, "rw")
    g = b.let(b.group(0), "g")
    with b.when(g % 3 < 1):
        b.store(out, g, 7)
    with b.otherwise(), b.when(g % 3 < 2):
        b.store(out, g, load(out, g) + 1)
    return _against_interp(device, b.kernel(grid=(_N,)), [np.arange(_N, dtype=np.int32)])


def _private(device: Device) -> float:
    """private Array"""
    b = Builder("private")
    out = b.buffer("out", dt.float32, _N, "w")
    g = b.let(b.group(0), "g")
    tmp = b.array("tmp", dt.float32, 16)
    with b.loop(16, unroll=True) as i:
        b.store(tmp, i, cast(i * g, dt.float32))
    b.store(out, g, load(tmp, g % 16) + load(tmp, 15 - g % 16))
    return _against_interp(device, b.kernel(grid=(_N,)), [np.zeros(_N, np.float32)])


def _vectors(device: Device) -> float:
    """Vec splat, iota, pack, extract, shuffle"""
    b = Builder("vectors")
    x, out = b.buffer("x", dt.float32, 4 * _N), b.buffer("out", dt.float32, 4 * _N, "w")
    g = b.let(b.group(0), "g")
    v = b.let(load(x, g * 4, 4), "v")
    w = b.let(pack(*[extract(v, k) * float(k + 1) for k in (2, 0, 3, 1)]), "w")
    ramp = cast(iota(4), dt.float32) + cast(g, dt.float32)
    b.store(out, g * 4, shuffle((7, 1, 4, 2), v, w) * ramp)
    data = np.arange(4 * _N, dtype=np.float32)
    return _against_interp(device, b.kernel(grid=(_N,)), [data, np.zeros_like(data)])


def _lookup(device: Device) -> float:
    """Vec lookup, in tables of fewer, as many and more entries than lanes"""
    lanes = device.caps.lanes
    if "lookup" not in device.caps.features:
        raise Skip("no lookup in vectors")
    b = Builder("lookup")
    x, out = b.buffer("x", dt.int32, lanes * _N), b.buffer("out", dt.float32, lanes * _N, "w")
    at = b.let(b.group(0) * lanes, "at")
    index = b.let(load(x, at, lanes), "index")
    found = [
        lookup(pack(*[const(float(i + n), ir.F32) for i in range(n)]), index)
        for n in (lanes // 2, lanes, 2 * lanes)
    ]
    b.store(out, at, found[0] + found[1] * 100.0 + found[2] * 10000.0)
    data = np.random.default_rng(0).integers(-64, 64, lanes * _N, np.int32)
    kernel = b.kernel(grid=(_N,))
    return _against_interp(device, kernel, [data, np.zeros(lanes * _N, np.float32)])


def _any(device: Device) -> float:
    """Vec any, and a branch by it"""
    b = Builder("any")
    x, out = b.buffer("x", dt.int32, 4 * _N), b.buffer("out", dt.int32, 4 * _N, "w")
    at = b.let(b.group(0) * 4, "at")
    v = b.var(load(x, at, 4), "v", ir.Type(dt.int32, 4))
    with b.when(any_(binary("lt", v, 0))):
        b.assign(v, v * 10)
    b.store(out, at, v)
    data = np.random.default_rng(0).integers(-1, 5, 4 * _N, np.int32)
    return _against_interp(device, b.kernel(grid=(_N,)), [data, np.zeros_like(data)])


def _axes(device: Device) -> float:
    """Axis in three dimensions"""
    b = Builder("axes")
    threads = (1, 1, 1) if device.caps.is_cpu else (4, 2, 2)
    sizes = [3 * threads[0], 5 * threads[1], 2 * threads[2]]
    out = b.buffer("out", dt.int32, sizes[0] * sizes[1] * sizes[2], "w")
    x, y, z = (b.let(b.group(d) * threads[d] + b.thread(d), "xyz"[d]) for d in range(3))
    at = b.let((z * sizes[1] + y) * sizes[0] + x, "at")
    b.store(out, at, x + y * 100 + z * 10000)
    kernel = b.kernel(grid=(3, 5, 2), threads=threads)
    return _against_interp(device, kernel, [np.zeros(out.size, np.int32)])


def _shared(device: Device) -> float:
    """shared Array and Barrier"""
    if device.caps.is_cpu:
        raise Skip("a CPU group has one thread: nothing is shared")
    b = Builder("reverse")
    x, out = b.buffer("x", dt.float32, 256), b.buffer("out", dt.float32, 256, "w")
    tile = b.array("tile", dt.float32, 64, "shared")
    t = b.let(b.thread(0), "t")
    at = b.let(b.group(0) * 64 + t, "at")
    b.store(tile, t, load(x, at))
    b.barrier()
    b.store(out, at, load(tile, 63 - t))
    data = np.arange(256, dtype=np.float32)
    kernel = b.kernel(grid=(4,), threads=(64,))
    return _against_interp(device, kernel, [data, np.zeros_like(data)])


def _fold(device: Device) -> float:
    """a grid beyond 65,535 groups"""
    n = 70_001
    b = Builder("long_grid")
    out = b.buffer("out", dt.int32, n, "w")
    b.store(out, b.group(0), b.group(0) + 1)
    got = run_kernel(device, b.kernel(grid=(n,)), [np.zeros(n, np.int32)])[0]
    check_equal(got, np.arange(1, n + 1, dtype=np.int32))
    return 0.0


def _subgroup(device: Device) -> float:
    """Collective subgroup_add, subgroup_max, subgroup_xor"""
    width = device.caps.subgroup
    if not width:
        raise Skip("no subgroups of a known width")
    b = Builder("subgroup")
    x = b.buffer("x", dt.float32, width)
    out = b.buffer("out", dt.float32, 3 * width, "w")
    t = b.let(b.thread(0), "t")
    v = b.let(load(x, t), "v")
    for k, (op, attr) in enumerate((("subgroup_add", 0), ("subgroup_max", 0), ("subgroup_xor", 1))):
        b.store(out, t + k * width, ir.Collective(op, (v,), ir.F32, attr))
    kernel = b.kernel(grid=(1,), threads=(width,))
    data = np.random.default_rng(0).standard_normal(width).astype(np.float32)
    return _against_interp(device, kernel, [data, np.zeros(3 * width, np.float32)])


def checks(device: Device) -> Iterator[Check]:
    """Every node, in every dtype it takes."""
    for label, *case in chain(_unary(), _binary(), _casts(), _others()):
        yield label, partial(_elementwise, device, *case)
    for maker in (
        _gather, _loop, _branch, _private, _vectors, _lookup, _any, _axes, _shared, _fold,
        _subgroup,
    ):  # fmt: skip
        yield maker.__doc__ or "", partial(maker, device)
    yield from units.checks(device, _against_interp)
