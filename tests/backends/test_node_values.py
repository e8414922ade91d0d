"""Expressions and control flow of the Kernel IR through both dialects, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from node_case import BOOL, I32, INTEGERS, LESSER, SAMPLES, Row, dot_kernel, rng, rows, same

from weft.core import dtypes as dt
from weft.core.dtypes import DType
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
    not_,
    select,
    unary,
)  # fmt: skip


@pytest.mark.parametrize("row", rows())
def test_float_unary(row: Row) -> None:
    x = row.floats()
    table = {"neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil,
             "trunc": np.trunc, "rint": np.rint, "keep": np.positive}  # fmt: skip
    row.check({op: f(x) for op, f in table.items()}, [x], unary)
    row.check({"sqrt": np.sqrt(np.abs(x))}, [np.abs(x)], unary, rtol=3e-7)
    if row.exact:
        got = row.run(lambda v: unary("neg", v), [x], dt.float32)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(-x))


@pytest.mark.parametrize("row", rows())
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_ops(dtype: DType, row: Row) -> None:
    x = SAMPLES[dtype.name]
    y = np.roll(x, 5)
    counts = (np.arange(len(x)) % (dtype.itemsize * 8)).astype(dtype.numpy)
    with np.errstate(over="ignore"):
        truth = {"add": x + y, "sub": x - y, "mul": x * y, "min": np.minimum(x, y),
                 "max": np.maximum(x, y), "and": x & y, "or": x | y, "xor": x ^ y,
                 "lt": x < y, "le": x <= y, "eq": x == y, "ne": x != y}  # fmt: skip
        one = {"neg": -x, "abs": np.abs(x), "not": ~x}
    row.check(truth, [x, y])
    row.check(one, [x], unary)
    row.check({"shl": x << counts, "shr": x >> counts}, [x, counts])
    divisor = np.where((y == 0) | (y == np.array(-1).astype(dtype.numpy)), 3, y).astype(dtype.numpy)
    wide, by = x.astype(np.int64), divisor.astype(np.int64)
    quotient = (np.abs(wide) // np.abs(by)) * np.sign(wide) * np.sign(by)
    rest = (wide - quotient * by).astype(dtype.numpy)
    row.check({"div": quotient.astype(dtype.numpy), "rem": rest}, [x, divisor])


@pytest.mark.parametrize("row", rows())
def test_float_binary(row: Row) -> None:
    x, y = row.floats(), np.roll(row.floats(), 7)
    y = y if row.exact else np.where(y == 0, np.float32(3), y)
    with np.errstate(all="ignore"):
        truth = {"add": x + y, "sub": x - y, "mul": x * y, "min": np.minimum(x, y),
                 "max": np.maximum(x, y), "lt": x < y, "le": x <= y, "eq": x == y,
                 "ne": x != y}  # fmt: skip
        quotient = x / y
    row.check(truth, [x, y])
    row.check({"div": quotient}, [x, y], rtol=4e-7)


@pytest.mark.parametrize("row", rows())
def test_min_and_max_take_the_other_side_of_nan(row: Row) -> None:
    x = np.where(np.arange(64) % 2, np.float32(np.nan), np.float32(2))
    y = np.full(64, 1, np.float32)
    y[5::9] = x[5::9] = np.nan
    for a, c in ((x, y), (y, x)):
        row.check({"min": np.fmin(a, c), "max": np.fmax(a, c)}, [a, c])
    least, most = row.run_all(  # a constant is no NaN
        [(lambda a: minimum(a, 1.5), dt.float32), (lambda a: maximum(a, 1.5), dt.float32)], [x]
    )
    same(least, np.fmin(x, np.float32(1.5)))
    same(most, np.fmax(x, np.float32(1.5)))


@pytest.mark.parametrize("row", rows())
def test_fma(row: Row) -> None:
    """Rounded once; in shaders perhaps twice."""
    x = (1 + rng.random(64) * 2**-11).astype(np.float32)
    y = (1 - rng.random(64) * 2**-11).astype(np.float32)
    z = np.full(64, -1, np.float32)
    want = (x.astype(np.float64) * y.astype(np.float64) - 1).astype(np.float32)
    got = row.run(fma, [x, y, z], dt.float32)
    np.testing.assert_allclose(got, want, rtol=0, atol=0 if row.exact else 2e-7)


@pytest.mark.parametrize("row", rows())
@pytest.mark.parametrize("name", list(SAMPLES))
def test_select_and_copy_every_dtype(name: str, row: Row) -> None:
    x = row.sample(name)
    y, dtype = np.roll(x, 3), dt.as_dtype(name)
    same(row.run(select, [BOOL, x, y], dtype), np.where(BOOL, x, y))
    same(row.run(lambda a: a, [x], dtype), x)


@pytest.mark.parametrize("row", rows())
def test_logic_on_bool(row: Row) -> None:
    x, y = BOOL, np.roll(BOOL, 1)
    truth = {"and": x & y, "or": x | y, "xor": x ^ y, "eq": x == y, "ne": x != y,
             "min": x & y, "max": x | y}  # fmt: skip
    row.check(truth, [x, y])
    same(row.run(not_, [x], dt.bool_), ~x)


def reference_cast(x: np.ndarray, goal: DType) -> np.ndarray:
    """ir.Cast in NumPy float64 and int64: truncate and saturate, NaN to 0, round to even."""
    floats = x.dtype.kind in "fV"
    if goal.kind == "bool":
        return x.astype(np.float64) != 0
    if goal.is_int and floats:
        info = np.iinfo(goal.numpy)
        wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
        return np.clip(np.trunc(wide), info.min, info.max).astype(np.int64).astype(goal.numpy)
    with np.errstate(over="ignore"):
        if goal.itemsize == 2:
            return x.astype(np.float32).astype(goal.numpy)
        return x.astype(goal.numpy)


@pytest.mark.parametrize("row", rows(*LESSER))
@pytest.mark.parametrize("source", list(SAMPLES))
def test_cast_every_pair(source: str, row: Row) -> None:
    x = row.sample(source)
    goals = [goal for goal in dt.DEVICE if goal.name != source]
    bodies = [(lambda v, goal=goal: cast(v, goal), goal) for goal in goals]
    for goal, got in zip(goals, row.run_all(bodies, [x])):
        same(got, reference_cast(x, goal), goal.name)


@pytest.mark.parametrize("row", rows(*LESSER))
def test_nan_survives_casts(row: Row) -> None:
    bits = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF] * 8, np.uint32)
    x = bits.view(np.float32)
    goals = (dt.float16, dt.bfloat16, dt.int32, dt.uint8, dt.int8, dt.uint32, dt.bool_)
    bodies = [(lambda v, goal=goal: cast(v, goal), goal) for goal in goals]
    half, brain, *integers, truth = row.run_all(bodies, [x])
    assert np.isnan(half.astype(np.float32)).all() and np.isnan(brain.astype(np.float32)).all()
    assert not any(i.any() for i in integers) and truth.all()
    for narrow in (half, brain):
        assert np.isnan(row.run(lambda v: cast(v, dt.float32), [narrow], dt.float32)).all()


@pytest.mark.parametrize("row", rows())
@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_never_stops_the_process(dtype: DType, row: Row) -> None:
    """By zero the result is undefined, but it must not trap; the least integer by -1 wraps."""
    least = np.iinfo(dtype.numpy).min
    x = np.full(32, least, dtype.numpy)
    zero, ones = np.zeros(32, dtype.numpy), np.full(32, -1).astype(dtype.numpy)
    for op in ("div", "rem"):
        row.run(lambda a, b, op=op: binary(op, a, b), [x, zero], dtype)
        got = row.run(lambda a, b, op=op: binary(op, a, b), [x, ones], dtype)
        assert (got == (x if op == "div" and dtype.kind == "int" else 0)).all()


@pytest.mark.parametrize("target", ["host", "avx512", "avx2", "base"])
def test_bf16_rounding_every_16_bit_pattern(target: str) -> None:
    """All upper halves, subnormal ones too, with lower halves around the tie and at the ends."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (high | low).view(np.float32)
        x = x[np.isfinite(x)]
        x = x[: len(x) // 32 * 32]
        got = Row(target, 32).run(lambda v: cast(v, dt.bfloat16), [x], dt.bfloat16)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                got.view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16)
            )


@pytest.mark.parametrize("row", rows("base"))
def test_f16_widens_every_pattern(row: Row) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    got = row.run(lambda v: cast(v, dt.float32), [x], dt.float32)
    np.testing.assert_array_equal(got, x.astype(np.float32))


@pytest.mark.parametrize("row", rows())
def test_bitcast_and_iota(row: Row) -> None:
    x = row.sample("float32")
    same(row.run(lambda v: bitcast(v, dt.uint32), [x], dt.uint32), x.view(np.uint32))
    known = np.isfinite(I32.view(np.float32)) & (np.abs(I32.view(np.float32)) > 1e-37)
    bits = I32 if row.exact else np.where(known, I32, 0x3F800001)
    got = row.run(lambda v: bitcast(bitcast(v, dt.float32), dt.uint32), [bits], dt.uint32)
    same(got, bits.view(np.uint32))
    with np.errstate(over="ignore"):
        want = I32 + np.arange(I32.size, dtype=np.int32) % row.lanes
    same(row.run(lambda v: v + iota(row.lanes), [I32], dt.int32), want)


# -- products


@pytest.mark.parametrize("row", rows(*LESSER))
def test_dot2(row: Row) -> None:
    n = 16 * row.lanes
    acc = rng.standard_normal(n).astype(np.float32)
    a, w = (rng.standard_normal(2 * n).astype(ml_dtypes.bfloat16) for _ in "aw")
    got = row.play(dot_kernel("dot2", row, dt.bfloat16), [acc, a, w, acc * 0])[-1]
    products = (a.astype(np.float64) * w.astype(np.float64)).reshape(n, 2)
    np.testing.assert_allclose(got, acc + products.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", rows(*LESSER))
def test_dot2_int16(row: Row) -> None:
    """Halves of words, their extremes included: the sum wraps where all four are the least."""
    n = 16 * row.lanes
    acc = rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32)
    a, w = (rng.integers(-(2**15), 2**15, 2 * n).astype(np.int16) for _ in "aw")
    a[:2] = w[:2] = a[2:4] = -(2**15)
    words = [v.view(np.int32) for v in (a, w)]
    got = row.play(dot_kernel("dot2_int16", row, dt.int32), [acc, *words, acc * 0])[-1]
    products = (a.astype(np.int64) * w.astype(np.int64)).reshape(n, 2)
    np.testing.assert_array_equal(got, (acc + products.sum(1)).astype(np.int32))


@pytest.mark.parametrize("row", rows(*LESSER))
@pytest.mark.parametrize("small", [0, 1])
@pytest.mark.parametrize("dtype", [dt.uint8, dt.int8])
def test_dot4_with_extremes(dtype: DType, small: int, row: Row) -> None:
    """Also of bytes that are promised to be small, up to what is promised."""
    n, info = 16 * row.lanes, np.iinfo(dtype.numpy)
    top, least = (127 if small else info.max), -127 if small else -128
    acc = rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32)
    a = rng.integers(info.min, top, 4 * n, dtype.numpy, endpoint=True)
    w = rng.integers(least, 127, 4 * n, np.int8, endpoint=True)
    a[:4], w[:4], a[4:8], w[4:8], a[-4:] = top, least, info.min, least, info.min
    got = row.play(dot_kernel("dot4", row, dtype, small), [acc, a, w, acc * 0])[-1]
    products = (a.astype(np.int64) * w.astype(np.int64)).reshape(n, 4)
    np.testing.assert_array_equal(got, (acc + products.sum(1)).astype(np.int32))


# -- control flow


FLOW = [pytest.param(Row(t, 1), id=t) for t in ("host", "wgsl")]


@pytest.mark.parametrize("row", FLOW)
def test_loops_with_runtime_bounds_and_scalars(row: Row) -> None:
    b = Builder("loops")
    out = b.buffer("out", dt.int32, 8, "w")
    n, m = ir.Param("n", 0), ir.Param("m", 1)
    total = b.var(const(0), "total", ir.I32)
    with b.loop(n, start=b.group(0), step=3) as i, b.loop(m) as j:
        b.assign(total, total + i * j)
    b.store(out, b.group(0), total)
    kernel = b.kernel((8,))
    for scalars in ((0, 5), (7, 0), (20, 4), (3, -1)):
        got = row.play(kernel, [np.zeros(8, np.int32)], scalars)[0]
        want = [
            sum(i * j for i in range(g, scalars[0], 3) for j in range(scalars[1])) for g in range(8)
        ]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("row", FLOW)
def test_branches(row: Row) -> None:
    b = Builder("branches")
    out = b.buffer("out", dt.int32, 30, "rw")
    g = b.let(b.group(0), "g")
    with b.when(g % 3 < 1):
        b.store(out, g, 7)
    with b.otherwise(), b.when(g % 3 < 2), b.loop(5) as i, b.when(g < i * 6):
        b.store(out, g, load(out, g) + 1)
    got = row.play(b.kernel((30,)), [np.full(30, 100, np.int32)])[0]
    more = [sum(g < i * 6 for i in range(5)) for g in range(30)]
    want = [(7, 100 + more[g], 100)[g % 3] for g in range(30)]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("row", FLOW)
def test_unrolled_branches_on_mutable_variables(row: Row) -> None:
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
        got = row.play(kernel, [np.arange(100, dtype=np.int32)], (n,))[0]
        sums = [sum(2 * i * g - 1 for i in range(2, n, 3)) for g in range(100)]
        assert got.tolist() == [g + (sums[g] if g % 5 else 0) for g in range(100)]


@pytest.mark.parametrize("row", FLOW)
@pytest.mark.parametrize("grid", [(3, 5, 2), (7, 1, 1), (1, 4, 1), (1, 1, 6), (2, 3, 1)])
def test_axes(grid: tuple[int, int, int], row: Row) -> None:
    count = grid[0] * grid[1] * grid[2]
    b = Builder("axes")
    out = b.buffer("out", dt.int32, count, "w")
    x, y, z = (b.let(b.group(d), "xyz"[d]) for d in range(3))
    b.store(out, (z * grid[1] + y) * grid[0] + x, x + y * 100 + z * 10000)
    got = row.play(b.kernel(grid), [np.zeros(count, np.int32)])[0].reshape(grid[::-1])
    zz, yy, xx = np.indices(grid[::-1])
    np.testing.assert_array_equal(got, xx + yy * 100 + zz * 10000)


@pytest.mark.parametrize("row", FLOW)
@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_arithmetic_on_storage_types_is_refused(dtype: DType, row: Row) -> None:
    x = SAMPLES[dtype.name]
    with pytest.raises(CompileError, match=r"kernel elementwise: .*float32"):
        row.run(lambda v: v + v, [x], dtype)
