"""64-bit integers of ONNX: exact on the CPU, and an error where a device would wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_kit import helper, onnx, peer, run, single

from weft.errors import DTypeError
from weft.importers import from_onnx

i64 = np.int64
BIG = 1 << 20
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "add": ("Add", {"a": [2**31 - 1, 5], "b": [1, 5]}, {}),
    "sub": ("Sub", {"a": [-(2**31), 5], "b": [1, 5]}, {}),
    "mul": ("Mul", {"a": [BIG, 3], "b": [BIG, 2**31 - 1]}, {}),
    "neg": ("Neg", {"a": [-(2**31), 1]}, {}),
    "abs": ("Abs", {"a": [-(2**31), 1]}, {}),
    "pow": ("Pow", {"a": [10, 7], "b": [10, 12]}, {}),
    "div": ("Div", {"a": [-(2**31), 7], "b": [-1, 2]}, {}),
    "reduce_sum": ("ReduceSum", {"a": [2**31 - 1, 2**31 - 1]}, {"keepdims": 0}),
    "reduce_prod": ("ReduceProd", {"a": [BIG, BIG]}, {"keepdims": 0}),
    "reduce_square": ("ReduceSumSquare", {"a": [BIG, 1]}, {"keepdims": 0}),
    "matmul": ("MatMul", {"a": [[BIG, 1]], "b": [[BIG], [1]]}, {}),
    "einsum": ("Einsum", {"a": [[BIG, 1]], "b": [[BIG], [1]]}, {"equation": "ij,jk->ik"}),
    "beyond": ("Add", {"a": [2**40, 1], "b": [1, 1]}, {}),
    "small": ("Mul", {"a": [3, -4], "b": [5, 6]}, {}),
}


def typed(model: Any) -> Any:
    """The model with outputs declared int64."""
    for port in model.graph.output:
        port.CopyFrom(helper.make_tensor_value_info(port.name, 7, None))
    return model


@pytest.mark.parametrize("name", CASES)
def test_exact_on_the_cpu(name: str) -> None:
    op, given, attrs = CASES[name]
    arrays = {k: np.array(v, i64) for k, v in given.items()}
    model = typed(single(op, arrays, **attrs))
    for _ in range(2):  # the second call as well
        (got,) = run(model, *arrays.values())
        assert got.dtype == i64
        np.testing.assert_array_equal(got, peer(model, *arrays.values())[0])


def test_casts_and_running_sums() -> None:
    x = np.array([3e9, -5e12, 1, 2**31, -(2.0**31)], np.float32)
    model = typed(single("Cast", {"x": x}, to=7))
    np.testing.assert_array_equal(run(model, x)[0], x.astype(i64))
    for low in ([2**31 - 1, 2**31 - 1], [1, 2]):
        arrays = {"x": np.array(low, i64), "axis": np.array(0, i64)}
        model = typed(single("CumSum", arrays, ["axis"]))
        np.testing.assert_array_equal(run(model, arrays["x"])[0], np.cumsum(low))


def chain() -> Any:
    """gather(table, argmax(scores)) * factor: int64 goes from operand to result."""
    ports = [
        helper.make_tensor_value_info("s", 1, [2, 3]),
        helper.make_tensor_value_info("f", 7, [2]),
    ]
    table = onnx.numpy_helper.from_array(np.array([1, BIG, 3], i64), "table")
    nodes = [helper.make_node("ArgMax", ["s"], ["i"], axis=1, keepdims=0),
             helper.make_node("Gather", ["table", "i"], ["g"]),
             helper.make_node("Where", ["m", "g", "f"], ["w"]),
             helper.make_node("Mul", ["w", "f"], ["y"])]  # fmt: skip
    mask = onnx.numpy_helper.from_array(np.array([True, True]), "m")
    out = helper.make_tensor_value_info("y", 7, [2])
    graph = helper.make_graph(nodes, "g", ports, [out], [table, mask])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])


def test_through_other_operators_and_devices() -> None:
    scores = np.array([[0, 1, 0], [1, 0, 0]], np.float32)
    for factor in ([BIG, 1], [2, 3]):
        operands = (scores, np.array(factor, i64))
        got = from_onnx(chain())(*operands).numpy()
        np.testing.assert_array_equal(got, [BIG * factor[0], factor[1]])
    model = from_onnx(chain(), "interp")
    small = model(scores, np.array([2, 3], i64)).numpy()
    np.testing.assert_array_equal(small, [2 * BIG, 3])
    with pytest.raises(DTypeError, match=r"node Mul 'y': an int64 result beyond 32 bits.*the CPU"):
        model(scores, np.array([BIG, 1], i64))


def test_int32_wraps_as_it_does() -> None:
    a = np.array([2**31 - 1, 5], np.int32)
    (got,) = run(single("Add", {"a": a, "b": a}), a, a)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [-2, 10])


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(0, 2**63 - 1, 1), (-(2**63), 2**63 - 1, 1), (2**63 - 1, -(2**63), -1), (5, 2**63 - 1, 2)],
)
def test_slices_to_the_largest_number(start: int, stop: int, step: int) -> None:
    x = np.arange(10, dtype=np.float32)
    arrays = {"x": x, **{n: np.array([v], i64) for n, v in zip("seat", (start, stop, 0, step))}}
    for constants in (["s", "e", "a", "t"], ["a"]):
        model = single("Slice", arrays, constants)
        operands = [v for n, v in arrays.items() if n not in constants]
        np.testing.assert_array_equal(run(model, *operands)[0], peer(model, *operands)[0])
    for device in (None, "interp"):
        model = single("Slice", arrays, ["a"])
        got = from_onnx(model, device)(*(v for n, v in arrays.items() if n != "a")).numpy()
        assert got[0] == x[min(max(start, 0), 9)]


def test_ranges_beyond_32_bits() -> None:
    arrays = {n: np.array(v, i64) for n, v in zip("abc", (0, 2**40, 2**38))}
    model = typed(single("Range", arrays))
    np.testing.assert_array_equal(run(model, *arrays.values())[0], np.arange(0, 2**40, 2**38))
