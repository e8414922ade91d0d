"""A small Program with kernels, a const, a state, a scalar and a row bound."""

from __future__ import annotations

import numpy as np

from weft import ops
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Graph
from weft.ops.graph_listener import as_node, input_node
from weft.program.program import Program


def small_graph() -> Graph:
    x = input_node("x", (6, 8), dt.float32, rows="n")
    n = input_node("n", (), dt.int32, "scalar")
    w = input_node("w", (8, 8), dt.float32, "weight")
    s = input_node("s", (4, 8), dt.float32, "state")
    at = input_node("at", (6,), dt.int32, rows="n")
    table = as_node(np.arange(48, dtype=np.float32).reshape(6, 8) / 48)
    y = ops.tanh(ops.add(ops.dot(x, ops.transpose(w, (1, 0))), table))
    new = ops.update(s, at, y)
    return Graph((x, n, w, s, at), (y, ops.sum_(new, (1,))), ((s, new),), "small")


def small_program(caps: Caps) -> Program:
    return compile_graph(small_graph(), caps, "small")


def small_values(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((6, 8)).astype(np.float32),
        "w": rng.standard_normal((8, 8)).astype(np.float32),
        "s": rng.standard_normal((4, 8)).astype(np.float32),
        "at": np.array([2, 0, -1, 3, -1, 9], np.int32),
    }
