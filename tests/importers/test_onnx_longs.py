"""64-bit integers of ONNX: exact on the CPU, and an error where a device would wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx_kit import helper, onnx, peer, run, single

import weft
from weft.errors import DTypeError
from weft.importers import from_onnx

ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
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


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_a_part_of_a_larger_trace_is_checked(device: str) -> None:
    model = from_onnx(chain(), None if device == "cpu" else device)
    scores = np.array([[0, 1, 0], [1, 0, 0]], np.float32)

    def around(s: Any, f: Any) -> Any:
        return {"twice": model(s, f) * 2, "f": f}

    fn = weft.compile(around, device)
    for _ in range(6):  # the shorter way of later calls as well
        made = fn(scores, np.array([2, 3], np.int32))
        np.testing.assert_array_equal(made["twice"].numpy(), [4 * BIG, 6])
        with pytest.raises(DTypeError, match="node Mul 'y': an int64 result beyond 32 bits"):
            fn(scores, np.array([BIG, 1], np.int32))


@pytest.mark.parametrize("count", [4096, 4097])
def test_long_constants_beyond_32_bits(count: int) -> None:
    table = np.arange(count, dtype=i64) << 24
    model = typed(single("Gather", {"t": table, "i": np.array([1, 5], i64)}, ["t"]))
    for picked in ([0, 1], [count - 1, 127]):
        got = run(model, np.array(picked, i64))[0]
        np.testing.assert_array_equal(got, table[picked])
    with pytest.raises(DTypeError, match="node Gather 'y': a tensor holds"):
        run(model, np.array([0, 1], i64), device="interp")
    loaded = from_onnx(model)
    with pytest.raises(DTypeError, match="node Gather 'y': a tensor holds"):
        weft.compile(lambda i: loaded(i))(np.array([0, 1], np.int32))


# -- random graphs, by onnx's own reference -------------------------------------------------------

SHAPE = (2, 3)
OPS: dict[str, tuple[int, dict[str, Any]]] = {
    "Add": (2, {}), "Sub": (2, {}), "Mul": (2, {}), "Neg": (1, {}), "Abs": (1, {}),
    "Max": (2, {}), "Min": (2, {}), "Sum": (3, {}), "Identity": (1, {}), "Sign": (1, {}),
    "Where": (2, {}), "Concat": (2, {"axis": 1}), "CumSum": (1, {}), "ReduceSum": (1, {}),
    "ReduceMax": (1, {}), "Cast": (1, {}),
}  # fmt: skip
EDGES = [0, 1, -1, 2, 7, 1000, 46341, -46341, 2**31 - 1, -(2**31), 2**30, 2**31, -(2**40)]


def random_graph(draw: Any) -> tuple[Any, list[np.ndarray]]:
    """A model of int64 from operators drawn, and its operands; intermediates are outputs too."""
    number = st.one_of(st.sampled_from(EDGES), st.integers(-100, 100))
    fill = st.lists(number, min_size=6, max_size=6).map(lambda v: np.array(v, i64).reshape(SHAPE))
    constant = onnx.numpy_helper.from_array(draw(fill), "c")
    many = onnx.numpy_helper.from_array(np.resize(draw(fill), (2200, 3)), "many")  # long
    names, nodes = ["a", "b", "c"], []
    axis = onnx.numpy_helper.from_array(np.array([1], i64), "axis")
    mask = onnx.numpy_helper.from_array(np.array([[True, False, True]]), "mask")
    pair = onnx.numpy_helper.from_array(np.array([0, 1], i64), "pair")
    nodes.append(helper.make_node("Gather", ["many", "pair"], ["g"], axis=0))
    names.append("g")
    for n in range(draw(st.integers(1, 5))):
        op = draw(st.sampled_from(sorted(OPS)))
        count, attrs = OPS[op]
        operands = [draw(st.sampled_from(names)) for _ in range(count)]
        out = f"v{n}"
        if op == "Where":
            nodes.append(helper.make_node(op, ["mask", *operands], [out]))
        elif op == "CumSum":
            nodes.append(helper.make_node(op, [operands[0], "one"], [out]))
        elif op in ("ReduceSum", "ReduceMax"):
            nodes.append(helper.make_node(op, [operands[0], "axis"], [out], keepdims=1))
        elif op == "Concat":  # and back to three columns
            nodes.append(helper.make_node(op, operands, [out + "w"], **attrs))
            nodes.append(helper.make_node("Gather", [out + "w", "odd"], [out], axis=1))
        elif op == "Cast":  # by way of float32, which is exact for what is small
            nodes.append(helper.make_node(op, operands, [out + "f"], to=1))
            nodes.append(helper.make_node(op, [out + "f"], [out], to=7))
        else:
            nodes.append(helper.make_node(op, operands, [out], **attrs))
        names.append(out)
    odd = onnx.numpy_helper.from_array(np.array([0, -1, -2], i64), "odd")
    one = onnx.numpy_helper.from_array(np.array(1, i64), "one")
    ports = [helper.make_tensor_value_info(n, 7, SHAPE) for n in "ab"]
    outputs = [helper.make_tensor_value_info(n, 7, None) for n in names[3:]]
    held = [constant, many, axis, mask, pair, odd, one]
    graph = helper.make_graph(nodes, "g", ports, outputs, held)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])
    return model, [draw(fill), draw(fill)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_graphs(data: st.DataObject) -> None:
    model, operands = random_graph(data.draw)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(model).run(None, dict(zip("ab", operands)))
    loaded = from_onnx(model)
    got = loaded(*operands)
    got = got if isinstance(got, tuple) else (got,)
    for g, w in zip(got, want, strict=True):
        assert g.numpy().dtype == i64
        np.testing.assert_array_equal(g.numpy(), w)
    held = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
    known = [x for x in (*want, *held, *operands) if x.dtype == i64]
    small = all(np.abs(x.astype(float)).max() < 2.0**30 for x in known)
    if any(np.abs(x.astype(float)).max() >= 2.0**31 for x in operands):
        return  # a compiled function takes 64 bits as 32
    fn = weft.compile(lambda a, b: loaded(a, b), "cpu")
    try:
        made = fn(*(x.astype(np.int32) for x in operands))
    except DTypeError:
        assert not small
        return
    made = made if isinstance(made, tuple) else (made,)
    for g, w in zip(made, want, strict=True):
        np.testing.assert_array_equal(g.numpy(), w)
