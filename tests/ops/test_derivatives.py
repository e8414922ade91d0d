"""Every primitive's derivative: against central differences in float64 and against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradkit import check, check_second, grads, seed_for
from hypothesis import given, settings, strategies as st

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import GradientError
from weft.ops.primitive import PRIMITIVES
from weft.ops.tape import Tracked, vjp, walk

SMOOTH = {"abs": (0.1, 3), "floor": (0.1, 0.9), "round": (0.1, 0.4)}  # within one piece
ONE = {
    p.name: SMOOTH.get(p.name, p.ranges[0])
    for p in PRIMITIVES.values()
    if len(p.ranges) == 1 and p.vjp is not None
}
TWO = [p.name for p in PRIMITIVES.values() if len(p.ranges) == 2 and p.vjp is not None]
NONE = {
    "argmax", "bitwise_and", "bitwise_or", "bitwise_xor", "call", "const", "equal", "input", "iota",
    "isnan", "less", "less_equal", "result", "shift_left", "shift_right", "signbit",
}  # fmt: skip

shapes = st.lists(st.integers(0, 3), min_size=0, max_size=3).map(tuple)
few = settings(max_examples=40, deadline=None)


def data(shape: tuple[int, ...], low: float = -3, high: float = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


def test_every_primitive_has_a_rule_or_no_derivative() -> None:
    assert {n for n, p in PRIMITIVES.items() if p.vjp is None} == NONE


# -- elementwise ----------------------------------------------------------------------------------


@given(shapes, st.sampled_from(sorted(ONE)))
@few
def test_one_operand(shape: tuple[int, ...], name: str) -> None:
    x = data(shape, *ONE[name])
    fn = lambda v: ops.bind(name, v)  # noqa: E731
    check(fn, x)
    if shape and name not in ("floor", "round"):
        check_second(fn, x)


@given(shapes, st.sampled_from(TWO))
@few
def test_two_operands(shape: tuple[int, ...], name: str) -> None:
    x, y = data(shape, 0.3, 2.9), data(shape, 0.55, 0.95, seed=1)
    if name in ("remainder", "floor_divide"):
        x = np.floor(x) * y + 0.3
    fn = lambda a, b: ops.bind(name, a, b)  # noqa: E731
    check(fn, x, y)
    if name != "floor_divide":  # flat
        check_second(fn, x, y)


def test_signs_of_both_operands() -> None:
    x, y = np.array([5.3, -5.3, 5.3, -5.3]), np.array([2.0, 2.0, -2.0, -2.0])
    for name in (n for n in TWO if n != "pow"):
        check(lambda a, b, n=name: ops.bind(n, a, b), x, y)
    check(lambda a: ops.abs_(a), np.array([-2.0, 1.5]))
    check(lambda a: ops.pow_(a, np.array([2.0, 3.0])), np.array([-2.0, -1.5]))


@given(shapes)
@few
def test_where_and_cast(shape: tuple[int, ...]) -> None:
    x, y = data(shape), data(shape, seed=1)
    check(lambda a, b: ops.where(np.cos(np.arange(x.size)).reshape(shape) > 0, a, b), x, y)
    (g,) = grads(lambda a: ops.cast(ops.cast(a, dt.float32), dt.float64), x)
    assert g.dtype == np.float64
    np.testing.assert_allclose(g, grads(lambda a: ops.mul(a, 1.0), x)[0], rtol=1e-6)


TIES = {
    "maximum": torch.maximum, "minimum": torch.minimum, "pow": torch.pow, "div": torch.div,
    "remainder": torch.remainder,
}  # fmt: skip


@pytest.mark.parametrize("name", TIES)
def test_two_operands_at_their_boundaries_as_pytorch(name: str) -> None:
    edges = np.array([0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 1.0, 0.1, 3.0, np.nan])
    x, y = np.repeat(edges, len(edges)), np.tile(edges, len(edges))
    if name == "remainder":
        x, y = x[y != 0], y[y != 0]
    want = torch_grads(TIES[name], x, y)
    for got, one in zip(grads(lambda a, b: ops.bind(name, a, b), x, y), want):
        np.testing.assert_allclose(got, one, rtol=1e-12)


@pytest.mark.parametrize("name", ["sqrt", "abs", "log", "tanh", "erf", "floor", "exp"])
def test_one_operand_at_its_boundaries_as_pytorch(name: str) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, 1e-300, 700.0, -700.0, np.inf])
    (want,) = torch_grads(getattr(torch, name), x)
    (got,) = grads(lambda a: ops.bind(name, a), x)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def torch_grads(fn: Any, *xs: np.ndarray) -> list[np.ndarray]:
    """PyTorch's gradients under the same weights."""
    leaves = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in xs]
    out = fn(*leaves)
    out.backward(torch.tensor(seed_for(out.detach().numpy())))
    return [
        np.zeros(t.shape) if t.grad is None else t.grad.numpy() for t in leaves if t.requires_grad
    ]


# -- movement -------------------------------------------------------------------------------------


@given(shapes, st.randoms(use_true_random=False))
@few
def test_reshape_transpose_broadcast(shape: tuple[int, ...], random: Any) -> None:
    x = data(shape)
    perm = list(range(len(shape)))
    random.shuffle(perm)
    check(lambda a: ops.reshape(a, (x.size,)), x)
    check(lambda a: ops.transpose(a, perm), x)
    ones = [random.random() < 0.5 for _ in shape]
    small = data(tuple(1 if one else d for one, d in zip(ones, shape)))
    check(lambda a: ops.broadcast(a, (2, *shape)), small)
    check(lambda a: ops.broadcast(a, shape), small)


@given(shapes, st.data())
@settings(max_examples=120, deadline=None)
def test_slice(shape: tuple[int, ...], draw: st.DataObject) -> None:
    shape = tuple(d * 2 for d in shape)
    keys = []
    for n in shape:
        step = draw.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
        ends = st.none() | st.integers(-n - 1, n + 1)
        keys.append(slice(draw.draw(ends), draw.draw(ends), step).indices(n))
    cut = [tuple(k[i] for k in keys) for i in range(3)]
    check(lambda a: ops.slice_(a, *cut), data(shape))


@given(shapes, st.data())
@few
def test_pad_and_concat(shape: tuple[int, ...], draw: st.DataObject) -> None:
    low, high = ([draw.draw(st.integers(0, 2)) for _ in shape] for _ in range(2))
    x = data(shape)
    check(lambda a: ops.pad(a, low, high, 7.0), x)
    if shape:
        axis = draw.draw(st.integers(0, len(shape) - 1))
        y = data((*shape[:axis], 2, *shape[axis + 1 :]), seed=1)
        check(lambda a, b: ops.concat((a, b, a), axis), x, y)


# -- reductions, dot ------------------------------------------------------------------------------


@given(shapes, st.data())
@few
def test_sum_and_max(shape: tuple[int, ...], draw: st.DataObject) -> None:
    axes = sorted(draw.draw(st.sets(st.sampled_from(range(len(shape)))))) if shape else []
    x = np.random.default_rng(0).permutation(np.arange(np.prod(shape, dtype=int))) * 0.1
    x = x.reshape(shape)
    check(lambda a: ops.sum_(a, axes), x)
    if all(shape[a] for a in axes) or 0 in [d for i, d in enumerate(shape) if i not in axes]:
        check(lambda a: ops.max_(a, axes), x)
        check_second(lambda a: ops.mul(ops.max_(a, axes), ops.max_(a, axes)), x)


def test_ties_of_max_share_as_in_pytorch() -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-1.0, 0.0, -0.0]])
    for axes in ((0,), (1,), (0, 1)):
        (want,) = torch_grads(lambda t, a=axes: torch.amax(t, a), x)
        np.testing.assert_allclose(grads(lambda a, k=axes: ops.max_(a, k), x)[0], want)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=4), st.integers(0, 3))
@few
def test_dot(shape: list[int], n: int) -> None:
    a, b = data(tuple(shape)), data((*shape[:-2], shape[-1], n), seed=1)
    check(lambda x, y: ops.dot(x, y), a, b)
    check_second(lambda x, y: ops.dot(x, y), a, b)


def test_dot_into_a_wider_dtype() -> None:
    a, b = data((3, 4)).astype(np.float16), data((4, 2), seed=1).astype(np.float16)
    got = grads(lambda x, y: ops.dot(x, y, dt.float32), a, b)
    want = grads(lambda x, y: ops.dot(x, y), a.astype(np.float32), b.astype(np.float32))
    for g, w in zip(got, want):
        assert g.dtype == np.float16
        np.testing.assert_allclose(g, w, rtol=4e-3, atol=4e-3)


# -- indexing -------------------------------------------------------------------------------------

indices = st.lists(st.integers(-2, 5), max_size=5).map(lambda v: np.array(v, np.int32))


@given(shapes.filter(bool), indices, st.data())
@few
def test_gather(shape: tuple[int, ...], idx: np.ndarray, draw: st.DataObject) -> None:
    axis = draw.draw(st.integers(0, len(shape) - 1))
    if shape[axis] == 0:
        idx = idx[:0]
    x = data(shape)

    def taken(a: Any, at: np.ndarray) -> Any:
        """What is gathered, without the NaN of indices outside: nothing flows back from there."""
        out = ops.gather(a, at, axis)
        return ops.where(ops.isnan(out), 0.0, out)

    check(lambda a: taken(a, idx), x)
    check(lambda a: taken(a, np.stack([idx, idx])), x)
    check_second(lambda a: taken(ops.mul(a, a), idx), x)
    if shape[axis]:
        check(lambda a: taken(a, np.array(1, np.int32)), x)


@given(shapes.filter(bool), indices)
@few
def test_scatter_add_and_update(shape: tuple[int, ...], idx: np.ndarray) -> None:
    x, rows = data(shape), data((len(idx), *shape[1:]), seed=1)
    check(lambda a, b: ops.scatter_add(a, idx, b), x, rows)
    check_second(lambda a, b: ops.scatter_add(ops.mul(a, a), idx, ops.mul(b, b)), x, rows)
    once = np.unique(idx)
    check(lambda a, b: ops.update(a, once, b), x, rows[: len(once)])
    check_second(lambda a, b: ops.update(ops.mul(a, a), once, ops.mul(b, b)), x, rows[: len(once)])


@given(shapes.filter(bool), st.booleans(), st.data())
@few
def test_sort(shape: tuple[int, ...], descending: bool, draw: st.DataObject) -> None:
    axis = draw.draw(st.integers(0, len(shape) - 1))
    x = np.random.default_rng(1).permutation(np.arange(np.prod(shape))).reshape(shape) * 0.1
    check(lambda a: ops.sort(a, axis, descending), x)
    check_second(lambda a: ops.mul(ops.sort(a, axis, descending), x), x)


@pytest.mark.parametrize("descending", [False, True])
def test_ties_of_sort_as_pytorch(descending: bool) -> None:
    x = np.array([[2.0, 1.0, 2.0, 1.0, 2.0], [0.0, -0.0, 0.0, 5.0, 5.0]])
    fn = lambda t: torch.sort(t, dim=1, descending=descending, stable=True)[0]  # noqa: E731
    (got,) = grads(lambda a: ops.sort(a, 1, descending), x)
    np.testing.assert_array_equal(got, torch_grads(fn, x)[0])


@pytest.mark.parametrize("axis", [0, 1])
def test_repeated_rows_of_gather_as_pytorch(axis: int) -> None:
    x, idx = data((3, 4)), np.array([2, 0, 2, 2, 1])
    (want,) = torch_grads(lambda t: torch.index_select(t, axis, torch.tensor(idx)), x)
    (got,) = grads(lambda a: ops.gather(a, idx.astype(np.int32), axis), x)
    np.testing.assert_allclose(got, want, rtol=1e-12)


# -- composites: the rules of their own are differentiable too -------------------------------------


def _call(name: str, **params: Any) -> Any:
    return lambda *values: ops.call(name, *values, **params)


TARGETS = np.array([1, -100, 4], np.int32)
COMPOSITES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "softmax": (_call("softmax"), [(3, 5)]),
    "log_softmax": (_call("log_softmax"), [(3, 5)]),
    "layer_norm": (_call("layer_norm", eps=1e-5), [(3, 6), (6,), (6,)]),
    "rms_norm": (_call("rms_norm", eps=1e-6, offset=1.0), [(3, 6), (6,)]),
    "gelu": (_call("gelu", approximate="none"), [(4,)]),
    "gelu tanh": (_call("gelu", approximate="tanh"), [(4,)]),
    "silu": (_call("silu"), [(4,)]),
    "cross_entropy": (
        lambda x: ops.call("cross_entropy", x, TARGETS, ignore_index=-100, label_smoothing=0.1),
        [(3, 5)],
    ),
    "attention": (
        _call("attention", causal=True, scale=0.5, window=0, softcap=3.0),
        [(1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2)],
    ),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_twice(name: str) -> None:
    fn, shapes = COMPOSITES[name]
    check_second(fn, *[data(s, -1, 1, seed=i) for i, s in enumerate(shapes)])


# -- the tape -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ONE))
@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=str)
def test_a_gradient_has_its_operands_dtype(name: str, dtype: Any) -> None:
    x = data((5,), *ONE[name]).astype(dtype)
    (got,) = grads(lambda a: ops.bind(name, a), x)
    assert got.dtype == dtype
    (want,) = grads(lambda a: ops.bind(name, a), x.astype(np.float64))
    tol = 4e-3 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol)


def test_what_has_no_derivative_is_not_recorded() -> None:
    x = Tracked(data((3,)))
    for out in (ops.argmax(x, 0), ops.less(x, x), ops.isnan(x), ops.cast(x, dt.int32)):
        assert not isinstance(out, Tracked)
    assert not isinstance(ops.sort(x, 0, indices=True), Tracked)
    with pytest.raises(GradientError, match="argmax is not differentiable"):
        vjp("argmax", x.value, x.value, (x.value,), {"axis": 0})


def test_a_long_chain_needs_no_recursion() -> None:
    x = Tracked(np.ones(2))
    out: Any = x
    for _ in range(5000):
        out = ops.add(out, 1.0)
    assert walk(out, np.ones(2))[id(x)][1].tolist() == [1.0, 1.0]
