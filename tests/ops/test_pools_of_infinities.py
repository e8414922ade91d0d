"""Maxima of windows over infinities, integers and padding, by every door, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rows import by_turns

import weft
from weft import nn
from weft.errors import DTypeError
from weft.importers.aten import entry
from weft.tensor import functional as F
from weft.tensor.core import Tensor

WINDOWS: list[tuple[Any, Any, Any, Any, bool]] = [
    ((3, 3), (1, 1), (1, 1), (1, 1), False),
    ((3, 3), (2, 2), (1, 1), (1, 1), True),
    ((2, 3), (2, 1), (1, 1), (2, 1), False),
    ((17, 3), (3, 2), (8, 1), (1, 2), True),  # along one axis by windows, not place by place
    ((20, 20), (1, 1), (10, 10), (1, 1), False),
]
FILLS = ("all", "most", "ties", "least")


def image(fill: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 23, 21)).astype(np.float32)
    if fill == "all":
        x[:] = -np.inf
    elif fill == "least":
        x[:] = np.finfo(np.float32).min
        x[0, 0] = -np.inf
    else:
        x = np.round(x) if fill == "ties" else x
        x[rng.random(x.shape) < 0.8] = -np.inf
    return x


@pytest.mark.parametrize("window,fill", by_turns([(window,) for window in WINDOWS], FILLS, 2))
def test_floats(window: tuple[Any, Any, Any, Any, bool], fill: str) -> None:
    *sizes, ceil = window
    x = image(fill)
    theirs = torch.from_numpy(x.copy()).requires_grad_()
    out, at = torch.nn.functional.max_pool2d(theirs, *sizes, ceil_mode=ceil, return_indices=True)
    g = np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)
    out.backward(torch.from_numpy(g))
    ours = Tensor(x.copy()).requires_grad_()
    got, index = F.max_pool2d(ours, *sizes, ceil, True)
    got.backward(Tensor(g))
    wanted = (out.detach().numpy(), at.numpy())
    for have, want in zip((got, index), wanted):
        np.testing.assert_array_equal(have.numpy(), want)
    assert theirs.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-5)
    compiled = weft.compile(lambda t: F.max_pool2d(t, *sizes, ceil, True), "cpu")
    operator = entry("aten.max_pool2d_with_indices.default")
    assert operator is not None
    for made in (compiled(Tensor(x)), operator.run(Tensor(x), *sizes, ceil)):
        for have, want in zip(made, wanted):
            np.testing.assert_array_equal(have.numpy(), want)
    module = nn.MaxPool2d(*sizes, ceil_mode=ceil)
    np.testing.assert_array_equal(module(Tensor(x)).numpy(), wanted[0])


@pytest.mark.parametrize(
    "window,dtype",
    by_turns([(window,) for window in WINDOWS[::2]], ["int8", "uint8", "int32", "uint32"]),
)
def test_integers(window: tuple[Any, Any, Any, Any, bool], dtype: str) -> None:
    *sizes, ceil = window
    info = np.iinfo(dtype)
    x = np.random.default_rng(1).integers(info.min, info.max, (2, 3, 23, 21), np.int64)
    x[0] = info.min
    out, at = torch.nn.functional.max_pool2d(
        torch.from_numpy(x), *sizes, ceil_mode=ceil, return_indices=True
    )
    for run in (lambda fn: fn, lambda fn: weft.compile(fn, "cpu")):
        got, index = run(lambda t: F.max_pool2d(t, *sizes, ceil, True))(Tensor(x.astype(dtype)))
        assert got.dtype.name == dtype
        np.testing.assert_array_equal(got.numpy(), out.numpy())
        np.testing.assert_array_equal(index.numpy(), at.numpy())


def test_other_ranks_narrow_floats_and_refusals() -> None:
    for rank in (1, 3):
        x = np.full((1, 2, *[6] * rank), -np.inf, np.float32)
        theirs = getattr(torch.nn.functional, f"max_pool{rank}d")
        out, at = theirs(torch.from_numpy(x), 3, 2, 1, return_indices=True)
        got, index = getattr(F, f"max_pool{rank}d")(Tensor(x), 3, 2, 1, return_indices=True)
        np.testing.assert_array_equal(got.numpy(), out.numpy())
        np.testing.assert_array_equal(index.numpy(), at.numpy())
        for dtype in ("float16", "bfloat16"):
            narrow = getattr(F, f"max_pool{rank}d")(Tensor(x).cast(dtype), 3, 2, 1)
            assert np.isneginf(narrow.cast("float32").numpy()).all()
    with pytest.raises(DTypeError, match="max_pool2d: got bool"):
        F.max_pool2d(Tensor(np.ones((1, 1, 4, 4), bool)), 2)


def model(x: np.ndarray, outputs: list[str], **attrs: Any) -> Any:
    kit = pytest.importorskip("onnx").helper
    kind = kit.np_dtype_to_tensor_dtype(x.dtype)
    port = kit.make_tensor_value_info("x", kind, x.shape)
    node = kit.make_node("MaxPool", ["x"], outputs, **attrs)
    ports = [kit.make_tensor_value_info(n, t, None) for n, t in zip(outputs, (kind, 7))]
    graph = kit.make_graph([node], "g", [port], ports)
    return kit.make_model(graph, ir_version=9, opset_imports=[kit.make_opsetid("", 21)])


@pytest.mark.parametrize("window,fill", by_turns([(window,) for window in WINDOWS[:3]], FILLS))
def test_onnx(window: tuple[Any, Any, Any, Any, bool], fill: str) -> None:
    from weft.importers import from_onnx

    kernel, strides, pads, dilations, ceil = window
    x = image(fill)
    out, at = torch.nn.functional.max_pool2d(
        torch.from_numpy(x), *window[:4], ceil_mode=ceil, return_indices=True
    )
    size = x.shape[2] * x.shape[3]
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1, 1) * size
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": pads * 2, "dilations": dilations,
             "ceil_mode": int(ceil)}  # fmt: skip
    by_row, by_column = at.numpy(), at.numpy() % x.shape[3] * x.shape[2] + at.numpy() // x.shape[3]
    for order, index in ((0, by_row), (1, by_column)):
        made = model(x, ["y", "i"], storage_order=order, **attrs)
        for have, want in zip(from_onnx(made)(x), (out.numpy(), index + planes)):
            np.testing.assert_array_equal(have.numpy(), want)
    np.testing.assert_array_equal(from_onnx(model(x, ["y"], **attrs))(x).numpy(), out.numpy())


def test_onnx_integers_and_wide_padding() -> None:
    """A padding of more than half the kernel, which PyTorch has not."""
    from weft.importers import from_onnx

    x = np.random.default_rng(2).integers(-128, -90, (1, 2, 5, 5)).astype(np.int8)
    attrs = {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]}
    for dtype, least in ((np.int8, -128), (np.float32, -np.inf)):
        values = x.astype(dtype)
        wide = np.pad(values, [(0, 0), (0, 0), (2, 2), (2, 2)], constant_values=least)
        want = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3)).max((4, 5))
        got = from_onnx(model(values, ["y"], **attrs))(values).numpy()
        np.testing.assert_array_equal(got, want)
