"""Arithmetic, comparisons and casts of the LLVM dialect against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cpu_case import elementwise, elementwise_all

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import CompileError
from weft.kernel.expr import binary, bitcast, cast, fma, not_, select, unary

LANES = (1, 4, 16, 32)
rng = np.random.default_rng(0)
F32 = np.concatenate(
    [
        np.array(
            [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.5, np.inf, -np.inf, 1e10, -1e10, 3e9,
             127.6, -128.7, 255.5, 256.0, 65504.0, 65519.9, 65520.0, 1e-5, 6e-8, 3.0e-8, 1e-40,
             3.3895e38, 3.4e38, 2147483520.0, 2147483648.0, -2147483648.0, 4294967040.0, 1 + 2**-8],
            np.float32,
        ),
        rng.standard_normal(96).astype(np.float32) * 100,
    ]
)  # fmt: skip
I32 = np.concatenate(
    [np.array([0, 1, -1, 127, -128, 255, 256, 2**31 - 1, -(2**31), 65536, 7], np.int32),
     rng.integers(-(2**31), 2**31, 117, dtype=np.int64).astype(np.int32)]
)  # fmt: skip
U32 = I32.view(np.uint32)
I8, U8 = np.arange(-64, 64).astype(np.int8), np.arange(128).astype(np.uint8) * 2
BOOL = rng.integers(0, 2, 128).astype(bool)
with np.errstate(over="ignore"):
    F16 = np.concatenate(
        [F32[:64].astype(np.float16), np.arange(1, 65, dtype=np.uint16).view(np.float16)]
    )
BF16 = F32.astype(ml_dtypes.bfloat16)
SAMPLES = {"float32": F32, "int32": I32, "uint32": U32, "int8": I8, "uint8": U8, "bool": BOOL,
           "float16": F16, "bfloat16": BF16}  # fmt: skip


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, NaN equal to NaN."""
    assert got.dtype == want.dtype
    if got.dtype.kind in "fV":
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want)


def check_table(
    truth: dict[str, np.ndarray], inputs: list[np.ndarray], lanes: int, unary_ops: bool = False
) -> None:
    """Each op of the table over the inputs equals its array."""
    make = unary if unary_ops else binary
    bodies = [
        (lambda *v, op=op: make(op, *v), dt.as_dtype(want.dtype)) for op, want in truth.items()
    ]
    for (op, want), got in zip(truth.items(), elementwise_all(bodies, inputs, lanes)):
        try:
            same(got, want)
        except AssertionError as e:
            raise AssertionError(f"{op}: {e}") from None


@pytest.mark.parametrize("lanes", LANES)
def test_float_unary(lanes: int) -> None:
    table = {"neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil,
             "trunc": np.trunc, "rint": np.rint, "keep": np.positive}  # fmt: skip
    check_table({op: f(F32) for op, f in table.items()}, [F32], lanes, unary_ops=True)
    x = np.abs(F32)
    check_table({"sqrt": np.sqrt(x)}, [x], lanes, unary_ops=True)
    got = elementwise(lambda v: unary("neg", v), [F32], dt.float32, lanes)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(-F32))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [dt.int32, dt.uint32, dt.int8, dt.uint8])
def test_integer_ops(dtype: DType, lanes: int) -> None:
    x = SAMPLES[dtype.name]
    y = np.roll(x, 5)
    counts = (np.arange(len(x)) % (dtype.itemsize * 8)).astype(dtype.numpy)
    with np.errstate(over="ignore"):
        truth = {"add": x + y, "sub": x - y, "mul": x * y, "min": np.minimum(x, y),
                 "max": np.maximum(x, y), "and": x & y, "or": x | y, "xor": x ^ y,
                 "lt": x < y, "le": x <= y, "eq": x == y, "ne": x != y}  # fmt: skip
        one = {"neg": -x, "abs": np.abs(x), "not": ~x}
    check_table(truth, [x, y], lanes)
    check_table(one, [x], lanes, unary_ops=True)
    check_table({"shl": x << counts, "shr": x >> counts}, [x, counts], lanes)
    divisor = np.where((y == 0) | (y == np.array(-1).astype(dtype.numpy)), 3, y).astype(dtype.numpy)
    wide, by = x.astype(np.int64), divisor.astype(np.int64)
    quotient = (np.abs(wide) // np.abs(by)) * np.sign(wide) * np.sign(by)
    rest = (wide - quotient * by).astype(dtype.numpy)
    check_table({"div": quotient.astype(dtype.numpy), "rem": rest}, [x, divisor], lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [dt.int32, dt.uint32, dt.int8, dt.uint8])
def test_division_never_stops_the_process(dtype: DType, lanes: int) -> None:
    """By zero the result is undefined, but it must not trap; the least integer by -1 wraps."""
    least = np.iinfo(dtype.numpy).min
    x = np.full(32, least, dtype.numpy)
    zero, ones = np.zeros(32, dtype.numpy), np.full(32, -1).astype(dtype.numpy)
    for op in ("div", "rem"):
        elementwise(lambda a, b, op=op: binary(op, a, b), [x, zero], dtype, lanes)
        got = elementwise(lambda a, b, op=op: binary(op, a, b), [x, ones], dtype, lanes)
        assert (got == (x if op == "div" and dtype.kind == "int" else 0)).all()


@pytest.mark.parametrize("lanes", LANES)
def test_float_binary(lanes: int) -> None:
    x, y = F32, np.roll(F32, 7)
    with np.errstate(all="ignore"):
        truth = {"add": x + y, "sub": x - y, "mul": x * y, "div": x / y,
                 "min": np.minimum(x, y), "max": np.maximum(x, y),
                 "lt": x < y, "le": x <= y, "eq": x == y, "ne": x != y}  # fmt: skip
    check_table(truth, [x, y], lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_min_and_max_take_the_other_side_of_nan(lanes: int) -> None:
    x = np.where(np.arange(64) % 2, np.float32(np.nan), np.float32(2))
    y = np.full(64, 1, np.float32)
    for a, c in ((x, y), (y, x)):
        check_table({"min": np.fmin(a, c), "max": np.fmax(a, c)}, [a, c], lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_fma_rounds_once(lanes: int) -> None:
    x = (1 + rng.random(64) * 2**-11).astype(np.float32)
    y = (1 - rng.random(64) * 2**-11).astype(np.float32)
    z = np.full(64, -1, np.float32)
    want = (x.astype(np.float64) * y.astype(np.float64) - 1).astype(np.float32)
    same(elementwise(fma, [x, y, z], dt.float32, lanes), want)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", list(SAMPLES))
def test_select_and_copy_every_dtype(name: str, lanes: int) -> None:
    x = SAMPLES[name]
    y = np.roll(x, 3)
    dtype = dt.as_dtype(name)
    same(elementwise(select, [BOOL, x, y], dtype, lanes), np.where(BOOL, x, y))
    same(elementwise(lambda a: a, [x], dtype, lanes), x)


@pytest.mark.parametrize("lanes", LANES)
def test_logic_on_bool(lanes: int) -> None:
    x, y = BOOL, np.roll(BOOL, 1)
    truth = {"and": x & y, "or": x | y, "xor": x ^ y, "eq": x == y, "ne": x != y,
             "min": x & y, "max": x | y}  # fmt: skip
    check_table(truth, [x, y], lanes)
    same(elementwise(not_, [x], dt.bool_, lanes), ~x)


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


@pytest.mark.parametrize(
    ("lanes", "target"),
    [*((n, "host") for n in LANES), (1, "base"), (16, "base"), (16, "avx2"), (32, "avx512")],
)
@pytest.mark.parametrize("source", list(SAMPLES))
def test_cast_every_pair(source: str, lanes: int, target: str) -> None:
    x = SAMPLES[source]
    goals = [goal for goal in dt.DEVICE if goal.name != source]
    bodies = [(lambda v, goal=goal: cast(v, goal), goal) for goal in goals]
    for goal, got in zip(goals, elementwise_all(bodies, [x], lanes, target)):
        same(got, reference_cast(x, goal))


@pytest.mark.parametrize("target", ["host", "avx512", "avx2", "base"])
@pytest.mark.parametrize("lanes", LANES)
def test_nan_survives_casts(lanes: int, target: str) -> None:
    bits = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF] * 8, np.uint32)
    x = bits.view(np.float32)
    goals = (dt.float16, dt.bfloat16, dt.int32, dt.uint8, dt.int8, dt.uint32, dt.bool_)
    bodies = [(lambda v, goal=goal: cast(v, goal), goal) for goal in goals]
    half, brain, *integers, truth = elementwise_all(bodies, [x], lanes, target)
    assert np.isnan(half.astype(np.float32)).all() and np.isnan(brain.astype(np.float32)).all()
    assert not any(i.any() for i in integers) and truth.all()
    back = elementwise_all([(lambda v: cast(v, dt.float32), dt.float32)], [half], lanes, target)
    back += elementwise_all([(lambda v: cast(v, dt.float32), dt.float32)], [brain], lanes, target)
    assert np.isnan(back).all()


@pytest.mark.parametrize("target", ["host", "avx512", "avx2", "base"])
def test_bf16_rounding_every_16_bit_pattern(target: str) -> None:
    """All upper halves, subnormal ones too, with lower halves around the tie and at the ends."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (high | low).view(np.float32)
        x = x[np.isfinite(x)]
        x = x[: len(x) // 32 * 32]
        got = elementwise(lambda v: cast(v, dt.bfloat16), [x], dt.bfloat16, 32, target)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                got.view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16)
            )


@pytest.mark.parametrize(("lanes", "target"), [*((n, "host") for n in LANES), (16, "base")])
def test_f16_widens_every_pattern(lanes: int, target: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    got = elementwise(lambda v: cast(v, dt.float32), [x], dt.float32, lanes, target)
    same(got, x.astype(np.float32))


@pytest.mark.parametrize("lanes", LANES)
def test_bitcast(lanes: int) -> None:
    same(elementwise(lambda v: bitcast(v, dt.uint32), [F32], dt.uint32, lanes), F32.view(np.uint32))
    got = elementwise(lambda v: bitcast(v, dt.float32), [I32], dt.float32, lanes)
    np.testing.assert_array_equal(got.view(np.int32), I32)
    same(elementwise(lambda v: bitcast(v, dt.int32), [U32], dt.int32, lanes), I32)


def test_arithmetic_on_storage_types_is_refused() -> None:
    for x in (F16, BF16):
        dtype = dt.as_dtype(x.dtype)
        with pytest.raises(CompileError, match=r"kernel elementwise: add on .*compute in float32"):
            elementwise(lambda v: v + v, [x], dtype)
