"""Every primitive's NumPy meaning against PyTorch, or NumPy in float64 where torch lacks it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from opkit import FLOATS, INTS, TORCH, agree, from_torch, to_torch, values

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, UsageError

UNARY = {
    "neg": torch.neg, "abs": torch.abs, "floor": torch.floor, "round": torch.round,
    "sqrt": torch.sqrt, "exp": torch.exp, "log": torch.log, "sin": torch.sin, "cos": torch.cos,
    "tanh": torch.tanh, "erf": torch.erf, "ndtr": torch.special.ndtr, "isnan": torch.isnan,
    "signbit": lambda t: torch.signbit(t) & ~t.isnan(),  # its bf16 NaN is negative
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "remainder": torch.remainder, "pow": torch.pow, "maximum": torch.maximum,
    "minimum": torch.minimum, "less": torch.lt, "less_equal": torch.le, "equal": torch.eq,
}  # fmt: skip


def test_the_table_has_52_primitives() -> None:
    assert len(ops.PRIMITIVES) == 52
    assert all(p.lower for p in ops.PRIMITIVES.values() if p.kind == "elementwise")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_floats(name: str, dtype: dt.DType) -> None:
    x = values(dtype, 200)
    agree(ops.bind(name, x), from_torch(UNARY[name](to_torch(x))), "elementwise")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_floats(name: str, dtype: dt.DType) -> None:
    x, y = values(dtype, 169), values(dtype, 169, seed=1)
    x[:169] = np.repeat(x[:13], 13)
    y[:169] = np.tile(y[:13], 13)
    want = from_torch(BINARY[name](to_torch(x), to_torch(y)))
    if name == "remainder":  # torch gives NaN for finite % inf on some builds; NumPy's is defined
        with np.errstate(all="ignore"):
            want = np.remainder(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    agree(ops.bind(name, x, y), want, "elementwise")


@pytest.mark.parametrize("dtype", (dt.int8, dt.uint8, dt.int32), ids=str)
@pytest.mark.parametrize("name", ["neg", "abs"])
def test_unary_integers_wrap(name: str, dtype: dt.DType) -> None:
    x = values(dtype, 64)
    np.testing.assert_array_equal(ops.bind(name, x), from_torch(UNARY[name](to_torch(x))))


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "maximum", "minimum", "less", "less_equal", "equal"]
)
def test_binary_integers(name: str, dtype: dt.DType) -> None:
    x, y = values(dtype, 200), values(dtype, 200, seed=3)
    wide = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
    if name in wide:  # exact in Python integers, then wrapped
        bits = dtype.itemsize * 8
        exact = wide[name](x.astype(object), y.astype(object))
        want = np.array([int(v) % (1 << bits) for v in exact], np.uint64)
        want = want.astype(np.dtype(f"uint{bits}")).view(dtype.numpy)
    else:
        pairs = {"maximum": np.maximum, "minimum": np.minimum}
        pairs |= {"less": np.less, "less_equal": np.less_equal, "equal": np.equal}
        want = pairs[name](x, y)
    np.testing.assert_array_equal(ops.bind(name, x, y), want)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_division_is_total(dtype: dt.DType) -> None:
    x, y = np.repeat(values(dtype, 30), 30), np.tile(values(dtype, 30, seed=2), 30)
    bits, signed = dtype.itemsize * 8, dtype.kind == "int"
    for a, b, q, r in zip(
        x.tolist(), y.tolist(), ops.div(x, y).tolist(), ops.remainder(x, y).tolist()
    ):
        if b == 0:
            assert (q, r) == (0, 0)
            continue
        exact = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if signed and exact == 1 << (bits - 1):
            exact = -exact  # INT_MIN / -1 wraps
        assert (q, r) == (exact, a % b)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_power(dtype: dt.DType) -> None:
    base = np.array([0, 1, 2, 3, 7, 100], dtype.numpy)
    power = np.array([0, 1, 2, 5, 31, 40], dtype.numpy)
    x, y = np.repeat(base, 6), np.tile(power, 6)
    bits = dtype.itemsize * 8
    want = [pow(int(a), int(b), 1 << bits) for a, b in zip(x, y)]
    unsigned = np.array(want, np.uint64).astype(np.dtype(f"uint{bits}"))
    np.testing.assert_array_equal(ops.pow_(x, y), unsigned.view(dtype.numpy))
    if dtype.kind == "int":
        x = np.array([-1, -1, 1, 2, 0, -2], dtype.numpy)
        y = np.array([-1, -2, -3, -1, -1, 3], dtype.numpy)
        assert ops.pow_(x, y).tolist() == [-1, 1, 1, 0, 0, -8]


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shifts(dtype: dt.DType) -> None:
    bits = dtype.itemsize * 8
    counts = [0, 1, bits - 1, bits, bits + 3, 100]
    x = np.repeat(values(dtype, 20), len(counts))
    y = np.tile(np.array(counts, dtype.numpy), 20)
    left = [(int(a) << int(b)) % (1 << bits) if b < bits else 0 for a, b in zip(x, y)]
    want = np.array(left, np.uint64).astype(np.dtype(f"uint{bits}")).view(dtype.numpy)
    np.testing.assert_array_equal(ops.shift_left(x, y), want)
    right = [int(a) >> min(int(b), bits) for a, b in zip(x, y)]
    assert ops.shift_right(x, y).tolist() == right


@pytest.mark.parametrize("dtype", (*INTS, dt.bool_), ids=str)
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name: str, dtype: dt.DType) -> None:
    x, y = values(dtype, 99), values(dtype, 99, seed=5)
    np.testing.assert_array_equal(ops.bind(name, x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("target", (*FLOATS, *INTS, dt.bool_), ids=str)
@pytest.mark.parametrize("source", (*FLOATS, *INTS, dt.bool_), ids=str)
def test_cast(source: dt.DType, target: dt.DType) -> None:
    x = values(source, 120)
    got = ops.cast(x, target)
    assert got.dtype == target.numpy
    if source.is_float and target.is_int:
        info = np.iinfo(target.numpy)
        exact = [0 if math.isnan(v) else v for v in x.astype(np.float64).tolist()]
        want = [min(max(v, info.min), info.max) for v in exact]
        assert got.tolist() == [int(v) for v in want]
    elif target in TORCH and source in TORCH:
        want = from_torch(to_torch(x).to(TORCH[target]))
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    else:  # torch's uint32 is partial
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(
                got,
                x.astype(np.float32).astype(target.numpy)
                if target.is_float
                else x.astype(target.numpy),
            )


def test_where_takes_every_dtype() -> None:
    c = values(dt.bool_, 50)
    for d in (*FLOATS, *INTS, dt.bool_):
        a, b = values(d, 50), values(d, 50, seed=1)
        assert ops.where(c, a, b).tobytes() == np.where(c, a, b).tobytes()


# -- movement and reductions over random shapes -------------------------------------------------

shapes = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


def fill(shape: tuple[int, ...], dtype: dt.DType = dt.float32) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    return (rng.standard_normal(shape) * 3).astype(dtype.numpy)


@given(shapes, st.randoms(use_true_random=False))
def test_transpose_reshape_broadcast(shape: tuple[int, ...], random: object) -> None:
    x = fill(shape)
    perm = list(range(len(shape)))
    random.shuffle(perm)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(ops.transpose(x, perm), x.transpose(perm))
    np.testing.assert_array_equal(ops.reshape(x, (x.size,)), x.reshape(x.size))
    np.testing.assert_array_equal(ops.broadcast(x, (2, *shape)), np.broadcast_to(x, (2, *shape)))


@given(shapes, st.data())
def test_slice_and_pad(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = fill(shape)
    keys = []
    for n in shape:
        step = data.draw(st.sampled_from([-3, -1, 1, 2]))
        ends = st.none() | st.integers(-n - 1, n + 1)
        keys.append(slice(data.draw(ends), data.draw(ends), step))
    canonical = [k.indices(n) for k, n in zip(keys, shape)]
    got = ops.slice_(x, *(tuple(c[i] for c in canonical) for i in range(3)))
    np.testing.assert_array_equal(got, x[tuple(keys)])
    widths = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape]
    got = ops.pad(x, [w[0] for w in widths], [w[1] for w in widths], 7.0)
    want = np.pad(x, widths, constant_values=7.0) if shape else x
    np.testing.assert_array_equal(got, want)


@given(shapes.filter(bool), st.data())
def test_concat_and_gather(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x, y = fill(shape), fill((*shape[:axis], 3, *shape[axis + 1 :]))
    np.testing.assert_array_equal(ops.concat((x, y), axis), np.concatenate((x, y), axis))
    idx = np.array([[2, 0], [-5, 9]], np.int32)
    want = np.take(y, np.clip(idx, 0, 2), axis)
    want[(slice(None),) * axis + (1,)] = np.nan  # both are outside
    np.testing.assert_array_equal(ops.gather(y, idx, axis), want)
    for other, nothing in ((np.int8, 0), (np.bool_, False)):
        got = ops.gather(np.ones_like(y, other), idx, axis)
        np.testing.assert_array_equal(got, np.where(np.isnan(want), nothing, 1).astype(other))


@given(shapes, st.data())
@settings(max_examples=60)
def test_reductions(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = fill(shape)
    axes = data.draw(st.sets(st.sampled_from(range(len(shape))))) if shape else set()
    key = tuple(sorted(axes))
    want = x.astype(np.float64).sum(axis=key) if key else x
    agree(np.asarray(ops.sum_(x, key)), np.asarray(want).astype(np.float32), "reduce")
    if 0 in [shape[a] for a in key]:
        if 0 not in [d for a, d in enumerate(shape) if a not in key]:
            with pytest.raises(ShapeError, match="no elements"):
                ops.max_(x, key)
        return
    if key:
        np.testing.assert_array_equal(
            ops.max_(x, key), x.max(axis=key) if x.size else ops.max_(x, key)
        )


@pytest.mark.parametrize("dtype", (dt.float16, dt.bfloat16), ids=str)
def test_narrow_sums_round_once(dtype: dt.DType) -> None:
    x = np.full((3, 5000), 0.1, dtype.numpy)
    want = x.astype(np.float64).sum(1).astype(np.float32).astype(dtype.numpy)
    agree(ops.sum_(x, 1), want, "reduce")


def test_sum_of_integers_wraps_in_its_dtype() -> None:
    assert ops.sum_(np.array([100, 100], np.int8)).tolist() == -56
    assert ops.sum_(np.array([100, 100], np.int8)).dtype == np.int8


def test_nan_wins_max_and_argmax() -> None:
    x = np.array([[1, np.nan, 3], [4, 2, 4]], np.float32)
    assert np.isnan(ops.max_(x, 1)[0]) and ops.max_(x, 1)[1] == 4
    assert ops.argmax(x, 1).tolist() == [1, 0]
    assert ops.argmax(x, 1).dtype == np.int32


# -- dot, scatter, sort -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 0, 4), (0, 3, 2)])
def test_dot(dtype: dt.DType, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = fill((2, m, k), dtype), fill((2, k, n), dtype)
    agree(
        ops.dot(a, b),
        from_torch(to_torch(a).float() @ to_torch(b).float()).astype(dtype.numpy),
        "dot",
    )
    wide = ops.dot(a, b, dt.float32)
    agree(wide, from_torch(to_torch(a).float() @ to_torch(b).float()), "dot")


def test_dot_of_bytes_is_exact() -> None:
    a = values(dt.uint8, 6 * 300).reshape(6, 300)
    b = values(dt.int8, 300 * 5).reshape(300, 5)
    got = ops.dot(a, b)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


def test_update_and_scatter_add_drop_what_is_outside() -> None:
    x = np.zeros((4, 2), np.float32)
    rows = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
    got = ops.update(x, np.array([3, -1, 0, 4], np.int32), rows)
    np.testing.assert_array_equal(got, [[5, 6], [0, 0], [0, 0], [1, 2]])
    got = ops.scatter_add(x, np.array([1, 1, 9, -2], np.int32), rows)
    np.testing.assert_array_equal(got, [[0, 0], [4, 6], [0, 0], [0, 0]])
    assert not x.any()


def test_scatter_add_of_narrow_floats_rounds_once() -> None:
    x = np.zeros((1, 1), np.float16)
    upd = np.full((3000, 1), 0.1, np.float16)
    got = ops.scatter_add(x, np.zeros(3000, np.int32), upd)
    assert abs(float(got[0, 0]) - 3000 * float(np.float16(0.1))) < 0.3


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", (*FLOATS, dt.int8, dt.int32, dt.uint8), ids=str)
def test_sort_is_stable(dtype: dt.DType, descending: bool) -> None:
    x = values(dtype, 60).reshape(3, 20)
    x[:, 5:9] = x[:, :4]
    want, order = torch.sort(to_torch(x), dim=1, descending=descending, stable=True)
    got = ops.sort(x, 1, descending)
    np.testing.assert_array_equal(got.astype(np.float64), from_torch(want).astype(np.float64))
    np.testing.assert_array_equal(ops.sort(x, 1, descending, indices=True), order.numpy())


def test_iota_and_const() -> None:
    assert ops.iota((2, 3), 1, dt.int32).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert ops.iota((0, 3), 0, dt.float16).shape == (0, 3)
    assert ops.const(2.5, dt.bfloat16).dtype == dt.bfloat16.numpy


# -- errors -------------------------------------------------------------------------------------

F, I = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int32)  # noqa: E741


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ops.add(F, F[0]), ShapeError, "broadcast"),
        (lambda: ops.add(F, I), DTypeError, "cast"),
        (lambda: ops.exp(I), DTypeError, "expected float"),
        (lambda: ops.add(F > 0, F > 0), DTypeError, "bool"),
        (lambda: ops.bitwise_and(F, F), DTypeError, "expected bool"),
        (lambda: ops.where(F, F, F), DTypeError, "compare"),
        (lambda: ops.where(F > 0, 1.0, 2.0), DTypeError, "array"),
        (lambda: ops.reshape(F, (4,)), ShapeError, "6 elements"),
        (lambda: ops.reshape(F, (-1, -1)), ShapeError, "more than one -1"),
        (lambda: ops.transpose(F, (0, 0)), ShapeError, "not an order"),
        (lambda: ops.broadcast(F, (3, 2)), ShapeError, "does not fit"),
        (lambda: ops.slice_(F, (0, 0), (3, 3)), ShapeError, "leaves axis 0"),
        (lambda: ops.pad(F, (-1, 0), (0, 0)), ShapeError, "slice"),
        (lambda: ops.concat((F, F[:, :2]), 0), ShapeError, "differ"),
        (lambda: ops.concat(()), ShapeError, "at least one"),
        (lambda: ops.sum_(F, 2), ShapeError, "out of range"),
        (lambda: ops.argmax(F[:0], 0), ShapeError, "no elements"),
        (lambda: ops.dot(F, F), ShapeError, "must equal"),
        (lambda: ops.dot(F, I.T), DTypeError, "cast one"),
        (lambda: ops.gather(F, F, 0), DTypeError, "int32"),
        (lambda: ops.update(F, I[0], F), ShapeError, "one row per index"),
        (lambda: ops.call("nonsense", F), UsageError, "known"),
        (lambda: ops.call("softmax", F, axis=0), UsageError, "no parameter"),
        (lambda: ops.call("attention", F, F, F), UsageError, "scale"),
        (lambda: ops.call("layer_norm", F, F, F), ShapeError, "weight"),
        (lambda: ops.add("x", F), DTypeError, "unsupported"),
    ],
)
def test_errors_say_what_to_do(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
