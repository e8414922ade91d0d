"""Arena planning and the limits of small devices."""

import dataclasses

import numpy as np
import pytest
from graphs import check, f32, i32, random_graph, values_for
from hypothesis import given, settings, strategies as st

import weft
from weft import ops
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.compile import compile_graph, grouping, limits
from weft.compile.arena import ALIGN, Span, place
from weft.compile.split import split
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import DTypeError, LimitError, ShapeError, UsageError
from weft.graph.ir import Graph, toposort
from weft.ops.graph_listener import input_node
from weft.program.program import Dispatch, Program
from weft.program.session import Session

spans = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(spans, st.integers(5000, 20000), st.randoms())
def test_values_alive_together_never_overlap(entries, limit, random):
    made = [Span(n, start, start + length) for n, start, length in entries]
    for span in made:
        other = random.choice(made)
        if other is not span and random.random() < 0.3:
            span.apart.add(id(other))
            other.apart.add(id(span))
    sizes = place(made, limit)
    for i, a in enumerate(made):
        assert a.offset % ALIGN == 0 and a.offset + a.nbytes <= sizes[a.buffer]
        assert a.offset + a.nbytes <= limit
        for b in made[i + 1 :]:
            if a.buffer != b.buffer:
                continue
            assert id(b) not in a.apart
            if a.start <= b.end and b.start <= a.end:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_a_chain_reuses_memory():
    x, w = f32("x", 32, 32), f32("w", 32, 32, role="weight")
    y = x
    for _ in range(10):
        y = ops.tanh(ops.mul(ops.dot(y, w), 0.1))
    program = check(Graph((x, w), (y,)), get("cpu"))
    arena = sum(b.nbytes for b in program.buffers if b.role == "arena")
    assert arena <= 2 * x.nbytes < program.meta["report"].unshared


@pytest.mark.parametrize("seed", range(200, 210))
def test_exclusive_buffers_are_never_read_and_written_at_once(seed):
    program = compile_graph(random_graph(np.random.default_rng(seed)), PRESETS["webgpu"])
    for step in program.steps:
        if isinstance(step, Dispatch):
            buffers = program.kernels[step.kernel].buffers
            reads = {a.buffer for a, b in zip(step.args, buffers) if b.access == "r"}
            writes = {a.buffer for a, b in zip(step.args, buffers) if b.access != "r"}
            assert not reads & writes


@pytest.mark.parametrize("seed", range(300, 306))
def test_few_bindings(seed):
    """With four buffers per kernel everything still compiles and is right."""
    caps = dataclasses.replace(PRESETS["webgpu"], max_bindings=4)
    program = check(random_graph(np.random.default_rng(seed), 12), InterpDevice(caps), tol=1e-4)
    assert all(len(k.buffers) <= 4 for k in program.kernels)


def test_a_sum_of_many_inputs_and_a_long_concat_respect_the_bindings():
    caps = dataclasses.replace(PRESETS["webgpu"], max_bindings=5)
    xs = [f32(f"x{i}", 3, 4) for i in range(12)]
    total = xs[0]
    for x in xs[1:]:
        total = ops.add(total, x)
    program = check(Graph(tuple(xs), (total, ops.concat(xs, axis=1))), InterpDevice(caps))
    assert all(len(k.buffers) <= 5 for k in program.kernels)


def test_many_computed_parts_are_joined_without_grouping_again(monkeypatch):
    caps, rounds = dataclasses.replace(PRESETS["cpu-avx2"], max_bindings=8), []
    made = grouping.StoredValues.__init__
    monkeypatch.setattr(
        grouping.StoredValues,
        "__init__",
        lambda self, *args: (rounds.append(1), made(self, *args))[1],
    )
    x = f32("x", 40, 5)
    parts = [ops.exp(ops.slice_(x, (i, 0), (i + 1, 5))) for i in range(40)]
    joined = ops.concat([ops.call("barrier", p) for p in parts], 0)
    program = check(Graph((x,), (ops.mul(joined, x),)), InterpDevice(caps), tol=1e-5)
    assert len(rounds) == 1 and all(len(k.buffers) <= 8 for k in program.kernels)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
def test_a_tied_embedding_beyond_the_binding_limit(dtype):
    """Gathered from and multiplied by in row ranges; no binding is too large."""
    caps = dataclasses.replace(PRESETS["webgpu"], max_binding_bytes=4096)
    w = input_node("w", (100, 32), dtype, "weight")
    ids = i32("ids", 5)
    x = ops.cast(ops.gather(w, ids, axis=0), dt.float32)
    logits = ops.dot(x, ops.transpose(ops.cast(w, dt.float32), (1, 0)))
    graph = Graph((w, ids), (logits,))
    rng = np.random.default_rng(0)
    values = {
        "w": rng.standard_normal((100, 32)).astype(dtype.numpy),
        "ids": np.array([0, 31, 32, 99, -4], np.int32),
    }
    program = check(graph, InterpDevice(caps), values, tol=1e-4)
    assert sum(b.role == "weight" for b in program.buffers) == 1
    for step in program.steps:
        assert all(a.nbytes <= 4096 and a.offset % 256 == 0 for a in step.args)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
def test_a_tied_embedding_beyond_the_buffer_limit(dtype, tmp_path):
    """Cut into buffers of its rows, shared by Programs, kept by a Program's file."""
    caps = dataclasses.replace(PRESETS["webgpu"], max_binding_bytes=4096, max_buffer_bytes=4096)
    device = InterpDevice(caps)
    w = input_node("w", (100, 32), dtype, "weight")
    ids = i32("ids", 5)
    x = ops.cast(ops.gather(w, ids, axis=0), dt.float32)
    logits = ops.dot(x, ops.transpose(ops.cast(w, dt.float32), (1, 0)))
    rng = np.random.default_rng(0)
    values = {
        "w": rng.standard_normal((100, 32)).astype(dtype.numpy),
        "ids": np.array([0, 31, 32, 99, -4], np.int32),
    }
    program = check(Graph((w, ids), (logits,)), device, values, tol=1e-4)
    held = [b.shape for b in program.buffers if b.role == "weight"]
    assert len(held) > 1 and sum(rows for rows, _ in held) == 100
    program.save(tmp_path / "p")
    again = Program.load(tmp_path / "p")
    first = Session(program, device, {"w": values["w"]})
    second = Session(again, device, first.weights)
    assert first.weights == second.weights
    given = {"ids": values["ids"]}
    np.testing.assert_array_equal(first.run(given)[0], second.run(given)[0])
    with pytest.raises(UsageError, match="weight 'w' was not given"):
        Session(program, device)
    with pytest.raises(ShapeError, match=r"'w' is an array of shape \[100, 32\]"):
        Session(program, device, {"w": values["w"][:99]})


def test_a_compiled_function_reads_a_weight_of_several_buffers():
    caps = dataclasses.replace(PRESETS["webgpu"], max_binding_bytes=4096, max_buffer_bytes=4096)
    device = InterpDevice(caps)
    w = weft.tensor(np.random.default_rng(0).standard_normal((100, 32)).astype(np.float32))
    fn = weft.compile(lambda x: (x @ w).tanh(), device=device)
    for rows in (2, 3):
        x = np.ones((rows, 100), np.float32)
        np.testing.assert_allclose(fn(x).numpy(), np.tanh(x @ w.numpy()), atol=1e-4)


def test_a_large_matrix_used_untransposed():
    caps = dataclasses.replace(PRESETS["webgpu"], max_binding_bytes=4096)
    x, w = f32("x", 3, 100), f32("w", 100, 32, role="weight")
    check(Graph((x, w), (ops.tanh(ops.dot(x, w)),)), InterpDevice(caps), tol=1e-4)


def test_ranges_of_the_summed_axis_add_in_the_one_order():
    """As many dots as chunks or spans, and the bits of a product that is not cut."""
    whole = PRESETS["webgpu"]
    small = dataclasses.replace(whole, max_binding_bytes=1 << 16)
    x, w = f32("x", 20, 600), f32("w", 600, 64, role="weight")
    graph = Graph((x, w), (ops.dot(x, w),))
    values = values_for(graph)
    one, cut = (run(graph, caps, values) for caps in (whole, small))
    np.testing.assert_array_equal(one, cut)
    assert summed(graph, small) == [256, 256, 88]
    x, w = f32("x", 20, 5000), f32("w", 5000, 64, role="weight")
    graph = Graph((x, w), (ops.dot(x, w),))
    large = dataclasses.replace(whole, max_binding_bytes=1 << 20)
    assert summed(graph, large) == [2048, 2048, 904]


def run(graph, caps, values):
    device = InterpDevice(caps)
    session = Session(compile_graph(graph, caps), device, {"w": values["w"]})
    return session.run({"x": values["x"]})[0]


def summed(graph, caps):
    """The lengths of the summed axes after what is too large was cut."""
    nodes = toposort(split(graph, caps).roots())
    return [n.inputs[1].shape[0] for n in nodes if n.op == "dot"]


def test_what_cannot_fit_is_refused_by_name():
    caps = dataclasses.replace(PRESETS["webgpu"], max_buffer_bytes=1000)
    x = f32("much", 300, 1)
    with pytest.raises(LimitError, match="'much'"):
        compile_graph(Graph((x,), (ops.exp(x),)), caps)
    small = dataclasses.replace(PRESETS["webgpu"], max_binding_bytes=256)
    with pytest.raises(LimitError, match="per binding"):
        compile_graph(Graph((x,), (ops.exp(x),)), small)


@pytest.mark.parametrize("preset", ["cuda", "hip-wave64", "hip-wave32", "webgpu", "cpu-avx512"])
def test_more_elements_than_an_index_counts(preset):
    """Wherever the value lies: an input, a result, or in between."""
    caps = dataclasses.replace(PRESETS[preset], max_buffer_bytes=1 << 50, max_binding_bytes=1 << 50)
    many = input_node("many", (1 << 31,), dt.int8)
    with pytest.raises(LimitError, match=r"many int8\[2147483648\] has 2,147,483,648 elements; "):
        compile_graph(Graph((many,), (ops.neg(many),)), caps)
    few = input_node("few", (1 << 16, 1), dt.int8)
    wide = ops.broadcast(few, (1 << 16, 1 << 16))
    for root in (ops.neg(wide), ops.concat((wide, wide), 0)):
        with pytest.raises(LimitError, match=f"elements; {preset} counts at most 2,146,435,072"):
            compile_graph(Graph((few,), (root,)), caps)
    assert limits.reason(many, caps) == (
        f"input 'many' of 2,147,483,648 elements, {preset} counts at most 2,146,435,072"
    )


def test_a_missing_dtype_is_refused_by_name():
    caps = dataclasses.replace(PRESETS["webgpu"], dtypes=frozenset({dt.float32, dt.int32}))
    x = input_node("half", (4,), dt.float16)
    with pytest.raises(DTypeError, match="half"):
        compile_graph(Graph((x,), (ops.cast(x, dt.float32),)), caps)
