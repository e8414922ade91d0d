"""The array API's functions at the top of weft, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import weft
from weft.errors import ShapeError, TraceError, UsageError

RNG = np.random.default_rng(3)
EDGES = [0.0, -0.0, 1, -1, 0.5, -0.5, 1e-8, -1e-8, 1e-30, 2, 10, 50, 88.5, 89.2, -89.2, 100, 1e5]
EDGES += [1e20, -1e20, np.inf, -np.inf, np.nan]
X = np.concatenate([np.array(EDGES), RNG.normal(size=400) * 3])
UNARY = ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "expm1", "log10", "log1p"]
UNARY += ["log2", "sinh", "tan", "trunc", "isfinite", "isinf", "sqrt", "exp", "tanh", "ceil"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "not_equal"]
BINARY += ["less", "less_equal", "greater", "greater_equal", "copysign", "hypot", "atan2"]


def close(got: np.ndarray, want: np.ndarray, ulps: float = 4) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        apart = np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(want))
    worst = np.flatnonzero(~same & ~(apart <= ulps))
    assert not worst.size, (X[worst[:3]] if X.size > worst.max() else 0, got[worst], want[worst])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: type) -> None:
    x = X.astype(dtype)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x)
    close(getattr(weft, name)(weft.tensor(x)).numpy(), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: type) -> None:
    x = X.astype(dtype)
    y = np.roll(x, 7)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x, y)
    close(getattr(weft, name)(weft.tensor(x), weft.tensor(y)).numpy(), want)


def test_log_of_sums() -> None:
    x, y = RNG.normal(size=(2, 300)).astype(np.float32) * 50
    got = weft.logaddexp(weft.tensor(x), y).numpy()
    np.testing.assert_allclose(got, np.logaddexp(x.astype(np.float64), y), rtol=1e-6, atol=1e-7)
    ends = weft.logaddexp(weft.tensor([-np.inf, np.inf, -np.inf]), np.float32([-np.inf, 1, 2]))
    np.testing.assert_array_equal(ends.numpy(), np.float32([-np.inf, np.inf, 2]))


def test_integers_and_numbers() -> None:
    x = np.array([[7, -7, 3]], np.int32)
    t = weft.tensor(x)
    np.testing.assert_array_equal(weft.floor_divide(t, 2).numpy(), x // 2)
    np.testing.assert_array_equal(weft.remainder(t, -4).numpy(), x % -4)
    np.testing.assert_array_equal(weft.subtract(1, t).numpy(), 1 - x)
    np.testing.assert_array_equal(weft.bitwise_invert(t).numpy(), ~x)
    np.testing.assert_array_equal(weft.bitwise_left_shift(t, 2).numpy(), x << 2)
    np.testing.assert_array_equal(weft.signbit(t).numpy(), x < 0)
    assert weft.atan(t).dtype == weft.float32 and weft.trunc(t).dtype == weft.int32
    np.testing.assert_allclose(weft.atan2(1.0, t).numpy(), np.arctan2(1.0, x), rtol=1e-6)
    bools = weft.tensor([True, False])
    assert weft.logical_xor(bools, ~bools).numpy().all()
    zeros = np.float32([0, -0.0, 2, np.nan])
    for name in ("logical_and", "logical_or", "logical_xor"):
        got = getattr(weft, name)(weft.tensor(zeros), weft.tensor([0, 1, 0, 3]))
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(zeros, [0, 1, 0, 3]))
    np.testing.assert_array_equal(weft.logical_not(zeros).numpy(), np.logical_not(zeros))


@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16])
def test_narrow_floats_round_once(dtype: Any) -> None:
    x = weft.tensor(RNG.normal(size=200)).cast(dtype)
    wide = x.cast(weft.float32)
    np.testing.assert_array_equal(weft.expm1(x).numpy(), weft.expm1(wide).cast(dtype).numpy())
    assert weft.hypot(x, 1.0).dtype == dtype


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_formulas_compile(device: str) -> None:
    x = RNG.uniform(-0.9, 0.9, 64).astype(np.float32)

    def all_of_them(t: Any) -> Any:
        return weft.stack([getattr(weft, n)(t) for n in UNARY[:3] + UNARY[4:10] if n != "acosh"])

    want = all_of_them(weft.tensor(x)).numpy()
    got = weft.compile(all_of_them, device=device)(weft.tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize(
    "name", ["atan", "asin", "expm1", "log1p", "sinh", "atanh", "asinh", "tan"]
)
def test_gradients(name: str) -> None:
    x = np.array([-0.9, -0.3, 0.0, 1e-6, 0.2, 0.7])
    reference = torch.tensor(x, requires_grad=True)
    getattr(torch, name)(reference).sum().backward()
    t = weft.tensor(x, requires_grad=True)
    getattr(weft, name)(t).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), reference.grad.numpy(), rtol=1e-9, atol=1e-9)


A = RNG.normal(size=(2, 3, 4)).astype(np.float32)
CALLS = {
    "concat": lambda m, a: m.concat([a, a[:1]], axis=0),
    "concat flat": lambda m, a: m.concat([a, a[0]], axis=None),
    "reshape": lambda m, a: m.reshape(a, (4, -1)),
    "permute_dims": lambda m, a: m.permute_dims(a, (2, 0, 1)),
    "matrix_transpose": lambda m, a: m.matrix_transpose(a),
    "moveaxis": lambda m, a: m.moveaxis(a, (0, 2), (-1, 0)),
    "expand_dims": lambda m, a: m.expand_dims(a, axis=(0, -1)),
    "squeeze": lambda m, a: m.squeeze(a[:1], axis=0),
    "broadcast_to": lambda m, a: m.broadcast_to(a, (5, 2, 3, 4)),
    "flip": lambda m, a: m.flip(a, axis=(0, 2)),
    "roll": lambda m, a: m.roll(a, (5, -1), axis=(2, 0)),
    "roll flat": lambda m, a: m.roll(a, 7),
    "tile": lambda m, a: m.tile(a, (2, 1, 1, 3)),
    "tile short": lambda m, a: m.tile(a, (3,)),
    "repeat": lambda m, a: m.repeat(a, 2, axis=1),
    "repeat flat": lambda m, a: m.repeat(a, 3),
    "repeat counts": lambda m, a: m.repeat(a, np.array([2, 0, 1]), axis=1),
    "sum": lambda m, a: m.sum(a, axis=(0, 2), keepdims=True),
    "prod": lambda m, a: m.prod(a, axis=1),
    "mean": lambda m, a: m.mean(a),
    "var": lambda m, a: m.var(a, axis=2, correction=1),
    "std": lambda m, a: m.std(a, axis=0),
    "max": lambda m, a: m.max(a, axis=-1),
    "min": lambda m, a: m.min(a, axis=(0, 1)),
    "all": lambda m, a: m.all(a > -1, axis=2),
    "any": lambda m, a: m.any(a > 1, axis=0),
    "cumulative_prod": lambda m, a: m.cumulative_prod(a, axis=1),
    "cumulative_sum": lambda m, a: m.cumulative_sum(a, axis=1),
    "diff": lambda m, a: m.diff(a, 2),
    "diff between": lambda m, a: m.diff(a, axis=1, prepend=a[:, :1], append=a[:, :2]),
    "sort": lambda m, a: m.sort(a, axis=1),
    "take": lambda m, a: m.take(a, np.array([2, 0]), axis=1),
    "matmul": lambda m, a: m.matmul(a, m.matrix_transpose(a)),
    "vecdot": lambda m, a: m.vecdot(a, a[:1]),
    "tensordot": lambda m, a: m.tensordot(a, a, axes=((2, 0), (2, 0))),
    "tensordot 1": lambda m, a: m.tensordot(a, m.permute_dims(a, (2, 1, 0)), axes=1),
    "clip": lambda m, a: m.clip(a, -0.5, 0.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions(name: str) -> None:
    got, want = CALLS[name](weft, weft.tensor(A)).numpy(), CALLS[name](np, A)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_indices_are_int32() -> None:
    t = weft.tensor(A)
    for name in ("argmax", "argmin", "argsort"):
        got = getattr(weft, name)(t, axis=1)
        assert got.dtype == weft.int32
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(A, axis=1))
    np.testing.assert_array_equal(weft.count_nonzero(t > 0, axis=2).numpy(), (A > 0).sum(2))
    for got, want in zip(weft.nonzero(t > 0), np.nonzero(A > 0), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(weft.unique_values(np.array([3, 1, 3])).numpy(), [1, 3])
    for got, want in zip(weft.where(t > 0), np.nonzero(A > 0), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    with pytest.raises(TraceError):
        weft.compile(lambda x: weft.nonzero(x)[0])(t)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "int64"])
def test_triangles_keep_the_dtype(dtype: str) -> None:
    for name in ("tril", "triu"):
        got = getattr(weft, name)(weft.ones((3, 4), dtype=dtype), k=1)
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(np.ones((3, 4), dtype), k=1))
        assert got.dtype.name == dtype


def test_creation_and_dtypes() -> None:
    t = weft.tensor(A)
    assert weft.asarray(t) is t and weft.asarray([1, 2]).dtype == weft.int32
    assert weft.astype(t, "float16").dtype == weft.float16
    assert not weft.empty((2, 3)).numpy().any() and weft.empty_like(t).shape == A.shape
    assert weft.finfo(weft.bfloat16).eps == 2**-7 and weft.iinfo(weft.int8).max == 127
    assert weft.result_type(t, weft.float16) == weft.float32
    for how in ("xy", "ij"):
        grids = weft.meshgrid(weft.arange(3), weft.arange(2), indexing=how)
        for got, want in zip(grids, np.meshgrid(np.arange(3), np.arange(2), indexing=how)):
            np.testing.assert_array_equal(got.numpy(), want)
    assert [p.shape for p in weft.unstack(t, axis=1)] == [(2, 4)] * 3
    assert weft.isfinite(weft.pi) and np.isnan(weft.nan) and weft.newaxis is None


EINSUMS = ["ij,jk->ik", "ij,jk", "bij,bjk->bik", "ij->ji", "ii->i", "ii", "ij,ij->", "i,j->ij"]
EINSUMS += ["...ij,...jk->...ik", "bhqd,bhkd->bhqk", "abc,cd,de->abe", "ij,k->k", "iij->j", "i->"]
EINSUMS += ["...i,i->...", "ba,ab->ab", "a...,...b->...ab", "ijk,ilm->jlkm"]


@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum(equation: str) -> None:
    rng = np.random.default_rng(0)
    sizes = {c: 2 + i % 3 for i, c in enumerate("abcdehijklmqk")}
    operands = []
    for name in equation.split("->")[0].split(","):
        lead = (2, 3) if "..." in name else ()
        first = [sizes[c] for c in name.split("...")[0]] if "..." in name else []
        rest = [sizes[c] for c in name.split("...")[-1]]
        operands.append(rng.normal(size=(*first, *lead, *rest)).astype(np.float32))
    want = np.einsum(equation, *(x.astype(np.float64) for x in operands))
    got = weft.einsum(equation, *map(weft.tensor, operands))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_einsum_of_any_letters(data: st.DataObject) -> None:
    sizes = {c: data.draw(st.integers(1, 3)) for c in "abcd"}
    names = data.draw(st.lists(st.text("abcd", max_size=4), min_size=1, max_size=3))
    used = sorted({*"".join(names)})
    out = "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))])
    rng = np.random.default_rng(1)
    operands = [rng.normal(size=[sizes[c] for c in n]) for n in names]
    equation = ",".join(names) + "->" + out
    want = np.einsum(equation, *operands)
    got = weft.einsum(equation, *map(weft.tensor, operands)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("equation", "shapes", "error"),
    [
        ("ij,jk->ik", [(2, 3)], UsageError),
        ("ij->ik", [(2, 3)], UsageError),
        ("ij->ii", [(2, 3)], UsageError),
        ("ij,jk->ik", [(2, 3), (4, 5)], ShapeError),
        ("ijk->i", [(2, 3)], ShapeError),
        ("ii->i", [(2, 3)], ShapeError),
        ("i1->i", [(2, 3)], ShapeError),
        ("ij->...", [(2, 3)], None),
    ],
)
def test_bad_einsums(equation: str, shapes: list, error: type | None) -> None:
    operands = [weft.ones(s) for s in shapes]
    if error is None:
        assert weft.einsum(equation, *operands).item() == 6
        return
    with pytest.raises(error, match="einsum"):
        weft.einsum(equation, *operands)


def test_einsum_differentiates_and_compiles() -> None:
    q, k = (RNG.normal(size=(2, 3, 5, 4)) for _ in range(2))
    a, b = (torch.tensor(v, requires_grad=True) for v in (q, k))
    torch.einsum("bhqd,bhkd->bhqk", a, b).square().sum().backward()
    x, y = (weft.tensor(v, requires_grad=True) for v in (q, k))
    weft.einsum("bhqd,bhkd->bhqk", x, y).square().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), a.grad.numpy(), rtol=1e-9)
    np.testing.assert_allclose(y.grad.numpy(), b.grad.numpy(), rtol=1e-9)
    narrow = [weft.tensor(v.astype(np.float32)) for v in (q, k)]
    got = weft.compile(lambda s, t: weft.einsum("bhqd,bhkd->bhqk", s, t))(*narrow)
    np.testing.assert_allclose(
        got.numpy(), np.einsum("bhqd,bhkd->bhqk", q, k), rtol=1e-4, atol=1e-5
    )
