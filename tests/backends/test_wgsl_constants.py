"""What compilers of WGSL work out by themselves: constants that overflow, shift too far, divide by
zero or index outside must come out as the interpreter has them, and never refuse a module."""

import dataclasses
import itertools

import numpy as np
import pytest
from tint import refusal
from wgpu_case import VARIANTS, device, same, sample

from weft.backends import wgsl
from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel import ir, lanewise
from weft.kernel.builder import Builder
from weft.kernel.expr import binary, cast, const, iota, load, pack
from weft.kernel.ir import Type

INTS = (dt.int32, dt.uint32, dt.int8, dt.uint8)
FLOATS = (0.0, -0.0, 1.5, -3e38, 3e38, 1e-38, float("inf"), float("nan"))


def edges(dtype):
    if dtype.is_float:
        return FLOATS
    info = np.iinfo(dtype.numpy)
    return sorted({info.min, info.min + 1, min(-info.min, 1) * -1, 0, 1, 5, info.max - 1, info.max})


def pairs(op, dtype):
    values = edges(dtype)
    if op in ("shl", "shr"):
        return itertools.product(values, [x for x in (0, 1, 7, 31) if x < 8 * dtype.itemsize])
    zero_free = [x for x in values if x != 0 or dtype.is_float or op not in ("div", "rem")]
    return (
        (a, b) for a, b in itertools.product(values, zero_free)
        if not (op in ("div", "rem") and b == -1 and a == values[0])
    )  # fmt: skip


def vector(values, dtype):
    """A constant, of as many lanes as there are values."""
    lanes = tuple(ir.Const(x.item(), Type(dtype)) for x in values)
    return lanes[0] if len(lanes) == 1 else ir.Vec("pack", lanes, Type(dtype, len(lanes)))


def constant_kernel(op, dtype, lanes):
    """out[i] = a op b of constants, all pairs; and what they should be."""
    out_dtype = dt.bool_ if op in ir.COMPARE else dtype
    found = list(pairs(op, dtype))
    found += found[: -len(found) % lanes]
    b = Builder("constants")
    out = b.buffer("out", out_dtype, len(found), "w")
    with np.errstate(all="ignore"):
        values = np.array(found).astype(dtype.numpy)
        want = lanewise.BINARY[op](values[:, 0], values[:, 1])
    to = Type(out_dtype, lanes)
    for i in range(0, len(found), lanes):
        x, y = (vector(values[i : i + lanes, k], dtype) for k in (0, 1))
        b.store(out, i, ir.Binary(op, x, y, to))
    return b.kernel(grid=(1,)), want


def accepted(kernels):
    """Tint takes every kernel, packed and with f16."""
    caps = PRESETS["webgpu"]
    for features in (frozenset(), frozenset({"shader-f16"})):
        caps = dataclasses.replace(caps, features=features)
        for kernel in kernels:
            assert refusal(wgsl.render(kernel, caps)) is None


def cases():
    for op in ir.BINARY:
        for dtype in (*INTS, dt.float32):
            if dtype.is_float and op in ("and", "or", "xor", "shl", "shr"):
                continue
            for lanes in (1, 4):
                yield op, dtype, lanes


@pytest.mark.parametrize(("op", "dtype", "lanes"), list(cases()), ids=str)
def test_operations_on_constants(op, dtype, lanes):
    kernel, want = constant_kernel(op, dtype, lanes)
    got = run_kernel(device(), kernel, [np.zeros(len(want), want.dtype)])[0]
    if dtype.is_float and op in ir.COMPARE:
        return  # with NaN unspecified; that it compiles is the point
    np.testing.assert_array_equal(got, want)


def test_tint_takes_operations_on_constants():
    accepted([constant_kernel(*case)[0] for case in cases()])


def odd_kernel(dtype, lanes):
    """Branches and masks that never hold, with a divisor of 0 and indices outside; what is stored
    is x + 1."""
    b = Builder("odd")
    x, y = b.buffer("x", dtype, 8), b.buffer("y", dtype, 8, "rw")
    mine = b.array("mine", dtype, 6)
    ours = b.array("ours", dtype, 5, "shared")
    zero = b.let(b.group(0), "zero")
    for array in (mine, ours):
        for k in range(array.size):
            b.store(array, k, load(x, k))
    never = b.let(zero > 5, "never")
    for index, source in itertools.product((-9, -2, -1, -(1 << 31)), (x, y, mine, ours)):
        got = load(source, const(index), lanes, never)
        b.store(y, 0, got, b.let(zero > 6))
    for index, array in itertools.product((-1, 5, 6, 7, 1 << 30), (mine, ours)):
        with b.when(b.let(zero > 7)):
            b.store(array, const(index), load(array, const(index), lanes))
            b.store(y, const(-index), load(x, const(-index), lanes))
    at = b.let(iota(4) - 2, "at")
    inside = b.let(pack(*[const(k >= 2, ir.BOOL) for k in range(4)]), "inside")
    late = b.let((at + zero) < 0, "late")
    for first in (-2, -1, 0):  # no lane of these is both inside and late
        both = b.let(binary("and", inside, late))
        b.store(y, const(first), load(y, const(first), 4, both), both)
    if dtype.is_int:
        with b.when(b.let(zero > 8)):
            for op in ("div", "rem", "shl", "shr"):
                some = load(x, 0, lanes)
                b.store(y, 0, ir.Binary(op, some, ir.Const(0, some.type), some.type))
    one = const(1 if dtype.is_int else True if dtype is dt.bool_ else 1.0, Type(dtype))
    for k in range(8):
        if dtype in (dt.float16, dt.bfloat16):
            b.store(y, k, cast(cast(load(x, k), dt.float32) + 1.0, dtype))
        else:
            b.store(y, k, binary("xor" if dtype is dt.bool_ else "add", load(x, k), one))
    return b.kernel(grid=(1,))


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", dt.DEVICE, ids=str)
def test_what_never_happens_is_no_error(dtype, lanes, variant):
    x = np.array([0, 1, 0, 1, 1, 1, 0, 1]).astype(dtype.numpy)
    got = run_kernel(device(variant), odd_kernel(dtype, lanes), [x, np.zeros_like(x)])[1]
    same(got, ~x if dtype is dt.bool_ else (x + x.dtype.type(1)).astype(x.dtype))


def test_tint_takes_what_never_happens():
    accepted([odd_kernel(dtype, lanes) for dtype in dt.DEVICE for lanes in (1, 4)])


@pytest.mark.parametrize("dtype", [dt.int32, dt.uint32], ids=str)
@pytest.mark.parametrize("op", ["shl", "shr"])
def test_counts_are_taken_within_the_width(op, dtype):
    x, counts = sample(dtype, 8, 1), (0, 1, 31, 32, 33, 64, 100, 2**31 - 1)
    b = Builder("shift")
    source, out = b.buffer("x", dtype, 8), b.buffer("y", dtype, 8, "w")
    for k, count in enumerate(counts):
        b.store(out, k, ir.Binary(op, load(source, k), const(count, Type(dtype)), Type(dtype)))
    kernel = b.kernel(grid=(1,))
    got = run_kernel(device(), kernel, [x, np.zeros_like(x)])[1]
    same(got, lanewise.BINARY[op](x, np.array(counts).astype(x.dtype)))
