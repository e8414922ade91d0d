"""Operators of ONNX at their edges: exact integers, attributes that contradict weights, regions and
sequences without extent, loops without end, and operators of com.microsoft."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from onnx_kit import MS, helper, onnx, peer, run, single
from rows import covering
from test_pt2_hostile import MODEL, changed, members, written  # noqa: F401  (a fixture)

from weft.errors import CallError, FileFormatError, LimitError, ShapeError, UsageError, WeftError
from weft.importers import from_onnx, from_torch

f32, i64 = np.float32, np.int64
ONES = np.ones


def bytes_of(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(len(shape)).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("signs", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_of_integers_are_exact(signs: tuple[Any, Any], groups: int) -> None:
    """Sums beyond 2^24, by NumPy in 64 bits."""
    x, w = bytes_of(2, 600, 6, 5, dtype=signs[0]), bytes_of(4, 600 // groups, 3, 3, dtype=signs[1])
    x[0], w[0] = np.iinfo(signs[0]).max, np.iinfo(signs[1]).max
    arrays = {"x": x, "w": w, "zx": np.array(3, signs[0]), "zw": np.array([1, 2, 3, 4], signs[1])}
    attrs = {"group": groups, "pads": [1, 0, 1, 1], "strides": [2, 1]}
    wide = np.pad(x.astype(i64) - 3, [(0, 0), (0, 0), (1, 1), (0, 1)])
    centred = w.astype(i64) - np.array([1, 2, 3, 4]).reshape(4, 1, 1, 1)
    seen = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))[:, :, ::2]
    parts = [
        np.einsum("nchwij,ocij->nohw", s, c)
        for s, c in zip(np.split(seen, groups, 1), np.split(centred, groups, 0))
    ]
    want = np.concatenate(parts, 1)
    assert np.abs(want).max() > 1 << 24
    for constants in (["w", "zx", "zw"], ["w"]):
        model = single("ConvInteger", arrays, constants, **attrs)
        operands = [v for n, v in arrays.items() if n not in constants]
        np.testing.assert_array_equal(run(model, *operands)[0], want)


def test_integer_einsum_is_exact() -> None:
    rng = np.random.default_rng(0)
    for equation, shapes in (
        ("ij,jk->ik", [(2, 300), (300, 3)]), ("...i,i->...", [(2, 3, 40), (40,)]),
        ("bij,bkj->bik", [(2, 3, 40), (2, 4, 40)]), ("ij->ji", [(2, 3)]),
        ("ij,jk", [(2, 3), (3, 4)]),
    ):  # fmt: skip
        arrays = {
            f"x{i}": rng.integers(2000, 2999, s).astype(np.int32) for i, s in enumerate(shapes)
        }
        want = np.einsum(equation, *(a.astype(i64) for a in arrays.values()))
        model = single("Einsum", arrays, equation=equation)
        np.testing.assert_array_equal(run(model, *arrays.values())[0], want)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_without_extent(mode: str) -> None:
    x = np.arange(32, dtype=f32).reshape(1, 2, 4, 4)
    rois = np.array([[1, 1, 1, 1], [1.5, 1, 1.5, 3], [3, 3, 1, 1], [0, 0, 3, 3]], f32)
    arrays = {"x": x, "r": rois, "b": np.zeros(4, i64)}
    for kind in ("half_pixel", "output_half_pixel"):
        model = single("RoiAlign", arrays, mode=mode, output_height=2, output_width=2,
                       coordinate_transformation_mode=kind)  # fmt: skip
        np.testing.assert_allclose(
            run(model, *arrays.values())[0], peer(model, *arrays.values())[0], rtol=1e-5
        )


def test_quantising_zeros() -> None:
    x = np.zeros((2, 3), f32)
    model = single("DynamicQuantizeLinear", {"x": x}, outputs=["y", "s", "z"])
    for got, want in zip(run(model, x), peer(model, x)):
        np.testing.assert_array_equal(got, want)


W, X = ONES((2, 3, 3, 3), f32), ONES((1, 3, 5, 5), f32)
Q, U = ONES((1, 3, 5, 5), np.uint8), ONES((2, 3, 3, 3), np.uint8)
LSTM = {"x": ONES((2, 1, 3), f32), "w": ONES((1, 8, 3), f32), "r": ONES((1, 8, 2), f32)}
_ONE, _NONE = np.array(1, f32), np.array(0, np.uint8)
SCALES = {"sx": _ONE, "zx": _NONE, "w": U, "sw": _ONE, "zw": _NONE, "sy": _ONE, "zy": _NONE}
Y = ONES((1, 2, 5, 5), f32)
CONTRADICTIONS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Conv", {"x": X, "w": W}, {"kernel_shape": [2, 2]}, "kernel_shape .* contradicts"),
    ("Conv", {"x": X, "w": W}, {"kernel_shape": [3]}, "kernel_shape .* contradicts"),
    ("Conv", {"x": X, "w": W}, {"strides": [1]}, "strides"),
    ("Conv", {"x": X, "w": W}, {"strides": [0, 1]}, "strides"),
    ("Conv", {"x": X, "w": W}, {"dilations": [1, 1, 1]}, "dilations"),
    ("Conv", {"x": X, "w": W}, {"pads": [1, 1]}, "2 pads"),
    ("Conv", {"x": X, "w": W}, {"auto_pad": "SOME"}, "auto_pad"),
    ("Conv", {"x": X, "w": W}, {"group": 3}, "groups 3"),
    ("ConvTranspose", {"x": Y, "w": W}, {"kernel_shape": [2, 2]}, "contradicts"),
    ("ConvTranspose", {"x": Y, "w": W}, {"output_padding": [1]}, "output_padding"),
    ("ConvTranspose", {"x": Y, "w": W, "b": ONES(1, f32)}, {}, "bias"),
    ("ConvInteger", {"x": Q, "w": U}, {"kernel_shape": [2, 2]}, "contradicts"),
    ("ConvInteger", {"x": Q, "w": U}, {"group": 2}, "2 groups"),
    ("QLinearConv", {"x": Q, **SCALES}, {"kernel_shape": [2, 2]}, "contradicts"),
    ("DeformConv", {"x": X, "w": W, "o": np.zeros((1, 18, 3, 3), f32)}, {"kernel_shape": [2, 2]},
     "contradicts"),
    ("LSTM", LSTM, {"hidden_size": 3}, "hidden_size 3"),
    ("LSTM", {**LSTM, "w": ONES((2, 8, 3), f32)}, {"hidden_size": 2}, "1 directions"),
    ("LSTM", LSTM, {"hidden_size": 2, "direction": "bidirectional"}, "2 directions"),
    ("LSTM", LSTM, {"hidden_size": 2, "direction": "sideways"}, "direction 'sideways'"),
    ("LSTM", {**LSTM, "b": ONES((1, 8), f32)}, {"hidden_size": 2}, "B"),
    ("LSTM", LSTM, {"hidden_size": 2, "activations": ["Relu"]}, "1 activations; 3"),
    ("GRU", {"x": ONES((2, 1, 3), f32), "w": ONES((1, 6, 3), f32), "r": ONES((1, 6, 2), f32)},
     {"hidden_size": 5}, "hidden_size 5"),
    ("RNN", {"x": ONES((2, 1, 3), f32), "w": ONES((1, 2, 4), f32), "r": ONES((1, 2, 2), f32)},
     {"hidden_size": 2}, "W"),
    ("Gemm", {"a": ONES((2, 3), f32), "b": ONES((3, 4), f32), "c": ONES((5, 2, 4), f32)}, {}, "C"),
    ("Gemm", {"a": ONES((2, 2, 3), f32), "b": ONES((3, 4), f32)}, {}, "two matrices"),
    ("Split", {"x": ONES(6, f32), "s": np.array([2, 2, 2])}, {"outputs": ["a", "b"]}, "sizes"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attrs", "said"), CONTRADICTIONS)
def test_contradictions(op: str, arrays: Any, attrs: Any, said: str) -> None:
    model = single(op, arrays, ["s"] if op == "Split" else (), **attrs)
    with pytest.raises((ShapeError, UsageError), match=said) as found:
        run(model, *(v for n, v in arrays.items() if op != "Split" or n != "s"))
    assert f"node {op}" in str(found.value)


# -- nothing to do, and too much -------------------------------------------------------------------


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_sequences_of_no_steps(op: str, gates: int) -> None:
    """They end in zeros, whatever their first state, as in ONNX Runtime (which such an LSTM may
    abort)."""
    arrays = {"x": ONES((0, 2, 3), f32), "w": ONES((1, 2 * gates, 3), f32),
              "r": ONES((1, 2 * gates, 2), f32), "b": ONES((1, 4 * gates), f32),
              "n": np.zeros(2, np.int32), "h": ONES((1, 2, 2), f32) * 7}  # fmt: skip
    for lengths in ("n", ""):
        given = {n: v for n, v in arrays.items() if n != "n" or lengths}
        names = ["x", "w", "r", "b", lengths, "h"]
        weights = [n for n in given if n != "x"]
        model = single(op, given, weights, names=names, hidden_size=2, outputs=["y", "yh"])
        rows, last = run(model, arrays["x"])
        assert rows.shape == (0, 1, 2, 2)
        np.testing.assert_array_equal(last, np.zeros((1, 2, 2), f32))


def test_batch_normalisation_of_one_axis() -> None:
    arrays = {
        "x": np.arange(4, dtype=f32),
        **{n: ONES(1, f32) * k for n, k in zip("sbmv", (2, 3, 1, 4))},
    }
    model = single("BatchNormalization", arrays, list("sbmv"))
    np.testing.assert_allclose(run(model, arrays["x"])[0], peer(model, arrays["x"])[0], rtol=1e-5)


@pytest.mark.parametrize(
    "how, op, size",
    covering(["max", "min", "mul", "add"], ["ScatterND", "ScatterElements"], [10, 3000, 3000, 10]),
)
def test_scattered_reductions(op: str, how: str, size: int) -> None:
    """Few rows at once, many by sorting; several of one place."""
    rng = np.random.default_rng(size)
    count = min(size * 2, 4000) if op == "ScatterND" else size // 2
    shape = (count, 1) if op == "ScatterND" else (count, 2)
    arrays = {"x": rng.standard_normal((size, 2)).astype(f32),
              "i": rng.integers(-size, size, shape).astype(i64),
              "u": rng.uniform(0.5, 1.5, (count, 2)).astype(f32)}  # fmt: skip
    model = single(op, arrays, reduction=how)
    got, want = run(model, *arrays.values())[0], peer(model, *arrays.values())[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def looped(turns: int, ends: bool, given: bool) -> Any:
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["s", "one"], ["t"])]
    nodes.append(helper.make_node("Less" if ends else "Identity",
                                  ["t", "five"] if ends else ["c"], ["d"]))  # fmt: skip
    numbers = [
        onnx.numpy_helper.from_array(np.array(v, f32), n) for n, v in (("one", 1), ("five", 5))
    ]
    body = helper.make_graph(nodes, "b", [info("i", 7, []), info("c", 9, []), info("s", 1, [])],
                             [info("d", 9, []), info("t", 1, [])], numbers)  # fmt: skip
    ports = [info("x", 1, []), *([info("m", 7, [])] if given else [])]
    constants = [onnx.numpy_helper.from_array(np.array(True), "go")]
    if not given:
        constants.append(onnx.numpy_helper.from_array(np.array(turns, i64), "m"))
    node = helper.make_node("Loop", ["m", "go", "x"], ["y"], body=body)
    graph = helper.make_graph([node], "g", ports, [info("y", 1, [])], constants)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("given", [False, True])
def test_loops_are_bounded_before_they_run(given: bool) -> None:
    def call(turns: int, ends: bool) -> Any:
        operands = [np.array(0, f32), *([np.array(turns, i64)] if given else [])]
        return float(from_onnx(looped(turns, ends, given))(*operands).numpy())

    assert call(2**63 - 1, True) == 5 and call(7, False) == 7
    for turns in (1 << 60, (1 << 16) + 1):
        with pytest.raises(LimitError, match=f"a loop of {turns} turns"):
            call(turns, False)


# -- initializers that are inputs, damaged ranges --------------------------------------------------


def test_an_initializer_that_is_an_input_can_be_given() -> None:
    info = helper.make_tensor_value_info
    weight = np.arange(6, dtype=f32).reshape(2, 3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]),
             helper.make_node("Reshape", ["a", "shape"], ["y"])]  # fmt: skip
    constants = [onnx.numpy_helper.from_array(v, n)
                 for n, v in (("w", weight), ("shape", np.array([3, 4])))]  # fmt: skip
    ports = [info("x", 1, [4, 2]), info("w", 1, [2, 3]), info("shape", 7, [2])]
    graph = helper.make_graph(nodes, "g", ports, [info("y", 1, None)], constants)
    model = from_onnx(
        helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])
    )
    x = ONES((4, 2), f32)
    assert [p.name for p in model.inputs] == ["x"]
    for _ in range(2):
        np.testing.assert_array_equal(model(x).numpy(), (x @ weight).reshape(3, 4))
        got = model(x, w=weight * 2, shape=np.array([6, 2])).numpy()
        np.testing.assert_array_equal(got, (x @ weight * 2).reshape(6, 2))
    with pytest.raises(ShapeError, match="input w"):
        model(x, w=weight.T)
    with pytest.raises(CallError, match="no input 'v' is left"):
        model(x, v=weight)


@pytest.mark.parametrize("end", ["min_val", "max_val"])
@pytest.mark.parametrize("value", ["x", [], {}, 2.5, True, -1, 1 << 70, None])
def test_damaged_ranges(end: str, value: Any, members: Any, tmp_path: Any) -> None:  # noqa: F811
    def damage(model: Any) -> None:
        for entry in model["range_constraints"].values():
            entry[end] = value

    assert json.loads(members[MODEL])["range_constraints"]
    path = written(tmp_path / "m.pt2", changed(members, MODEL, damage))
    if value is None or type(value) is int:
        try:
            from_torch(path)(ONES((2, 4), f32))
        except WeftError as error:
            assert "exported for" in str(error)
        return
    with pytest.raises(FileFormatError, match="range_constraints of"):
        from_torch(path)


# -- com.microsoft ---------------------------------------------------------------------------------

A = np.random.default_rng(5).standard_normal((2, 3, 3)).astype(f32)
IMAGE = np.arange(16, dtype=f32).reshape(1, 1, 4, 4)
GRID = np.array([[[[0, 0], [-0.5, 0.5], [0.25, -0.25]]]], f32)
CONTRIB: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("Inverse", {"x": A}, "", {}),
    ("Trilu", {"x": A, "k": np.array(1)}, "k", {}),
    ("Trilu", {"x": A}, "", {"upper": 0}),
    ("ExpandDims", {"x": A, "k": np.array(-1, np.int32)}, "k", {}),
    ("ExpandDims", {"x": A, "k": np.array(1, np.int32)}, "", {}),
    ("GatherND", {"x": A, "k": np.array([[0, 1], [1, 2]])}, "", {}),
    ("GridSample", {"x": IMAGE, "g": GRID}, "", {"mode": "bilinear"}),
    ("GridSample", {"x": IMAGE, "g": GRID}, "", {"mode": "nearest", "padding_mode": "border"}),
    ("GridSample", {"x": IMAGE, "g": GRID}, "", {"mode": "bicubic", "align_corners": 1}),
    ("Unique", {"x": np.array([3, 1, 3, 2, 1], f32)}, "", {"outputs": ["y", "i", "c"]}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "constants", "attrs"), CONTRIB)
def test_microsoft(op: str, arrays: Any, constants: str, attrs: Any) -> None:
    model = single(op, arrays, constants.split(), MS, **attrs)
    operands = [v for n, v in arrays.items() if n not in constants.split()]
    for got, want in zip(run(model, *operands), peer(model, *operands), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_singular_matrix_has_no_inverse() -> None:
    x = np.zeros((2, 2, 2), f32)
    x[1] = np.eye(2)
    (got,) = run(single("Inverse", {"x": x}, domain=MS), x)
    assert np.isnan(got[0]).all() and (got[1] == np.eye(2)).all()


def test_aten_reduces_onto_places() -> None:
    from weft.importers.aten import entry
    from weft.tensor.core import Tensor

    x, src = torch.randn(4, 6), torch.randn(4, 5)
    at = torch.randint(0, 6, (4, 5))
    found = entry("aten.scatter_reduce.two")
    assert found is not None
    for how in ("prod", "amax", "amin"):
        for include in (True, False):
            want = torch.ops.aten.scatter_reduce.two(x, 1, at, src, how, include_self=include)
            operands = (Tensor(v.numpy()) for v in (x, at.to(torch.int32), src))
            a, b, c = operands
            got = found.run(a, 1, b, c, how, include)
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
