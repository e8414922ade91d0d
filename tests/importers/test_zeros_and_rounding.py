"""Zeros that are not made by multiplying data, and rounding by the rule of the operator's own
language: against PyTorch, ONNX Runtime and the reference of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx_kit import peer, run, single

import weft
from weft.importers.aten import entry
from weft.tensor import functional as F
from weft.tensor.core import Tensor

INF, NAN = np.inf, np.nan
f32, i64 = np.float32, np.int64


def aten(name: str, *args: Any, **kwargs: Any) -> None:
    """The operator on these operands gives what PyTorch's gives, bit by bit but for NaN's."""
    _, base, overload = f"aten.{name}".split(".")
    want = getattr(getattr(torch.ops.aten, base), overload)(*args, **kwargs)
    found = entry(f"aten.{name}")
    assert found is not None

    def ours(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return Tensor(x.to(torch.int32).numpy() if x.dtype == torch.int64 else x.numpy())
        return [ours(v) for v in x] if isinstance(x, list) else x

    got = found.run(*map(ours, args), **kwargs)
    got, want = (x[0] if isinstance(x, tuple) else x for x in (got, want))
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    if want.dtype.is_floating_point and base not in ("remainder", "div"):
        real = ~np.isnan(want.numpy())
        np.testing.assert_array_equal(np.signbit(got.numpy())[real], np.signbit(want.numpy())[real])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_the_sign_of_nan_is_zero(dtype: torch.dtype) -> None:
    values = [NAN, -INF, INF, -0.0, 0.0, 1e-40, -2.5] if dtype.is_floating_point else [-3, 0, 7]
    aten("sign.default", torch.tensor(values, dtype=dtype))


# -- zeros ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [INF, -INF, NAN])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_exclusive_scans_begin_with_a_constant(op: str, first: float) -> None:
    x = np.array([first, 1, 2], f32)
    for reverse in (0, 1):
        values = x[::-1].copy() if reverse else x
        arrays = {"x": values, "a": np.array(0, i64)}
        model = single(op, arrays, ["a"], exclusive=1, reverse=reverse)
        if op == "CumProd":
            model.opset_import[0].version = 26
            model.ir_version = 13
        (got,) = run(model, values)
        want = [int(op == "CumProd"), first, first * 2 if op == "CumProd" else first]
        want[2] = first
        np.testing.assert_array_equal(got[::-1] if reverse else got, want)


def test_regions_without_pixels_are_zero() -> None:
    x = np.full((1, 2, 7, 7), NAN, f32)
    rois = np.array([[0, 20, 20, 25, 25]], f32)
    model = single("MaxRoiPool", {"x": x, "r": rois}, ["r"], pooled_shape=[1, 1])
    np.testing.assert_array_equal(run(model, x)[0], np.zeros((1, 2, 1, 1)))


def test_recurrent_bias_of_the_late_gate() -> None:
    """GRU with linear_before_reset leaves one bias to the cell; what stands for it in the sums is
    no multiple of it."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((2, 1, 3)).astype(f32),
              "w": rng.standard_normal((1, 6, 3)).astype(f32),
              "r": rng.standard_normal((1, 6, 2)).astype(f32),
              "b": np.zeros((1, 12), f32)}  # fmt: skip
    arrays["b"][0, -1] = -INF  # tanh gives -1
    model = single("GRU", arrays, ["w", "r", "b"], hidden_size=2, linear_before_reset=1)
    for got, want in zip(run(model, arrays["x"]), peer(model, arrays["x"])):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_aten_zeros() -> None:
    t = torch.tensor
    x = t([INF, NAN, 1.0, -INF])
    aten("index_fill.int_Scalar", x, 0, t([1, 2]), 3.0)
    aten("scatter.value", t([1.0, 2, 3], dtype=torch.float16), 0, t([0, 2]), 5.0)
    aten("scatter_reduce.two", x, 0, t([0, 0, 3, 3]), t([1.0, INF, 2, 3]), "mean")
    rows = t([[INF, 1.0], [2, 3], [NAN, 4], [5, 6]])
    for mode in (0, 1, 2):
        aten("_embedding_bag.default", rows, t([0, 1, 3, 2]), t([0, 1, 3]), False, mode)
        aten("_embedding_bag.default", rows, t([0, 1, 3, 2]), t([0, 1, 3]), False, mode, False,
             None, False, 1)  # fmt: skip
    aten("lerp.Scalar", t([INF, -INF, 1.0]), t([1.0, 2, 3]), 1.0)
    aten("lerp.Tensor", t([1.0, 2, 3]), t([4.0, 5, 6]), t([0.0, 1, 0.75]))
    aten("copysign.Tensor", t([1.0, -0.0, INF]), t([-0.0, 1, -2]))
    aten("hypot.default", t([INF, 3.0, -INF]), t([NAN, 4, 0]))


def test_copysign_has_no_slope_by_the_sign() -> None:
    y = weft.tensor(np.array([2.0, -3.0], f32)).requires_grad_()
    weft.copysign(weft.tensor(np.array([1.0, 2.0], f32)), y).backward(
        weft.tensor(np.array([INF, NAN], f32))
    )
    np.testing.assert_array_equal(y.grad.numpy(), [0, 0])


def test_averages_read_their_windows_alone() -> None:
    x = np.random.default_rng(1).standard_normal((1, 2, 11, 10)).astype(f32)
    x[0, 0, 2, 2], x[0, 1, 7, 9], x[0, 1, 0, 0] = INF, NAN, -INF
    theirs = torch.from_numpy(x)
    for size in ((3, 4), (11, 3), (5, 10), (1, 1)):
        want = torch.nn.functional.adaptive_avg_pool2d(theirs, size).numpy()
        np.testing.assert_allclose(
            F.adaptive_avg_pool2d(Tensor(x), size).numpy(), want, rtol=1e-5, atol=1e-6
        )
        compiled = weft.compile(lambda t, s=size: F.adaptive_avg_pool2d(t, s), "cpu")
        np.testing.assert_allclose(compiled(Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-6)
    for mode in ("bilinear", "bicubic"):
        options = {"size": (4, 5), "mode": mode, "antialias": True}
        want = torch.nn.functional.interpolate(theirs, **options).numpy()
        got = F.interpolate(Tensor(x), **options).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_samples_at_the_border_read_no_further() -> None:
    x = np.array([[[[0, 1], [2, INF]]]], f32)
    grid = np.array([[[[1, 1], [5, 5], [-1, -1], [0.0, -1]]]], f32)
    for padding in ("border", "reflection", "zeros"):
        options = {"padding_mode": padding, "align_corners": True}
        for values, at in ((x, grid[:, :, :2]), (np.nan_to_num(x, posinf=9.0), grid)):
            want = torch.nn.functional.grid_sample(
                torch.from_numpy(values), torch.from_numpy(at), **options
            )
            got = F.grid_sample(Tensor(values), Tensor(at), "bilinear", padding, True)
            np.testing.assert_array_equal(got.numpy(), want.numpy())
    point = np.ones((1, 1, 1, 1), f32)
    far = np.array([[[[INF, -INF]]]], f32)
    got = F.grid_sample(Tensor(point), Tensor(far), "bilinear", "reflection", True)
    np.testing.assert_array_equal(got.numpy(), [[[[1]]]])


# -- rounding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25])
def test_regions_are_rounded_as_c_rounds(scale: float) -> None:
    x = np.arange(2 * 49, dtype=f32).reshape(1, 2, 7, 7)
    rois = np.array(
        [[0, 0.5, 2.5, 4.5, 5.5], [0, 1, 1, 5, 9], [0, 3, 5, 7, 11], [0, 2, 2, 2, 2]], f32
    )
    model = single("MaxRoiPool", {"x": x, "r": rois}, pooled_shape=[2, 2], spatial_scale=scale)
    np.testing.assert_array_equal(run(model, x, rois)[0], peer(model, x, rois)[0])


SIGNS = [-7, -6, -1, 1, 6, 7]


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype)
    numbers = [n for n in (*SIGNS, info.min, info.min + 1, info.max) if n >= info.min]
    by = [n for n in (-4, -3, -2, 2, 3, 4) if n >= info.min]
    a, b = np.meshgrid(numbers, by)
    return a.astype(dtype).reshape(-1), b.astype(dtype).reshape(-1)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "float32"])
def test_quotients_and_remainders_of_onnx(dtype: str) -> None:
    a, b = pairs("int8") if dtype == "float32" else pairs(dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    if dtype == "float32":
        a, b = (
            np.append(v, w).astype(f32) for v, w in ((a, [-0.0, 5, -5, INF]), (b, [3, INF, INF, 2]))
        )
    models = [single("Mod", {"a": a, "b": b}, fmod=1)]
    if dtype != "float32":
        models += [single("Div", {"a": a, "b": b}), single("Mod", {"a": a, "b": b})]
    for model in models:
        got, want = run(model, a, b)[0], peer(model, a, b)[0]
        np.testing.assert_array_equal(got, want)
        real = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[real], np.signbit(want)[real])


@pytest.mark.parametrize("dtype", ["int8", "int32", "float32"])
def test_quotients_and_remainders_of_aten(dtype: str) -> None:
    a, b = (torch.from_numpy(x) for x in pairs("int8" if dtype == "float32" else dtype))
    a, b = (x.to(getattr(torch, dtype)) for x in (a, b))
    for mode in ("trunc", "floor", None):
        aten("div.Tensor_mode", a, b, rounding_mode=mode)
        aten("div.Scalar_mode", a, 3, rounding_mode=mode)
    for name in ("fmod.Tensor", "remainder.Tensor"):
        aten(name, a, b)
    aten("fmod.Scalar", a, -3)
    if dtype == "float32":
        aten("fmod.Tensor", torch.tensor([-0.0, 5, -5, INF]), torch.tensor([3.0, INF, INF, 2]))


def test_decimals_and_bins() -> None:
    x = torch.tensor([25.0, 35, 250, 350, -25, 0.125, 2.675, 1250])
    for decimals in (-2, -1, 0, 1, 2):
        aten("round.decimals", x, decimals=decimals)
    values = torch.tensor([0.1 * i for i in range(30)])
    for bins, low, high in ((7, 0, 0), (10, 0, 1), (3, 0.3, 2.1), (29, 0, 2.9)):
        aten("histc.default", values, bins, low, high)
