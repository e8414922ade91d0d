"""Tensor methods on the CPU against NumPy and PyTorch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import weft
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.graph.ir import toposort

rng = np.random.default_rng(7)
X = rng.standard_normal((3, 4, 5)).astype(np.float32)


def close(got: weft.Tensor, want: object, atol: float = 1e-5) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, atol=atol, rtol=1e-5)


# -- promotion: the array API's table -----------------------------------------------------------

TABLE = {
    ("int8", "int8"): "int8", ("int8", "int32"): "int32", ("int8", "int64"): "int64",
    ("int32", "int64"): "int64", ("uint8", "uint32"): "uint32", ("uint8", "int32"): "int32",
    ("uint8", "int64"): "int64", ("uint32", "int64"): "int64", ("uint32", "int32"): "int64",
    ("uint32", "int8"): "int64", ("float16", "float32"): "float32",
    ("float32", "float64"): "float64", ("float16", "bfloat16"): "float32",
    ("bfloat16", "float32"): "float32", ("bool", "bool"): "bool",
    # beyond the standard's table: weft takes the float, and bool as the other side
    ("int32", "float16"): "float16", ("bool", "int8"): "int8", ("bool", "float32"): "float32",
}  # fmt: skip


@pytest.mark.parametrize(("pair", "want"), TABLE.items(), ids=str)
def test_promotion(pair: tuple[str, str], want: str) -> None:
    for a, b in (pair, pair[::-1]):
        x, y = weft.ones((2,), dtype=a), weft.ones((2,), dtype=b)
        assert (x.maximum(y) if a != "bool" or b != "bool" else x & y).dtype.name == want


@pytest.mark.parametrize(
    ("dtype", "number", "want"),
    [
        ("int8", 1, "int8"), ("float16", 1, "float16"), ("float16", 1.5, "float16"),
        ("int32", 1.5, "float32"), ("bool", 1, "int32"), ("bool", 1.5, "float32"),
        ("uint8", True, "uint8"), ("bfloat16", 2.0, "bfloat16"), ("float64", 2, "float64"),
    ],
)  # fmt: skip
def test_python_scalars_are_weak(dtype: str, number: float, want: str) -> None:
    x = weft.ones((2,), dtype=dtype)
    assert (x + number).dtype.name == want
    assert (number * x).dtype.name == want


def test_a_scalar_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"300 does not fit uint8 \(0\.\.255\)"):
        weft.ones((2,), dtype="uint8") + 300


def test_numpy_scalars_are_strong() -> None:
    assert (weft.ones((2,), dtype="float16") + np.float32(1)).dtype is dt.float32
    assert (np.ones(2, np.float32) + weft.ones((2,))).dtype is dt.float32


def test_equality_and_hashing() -> None:
    t = weft.ones((2,))
    assert (t == None) is False and (t != "a") is True  # noqa: E711
    assert {t: 1}[t] == 1


def test_bool_arithmetic_counts() -> None:
    t = weft.tensor([True, False])
    assert (t + t).tolist() == [2, 0] and (t + t).dtype is dt.int32
    assert (t * True).tolist() == [1, 0]
    assert (~t).tolist() == [False, True]
    assert (t < weft.tensor([True, True])).tolist() == [False, True]


# -- operators ----------------------------------------------------------------------------------

BINARY = ["__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__",
          "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_operators_broadcast_like_numpy(name: str) -> None:
    x, y = np.abs(X) + 0.5, (np.abs(X[0, :1]) + 0.25).astype(np.float32)
    want = getattr(x, name)(y)
    close(getattr(weft.tensor(x), name)(weft.tensor(y)), want, 1e-4)
    close(getattr(weft.tensor(x), name)(y), want, 1e-4)
    close(getattr(weft.tensor(x), name)(2), getattr(x, name)(2), 1e-4)


@pytest.mark.parametrize("name", ["__and__", "__or__", "__xor__", "__lshift__", "__rshift__",
                                  "__mod__", "__floordiv__", "__add__"])  # fmt: skip
def test_integer_operators(name: str) -> None:
    x, y = np.array([-7, 9, 12, -1], np.int32), np.array([3, 2, 5, 4], np.int32)
    np.testing.assert_array_equal(
        getattr(weft.tensor(x), name)(weft.tensor(y)).numpy(), getattr(x, name)(y)
    )


def test_reflected_operators() -> None:
    t = weft.tensor([1.0, 2.0, 4.0])
    close(8 - t, [7, 6, 4])
    close(8 / t, [8, 4, 2])
    close(9 // t, [9, 4, 2])
    close(2**t, [2, 4, 16])
    close(7 % t, [0, 1, 3])
    assert (1 << weft.tensor([1, 3])).tolist() == [2, 8]
    assert (weft.tensor([7, 8]) / 2).dtype is dt.float32


@pytest.mark.parametrize("divisor", [2.5, -2.5, 0.0])
def test_floor_division_of_floats(divisor: float) -> None:
    x = np.array([7.0, -7.0, 0.3, 1e6], np.float32)
    with np.errstate(all="ignore"):
        want = np.floor_divide(x, np.float32(divisor))
    np.testing.assert_array_equal((weft.tensor(x) // divisor).numpy(), want)


FUNCTIONS = {
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sign": np.sign,
    "exp": np.exp, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "square": np.square,
    "isnan": np.isnan,
}  # fmt: skip
TORCH = {"erf": torch.erf, "sigmoid": torch.sigmoid, "gelu": torch.nn.functional.gelu,
         "silu": torch.nn.functional.silu, "relu": torch.relu}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_against_numpy(name: str) -> None:
    close(getattr(weft.tensor(X), name)(), FUNCTIONS[name](X))


@pytest.mark.parametrize("name", TORCH)
def test_functions_against_torch(name: str) -> None:
    close(getattr(weft.tensor(X), name)(), TORCH[name](torch.from_numpy(X)).numpy())


def test_more_functions() -> None:
    p = weft.tensor(np.abs(X) + 1)
    close(p.sqrt(), np.sqrt(np.abs(X) + 1))
    close(p.rsqrt(), 1 / np.sqrt(np.abs(X) + 1))
    close(p.log(), np.log(np.abs(X) + 1))
    close(p.reciprocal(), 1 / (np.abs(X) + 1))
    close(weft.tensor(X).clip(-0.5, 1), X.clip(-0.5, 1))
    close(weft.tensor(X).clip(max=0), X.clip(max=0))
    close(weft.where(weft.tensor(X) > 0, 1.0, weft.tensor(X)), np.where(X > 0, 1, X))
    close(weft.where(weft.tensor(X[0, 0]) > 0, weft.tensor(X), 0), np.where(X[0, 0] > 0, X, 0))
    assert weft.where(weft.tensor([True, False]), 1, 2).tolist() == [1, 2]
    assert weft.tensor([-3, 0, 9]).sign().tolist() == [-1, 0, 1]
    assert weft.tensor([4, 9]).sqrt().tolist() == [2.0, 3.0]


# -- reductions ---------------------------------------------------------------------------------

AXES = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "var", "std", "prod", "any", "all"])
def test_reductions(name: str, axis: object, keepdims: bool) -> None:
    want = getattr(np, name)(X, axis=axis, keepdims=keepdims)
    close(getattr(weft.tensor(X), name)(axis, keepdims), want, 1e-4)


@pytest.mark.parametrize("axis", [None, 0, 1, -1], ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_reductions(name: str, axis: int | None) -> None:
    got = getattr(weft.tensor(X), name)(axis)
    np.testing.assert_array_equal(got.numpy(), getattr(X, name)(axis))
    assert got.dtype is dt.int32


def test_reductions_of_integers_and_nothing() -> None:
    t = weft.tensor(np.array([100, 100, -128], np.int8))
    assert t.sum().item() == 72 and t.sum().dtype is dt.int32
    assert t.min().item() == -128 and t.min().dtype is dt.int8
    assert weft.tensor([True, True]).sum().item() == 2
    empty = weft.zeros((0, 3))
    assert empty.sum(0).tolist() == [0, 0, 0] and empty.prod(0).tolist() == [1, 1, 1]
    assert empty.any().item() is False and empty.all().item() is True
    assert np.isnan(empty.mean(0).numpy()).all()
    with pytest.raises(ShapeError, match="no elements"):
        empty.max(0)
    assert weft.tensor(3.0).sum().item() == 3.0
    assert weft.tensor(3.0).argmax().item() == 0
    close(weft.tensor(X).var(0, correction=1), X.var(0, ddof=1))


def test_nan_wins_in_min_and_max() -> None:
    t = weft.tensor([1.0, float("nan"), 3.0])
    assert np.isnan(t.min().item()) and np.isnan(t.max().item())


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumsum_and_softmax(axis: int) -> None:
    close(weft.tensor(X).cumsum(axis), X.cumsum(axis))
    close(weft.tensor(X).softmax(axis), torch.softmax(torch.from_numpy(X), axis).numpy())
    close(weft.tensor(X).log_softmax(axis), torch.log_softmax(torch.from_numpy(X), axis).numpy())


@pytest.mark.parametrize(
    ("a", "b"),
    [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4, 2)), ((5, 3, 4), (4, 2)),
     ((5, 1, 3, 4), (2, 4, 6)), ((4,), (5, 4, 2)), ((2, 3, 4), (2, 4, 3)), ((0, 4), (4, 2))],
)  # fmt: skip
def test_matmul_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = rng.standard_normal(a).astype(np.float32), rng.standard_normal(b).astype(np.float32)
    close(weft.tensor(x) @ weft.tensor(y), x @ y)
    close(x @ weft.tensor(y), x @ y)


def test_matmul_errors() -> None:
    with pytest.raises(ShapeError, match="must equal"):
        weft.ones((2, 3)) @ weft.ones((2, 3))
    with pytest.raises(ShapeError, match="scale"):
        weft.ones((2, 3)) @ weft.tensor(1.0)


def test_order() -> None:
    t = weft.tensor(X)
    np.testing.assert_array_equal(t.sort(1).numpy(), np.sort(X, 1))
    np.testing.assert_array_equal(t.argsort(0).numpy(), np.argsort(X, 0, kind="stable"))
    for largest, axis in itertools.product((True, False), (0, 2)):
        v, i = t.topk(2, axis, largest)
        want = torch.topk(torch.from_numpy(X), 2, axis, largest)
        np.testing.assert_array_equal(v.numpy(), want.values.numpy())
        np.testing.assert_array_equal(i.numpy(), want.indices.numpy())
    with pytest.raises(ShapeError, match="k = 9"):
        t.topk(9)


# -- movement -----------------------------------------------------------------------------------


def test_movement() -> None:
    t, x = weft.tensor(X), torch.from_numpy(X)
    close(t.reshape(12, -1), X.reshape(12, -1))
    close(t.view((5, 12)), X.reshape(5, 12))
    close(t.permute(2, 0, 1), X.transpose(2, 0, 1))
    close(t.transpose(0, -1), X.swapaxes(0, -1))
    close(t.T, X.T)
    close(t.mT, X.swapaxes(-1, -2))
    close(t.unsqueeze(1).squeeze(1), X)
    assert t.unsqueeze(-1).shape == (3, 4, 5, 1)
    close(t.flip(0, 2), X[::-1, :, ::-1])
    close(t.flip(), X[::-1, ::-1, ::-1])
    close(t[:, :1].expand(-1, 4, -1), x[:, :1].expand(-1, 4, -1).numpy())
    close(t.flatten(1), x.flatten(1).numpy())
    close(
        t.pad([(1, 0), (0, 2), (1, 1)], 9), np.pad(X, [(1, 0), (0, 2), (1, 1)], constant_values=9)
    )
    close(t.repeat_interleave(3, 1), x.repeat_interleave(3, 1).numpy())
    for got, want in zip(t.split(2, 2), x.split(2, 2), strict=True):
        close(got, want.numpy())
    for got, want in zip(t.chunk(3, 1), x.chunk(3, 1), strict=True):
        close(got, want.numpy())
    assert [p.shape[0] for p in weft.ones((6,)).split([1, 2, 3])] == [1, 2, 3]
    close(weft.cat([t, t[:1]], 0), np.concatenate([X, X[:1]]))
    close(weft.stack([t, t], 1), np.stack([X, X], 1))
    assert weft.cat([weft.ones((1,), "int8"), weft.ones((1,))]).dtype is dt.float32


@given(st.lists(st.integers(0, 3), max_size=4))
def test_zero_size_and_0d(shape: list[int]) -> None:
    t = weft.ones(shape)
    assert (t + 1).numpy().shape == tuple(shape)
    assert (t.exp() * t).sum().item() == pytest.approx(np.e * np.prod(shape), rel=1e-5)
    assert weft.cat([t.reshape(-1)] * 2).shape == (2 * t.size,)
    assert t.T.T.shape == tuple(shape)


def test_topk_sorts_once() -> None:
    graph = weft.trace(lambda x: x.topk(3, axis=0), [weft.Spec((5, 4))])
    assert sum(node.op == "sort" for node in toposort(graph.roots())) == 1
    x = np.array([[0.0, -0.0, np.nan, np.inf], [-0.0, 0.0, 1.0, np.nan]], np.float32)
    for largest in (True, False):
        t = weft.tensor(x)
        values, order = t.topk(2, 1, largest)
        want = t.sort(1, descending=largest).numpy()[:, :2]
        assert values.numpy().tobytes() == want.tobytes()
        assert order.numpy().tolist() == t.argsort(1, descending=largest).numpy()[:, :2].tolist()


def test_topk_has_the_gradient_of_what_it_picks() -> None:
    x = weft.tensor(np.float32([[3, 1, 2], [5, 5, 4]]), requires_grad=True)
    values, _ = x.topk(2)
    (values * weft.tensor(np.float32([[1, 2], [3, 4]]))).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[1, 0, 2], [3, 4, 0]])
