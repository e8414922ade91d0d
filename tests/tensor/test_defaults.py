"""What a call does where less is said: dtype=None, no axes, shapes written in another way; and
masks that do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import weft
from weft import nn
from weft.errors import DTypeError, ShapeError, UsageError

X = weft.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
BYTES = weft.tensor(np.array([[1, 200], [3, 100]], np.uint8))
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arange": (weft.arange, (5,)),
    "arange of floats": (weft.arange, (5.0,)),
    "asarray": (weft.asarray, (np.ones(2, np.int8),)),
    "astype": (weft.astype, (BYTES,)),
    "cumprod": (weft.cumprod, (BYTES, 1)),
    "cumsum": (weft.cumsum, (BYTES, 1)),
    "cumulative_prod": (weft.cumulative_prod, (BYTES, 1)),
    "cumulative_sum": (weft.cumulative_sum, (BYTES, 1)),
    "empty": (weft.empty, (3,)),
    "empty_like": (weft.empty_like, (BYTES,)),
    "eye": (weft.eye, (3,)),
    "full": (weft.full, (3, 2.0)),
    "full of ints": (weft.full, (3, 2)),
    "full of bools": (weft.full, (3, True)),
    "full_like": (weft.full_like, (BYTES, 1)),
    "linspace": (weft.linspace, (0, 1, 3)),
    "one_hot": (weft.one_hot, (weft.tensor([1, 0]), 3)),
    "ones": (weft.ones, ((2, 3),)),
    "ones_like": (weft.ones_like, (BYTES,)),
    "prod": (weft.prod, (BYTES,)),
    "rand": (weft.rand, (3,)),
    "randn": (weft.randn, (3,)),
    "sum": (weft.sum, (BYTES,)),
    "tensor": (weft.tensor, ([1, 2],)),
    "zeros": (weft.zeros, ((2, 3),)),
    "zeros_like": (weft.zeros_like, (BYTES,)),
    "Tensor.cast": (lambda dtype=None: BYTES.cast(dtype), ()),
    "Tensor.cumprod": (BYTES.cumprod, (0,)),
    "Tensor.cumsum": (BYTES.cumsum, (0,)),
    "Tensor.prod": (BYTES.prod, ()),
    "Tensor.sum": (BYTES.sum, ()),
}


def test_every_function_with_a_dtype_is_here() -> None:
    """A name that comes to `weft` with a dtype must say what None means."""
    names = set()
    for name in weft.__all__:
        value = getattr(weft, name)
        if inspect.isfunction(value) and "dtype" in inspect.signature(value).parameters:
            names.add(name)
    assert names - {"finfo", "iinfo", "isdtype", "load"} <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_no_dtype_is_the_default(name: str) -> None:
    fn, args = CALLS[name]
    key = {"key": 1} if name.startswith("rand") else {}
    positional = name == "astype"  # the array API has it so
    without = fn(*args, **key) if not positional else args[0]
    given_none = fn(*args, None) if positional else fn(*args, dtype=None, **key)
    assert given_none.dtype == without.dtype
    np.testing.assert_array_equal(given_none.numpy(), without.numpy())
    if name not in ("rand", "randn"):
        for wanted in ("float32", weft.int32):
            out = fn(*args, wanted) if positional else fn(*args, dtype=wanted, **key)
            assert out.dtype == weft.core.dtypes.as_dtype(wanted)


def test_a_dtype_of_nothing_is_none() -> None:
    for fn in (weft.finfo, weft.iinfo, weft.result_type):
        with pytest.raises(DTypeError, match="unsupported dtype None"):
            fn(None)
    assert weft.zeros(2, None).dtype == weft.float32


def test_results_of_sums_are_the_dtype_asked_for() -> None:
    assert weft.prod(BYTES, dtype="float32").item() == 60000.0
    got = weft.cumulative_sum(BYTES, axis=1, dtype=weft.int32, include_initial=True)
    np.testing.assert_array_equal(got.numpy(), [[0, 1, 201], [0, 3, 103]])
    np.testing.assert_array_equal(weft.eye(2, 3, k=1).numpy(), np.eye(2, 3, 1))
    np.testing.assert_array_equal(weft.eye(3, 2, k=-2).numpy(), np.eye(3, 2, -2))
    np.testing.assert_allclose(weft.linspace(0, 1, 4, endpoint=False).numpy(), [0, 0.25, 0.5, 0.75])
    assert weft.ones_like(BYTES, dtype="bf16").dtype == weft.bfloat16
    assert weft.matmul(X, X.T).dtype == X.matmul(X.T, "float32").dtype


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "full", "eye", "arange", "linspace"])
def test_a_number_as_dtype_says_how_to_write_the_call(name: str) -> None:
    fn: Any = getattr(weft, name)
    args = {"full": (2, 3, 4), "eye": (2, 3, 4), "arange": (0, 3, 1, 4), "linspace": (0, 1, 3, 4)}
    with pytest.raises(UsageError, match=rf"^{name}: .* is not a dtype; give the shape as one tup"):
        fn(*args.get(name, (2, 3)))
    assert weft.randn(2, 3).shape == weft.rand((2, 3)).shape == weft.zeros((2, 3)).shape


# -- axes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_no_axes_reverse_nothing(compiled: bool) -> None:
    for axes in ((), [], (0,), (1, 0), 0, -1, None):
        fn = lambda x, axes=axes: weft.flip(x, axis=axes) + 0  # noqa: E731
        got = (weft.compile(fn, device="cpu") if compiled else fn)(X)
        np.testing.assert_array_equal(got.numpy(), np.flip(X.numpy(), axes))
    np.testing.assert_array_equal(X.flip(()).numpy(), X.numpy())
    np.testing.assert_array_equal(X.flip().numpy(), X.numpy()[::-1, ::-1])
    assert weft.flip(weft.tensor(3.0)).item() == 3.0


NO_AXES = ["sum", "prod", "mean", "max", "min", "all", "any", "std", "var", "count_nonzero"]


@pytest.mark.parametrize("name", NO_AXES)
def test_no_axes_fold_nothing(name: str) -> None:
    want = getattr(np, name)(X.numpy(), axis=())
    got = getattr(weft, name)(X, axis=())
    np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(getattr(weft, name)(X, axis=(), keepdims=True).numpy(), want)


def test_no_axes_move_nothing() -> None:
    for got in (weft.squeeze(X, ()), weft.expand_dims(X, ()), weft.roll(X, (), ()),
                weft.moveaxis(X, (), ())):  # fmt: skip
        np.testing.assert_array_equal(got.numpy(), X.numpy())
    np.testing.assert_array_equal(
        weft.tensordot(X, X, axes=0).numpy(), np.tensordot(X.numpy(), X.numpy(), 0)
    )


# -- masks -----------------------------------------------------------------------------------------

SHAPE = (2, 3, 4)
sizes = st.sampled_from([(2,), (3,), (4,), (2, 3), (3, 4), (2, 4), (2, 3, 4), (1,), (2, 1), (5,),
                         (2, 3, 1), (3, 2), (6,), (2, 3, 4, 1)])  # fmt: skip
others = st.sampled_from([slice(None), 1, None, Ellipsis, slice(0, 2)])


@given(st.lists(others, max_size=2), sizes, st.lists(others, max_size=2), st.integers(0, 99))
def test_masks_are_numpys(
    before: list[Any], shape: tuple[int, ...], after: list[Any], seed: int
) -> None:
    """A mask has the shape of the axes that it stands for, wherever it stands; else it is refused,
    in reading and in writing, as NumPy does."""
    x = np.arange(24, dtype=np.float32).reshape(SHAPE)
    mask = np.random.default_rng(seed).random(shape) > 0.4
    key, ours = (*before, mask, *after), (*before, weft.tensor(mask), *after)
    try:
        want = x[key]
    except IndexError:
        for keys in (key, ours):
            with pytest.raises((ShapeError, DTypeError)):
                weft.tensor(x)[keys]
            with pytest.raises((ShapeError, DTypeError)):
                weft.tensor(x)[keys] = 1.0
        return
    for keys in (key, ours):
        np.testing.assert_array_equal(weft.tensor(x)[keys].numpy(), want)
        written, t = x.copy(), weft.tensor(x)
        written[key] = -1
        t[keys] = -1
        np.testing.assert_array_equal(t.numpy(), written)


@pytest.mark.parametrize("device", ["cpu", "interp"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("on", [True, False])
def test_masks_without_axes_are_numpys(device: str, shape: tuple[int, ...], on: bool) -> None:
    x = np.ones(shape, np.float32)
    for mask in (np.bool_(on), np.array(on), weft.tensor(on).to(device)):
        t = weft.tensor(x).to(device)
        assert t[mask].shape == x[on].shape
        t[mask] = 5.0
        assert (t == (5.0 if on else 1.0)).all().item()


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_masks_on_devices(device: str) -> None:
    x = X.to(device)
    for shape in ((3,), (2, 2), (3, 2), (2, 3, 1), (6,)):
        mask = weft.tensor(np.ones(shape, bool)).to(device)
        with pytest.raises(ShapeError, match=r"mask|indices"):
            x[mask]
        with pytest.raises(ShapeError):
            x[mask] = 0.0
    assert x[weft.tensor([True, False]).to(device)].shape == (1, 3)


def test_masks_of_attention() -> None:
    """[T, S] or [B H, T, S] and [B, S], not what merely has as many elements."""
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = weft.randn(3, 4, 8)
    good = weft.zeros((4, 4), "bool"), weft.zeros((6, 4, 4), "bool")
    for mask in good:
        assert layer(x, x, x, attn_mask=mask)[0].shape == x.shape
    padding = weft.zeros((3, 4), "bool")
    assert layer(x, x, x, key_padding_mask=padding)[0].shape == x.shape
    for bad in (
        {"attn_mask": weft.zeros((4, 6, 4), "bool")},
        {"attn_mask": weft.zeros((4, 1))},
        {"key_padding_mask": padding.T},
        {"key_padding_mask": padding.reshape(12)},
    ):
        with pytest.raises(ShapeError, match=r"expected attn_mask \[4, 4\]"):
            layer(x, x, x, **bad)


def test_rows_per_channel_and_lengths() -> None:
    F, x = weft.functional, weft.randn(2, 3, 4)
    with pytest.raises(ShapeError, match=r"batch_norm.*expected \[N, C"):
        F.batch_norm(x, weft.zeros(1), weft.ones(1))
    with pytest.raises(ShapeError, match=r"batch_norm.*\[3, 1\]"):
        F.batch_norm(x, None, None, weight=weft.ones((3, 1)), training=True)
    with pytest.raises(ShapeError, match="conv2d: bias"):
        F.conv2d(weft.ones((1, 1, 3, 3)), weft.ones((2, 1, 1, 1)), weft.ones(1))
