"""Expressions and statements in WGSL against NumPy: each node, dtype and lane count."""

import numpy as np
import pytest
from wgpu_case import device, same, sample

from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import (
    binary,
    bitcast,
    cast,
    const,
    fma,
    iota,
    load,
    maximum,
    minimum,
    select,
    unary,
)
from weft.kernel.ir import Type

N = 256
LANES = (1, 2, 4)


def run(body, inputs, out_dtype, lanes, gpu=None):
    """out = body(*vectors of `lanes` elements of the inputs), over N elements."""
    b = Builder("value")
    sources = [b.buffer(f"x{k}", dt.as_dtype(x.dtype), N) for k, x in enumerate(inputs)]
    out = b.buffer("out", out_dtype, N, "w")
    at = b.let((b.group(0) * 16 + b.thread(0)) * lanes, "at")
    b.store(out, at, body(*[b.let(load(s, at, lanes)) for s in sources]))
    kernel = b.kernel(grid=(N // 16 // lanes,), threads=(16,))
    arrays = [*inputs, np.zeros(N, out_dtype.numpy)]
    return run_kernel(gpu or device(), kernel, arrays)[-1]


def finite(seed):
    return np.nan_to_num(sample(dt.float32, N, seed), posinf=3e4, neginf=-3e4)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("op", ir.UNARY)
@pytest.mark.parametrize("dtype", [dt.float32, dt.int32, dt.uint32, dt.bool_, dt.int8], ids=str)
def test_unary(op, dtype, lanes):
    if dtype is dt.bool_ and op != "not":
        return
    if dtype.is_int and (op not in ("neg", "abs", "not") or (op == "abs" and dtype is dt.uint32)):
        return
    if dtype.is_float and op == "not":
        return
    x = sample(dtype, N, 1)
    if dtype.is_float:
        x = finite(1)
        x[200:] = np.arange(-28, 28) / 2
        x = np.abs(x) if op == "sqrt" else x
    with np.errstate(over="ignore"):
        want = {
            "neg": np.negative, "abs": np.abs, "not": np.invert, "sqrt": np.sqrt,
            "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint,
            "keep": np.positive,
        }[op](x)  # fmt: skip
    got = run(lambda v: unary(op, v), [x], dtype, lanes)
    if op == "sqrt":
        np.testing.assert_allclose(got, want, rtol=3e-7)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [dt.float32, dt.int32, dt.uint32, dt.int8, dt.uint8], ids=str)
@pytest.mark.parametrize("op", ir.BINARY)
def test_binary(op, dtype, lanes):
    x, y = sample(dtype, N, 1), sample(dtype, N, 2)
    if dtype.is_float:
        if op in ("and", "or", "xor", "shl", "shr", "rem"):
            return
        x, y = finite(1), finite(2)
        y[y == 0] = 3
        y[:20] = x[:20]
    elif op in ("shl", "shr"):
        y = np.abs(y.astype(np.int64) % (8 * dtype.itemsize)).astype(dtype.numpy)
    elif op in ("div", "rem"):
        y[(y == 0) | (y == -1 if dtype.kind == "int" else False)] = 5
    else:
        y[:20] = x[:20]
    with np.errstate(over="ignore"):
        want = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum,
            "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
            "shl": np.left_shift, "shr": np.right_shift, "lt": np.less, "le": np.less_equal,
            "eq": np.equal, "ne": np.not_equal, "div": _div, "rem": np.fmod,
        }[op](x, y)  # fmt: skip
    out = dt.bool_ if op in ir.COMPARE else dtype
    got = run(lambda a, b: binary(op, a, b), [x, y], out, lanes)
    if dtype.is_float and op == "div":
        np.testing.assert_allclose(got, want, rtol=4e-7)
    else:
        np.testing.assert_array_equal(got, want)


def _div(x, y):
    with np.errstate(invalid="ignore"):
        return x / y if x.dtype.kind == "f" else np.trunc(x.astype(float) / y).astype(x.dtype)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("op", ["and", "or", "xor", "eq", "ne"])
def test_bool_binary(op, lanes):
    x, y = sample(dt.bool_, N, 1), sample(dt.bool_, N, 2)
    want = {"and": x & y, "or": x | y, "xor": x ^ y, "eq": x == y, "ne": x != y}[op]
    same(run(lambda a, b: ir.Binary(op, a, b, a.type), [x, y], dt.bool_, lanes), want)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("op", ["min", "max"])
def test_min_max_ignore_nan(op, lanes):
    x, y = sample(dt.float32, N, 1), sample(dt.float32, N, 2)
    x[::3], y[1::3], x[5::9], y[5::9] = np.nan, np.nan, np.nan, np.nan
    want = (np.fmin if op == "min" else np.fmax)(x, y)
    got = run(lambda a, b: binary(op, a, b), [x, y], dt.float32, lanes)
    np.testing.assert_array_equal(got, want)
    fn, by = (minimum, np.fmin) if op == "min" else (maximum, np.fmax)
    got = run(lambda a: fn(a, 7.5), [x], dt.float32, lanes)
    np.testing.assert_array_equal(got, by(x, np.float32(7.5)))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("to", dt.DEVICE, ids=str)
@pytest.mark.parametrize("of", dt.DEVICE, ids=str)
def test_casts(of, to, lanes):
    x = sample(of, N, 1)
    if of is dt.float32:
        x[7:27] = [2147483647, 2147483520, 2147483648, 3e9, -2147483648, -3e9, 4294967040,
                   4294967296, 1e20, -1, -0.5, 0.5, 127.5, 128, -128.9, -129, 255.9, 256, 1e-40,
                   65519.9]  # fmt: skip
    want = _cast(x, to)
    got = run(lambda v: cast(v, to), [x], to, lanes)
    if of is dt.float32 and to is dt.bool_:
        got, want = np.delete(got, 25), np.delete(want, 25)  # a flushed subnormal
    same(got, want)


def _cast(x, to):
    if to is dt.bool_:
        return x.astype(np.float32) != 0 if x.dtype.kind not in "iu" else x != 0
    with np.errstate(over="ignore", invalid="ignore"):
        if to.is_float or x.dtype.kind in "iub":
            middle = x.astype(np.float32) if to.is_float else x
            return middle.astype(to.numpy)
        info = np.iinfo(to.numpy)
        wide = np.nan_to_num(x.astype(np.float64), nan=0, posinf=1e30, neginf=-1e30)
        return np.clip(np.trunc(wide), info.min, info.max).astype(np.int64).astype(to.numpy)


@pytest.mark.parametrize("lanes", LANES)
def test_fma_select_bitcast_iota(lanes):
    x, y, z = finite(1), finite(2), finite(3)
    got = run(lambda a, b, c: fma(a, b, c), [x, y, z], dt.float32, lanes)
    exact = x.astype(float) * y + z
    np.testing.assert_allclose(got, exact, atol=np.abs(x * y).max() * 2e-7)
    got = run(lambda a, b, c: select(a < b, c, a), [x, y, z], dt.float32, lanes)
    np.testing.assert_array_equal(got, np.where(x < y, z, x))
    raw = sample(dt.uint32, N, 4)
    keep = np.isnan(raw.view(np.float32)) | (np.abs(raw.view(np.float32)) < 1e-37)
    raw[keep] = 0x3F800001
    got = run(lambda a: bitcast(bitcast(a, dt.float32), dt.int32), [raw], dt.int32, lanes)
    np.testing.assert_array_equal(got, raw.view(np.int32))
    got = run(lambda a: a + iota(lanes), [raw.view(np.int32)], dt.int32, lanes)
    np.testing.assert_array_equal(got, raw.view(np.int32) + np.arange(N, dtype=np.int32) % lanes)


SPECIAL = [0.0, -0.0, 1.0, -1.5, 0.1, 3.4028235e38, 1.17549435e-38, 1e-30, np.inf, -np.inf,
           np.nan, 16777217.0, 0.044715, 2.0**-126, 1e10]  # fmt: skip


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16], ids=str)
def test_float_literals_are_exact(dtype):
    b = Builder("literals")
    out = b.buffer("out", dtype, len(SPECIAL), "w")
    for k, value in enumerate(SPECIAL):
        b.store(out, k, cast(const(value, ir.F32), dtype))
    got = run_kernel(device(), b.kernel(grid=(1,)), [np.ones(len(SPECIAL), dtype.numpy)])[0]
    with np.errstate(over="ignore"):
        same(got, np.array(SPECIAL, np.float32).astype(dtype.numpy))


def test_integer_literals_are_exact():
    ints = [0, -1, 2**31 - 1, -(2**31), 42]
    b = Builder("literals")
    out, wide = b.buffer("out", dt.int32, 5, "w"), b.buffer("wide", dt.uint32, 2, "w")
    for k, value in enumerate(ints):
        b.store(out, k, const(value))
    for k, value in enumerate((2**32 - 1, 2**31)):
        b.store(wide, k, const(value, ir.U32))
    kernel = b.kernel(grid=(1,))
    got = run_kernel(device(), kernel, [np.ones(5, np.int32), np.ones(2, np.uint32)])
    assert got[0].tolist() == ints
    assert got[1].tolist() == [2**32 - 1, 2**31]


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("left", [dt.int8, dt.uint8], ids=str)
def test_dot4(left, n):
    a, c = sample(left, 64 * n, 1), sample(dt.int8, 64 * n, 2)
    acc = sample(dt.int32, 16 * n, 3)
    b = Builder("dot4")
    x, y = b.buffer("x", left, a.size), b.buffer("y", dt.int8, c.size)
    s, out = b.buffer("s", dt.int32, acc.size), b.buffer("out", dt.int32, acc.size, "w")
    t = b.let(b.thread(0), "t")
    args = (load(s, t * n, n), load(x, t * (4 * n), 4 * n), load(y, t * (4 * n), 4 * n))
    b.store(out, t * n, ir.Collective("dot4", args, Type(dt.int32, n)))
    kernel = b.kernel(grid=(1,), threads=(16,))
    got = run_kernel(device(), kernel, [a, c, acc, np.zeros_like(acc)])[3]
    products = a.astype(np.int32) * c.astype(np.int32)
    np.testing.assert_array_equal(got, acc + products.reshape(-1, 4).sum(1, dtype=np.int32))


def test_dot2():
    a, c = finite(1)[:64].astype(dt.bfloat16.numpy), finite(2)[:64].astype(dt.bfloat16.numpy)
    b = Builder("dot2")
    x, y = b.buffer("x", dt.bfloat16, 64), b.buffer("y", dt.bfloat16, 64)
    out = b.buffer("out", dt.float32, 32, "w")
    t = b.let(b.thread(0) * 2, "t")
    zero = const(0.0, Type(dt.float32, 2))
    args = (zero, load(x, t * 2, 4), load(y, t * 2, 4))
    b.store(out, t, ir.Collective("dot2", args, Type(dt.float32, 2)))
    got = run_kernel(device(), b.kernel(grid=(1,), threads=(16,)), [a, c, np.zeros(32, "f4")])[2]
    want = (a.astype(float) * c.astype(float)).reshape(-1, 2).sum(1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-2)


def test_loops_branches_and_early_return():
    b = Builder("flow")
    out = b.buffer("out", dt.int32, 100, "rw")
    g = b.let(b.group(0), "g")
    total = b.var(const(0), "total", ir.I32)
    with b.loop(ir.Param("n", 0), start=2, step=3) as i, b.loop(3, unroll=True) as j:
        with b.when(j % 2 < 1):
            b.assign(total, total + i * g)
        with b.otherwise():
            b.assign(total, total - j)
    with b.when(g % 5 > 0):
        b.store(out, g, total + load(out, g))
    kernel = b.kernel(grid=(100,))
    for n in (0, 2, 3, 20):
        got = run_kernel(device(), kernel, [np.arange(100, dtype=np.int32)], (n,))[0]
        sums = [sum(2 * i * g - 1 for i in range(2, n, 3)) for g in range(100)]
        assert got.tolist() == [g + (sums[g] if g % 5 else 0) for g in range(100)]


def test_subgroups_need_a_promised_width():
    b = Builder("subgroup")
    x = b.buffer("x", dt.float32, 32, "rw")
    t = b.let(b.thread(0), "t")
    b.store(x, t, ir.Collective("subgroup_add", (load(x, t),), ir.F32))
    with pytest.raises(CompileError, match="no subgroup width"):
        run_kernel(device(), b.kernel(grid=(1,), threads=(32,)), [np.zeros(32, np.float32)])
