"""State: updated in place where the old value is no longer needed, copied otherwise."""

import numpy as np
import pytest
from graphs import check, f32, groups, i32, run, values_for

from weft import ops
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.graph.ir import Graph
from weft.program.program import Copy
from weft.transform.rebuild import make

SPECS = ["cpu", "interp:webgpu"]


def copies(program):
    return [s for s in program.steps if isinstance(s, Copy)]


def cache(rows=8, width=4):
    s = f32("s", rows, width, role="state")
    idx, v = i32("idx", 3), f32("v", 3, width)
    values = values_for(Graph((s, idx, v), ()))
    values["idx"] = np.array([5, -1, 0], np.int32)
    return s, idx, v, values


@pytest.mark.parametrize("spec", SPECS)
def test_update_is_in_place_and_readers_see_the_new_value(spec):
    s, idx, v, values = cache()
    flat = ops.reshape(s, (8, 4))
    new = ops.update(flat, idx, ops.tanh(v))
    graph = Graph((s, idx, v), (ops.sum_(new, (1,)),), ((s, new),))
    program = check(graph, get(spec), values)
    assert copies(program) == []
    state = next(i for i, b in enumerate(program.buffers) if b.role == "state")
    assert all(b.role != "arena" for b in program.buffers) and state >= 0


@pytest.mark.parametrize("spec", SPECS)
def test_the_old_value_is_read_before_the_update(spec):
    s, idx, v, values = cache()
    new = ops.update(s, idx, v)
    outs = (ops.sum_(s, (1,)), ops.mul(new, 2.0), ops.exp(s))
    program = check(Graph((s, idx, v), outs, ((s, new),)), get(spec), values)
    assert copies(program) == []
    assert "update" in groups(program)[2][1]


@pytest.mark.parametrize("spec", SPECS)
def test_an_old_value_needed_after_the_new_one_costs_a_copy(spec):
    s, idx, v, values = cache()
    new = ops.update(s, idx, v)
    late = ops.mul(s, ops.broadcast(ops.reshape(ops.sum_(new, (1,)), (8, 1)), (8, 4)))
    program = check(Graph((s, idx, v), (late,), ((s, new),)), get(spec), values)
    assert len(copies(program)) == 1


@pytest.mark.parametrize("spec", SPECS)
def test_values_written_may_come_from_the_state_itself(spec):
    s, idx, v, values = cache()
    rows = ops.gather(s, ops.add(idx, 1), axis=0)
    graph = Graph((s, idx, v), (), ((s, ops.update(s, idx, ops.add(rows, v))),))
    check(graph, get(spec), values)


@pytest.mark.parametrize("spec", SPECS)
def test_two_updates_of_one_state(spec):
    s, idx, v, values = cache()
    first = ops.update(s, idx, v)
    second = ops.update(first, ops.add(idx, 1), ops.neg(v))
    graph = Graph((s, idx, v), (ops.sum_(first, (0,)),), ((s, second),))
    program = check(graph, get(spec), values)
    assert copies(program) == []


@pytest.mark.parametrize("spec", SPECS)
def test_elementwise_state_is_in_place(spec):
    s, g = f32("s", 5, 7, role="state"), f32("g", 5, 7)
    new = ops.add(ops.mul(s, 0.9), g)
    program = check(Graph((s, g), (ops.sqrt(ops.abs_(new)),), ((s, new),)), get(spec))
    assert copies(program) == []


@pytest.mark.parametrize("spec", SPECS)
def test_a_shifted_read_of_the_state_is_not_in_place(spec):
    s = f32("s", 5, 7, role="state")
    new = ops.add(s, ops.slice_(s, (4, 0), (-1, 7), (-1, 1)))
    check(Graph((s,), (), ((s, new),)), get(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_states_that_swap(spec):
    a, b = f32("a", 3, 4, role="state"), f32("b", 3, 4, role="state")
    check(Graph((a, b), (ops.add(a, b), a), ((a, b), (b, a))), get(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_states_that_swap_through_a_computation(spec):
    a, b, c = (f32(n, 3, 4, role="state") for n in "abc")
    check(Graph((a, b), (), ((a, b), (b, ops.mul(a, 2.0)))), get(spec))
    check(Graph((a, b), (b,), ((a, ops.exp(b)), (b, ops.mul(a, 2.0)))), get(spec))
    ring = ((a, b), (b, ops.add(c, 1.0)), (c, ops.mul(a, b)))
    check(Graph((a, b, c), (ops.add(a, c),), ring), get(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_outputs_that_are_inputs_constants_or_each_other(spec):
    x, s = f32("x", 3, 4), f32("s", 3, 4, role="state")
    n = i32("n", role="scalar")
    y = ops.exp(x)
    c = ops.as_node(np.float32(3))
    numbers = make("iota", shape=(5,), axis=0, dtype=dt.int32)
    outs = (x, y, y, ops.reshape(y, (12,)), s, c, n, ops.reshape(n, (1,)), numbers)
    graph = Graph((x, s, n), outs, ((s, y),))
    values = {**values_for(graph), "n": np.int32(7)}
    check(graph, get(spec), values)


@pytest.mark.parametrize("spec", SPECS)
def test_empty_values(spec):
    x, y = f32("x", 0, 4), f32("y", 3, 4)
    outs = (ops.exp(x), ops.sum_(x, (0,)), ops.concat([x, y], axis=0), ops.sum_(x, (1,)))
    check(Graph((x, y), outs), get(spec))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [0, 1, 3, 6])
def test_bounded_rows_leave_the_others_alone(spec, n):
    """Rows 0..n-1 are right; a bounded update writes only them."""
    x, at = f32("x", 6, 4, rows="n"), i32("at", 6, rows="n")
    k, w = i32("n", role="scalar"), f32("w", 4, 4, role="weight")
    s = f32("s", 6, 4, role="state")
    y = ops.tanh(ops.dot(x, w))
    z = ops.reshape(ops.add(ops.reshape(y, (12, 2)), 1.0), (6, 4))
    graph = Graph((x, at, k, w, s), (z,), ((s, ops.update(s, at, y)),))
    values = {**values_for(graph), "n": np.int32(n), "at": np.arange(6, dtype=np.int32)}
    device = get(spec)
    program = compile_graph(graph, device.caps)
    out, state = run(program, graph, device, values)
    full, new = ops.evaluate(graph, values)
    np.testing.assert_allclose(out[:n], full[:n], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state[:n], new[:n], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state[n:], values["s"][n:])
    bounds = {g.rows for g in program.meta["report"].groups}
    assert bounds <= {"n", "n*2"} and "n" in bounds
