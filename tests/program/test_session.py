"""Sessions: binding, pooled outputs, shared memory, state, errors; and step-by-step checking."""

import gc

import numpy as np
import pytest
from programs import small_graph, small_program, small_values
from stepwise import check_program, first_mismatch

from weft import ops
from weft.backends.interp import InterpDevice
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, LimitError, ShapeError, UsageError
from weft.graph.ir import Graph
from weft.ops.graph_listener import input_node
from weft.program.arena import Arena
from weft.program.session import Session

SPECS = ["cpu", "interp:webgpu"]


def make(spec="cpu", **options):
    device, v = get(spec), small_values()
    return Session(small_program(device.caps), device, {"w": v["w"]}, {"s": v["s"]}, **options)


def step(session, n=6, **changes):
    v = {**small_values(), **changes}
    return session.run({"x": v["x"], "at": v["at"]}, {"n": n})


@pytest.mark.parametrize("spec", SPECS)
def test_runs_repeat_and_state_advances(spec):
    session = make(spec)
    y, sums = step(session)
    want = ops.evaluate(small_graph(), {**small_values(), "n": 6})
    np.testing.assert_allclose(y, want[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(session.read_state("s"), want[2], rtol=1e-5, atol=1e-5)
    session.write_state("s", small_values()["s"])
    again = step(session)
    assert again[0].tobytes() == y.tobytes() and again[1].tobytes() == sums.tobytes()


@pytest.mark.parametrize("spec", SPECS)
def test_a_held_output_is_not_overwritten(spec):
    session = make(spec)
    first = step(session)[0]
    before = first.copy()
    step(session, x=-small_values()["x"])
    np.testing.assert_array_equal(first, before)


def test_outputs_are_pooled():
    session = make()
    seen = set()
    for _ in range(6):
        out = session.run_device([small_values()["x"], small_values()["at"]], {"n": 6})
        seen.add(id(out[0].buffer))
        del out
        gc.collect()
    assert len(seen) == 1
    view = step(session)[0][1:]  # a slice of a view keeps the buffer in use
    kept = view.copy()
    step(session, x=np.zeros((6, 8), np.float32))
    np.testing.assert_array_equal(view, kept)


def test_reused_outputs_are_the_same_memory():
    session = make(reuse_outputs=True)
    a = session.run_device([small_values()["x"], small_values()["at"]], {"n": 6})
    b = session.run_device([small_values()["x"], small_values()["at"]], {"n": 6})
    assert a[0].buffer is b[0].buffer


@pytest.mark.parametrize("spec", SPECS)
def test_device_arrays_feed_other_sessions(spec):
    device = get(spec)
    x = input_node("x", (4, 4), dt.float32)
    program = compile_graph(Graph((x,), (ops.mul(x, 2.0),)), device.caps)
    one, two = Session(program, device), Session(program, device)
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    (middle,) = one.run_device([value])
    np.testing.assert_array_equal(two.run([middle])[0], value * 4)
    np.testing.assert_array_equal(two.run([value])[0], value * 2)


def test_sessions_share_weights_state_and_arena():
    device, v = get("cpu"), small_values()
    program = small_program(device.caps)
    arena = Arena(device)
    a = Session(program, device, {"w": v["w"]}, {"s": v["s"].copy()}, arena)
    b = Session(program, device, a.weights, a.state, arena)
    step(a)
    np.testing.assert_array_equal(a.read_state("s"), b.read_state("s"))
    assert a.weights["w"] is b.weights["w"] and a.state["s"] is b.state["s"]


def test_a_growing_arena_rebinds_its_users():
    device, arena = get("interp:webgpu"), None
    arena = Arena(device)

    def chain(n):
        x = input_node("x", (n, 8), dt.float32)
        total = ops.sum_(ops.exp(x), (1,))
        wide = ops.broadcast(ops.reshape(total, (n, 1)), (n, 8))
        y = ops.sub(x, ops.broadcast(ops.reshape(ops.sum_(wide, (0,)), (1, 8)), (n, 8)))
        return Graph((x,), (y,))

    sessions = [Session(compile_graph(chain(n), device.caps), device, arena=arena) for n in (4, 90)]
    for n, session in zip((4, 90), sessions):
        value = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        want = ops.evaluate(chain(n), [value])[0]
        np.testing.assert_allclose(session.run([value])[0], want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n", [1, 4])
def test_fewer_rows_may_be_passed_where_rows_are_bounded(n):
    v = small_values()
    y = make().run({"x": v["x"][:n], "at": v["at"][:n]}, {"n": n})[0]
    np.testing.assert_array_equal(y[:n], step(make())[0][:n])


def test_int64_indices_pass_when_they_fit():
    at = small_values()["at"].astype(np.int64)
    np.testing.assert_array_equal(step(make(), at=at)[0], step(make())[0])
    with pytest.raises(DTypeError, match="do not fit int32"):
        step(make(), at=at + (1 << 40))


def test_wrong_arguments_are_named():
    v, session = small_values(), make()
    with pytest.raises(ShapeError, match=r"'x' has shape \[6, 8\], got \[5, 9\]"):
        step(session, x=np.zeros((5, 9), np.float32))
    with pytest.raises(DTypeError, match="'x' is float32, got float64"):
        step(session, x=v["x"].astype(np.float64))
    with pytest.raises(UsageError, match="misses input 'at'"):
        session.run({"x": v["x"]}, {"n": 1})
    with pytest.raises(UsageError, match="has no input 'z'"):
        session.run({"x": v["x"], "at": v["at"], "z": v["x"]}, {"n": 1})
    with pytest.raises(UsageError, match="takes 2 inputs"):
        session.run([v["x"]], {"n": 1})
    with pytest.raises(UsageError, match="needs scalar 'n'"):
        session.run([v["x"], v["at"]])
    with pytest.raises(LimitError, match="does not fit int32"):
        session.run([v["x"], v["at"]], {"n": 1 << 40})
    with pytest.raises(UsageError, match="no state 'q'"):
        session.read_state("q")
    with pytest.raises(UsageError, match="weight 'w' was not given"):
        Session(session.program, session.device)
    with pytest.raises(ShapeError, match="weight 'w'"):
        Session(session.program, session.device, {"w": v["x"]})


def test_step_by_step_agreement_and_the_first_difference():
    device, v = get("cpu"), small_values()
    program = small_program(device.caps)
    arguments = ({"x": v["x"], "at": v["at"]}, {"n": 6}, {"w": v["w"]}, {"s": v["s"]})
    results = check_program(program, device, InterpDevice(device.caps), *arguments)
    assert len(results) == len(program.steps) and first_mismatch(results) is None
    other = InterpDevice(device.caps)
    honest, calls = other.submit, []

    def wrong(bound, scalars):
        honest(bound, scalars)
        calls.append(bound)
        if len(calls) == 1:
            ref = bound.program.steps[0].args[-1]
            bound.view(ref)[: ref.nbytes] ^= 0x40

    other.submit = wrong  # type: ignore[method-assign]
    found = first_mismatch(check_program(program, device, other, *arguments))
    assert found is not None and found.step == 0 and found.kernel in str(found)
