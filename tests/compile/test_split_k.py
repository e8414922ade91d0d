"""Weight gradients in slices of K: which products are cut, that they stay the same values, and that
no other target nor a product whose rows are rows changes."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import check, f32, values_for

from weft import ops
from weft.backends.interp import InterpDevice
from weft.compile.passes import simplify_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.graph.ir import Graph, Node, toposort
from weft.ops.graph_listener import input_node
from weft.transform.split_for_gpu import slices, split_k


def dots(graph: Graph) -> list[Node]:
    return [n for n in toposort(graph.roots()) if n.op == "dot"]


def gradient(m: int, n: int, k: int, dtype: dt.DType = dt.float32) -> Graph:
    x, g = input_node("x", (k, m), dtype), input_node("g", (k, n), dtype)
    return Graph((x, g), (ops.dot(ops.transpose(x, (1, 0)), g),))


@pytest.mark.parametrize("name", ["cuda", "hip-wave64"])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
def test_slices_add_up(name: str, dtype: dt.DType) -> None:
    graph = gradient(40, 24, 4096, dtype)
    (dot,) = dots(simplify_graph(graph, PRESETS[name]))
    assert dot.shape == (2, 40, 24) and dot.dtype == dt.float32
    values = values_for(graph)
    want = values["x"].astype(np.float64).T @ values["g"].astype(np.float64)
    (got,) = ops.evaluate(split_k(graph), values)
    assert got.dtype == dtype.numpy
    tolerance = 1e-4 if dtype == dt.float32 else 0.5
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=tolerance)
    program = check(graph, InterpDevice(name), values, tol=1e-4 if dtype == dt.float32 else 2e-2)
    assert [group.kind for group in program.meta["report"].groups] == ["matmul", "map"]
    assert "split k" in program.meta["report"].text()


def test_how_many_slices() -> None:
    assert slices(768, 768, 8192) == 4 and slices(768, 3072, 8192) == 1
    assert slices(4096, 4096, 1 << 20) == 1 and slices(64, 64, 1 << 20) == 512
    assert slices(64, 64, 2048) == 1 and slices(64, 64, 6144 + 256) == 1


def test_what_stays_whole() -> None:
    """Rows that are rows, few rows, integers, batches, and targets without subgroups."""
    x, w = f32("x", 20, 4096), f32("w", 24, 4096)
    rows = Graph((x, w), (ops.dot(x, ops.transpose(w, (1, 0))),))
    a, b = f32("a", 2, 4096, 30), f32("b", 2, 4096, 24)
    batches = Graph((a, b), (ops.dot(ops.transpose(a, (0, 2, 1)), b),))
    for graph in (rows, batches, gradient(12, 24, 4096), gradient(40, 24, 4096, dt.int8)):
        assert dots(split_k(graph)) == dots(graph)
    graph = gradient(40, 24, 4096)
    for name in ("cpu-avx512", "lavapipe", "webgpu"):
        assert len(dots(simplify_graph(graph, PRESETS[name]))[0].shape) == 2
