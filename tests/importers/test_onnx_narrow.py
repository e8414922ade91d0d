"""Sums of float16 and bfloat16, which are made in float32: beside NumPy's float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx_kit import MS, helper, onnx, run, single

from weft import tensor
from weft.importers import from_onnx

BF16 = np.dtype(ml_dtypes.bfloat16)
NARROW = [np.dtype(np.float16), BF16]
Fold = Callable[[np.ndarray], np.ndarray]
# Partial sums, squares and products of these leave float16's range; the results are within it.
X = np.stack([[[300.0, -400.0, 500.0, 0.5]], [[30000.0, 30000.0, -20000.0, 9000.0]]])
BIG = np.full((1, 4), 60000.0)


def _square(x: np.ndarray) -> np.ndarray:
    return (x * x).sum(-1, keepdims=True)


REDUCTIONS: dict[str, tuple[Fold, np.ndarray]] = {
    "ReduceL2": (lambda x: np.sqrt(_square(x)), X),
    "ReduceL1": (lambda x: np.abs(x).sum(-1, keepdims=True), X / 2),
    "ReduceMean": (lambda x: x.mean(-1, keepdims=True), BIG),
    "ReduceSum": (lambda x: x.sum(-1, keepdims=True), BIG * [1, 1, -1, -0.5]),
    "ReduceProd": (lambda x: x.prod(-1, keepdims=True), np.array([[300.0, 300.0, 0.001, 0.01]])),
    "ReduceSumSquare": (_square, np.repeat(0.5, 4099)[None]),
    "ReduceLogSum": (lambda x: np.log(x.sum(-1, keepdims=True)), BIG),
    "ReduceLogSumExp": (lambda x: np.log(np.exp(x).sum(-1, keepdims=True)), np.full((1, 999), 9.0)),
}


def near(have: np.ndarray, want: np.ndarray, dtype: np.dtype) -> None:
    """Raises AssertionError for another type, or for what is more than a rounding off."""
    assert have.dtype == dtype and have.shape == want.shape
    step = float(ml_dtypes.finfo(dtype).eps)
    assert np.isfinite(want).all()
    np.testing.assert_allclose(have.astype(np.float64), want, rtol=step, atol=step)


def holds(model: Any, operands: list[np.ndarray], want: np.ndarray, dtype: np.dtype) -> None:
    """`near` for a model compiled, and recorded node by node."""
    near(run(model, *operands)[0], want, dtype)
    near(from_onnx(model).train()(*operands).numpy(), want, dtype)


def on_host(op: str, whole: np.ndarray, dtype: np.dtype) -> Any:
    """The operator of whole numbers cast to a narrow float, which the host knows beforehand."""
    nodes = [
        helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(whole)),
        helper.make_node("Cast", ["w"], ["x"], to=helper.np_dtype_to_tensor_dtype(dtype)),
        helper.make_node(op, ["x", "a"], ["y"]),
    ]
    z = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1])
    axes = onnx.numpy_helper.from_array(np.array([-1]), "a")
    graph = helper.make_graph(nodes, "g", [z], [onnx.ValueInfoProto(name="y")], [axes])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, dtype: np.dtype) -> None:
    fold, values = REDUCTIONS[op]
    x = values.astype(dtype)
    want = fold(x.astype(np.float64))
    model = single(op, {"x": x, "a": np.array([-1])}, ["a"], keepdims=1)
    holds(model, [x], want, dtype)
    x = np.rint(values).astype(dtype)
    made = run(on_host(op, x.astype(np.int64), dtype), np.zeros(1, np.float32))[0]
    near(made, fold(x.astype(np.float64)), dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p: int, dtype: np.dtype) -> None:
    x = np.concatenate([X, np.zeros_like(X)]).astype(dtype)
    wide = x.astype(np.float64)
    size = (np.abs(wide) ** p).sum(-1, keepdims=True) ** (1 / p)
    want = np.divide(wide, size, out=np.zeros_like(wide), where=size > 0)
    holds(single("LpNormalization", {"x": x}, axis=-1, p=p), [x], want, dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pools(p: int, dtype: np.dtype) -> None:
    x = np.random.default_rng(p).uniform(-900, 900, (2, 3, 4, 6)).astype(dtype)
    power = np.abs(x.astype(np.float64)) ** p
    want = power.sum((2, 3), keepdims=True) ** (1 / p)
    holds(single("GlobalLpPool", {"x": x}, p=p), [x], want, dtype)
    want = power.reshape(2, 3, 2, 2, 3, 2).sum((3, 5)) ** (1 / p)
    model = single("LpPool", {"x": x}, p=p, kernel_shape=[2, 2], strides=[2, 2])
    holds(model, [x], want, dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_normalisations_of_images(dtype: np.dtype) -> None:
    x = (np.random.default_rng(0).standard_normal((2, 3, 4, 5)) * 9000).astype(dtype)
    wide = x.astype(np.float64)
    axes = (0, 2, 3)
    want = (wide - wide.mean(axes, keepdims=True)) / wide.std(axes, keepdims=True)
    holds(single("MeanVarianceNormalization", {"x": x}), [x], want, dtype)
    rim = np.pad(wide**2, [(0, 0), (1, 1), (0, 0), (0, 0)])
    total = rim[:, :-2] + rim[:, 1:-1] + rim[:, 2:]
    want = wide / (1 + 1e-4 / 3 * total) ** 0.75
    holds(single("LRN", {"x": x}, size=3), [x], want, dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sums_of_operands_and_scaled_products(dtype: np.dtype) -> None:
    x = BIG.astype(dtype)
    wide = x.astype(np.float64)
    holds(single("Mean", {"a": x, "b": x}), [x, x], wide, dtype)
    holds(single("Sum", {"a": x, "b": x, "c": -x}), [x, x, -x], wide, dtype)
    a = np.full((2, 4), 400.0, dtype)
    want = np.full((2, 2), 0.0625 * 4 * 160000.0)
    for op, domain in (("Gemm", ""), ("FusedMatMul", MS)):
        model = single(op, {"a": a, "b": a}, (), domain, transB=1, alpha=0.0625)
        holds(model, [a, a], want, dtype)


def test_slopes_of_lengths_are_zero_at_zero() -> None:
    zeros = np.zeros((1, 1, 2, 2), np.float32)
    for model in (
        single("ReduceL2", {"x": zeros, "a": np.array([3])}, ["a"]),
        single("LpNormalization", {"x": zeros}),
        single("GlobalLpPool", {"x": zeros}),
        single("LpPool", {"x": zeros}, kernel_shape=[2, 2]),
        single("MeanVarianceNormalization", {"x": zeros}),
    ):
        x = tensor(zeros, requires_grad=True)
        from_onnx(model)(x).sum().backward()
        assert x.grad is not None
        assert np.isfinite(x.grad.numpy()).all(), model.graph.node[0].op_type
