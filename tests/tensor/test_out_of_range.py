"""Indices and classes that name nothing: one meaning in eager mode and on every device.

The truth is written down here in NumPy: -n..-1 count from the end, what is beyond is NaN of floats,
0 of integers, False of bools, and a row that is written there is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rows import covering

import weft
from weft.backends import registry
from weft.errors import DTypeError, ShapeError, UsageError

F = weft.functional
DEVICES = ["eager", "cpu", "interp", *(d.id for d in registry.devices() if d.kind == "vulkan")][:4]
FAR = [-(2**31), -100, -6, -5, -1, 0, 2, 4, 5, 99, 2**31 - 1]  # for an axis of 5
DTYPES = ["float32", "float16", "bfloat16", "int32", "int8", "uint8", "uint32", "bool"]


def on(device: str, fn: Callable[..., Any], *args: weft.Tensor) -> np.ndarray:
    out = fn(*args) if device == "eager" else weft.compile(fn, device=device)(*args)
    return out.cast("float32").numpy()


def reached(x: np.ndarray, index: np.ndarray, nothing: Any = np.nan) -> np.ndarray:
    """x[index] along axis 0, in float32."""
    n = len(x)
    counted = np.where(index < 0, index.astype(np.int64) + n, index)
    inside = (counted >= 0) & (counted < n)
    out = x.astype(np.float32)[np.where(inside, counted, 0)]
    out[~inside] = nothing
    return out


def content(dtype: str, shape: tuple[int, ...]) -> tuple[weft.Tensor, np.ndarray, float]:
    x = np.arange(1, 1 + int(np.prod(shape))).reshape(shape) % 100
    t = weft.tensor(x.astype(np.float32)).cast(dtype)
    return t, t.cast("float32").numpy(), 0.0 if not t.dtype.is_float else np.nan


@pytest.mark.parametrize("dtype,device", covering(DTYPES, DEVICES))
def test_reading(device: str, dtype: str) -> None:
    t, x, nothing = content(dtype, (5, 3))
    index = weft.tensor(np.array(FAR, np.int32))
    far = np.array(FAR)
    want = reached(x, far, nothing)
    for fn in (lambda a, i: a[i], lambda a, i: a.take(i, 0), lambda a, i: F.embedding(i, a)):
        np.testing.assert_array_equal(on(device, fn, t, index), want)
    got = on(device, lambda a, i: a.T[:, i], t, index)
    np.testing.assert_array_equal(got, want.T)
    along = weft.tensor(np.stack([np.array(FAR, np.int32)] * 3, 1))
    np.testing.assert_array_equal(on(device, lambda a, i: a.take_along_axis(i, 0), t, along), want)
    np.testing.assert_array_equal(on(device, lambda a, i: a.gather(0, i), t, along), want)
    got = on(device, lambda a, i: a.T.take_along_axis(i.T, -1), t, along)
    np.testing.assert_array_equal(got, want.T)


@pytest.mark.parametrize("device", DEVICES)
def test_reading_by_two_indices(device: str) -> None:
    """An index that is outside on one axis never reaches another row of the merged ones."""
    t, x, _ = content("float32", (5, 4, 2))
    i, j = np.meshgrid(np.array(FAR), np.array([-5, -4, -1, 0, 3, 4, 2**31 - 1]), indexing="ij")
    want = reached(x.reshape(20, 2), np.zeros_like(i))
    for at in np.ndindex(i.shape):
        row = reached(x, i[at][None])[0]
        want[at] = reached(row, j[at][None])[0]
    given = [weft.tensor(a.astype(np.int32)) for a in (i, j)]
    np.testing.assert_array_equal(on(device, lambda a, i, j: a[i, j], t, *given), want)


@pytest.mark.parametrize("device", DEVICES)
def test_writing(device: str) -> None:
    t, x, _ = content("float32", (5, 3))
    index = np.array([-6, -1, 1, 5, 2**31 - 1, -(2**31)], np.int32)

    def rows(a: weft.Tensor, i: weft.Tensor) -> weft.Tensor:
        b = a * 1
        b[i] = -7.0
        return b

    def columns(a: weft.Tensor, i: weft.Tensor) -> weft.Tensor:
        b = a.T * 1
        b[:, i] = -7.0
        return b.T

    def points(a: weft.Tensor, i: weft.Tensor) -> weft.Tensor:
        b = a * 1
        b[i, i * 0 + 3] = 9.0  # the second index is outside everywhere
        b[i, i * 0 - 3] = -7.0
        return b

    want = x.copy()
    want[[-1, 1]] = -7
    for fn in (rows, columns):
        np.testing.assert_array_equal(on(device, fn, t, weft.tensor(index)), want)
    want = x.copy()
    want[[-1, 1], 0] = -7
    np.testing.assert_array_equal(on(device, points, t, weft.tensor(index)), want)


@pytest.mark.parametrize("kind", ["int64", "uint32", "uint8", "int8"])
def test_wide_indices_do_not_wrap(kind: str) -> None:
    """2**32 is no row, nor is uint32's 2**32 - 1 the last one."""
    x, far = weft.tensor(np.arange(5.0, dtype=np.float32)), [0, 4, 5, 200, 2**32 - 1, 2**32]
    info = np.iinfo(kind)
    index = np.array([*(f for f in far if f <= info.max), *([-1, -5, -6] if info.min else [])])
    t = weft.tensor(index.astype(kind))
    want = reached(x.numpy(), index)
    np.testing.assert_array_equal(x[t].numpy(), want)
    np.testing.assert_array_equal(x.take_along_axis(t, 0).numpy(), want)
    logits = np.zeros((len(index), 5), np.float32)
    loss = F.cross_entropy(weft.tensor(logits), t, ignore_index=4, reduction="none").numpy()
    classes = (index >= 0) & (index < 5)
    want = np.where(index == 4, 0, np.where(classes, np.log(5), np.nan))
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    hot = weft.one_hot(t, 5).numpy()
    np.testing.assert_array_equal(hot, (index[:, None] == np.arange(5)).astype(np.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_drop_what_is_outside(device: str) -> None:
    t, _, _ = content("float32", (5, 3))
    index = np.array([-6, -1, 1, 5, 1], np.int32)
    want = np.zeros((5, 3), np.float32)
    np.add.at(want, [4, 1, 1], 1.0)

    def grad(a: weft.Tensor, i: weft.Tensor) -> weft.Tensor:
        return weft.value_and_grad(lambda a: a[i].sum())(a)[1]

    def along(a: weft.Tensor, i: weft.Tensor) -> weft.Tensor:
        return weft.value_and_grad(
            lambda a: a.take_along_axis(i.reshape(-1, 1).expand(5, 3), 0).sum()
        )(a)[1]

    for fn in (grad, along):
        np.testing.assert_array_equal(on(device, fn, t, weft.tensor(index)), want)


def test_written_indices_are_checked_everywhere() -> None:
    """The numbers of a list or NumPy array are part of the program: refused, compiled or not."""
    x = weft.zeros((5, 3))
    for fn in (
        lambda a: a[np.array([5])],
        lambda a: a[[0, -6]],
        lambda a: a.take([7], 0),
        lambda a: a.take_along_axis(np.full((1, 3), 5), 0),
    ):
        for run in (fn, weft.compile(fn, device="cpu")):
            with pytest.raises(ShapeError, match="out of range for size 5"):
                run(x)


# -- classes ---------------------------------------------------------------------------------------

CLASSES = np.array([2, 0, -1, 3, 99, -100, 1, -(2**31), 2**31 - 1], np.int32)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ignored class": {"ignore_index": 1},
    "smooth": {"label_smoothing": 0.2},
    "weights": {"weight": np.array([0.5, 2, 1], np.float32)},
    "both": {"weight": np.array([0.5, 2, 1], np.float32), "label_smoothing": 0.3},
}


@pytest.mark.parametrize("name,device,dtype", covering(OPTIONS, DEVICES, ["float32", "bfloat16"]))
def test_cross_entropy(device: str, name: str, dtype: str) -> None:
    """A row's loss and gradient: PyTorch's for classes and ignored targets, else NaN."""
    options = dict(OPTIONS[name])
    ignored = options.get("ignore_index", -100)
    rng = np.random.default_rng(1)
    x = weft.tensor(rng.normal(size=(len(CLASSES), 3)), dtype=dtype)
    weight = options.pop("weight", None)
    leaf = torch.tensor(x.cast("float64").numpy(), requires_grad=True)
    good = ((CLASSES >= 0) & (CLASSES < 3)) | np.isin(CLASSES, [ignored])
    theirs = torch.nn.functional.cross_entropy(
        leaf, torch.tensor(np.where(good, CLASSES, 0)).long(), reduction="none",
        weight=None if weight is None else torch.tensor(weight).double(), **options,
    )  # fmt: skip
    want = np.where(good, theirs.detach().numpy(), np.nan)
    theirs.sum().backward()
    slopes = np.where(good[:, None], leaf.grad.numpy(), np.nan)
    ours = {**options, **({} if weight is None else {"weight": weft.tensor(weight)})}

    def loss(a: weft.Tensor, t: weft.Tensor) -> weft.Tensor:
        return F.cross_entropy(a, t, reduction="none", **ours)

    def slope(a: weft.Tensor, t: weft.Tensor) -> weft.Tensor:
        return weft.value_and_grad(lambda a: loss(a, t).sum())(a)[1]

    args = x, weft.tensor(CLASSES)
    far = 1e-2 if dtype != "float32" else 1e-5
    np.testing.assert_allclose(on(device, loss, *args), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(on(device, slope, *args), slopes, rtol=far, atol=far)
    mean = on(device, lambda a, t: F.cross_entropy(a, t, **ours), *args)
    assert np.isnan(mean)

    def nll(a: weft.Tensor, t: weft.Tensor) -> weft.Tensor:
        given = {k: v for k, v in ours.items() if k != "label_smoothing"}
        return F.nll_loss(a.cast("float32").log_softmax(-1), t, reduction="none", **given)

    if "label_smoothing" not in options:
        np.testing.assert_allclose(on(device, nll, *args), want, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(-8, 8), min_size=1, max_size=6), st.booleans())
def test_any_targets(classes: int, targets: list[int], compiled: bool) -> None:
    at = np.array(targets, np.int32)
    x = np.random.default_rng(classes).normal(size=(len(at), classes)).astype(np.float32)
    inside = (at >= 0) & (at < classes)
    p = torch.log_softmax(torch.tensor(x).double(), 1).numpy()
    want = np.where(inside, -p[np.arange(len(at)), np.where(inside, at, 0)], np.nan)
    fn: Any = lambda a, t: F.cross_entropy(a, t, reduction="none")  # noqa: E731
    fn = weft.compile(fn, device="cpu") if compiled else fn
    got = fn(weft.tensor(x), weft.tensor(at)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_refused() -> None:
    x, t = weft.zeros((2, 3)), weft.tensor([0, 1])
    with pytest.raises(UsageError, match="ignore_index of 4294967296"):
        F.cross_entropy(x, t, ignore_index=2**32)
    with pytest.raises(UsageError, match="padding_idx 3 of 2 rows"):
        F.embedding(t, x, padding_idx=3)
    for bad in (weft.tensor([0.0, 1.0]), weft.tensor([True, False])):
        with pytest.raises(DTypeError, match="not an index"):
            F.embedding(bad, x)
        with pytest.raises(DTypeError, match="not an index"):
            weft.one_hot(bad, 3)


def test_padding_counts_from_the_end_too() -> None:
    table = weft.tensor(np.ones((3, 2), np.float32), requires_grad=True)
    F.embedding(weft.tensor([2, -1, 0]), table, padding_idx=-1).sum().backward()
    assert table.grad is not None
    np.testing.assert_array_equal(table.grad.numpy(), [[1, 1], [0, 0], [0, 0]])


# -- rows computed before they are gathered --------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_work_moved_behind_a_gather_keeps_its_meaning(device: str) -> None:
    """Few rows of much work: the gather moves ahead of it, and what is outside is still NaN, even
    where the work would turn NaN into a number."""
    x = weft.tensor(np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32))

    def work(a: weft.Tensor, i: weft.Tensor) -> weft.Tensor:
        b = (a * 2).softmax(-1)
        return b.isnan().where(5.0, b).take(i, 0)

    for index in ([3, 63], [64, 2], [-65, -1]):
        t = weft.tensor(np.array(index, np.int32))
        np.testing.assert_allclose(on(device, work, x, t), work(x, t).numpy(), rtol=1e-5)
    assert np.isnan(work(x, weft.tensor(np.array([64], np.int32))).numpy()).all()


@pytest.mark.parametrize("device", DEVICES)
def test_adding(device: str) -> None:
    """scatter_add and index_add count from the end too, and an index that is outside adds
    nothing, in whatever row it stands."""
    t, x, _ = content("float32", (5, 3))
    far = np.array(FAR)
    counted = np.where(far < 0, far + 5, far)
    inside = (counted >= 0) & (counted < 5)
    rows = np.arange(len(FAR) * 3, dtype=np.float32).reshape(-1, 3)
    want = x.copy()
    np.add.at(want, counted[inside], rows[inside])
    index = weft.tensor(far.astype(np.int32))
    got = on(device, lambda a, i, r: a.index_add(0, i, r), t, index, weft.tensor(rows))
    np.testing.assert_array_equal(got, want)
    along = weft.tensor(np.stack([far.astype(np.int32)] * 3, 1))
    got = on(device, lambda a, i, r: a.scatter_add(0, i, r), t, along, weft.tensor(rows))
    np.testing.assert_array_equal(got, want)
    got = on(device, lambda a, i, r: a.T.scatter_add(1, i.T, r.T), t, along, weft.tensor(rows))
    np.testing.assert_array_equal(got, want.T)
