"""Helpers of these tests: small graphs, random graphs, and running them against the oracle."""

from __future__ import annotations

import numpy as np

from weft import ops
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Graph, Node
from weft.ops.graph_listener import as_node, input_node
from weft.program.program import Program
from weft.program.session import Session


def f32(name: str, *shape: int, role: str = "input", **attrs: object) -> Node:
    return input_node(name, shape, dt.float32, role, **attrs)


def i32(name: str, *shape: int, role: str = "input", **attrs: object) -> Node:
    return input_node(name, shape, dt.int32, role, **attrs)


def values_for(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal floats; integers in 0..7."""
    rng = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    for x in graph.inputs:
        if x.dtype.is_float:
            out[x.attrs["name"]] = rng.standard_normal(x.shape).astype(x.dtype.numpy)
        else:
            out[x.attrs["name"]] = rng.integers(0, 8, x.shape).astype(x.dtype.numpy)
    return out


def run(program: Program, graph: Graph, device, values):  # type: ignore[no-untyped-def]
    """Outputs, then the new states, as ops.evaluate lists them."""
    by_role: dict[str, dict[str, np.ndarray]] = {}
    for x in graph.inputs:
        by_role.setdefault(x.attrs["role"], {})[x.attrs["name"]] = values[x.attrs["name"]]
    session = Session(program, device, by_role.get("weight"), by_role.get("state"))
    scalars = {k: int(v) for k, v in by_role.get("scalar", {}).items()}
    outputs = session.run(by_role.get("input", {}), scalars)
    names = [s.attrs["name"] for s, _ in graph.assigns]  # one that nothing changes is dropped
    kept = [session.read_state(n) if n in session.state else values[n] for n in names]
    return [*outputs, *kept]


def check(graph: Graph, device, values=None, caps: Caps | None = None, tol=2e-5):  # type: ignore[no-untyped-def]
    """Compiles, runs and compares with the oracle; returns the Program."""
    values = values or values_for(graph)
    program = compile_graph(graph, caps or device.caps)
    expected = ops.evaluate(graph, {k: v.copy() for k, v in values.items()})
    got = run(program, graph, device, values)
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        assert g.shape == e.shape and g.dtype == e.dtype
        scale = max(1.0, float(np.abs(e.astype(np.float64)).max())) if e.size else 1.0
        np.testing.assert_allclose(
            g.astype(np.float64), e.astype(np.float64), rtol=tol, atol=tol * scale
        )
    return program


def groups(program: Program) -> list[tuple[str, list[str]]]:
    """(kind, ops computed) of each launch."""
    return [(g.kind, g.nodes) for g in program.meta["report"].groups]


UNARY = ("neg", "abs_", "tanh", "exp", "floor", "sin")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "less")


def random_graph(rng: np.random.Generator, size: int = 14) -> Graph:
    """A random DAG over most primitives, with shared values, several outputs and a state."""
    n, m = int(rng.integers(1, 7)), int(rng.integers(1, 20))
    x, y = f32("x", n, m), f32("y", n, m)
    w = f32("w", m, m, role="weight")
    states = [f32("s", n, m, role="state"), f32("t", n, m, role="state")]
    idx = i32("i", n)
    pool = [x, y, *states]
    for _ in range(size):
        pool.append(_random_op(rng, pool, w, idx))
    kept = [pool[int(rng.integers(2, len(pool)))] for _ in range(int(rng.integers(1, 4)))]
    assigned = [s for s in states if rng.random() < 0.7]
    assigns = tuple((s, pool[int(rng.integers(0, len(pool)))]) for s in assigned)
    return Graph((x, y, w, *states, idx), tuple(kept), assigns)


def _random_op(rng: np.random.Generator, pool: list[Node], w: Node, idx: Node) -> Node:
    a = pool[int(rng.integers(max(0, len(pool) - 6), len(pool)))]
    b = pool[int(rng.integers(0, len(pool)))]
    n, m = a.shape
    choice = int(rng.integers(0, 14))
    if choice < 3:
        return getattr(ops, str(rng.choice(UNARY)))(ops.mul(ops.tanh(a), 0.5))
    if choice < 6:
        name = str(rng.choice(BINARY))
        out = getattr(ops, name)(a, b)
        return ops.where(out, a, b) if name == "less" else out
    if choice == 6:
        total = ops.sum_(a, (1,))
        return ops.sub(a, ops.broadcast(ops.reshape(total, (n, 1)), (n, m)))
    if choice == 7:
        return ops.tanh(ops.dot(a, ops.transpose(w, (1, 0))))
    if choice == 8:
        flat = ops.reshape(ops.transpose(a, (1, 0)), (n * m,))
        return ops.reshape(ops.slice_(flat, (n * m - 1,), (-1,), (-1,)), (n, m))
    if choice == 9:
        return ops.gather(a, idx, axis=0)
    if choice == 10:
        both = ops.concat([a, b], axis=1)
        return ops.slice_(both, (0, m // 2), (n, m // 2 + m), (1, 1))
    if choice == 11:
        return ops.call("softmax", a)
    if choice == 12:
        return ops.update(a, as_node((rng.permutation(n) - 1).astype(np.int32)), b)
    padded = ops.pad(a, (1, 0), (0, 2), 0.25)
    return ops.slice_(padded, (0, 1), (n, m + 1), (1, 1))
