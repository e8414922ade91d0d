"""Composites with several outputs, inlined and as one kernel, against NumPy."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from graphs import check, f32, groups, i32, values_for
from hypothesis import given, settings, strategies as st

import weft
from weft import ops
from weft.backends.registry import get
from weft.compile import compile_graph
from weft.compile.passes import groups_of, simplify_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import CompileError, ShapeError
from weft.graph.digest import digest
from weft.graph.ir import Graph, Node, results, toposort
from weft.graph.text import to_text
from weft.kernel.builder import Builder
from weft.kernel.expr import const
from weft.kernel.ir import Type
from weft.ops import functions as f
from weft.ops.composite import COMPOSITES, Composite
from weft.ops.graph_listener import input_node
from weft.ops.primitive import Aval
from weft.templates import affine, registry
from weft.templates.emit import Emitter
from weft.templates.loops import traffic
from weft.transform.inline import inline
from weft.transform.partition import cut_graph
from weft.transform.prune import cse

DEVICES = ("cpu", "interp:cuda", "vulkan")
CPU = PRESETS["cpu-avx512"]


def _abstract(x: Aval) -> tuple[Aval, Aval]:
    if not x.shape:
        raise ShapeError("doubled: a value without axes")
    return x, Aval(x.shape[:-1], x.dtype)


def _doubled(x):  # type: ignore[no-untyped-def]
    """x + x, and the sums of its rows."""
    return f.add(x, x), f.sum_(x, -1)


def _twice(x):  # type: ignore[no-untyped-def]
    """`doubled` of `doubled`: outputs of its body are outputs of another call, and in turn."""
    y, total = f.call("doubled", x)
    z, again = f.call("doubled", y)
    return f.sub(again, total), z


def _kernel(group, caps, config):  # type: ignore[no-untyped-def]
    """One thread to a row."""
    b = Builder("doubled")
    em = Emitter(b, group, caps)
    double, sums = group.results
    x = group.anchor.inputs[0]
    *lead, n = x.shape
    row = affine.unflatten(em.axis(b.group(0), x.size // n), lead)
    total = b.var(const(0, Type(x.dtype)), "total")
    with b.loop(n, name="j") as j, em.scope():
        index = (*row, em.axis(j, n))
        value = b.let(em.value(x, index), "v")
        em.put(double, index, value + value)
        b.assign(total, total + value)
    em.put(sums, row, total)
    return b.kernel((x.size // n,), (1,), 2 * x.size, traffic(group))


@contextlib.contextmanager
def claimed(on: bool = True):  # type: ignore[no-untyped-def]
    """While inside, a template takes `doubled`."""
    with pytest.MonkeyPatch.context() as patch:
        if on:
            patch.setitem(registry.COMPOSITES, "doubled", "doubled")
            patch.setitem(registry.MODULES, "doubled", __name__)
            patch.setitem(registry._TEMPLATES, "doubled", _kernel)
        yield


@pytest.fixture(autouse=True, scope="module")
def _composites():  # type: ignore[no-untyped-def]
    def abstract(x: Aval) -> tuple[Aval, Aval]:
        return tuple(reversed(_abstract(x)))  # type: ignore[return-value]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPOSITES, "doubled", Composite("doubled", _abstract, _doubled, {}))
        patch.setitem(COMPOSITES, "twice", Composite("twice", abstract, _twice, {}))
        yield


def _graph(shape, dtype=dt.float32, name="doubled", used=(0, 1)) -> Graph:  # type: ignore[no-untyped-def]
    x = input_node("x", shape, dtype)
    made = ops.call(name, x)
    return Graph((x,), tuple(made[i] for i in used))


shapes = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
uses = st.sampled_from([(0, 1), (1, 0), (0,), (1,), (1, 1)])


@pytest.mark.parametrize("device", DEVICES)
@given(
    shape=shapes,
    dtype=st.sampled_from([dt.float32, dt.int32]),
    name=st.sampled_from(["doubled", "twice"]),
    used=uses,
    whole=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_of_any_shape(device, shape, dtype, name, used, whole) -> None:  # type: ignore[no-untyped-def]
    graph = _graph(shape, dtype, name, used)
    ops.check.verify(graph)
    with claimed(whole):
        program = check(graph, get(device))
    if whole and name == "doubled" and 0 not in shape:
        assert groups(program) == [("doubled", ["doubled"])]
    values = values_for(graph)
    for a, b in zip(ops.evaluate(graph, values), ops.evaluate(graph, values, inline=True)):
        np.testing.assert_array_equal(a, b)


def test_the_oracle_gives_a_tuple() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    double, sums = ops.call("doubled", x)
    np.testing.assert_array_equal(double, 2 * x)
    np.testing.assert_array_equal(sums, x.sum(1))


@pytest.mark.parametrize("device", ["interp", "vulkan"])
def test_eagerly_on_a_device(device: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for rows in (3, 0):
        double, sums = ops.call("doubled", weft.tensor(x[:rows]).to(device).value)
        np.testing.assert_array_equal(double.numpy(), 2 * x[:rows])
        np.testing.assert_array_equal(sums.numpy(), x[:rows].sum(1))


def test_others_use_the_outputs() -> None:
    """Elementwise work, a product, and states that take one output each."""
    x, w = f32("x", 4, 6), f32("w", 6, 3, role="weight")
    s, t = f32("s", 4, 6, role="state"), f32("t", 4, role="state")
    double, sums = ops.call("doubled", ops.tanh(x))
    product = ops.dot(double, w)
    scaled = ops.mul(product, ops.broadcast(ops.reshape(ops.exp(sums), (4, 1)), (4, 3)))
    graph = Graph((x, w, s, t), (scaled, sums), ((s, double), (t, ops.add(sums, t))))
    for whole in (False, True):
        with claimed(whole):
            for device in DEVICES:
                check(graph, get(device))


def test_bounded_rows_bound_all_outputs() -> None:
    x = f32("x", 8, 5, rows="n")
    n = i32("n", role="scalar")
    double, sums = ops.call("doubled", x)
    graph = Graph((x, n), (ops.exp(double), ops.exp(sums)))
    with claimed():
        found = groups_of(graph, CPU)
    assert [g.kind for g in found] == ["doubled", "map", "map"]
    assert [g.rows for g in found] == ["n"] * 3


def test_a_kernel_writes_outputs_that_nobody_reads() -> None:
    with claimed():
        (group,) = groups_of(_graph((3, 4), used=(1,)), CPU)
        program = compile_graph(_graph((3, 4), used=(1,)), CPU)
    assert [x.shape for x in group.outputs] == [(3, 4), (3,)]
    assert group.results == group.outputs
    assert {b.role: b.nbytes for b in program.buffers}["arena"] > 0


def test_equal_calls_share_their_outputs() -> None:
    x = f32("x", 3, 4)
    (a, b), (c, d) = ops.call("doubled", x), ops.call("doubled", x)
    small = cse(Graph((x,), (a, b, c, d)))
    assert small.outputs[:2] == small.outputs[2:]


def test_unread_outputs_are_not_computed_where_the_body_is_inlined() -> None:
    graph = simplify_graph(_graph((3, 4), used=(1,)), CPU)
    assert [n.op for n in toposort(graph.roots())] == ["input", "sum"]


def test_nested_calls_are_inlined() -> None:
    graph = _graph((3, 4), name="twice")
    found = {n.op for n in toposort(inline(graph, lambda node: False).roots())}
    assert found == {"input", "add", "sum", "sub"}
    kept = inline(graph, lambda node: node.attrs["name"] == "doubled")
    ops.check.verify(kept)
    assert [n.op for n in toposort(kept.roots())].count("call") == 2


def test_both_sides_of_a_cut_may_read_them() -> None:
    x = f32("x", 3, 4)
    double, sums = ops.call("doubled", ops.exp(x))
    graph = Graph((x,), (ops.sin(double), ops.tanh(sums)))
    cut = cut_graph(graph, lambda n: "it is a tanh" if n.op == "tanh" else None)
    assert [(p.side, p.gives) for p in cut.parts] == [
        ("device", ("sin.2", "doubled.1.3")),
        ("host", ("tanh.4",)),
    ]
    for part in cut.parts:
        ops.check.verify(part.graph)


def test_text_and_digest_tell_them_apart() -> None:
    text = to_text(_graph((3, 4)))
    assert "result %1 index=1" in text
    assert "return %1, %2" in text
    assert digest(_graph((3, 3), used=(0,))) != digest(_graph((3, 3), used=(1,)))


X = f32("x", 2, 3)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda call: Node("result", (), {"index": 1}, (2,), dt.float32), "of what is no call"),
        (lambda call: Node("result", (X,), {"index": 1}, (2,), dt.float32), "of what is no call"),
        (lambda call: Node("result", (call,), {}, (2,), dt.float32), "index None of 2"),
        (lambda call: Node("result", (call,), {"index": 0}, (2, 3), dt.float32), "index 0 of 2"),
        (lambda call: Node("result", (call,), {"index": 2}, (2,), dt.float32), "index 2 of 2"),
        (lambda call: Node("result", (call,), {"index": 1}, (3,), dt.float32), "stands for"),
        (lambda call: Node("result", (call,), {"index": 1}, (2,), dt.int32), "stands for"),
    ],
)
def test_verify_names_the_fault(made, words: str) -> None:  # type: ignore[no-untyped-def]
    call = ops.call("doubled", X)[0]
    assert len(results(call)) == 2
    with pytest.raises(CompileError, match=words):
        ops.check.verify(Graph((X,), (made(call),)))


@pytest.mark.parametrize("device", ["eager", "cpu", "vulkan"])
def test_derivatives(device: str) -> None:
    def fn(x):  # type: ignore[no-untyped-def]
        x = x.detach().requires_grad_()
        total, z = ops.call("twice", x.value)
        total, z = weft.Tensor(total), weft.Tensor(z)
        loss = (total**3.0).sum() + (weft.exp(z) * 0.1).sum()
        (first,) = weft.grad(loss, [x], create_graph=True)
        (first**2.0).sum().backward()
        return first.detach(), x.grad

    data = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 4)).astype(np.float32)
    run = fn if device == "eager" else weft.compile(fn, device=device)
    got = [np.asarray(v.numpy()) for v in run(weft.tensor(data))]
    x = torch.tensor(data, dtype=torch.float64, requires_grad=True)
    loss = (x.sum(1) ** 3).sum() + (torch.exp(4 * x) * 0.1).sum()
    (first,) = torch.autograd.grad(loss, [x], create_graph=True)
    (first**2).sum().backward()
    for a, b in zip(got, (first.detach().numpy(), x.grad.numpy())):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
