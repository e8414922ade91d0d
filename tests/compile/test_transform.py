"""Transforms keep every value to the bit, and do what they are named after."""

import numpy as np
import pytest
from graphs import check, f32, i32, random_graph, values_for
from rows import covering

from weft import ops
from weft.backends.registry import get
from weft.core import dtypes as dt
from weft.graph.ir import Graph, toposort
from weft.ops.evaluate import evaluate
from weft.ops.graph_listener import as_node, input_node
from weft.transform import reduce
from weft.transform.fold import fold
from weft.transform.inline import inline
from weft.transform.join import join_pads
from weft.transform.prune import cse, dce
from weft.transform.reduce import split_reductions
from weft.transform.select_rows_early import select_rows_early
from weft.transform.sink_reshapes import sink_reshapes

SPECIAL = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-45, 3e38], np.float32)


def count(graph):
    return [n.op for n in toposort(graph.roots()) if n.op not in ("input", "const", "broadcast")]


def one(build, dtype=dt.float32, shape=SPECIAL.shape):
    x = input_node("x", shape, dtype)
    return Graph((x,), (build(x),))


def same_bits(graph, changed, values):
    for a, b in zip(ops.evaluate(graph, values), ops.evaluate(changed, values)):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        keep = ~np.isnan(a)
        np.testing.assert_array_equal(a[keep], b[keep])
        np.testing.assert_array_equal(np.signbit(a[keep]), np.signbit(b[keep]))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: ops.mul(x, 1.0), []),
        (lambda x: ops.div(x, 1.0), []),
        (lambda x: ops.sub(x, 0.0), []),
        (lambda x: ops.add(x, -0.0), []),
        (lambda x: ops.add(x, 0.0), ["add"]),  # turns -0.0 into 0.0
        (lambda x: ops.sub(x, -0.0), ["sub"]),
        (lambda x: ops.mul(x, 0.0), ["mul"]),  # NaN and infinities stay NaN
        (lambda x: ops.neg(ops.neg(x)), []),
        (lambda x: ops.pow_(x, 2.0), ["mul"]),
        (lambda x: ops.cast(ops.cast(x, dt.float16), dt.float32), ["cast", "cast"]),
        (lambda x: ops.reshape(ops.reshape(x, (3, 3)), (9,)), []),
        (lambda x: ops.add(x, ops.sin(ops.full_like(x, 2.0))), ["add"]),
    ],
)
def test_identities_are_exact(build, left):
    graph = one(build)
    folded = fold(graph)
    assert count(folded) == left
    same_bits(graph, folded, [SPECIAL])


def test_cast_chains_keep_their_rounding():
    graph = one(lambda x: ops.cast(ops.cast(x, dt.float32), dt.float16), dt.float16, (5,))
    assert count(fold(graph)) == []
    widening = one(lambda x: ops.cast(ops.cast(x, dt.int32), dt.float32), dt.int8, (5,))
    assert count(fold(widening)) == ["cast"]
    lossy = one(lambda x: ops.cast(ops.cast(x, dt.float32), dt.int32), dt.int32, (5,))
    assert count(fold(lossy)) == ["cast", "cast"]


@pytest.mark.parametrize("seed", range(60))
def test_every_transform_keeps_random_graphs(seed):
    graph = random_graph(np.random.default_rng(seed), 16)
    values = values_for(graph)
    before = ops.evaluate(graph, values, inline=True)
    for name, transform in {
        "inline": lambda g: inline(g, lambda _: False),
        "fold": fold,
        "cse": cse,
        "sink": sink_reshapes,
        "dce": lambda g: Graph(g.inputs, g.outputs, dce(g).assigns),
    }.items():
        graph = transform(graph)
        after = ops.evaluate(graph, values)
        kept = len(graph.outputs) if name == "dce" else len(before)  # dce drops s := s
        for a, b in zip(before[:kept], after[:kept], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=name)


def test_inline_goes_through_nested_composites_and_respects_claims():
    x = f32("x", 4, 8)
    graph = Graph((x,), (ops.call("silu", ops.call("softmax", x)),))
    kept = inline(graph, lambda n: n.attrs["name"] == "softmax")
    assert [n.attrs["name"] for n in toposort(kept.roots()) if n.op == "call"] == ["softmax"]
    assert "call" not in count(inline(graph, lambda n: False))


def test_equal_work_is_done_once():
    x = f32("x", 4, 8)
    outs = (ops.add(ops.exp(x), 1.0), ops.sub(ops.exp(x), 1.0), ops.add(ops.exp(x), 1.0))
    merged = cse(Graph((x,), outs))
    assert count(merged).count("exp") == 1 and merged.outputs[0] is merged.outputs[2]


def test_equal_constants_are_stored_once():
    x = f32("x", 4, 3)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    y = ops.mul(ops.add(x, as_node(table)), as_node(table.copy()))
    program = check(Graph((x,), (y,)), get("cpu"))
    assert sum(b.role == "const" for b in program.buffers) == 1


def test_unused_weights_go_and_inputs_stay():
    x, y = f32("x", 4), f32("y", 4)
    w, s = f32("w", 4, role="weight"), f32("s", 4, role="state")
    kept = dce(Graph((x, y, w, s), (ops.exp(x),), ((s, s),)))
    assert kept.inputs == (x, y) and kept.assigns == ()


def test_only_the_rows_that_are_read_are_computed():
    """The last row of a block: norm, gated product, bias and residual run on that row alone."""
    x, last = f32("x", 12, 8), i32("last", 1)
    w, g = f32("w", 8, 8, role="weight"), f32("g", 8, role="weight")
    h = ops.add(x, ops.broadcast(g, (12, 8)))
    n = ops.call("rms_norm", h, g, eps=1e-6, offset=0.0)
    y = ops.add(h, ops.tanh(ops.dot(n, w)))
    halves = ops.concat([ops.slice_(y, (0, 4), (12, 8)), ops.slice_(y, (0, 0), (12, 4))], axis=1)
    graph = Graph((x, last, w, g), (ops.gather(halves, last, axis=0),))
    narrow = select_rows_early(graph)
    wide = [n for n in toposort(narrow.roots()) if n.shape[:1] == (12,) and n.op != "input"]
    assert wide == []
    values = {**values_for(graph), "last": np.array([7], np.int32)}
    np.testing.assert_allclose(
        ops.evaluate(narrow, values)[0], ops.evaluate(graph, values)[0], rtol=1e-6, atol=1e-6
    )
    check(graph, get("cpu"), values)


def test_rows_needed_elsewhere_stay_whole():
    x, last = f32("x", 12, 8), i32("last", 1)
    y = ops.exp(x)
    z = ops.sin(y)
    graph = Graph((x, last), (ops.sum_(y, (0,)), ops.gather(z, last, axis=0)))
    narrow = select_rows_early(graph)
    by_op = {n.op: n.shape for n in toposort(narrow.roots())}
    assert by_op["exp"] == (12, 8) and by_op["sin"] == (1, 8)
    check(graph, get("cpu"))


@pytest.mark.parametrize("op", [ops.sum_, ops.max_])
@pytest.mark.parametrize("axes", [(0,), (0, 1), (0, 2), (0, 1, 2)])
def test_long_reductions_split(op, axes):
    x = f32("x", 128, 64, 33)
    graph = Graph((x,), (op(x, axes),))
    split = split_reductions(graph)
    if op is ops.max_:
        assert count(split).count("max") == (2 if graph.outputs[0].size <= 1024 else 1)
    else:  # columns of 128 are too short for pieces, axes that lie apart stay one row
        assert ("reshape" in count(split)) == (axes in ((0, 1), (0, 1, 2)))
    values = values_for(graph)
    a, b = ops.evaluate(graph, values)[0], ops.evaluate(split, values)[0]
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2)
    check(graph, get("cpu"), values, tol=2e-4)


@pytest.mark.parametrize(
    "length,where", covering([200, 257, 1000, 4096, 5003], ["rows", "columns", "apart", "all"])
)
def test_long_reductions_of_any_length_split(length, where, monkeypatch):
    """Rows and columns, lengths that pieces do not divide, ties and NaN."""
    for name, value in (("LONG", 128), ("MIN_ELEMENTS", 128)):
        monkeypatch.setattr(reduce, name, value)
    shapes = {
        "rows": (3, length),
        "columns": (length, 3),
        "apart": (2, 3, length),
        "all": (length,),
    }
    axes = {"rows": (1,), "columns": (0,), "apart": (0, 2), "all": (0,)}[where]
    x, i = f32("x", *shapes[where]), i32("i", *shapes[where])
    long = max(axes, key=lambda a: x.shape[a])
    outputs = (
        ops.max_(x, axes), ops.max_(i, axes), ops.sum_(i, axes), ops.sum_(x, axes),
        ops.argmax(x, long), ops.argmax(i, long),
    )  # fmt: skip
    graph = Graph((x, i), outputs)
    split = split_reductions(graph)
    assert count(split).count("max") > 2 and count(split).count("argmax") > 2
    values = values_for(graph)
    values["x"].reshape(-1)[length // 2] = np.nan
    check(graph, get("cpu"), values_for(graph), tol=1e-4)
    for number, (a, b) in enumerate(zip(ops.evaluate(graph, values), ops.evaluate(split, values))):
        tol = {"rtol": 1e-4, "atol": 1e-4} if number == 3 else {"rtol": 0, "atol": 0}
        np.testing.assert_allclose(a, b, **tol)


def test_the_report_tells_everything():
    x, w = f32("x", 20, 16), f32("w", 16, 16, role="weight")
    graph = Graph((x, w), (ops.tanh(ops.dot(x, w)),))
    report = check(graph, get("cpu")).meta["report"]
    text = report.text()
    for part in ("matmul+tanh", "inline", "arena", "weight", "it is an output", "default"):
        assert part in text
    assert report.groups[0].flops >= 2 * 20 * 16 * 16


@pytest.mark.parametrize("axis", [0, 1])
def test_padded_pieces_side_by_side_become_one_concat(axis):
    """What three slices that cover an axis send back, in any order; two that leave a gap at its
    end; two with a gap between them, which a third closes in part."""
    x = input_node("x", (6, 6), dt.float32)

    def piece(a, z):
        stops = [z if i == axis else 6 for i in range(2)]
        cut = ops.slice_(x, [a if i == axis else 0 for i in range(2)], stops)
        low = [a if i == axis else 0 for i in range(2)]
        high = [6 - z if i == axis else 0 for i in range(2)]
        return ops.pad(ops.mul(cut, float(a + 2)), low, high)

    whole = Graph((x,), (ops.add(ops.add(piece(2, 3), piece(0, 2)), piece(3, 6)),))
    assert "add" not in count(join_pads(whole)) and "pad" not in count(join_pads(whole))
    part = Graph((x,), (ops.add(piece(0, 2), piece(2, 5)),))
    assert "add" not in count(join_pads(part))
    apart = Graph((x,), (ops.add(piece(0, 2), piece(3, 5)),))
    assert "add" in count(join_pads(apart))
    late = Graph((x,), (ops.add(ops.add(piece(0, 2), piece(3, 6)), piece(2, 3)),))
    assert "add" not in count(join_pads(late)) and "pad" not in count(join_pads(late))
    some = Graph((x,), (ops.add(ops.add(piece(0, 1), piece(3, 4)), piece(4, 6)),))
    assert sorted(count(join_pads(some)))[:2] == ["add", "concat"]
    over = Graph((x,), (ops.add(ops.add(piece(0, 2), piece(3, 6)), piece(1, 3)),))
    assert count(join_pads(over)).count("add") == 2
    given = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
    for graph in (whole, part, apart, late, some, over):
        assert np.array_equal(evaluate(graph, [given])[0], evaluate(join_pads(graph), [given])[0])
