"""What the array API says of weft as a namespace, its dtypes, and its searching functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.errors import DeviceError, DTypeError, ShapeError, UsageError

RNG = np.random.default_rng(5)
INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def test_the_namespace_says_what_it_has() -> None:
    x = weft.tensor([1.0])
    assert x.__array_namespace__() is weft is x.__array_namespace__(api_version="2024.12")
    assert weft.__array_api_version__ == "2024.12"
    with pytest.raises(UsageError, match="2030"):
        x.__array_namespace__(api_version="2030.12")
    info = weft.__array_namespace_info__()
    assert info.default_device() == "cpu" == info.devices()[0] == x.device
    assert info.capabilities()["boolean indexing"] and info.capabilities()["max dimensions"] == 64
    assert info.default_dtypes()["indexing"] is weft.argmax(x).dtype
    assert sorted(info.dtypes(kind="integral")) == sorted(INTS)
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert "int16" not in info.dtypes(device="interp") and "int32" in info.dtypes(device="interp")


def test_limits_of_dtypes_are_python_numbers() -> None:
    f, i = weft.finfo(weft.float32), weft.iinfo(weft.zeros(2, "uint64"))
    assert (f.bits, f.dtype, f.eps, f.tiny) == (32, weft.float32, 2**-23, 2**-126)
    assert {type(v) for v in (f.eps, f.max, f.min, f.resolution)} == {float}
    assert (i.bits, i.max, i.min, i.dtype) == (64, 2**64 - 1, 0, weft.uint64)
    for fn, dtype in ((weft.finfo, "int8"), (weft.iinfo, "float16"), (weft.iinfo, "bool")):
        with pytest.raises(DTypeError, match="use"):
            fn(dtype)


def test_kinds_and_casts() -> None:
    assert weft.isdtype(weft.uint16, "unsigned integer") and weft.isdtype(weft.bfloat16, "numeric")
    assert not weft.isdtype(weft.bool, ("numeric", "complex floating"))
    with pytest.raises(UsageError, match="unsigned integer"):
        weft.isdtype(weft.int8, "integer")
    for a in INTS:
        for b in INTS:
            assert weft.can_cast(a, b) == np.can_cast(a, b), (a, b)
    assert weft.can_cast("float16", weft.float32) and not weft.can_cast(weft.float32, "float16")
    assert not weft.can_cast("float16", "bfloat16") and not weft.can_cast("int8", "float32")
    assert weft.result_type(weft.int8, 3) is weft.int8
    assert weft.result_type(weft.int8, 3, 1.5) is weft.float32
    assert weft.result_type(weft.zeros(2, "bool"), 1) is weft.int32


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint64"])
def test_dtypes_of_the_host_alone(dtype: str) -> None:
    """They compute on the host as NumPy does; a device refuses them by name."""
    a = np.array([[1, 2, 300], [0, 7, 250]], dtype)
    x = weft.tensor(a)
    for got, want in (
        (x + x, a + a), (x * 3, a * 3), (x // 7, a // 7), (x % 7, a % 7), (x << 2, a << 2),
        (x ^ 5, a ^ 5), (~x, ~a), (x > 6, a > 6), (x.sort(1), np.sort(a, 1)),
        (x.max(0), a.max(0)), (x[:, 1:], a[:, 1:]), (x**2, a**2), (x.cast("int8"), a.astype("i1")),
    ):  # fmt: skip
        np.testing.assert_array_equal(got.numpy(), want)
        assert got.dtype.name == want.dtype
    for refused in (
        lambda: x.to("interp"),
        lambda: weft.compile(lambda t: t + t)(x),
        lambda: weft.compile(lambda t: t.cast(dtype).sum())(weft.tensor([1.0])),
    ):
        with pytest.raises(DTypeError, match=dtype):
            refused()


def test_a_byte_of_each_sign_meets_in_int16() -> None:
    a, b = np.array([200, 3], np.uint8), np.array([-100, 4], np.int8)
    got = weft.tensor(a) + weft.tensor(b)
    assert got.dtype is weft.int16 and got.tolist() == [100, 7]
    with pytest.raises(DTypeError, match=r"uint64 with int8.*cast one first"):
        weft.tensor(a).cast("uint64") + weft.tensor(b)


@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
def test_small_integers_are_summed_in_32_bits_of_their_sign(name: str) -> None:
    for dtype, want in (
        ("uint8", "uint32"), ("uint16", "uint32"), ("int8", "int32"), ("int16", "int32"),
        ("bool", "int32"), ("uint64", "uint64"), ("int64", "int64"),
    ):  # fmt: skip
        a = np.array([1, 1, 0, 1], bool) if dtype == "bool" else np.array([9, 100, 101, 3], dtype)
        got = getattr(weft, name)(weft.tensor(a))
        assert got.dtype.name == want
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(a).astype(want))


def test_a_product_of_bytes_has_their_dtype() -> None:
    a = RNG.integers(-128, 128, (3, 70)).astype(np.int8)
    b = RNG.integers(-128, 128, (70, 2)).astype(np.int8)
    np.testing.assert_array_equal((weft.tensor(a) @ weft.tensor(b)).numpy(), a @ b)
    exact = weft.tensor(a).matmul(weft.tensor(b), "int32")
    np.testing.assert_array_equal(exact.numpy(), a.astype(np.int32) @ b)
    mixed = weft.tensor(a).cast("uint8") @ weft.tensor(b)
    np.testing.assert_array_equal(mixed.numpy(), a.astype(np.uint8).astype("i2") @ b)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_next_float_is_numpys(dtype: Any) -> None:
    bits = f"u{np.dtype(dtype).itemsize}"
    a = RNG.integers(0, np.iinfo(bits).max, 20_000, bits).view(dtype)
    b, info = RNG.permutation(a), np.finfo(dtype)
    edges = [0, -0.0, np.inf, -np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal, 1]
    a[: len(edges) ** 2], b[: len(edges) ** 2] = map(np.ravel, np.meshgrid(edges, edges))
    with np.errstate(all="ignore"):
        want = np.nextafter(a, b)
    got = weft.nextafter(weft.tensor(a), weft.tensor(b)).numpy()
    np.testing.assert_array_equal(got, want)
    want = np.where(a == b, b, want)  # NumPy's float16 has the other zero
    named = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[named]), np.signbit(want[named]))
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    weft.nextafter(x, 0.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("device", [None, "cpu", "interp"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_sign_of_nan_is_its_bit(dtype: str, device: str | None) -> None:
    kinds = np.float32([1, -1, 0, -0.0, np.inf, -np.inf, np.nan, -np.nan])
    x, want = weft.tensor(kinds).cast(dtype), np.signbit(kinds)
    assert want[-1] and not want[-2]

    def fn(a: Any) -> Any:
        return weft.signbit(a), weft.copysign(weft.full(8, 2, dtype), a)

    signs, signed = (fn if device is None else weft.compile(fn, device=device))(x)
    np.testing.assert_array_equal(signs.numpy(), want)
    np.testing.assert_array_equal(signed.numpy().astype(float), np.where(want, -2.0, 2.0))


@pytest.mark.parametrize("device", [None, "interp", "cpu"])
def test_searching(device: str | None) -> None:
    line = np.sort(np.float32([1, 3, 3, 5, np.inf, np.nan]))
    wanted = RNG.choice(np.float32([0, 1, 2, 3, 4, 5, 6, np.inf, -np.inf, np.nan]), (4, 5))
    back = np.array([3, 1, 0, 2], np.int32)
    for side in ("left", "right"):

        def found(a: Any, b: Any, side: str = side) -> Any:
            return weft.searchsorted(a, b, side=side)

        run = found if device is None else weft.compile(found, device=device)
        got = run(weft.tensor(line), weft.tensor(wanted))
        assert got.dtype is weft.int32
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(line, wanted, side))
    at = weft.searchsorted(weft.tensor([3, 2, 5, 1]), weft.tensor([4, 0]), sorter=weft.tensor(back))
    np.testing.assert_array_equal(at.numpy(), np.searchsorted([3, 2, 5, 1], [4, 0], sorter=back))
    for pool in (line, line[:0]):
        got = weft.isin(weft.tensor(wanted), weft.tensor(pool))
        np.testing.assert_array_equal(got.numpy(), np.isin(wanted, pool))
        got = weft.isin(weft.tensor(wanted), weft.tensor(pool), invert=True)
        np.testing.assert_array_equal(got.numpy(), np.isin(wanted, pool, invert=True))
    assert weft.searchsorted(line[:0], wanted).numpy().max() == 0
    with pytest.raises(UsageError, match="side='top'"):
        weft.searchsorted(line, wanted, side="top")
    with pytest.raises(ShapeError, match="one axis"):
        weft.searchsorted(wanted, wanted)


def test_different_values() -> None:
    a = RNG.integers(0, 5, (3, 4)).astype(np.float32)
    a[0, :2] = np.nan
    want = np.unique(a, True, True, True, equal_nan=False)
    got = weft.unique_all(weft.tensor(a))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g.numpy(), np.reshape(w, g.shape))
    assert got.inverse_indices.shape == a.shape and got.counts.dtype is weft.int32
    np.testing.assert_array_equal(weft.unique_counts(a).counts.numpy(), want[3])
    np.testing.assert_array_equal(weft.unique_inverse(a).values.numpy(), want[0])
    long = weft.unique_all(weft.tensor(a).cast("int64"))
    assert long.values.dtype is weft.int64 and long.indices.dtype is weft.int32
    on = weft.tensor(a).to("interp")
    assert {t.device for t in weft.unique_all(on)} == {on.device} == {weft.nonzero(on)[0].device}
    with pytest.raises(ShapeError, match="0-d"):
        weft.nonzero(weft.tensor(1.0))


def test_repeats_by_counts_differentiate() -> None:
    x = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    weft.repeat(x, weft.tensor([2, 0, 3])).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 0.0, 3.0]
    for counts in ([-1, 1, 1], [1, 1]):
        with pytest.raises(ShapeError, match="repeat"):
            weft.repeat(x, np.array(counts))


def test_copies_are_made_or_refused_as_asked() -> None:
    x, a = weft.tensor([[1.0, 2.0]]), np.float32([1, 2])
    assert weft.asarray(x, copy=False) is x is not weft.asarray(x, copy=True)
    assert weft.astype(x, "float32", copy=False) is x is not weft.astype(x, "float32")
    assert np.shares_memory(weft.asarray(a, copy=False).numpy(), a)
    assert weft.reshape(x, (2,), copy=False).shape == (2,)
    kept = weft.reshape(x, (2,), copy=True)
    kept[0] = 9.0
    assert x.tolist() == [[1.0, 2.0]]
    for refused in (
        lambda: weft.asarray([1.0], copy=False),
        lambda: weft.asarray(x, "float16", copy=False),
        lambda: weft.asarray(x, device="interp", copy=False),
        lambda: weft.reshape(weft.ones((2, 3)).T, (6,), copy=False),
        lambda: weft.from_dlpack(a, device="interp", copy=False),
    ):
        with pytest.raises(UsageError, match="copy=False"):
            refused()
    own = weft.from_dlpack(x)
    assert own is not x and np.shares_memory(own.numpy(), x.numpy())
    assert not np.shares_memory(weft.from_dlpack(x, copy=True).numpy(), x.numpy())
    shared = torch.from_dlpack(x.__dlpack__(copy=False))
    assert shared.data_ptr() == x.numpy().ctypes.data
    assert torch.from_dlpack(x.__dlpack__()).data_ptr() != x.numpy().ctypes.data
    assert weft.from_dlpack(a, device="interp").device == "interp:0"
    assert x.to_device("interp").to_device("cpu").tolist() == x.tolist()
    with pytest.raises(UsageError, match="stream"):
        x.to_device("cpu", stream=1)
    w = weft.zeros(2)
    weft.compile(lambda: w.assign(w + 1))()
    with pytest.raises(DeviceError, match="copy=False"):
        w.__dlpack__(copy=False)


def test_an_axis_or_index_out_of_range_is_an_index_error() -> None:
    x = weft.ones((2, 3))
    for call in (
        lambda: weft.expand_dims(x, axis=4), lambda: x.sum(2), lambda: x[2], lambda: x[[0, 2]],
        lambda: weft.take(x, [5]),
    ):  # fmt: skip
        for kind in (IndexError, ShapeError, ValueError):
            with pytest.raises(kind, match="out of range"):
                call()


def test_real_numbers_have_no_imaginary_part() -> None:
    x = weft.tensor([1.0, -2.0])
    assert weft.real(x) is x is weft.conj(x) and weft.imag(x).tolist() == [0.0, 0.0]
    assert complex(weft.tensor(2)) == 2 + 0j
