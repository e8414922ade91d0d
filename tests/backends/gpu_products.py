"""Graphs of matrix products that Library steps are tested with."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import ops
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.graph.ir import Graph, Node
from weft.ops.graph_listener import input_node
from weft.program import serial
from weft.program.gemm import Gemm, Matrix
from weft.program.program import Program

F32, BF16, F16 = dt.float32, dt.bfloat16, dt.float16
M, N, K = 24, 40, 32


def leaf(name: str, *shape: int, dtype: dt.DType = F32) -> Node:
    return input_node(name, shape, dtype, "input")


def product(form: str, dtype: dt.DType = F32, out: dt.DType | None = None) -> tuple[Node, ...]:
    """(a b, a, b), where "t" in `form` says that an operand is stored transposed."""
    a = leaf("a", *((K, M) if form[0] == "t" else (M, K)), dtype=dtype)
    b = leaf("b", *((N, K) if form[1] == "t" else (K, N)), dtype=dtype)
    left = ops.transpose(a, (1, 0)) if form[0] == "t" else a
    right = ops.transpose(b, (1, 0)) if form[1] == "t" else b
    return ops.dot(left, right, out_dtype=out or dtype), a, b


def spread(bias: Node, *shape: int) -> Node:
    return ops.broadcast(bias, shape=shape)


def with_bias() -> Graph:
    y, a, b = product("nt")
    bias = leaf("bias", N)
    return Graph((a, b, bias), (ops.add(y, spread(bias, M, N)),), name="g")


def with_residual() -> Graph:
    y, a, b = product("nt")
    bias, more = leaf("bias", N), leaf("more", M, N)
    return Graph((a, b, bias, more), (ops.add(more, ops.add(y, spread(bias, M, N))),), name="g")


def with_gelu() -> Graph:
    y, a, b = product("nt", BF16, F32)
    bias = leaf("bias", N, dtype=BF16)
    inner = ops.add(y, spread(ops.cast(bias, F32), M, N))
    return Graph(
        (a, b, bias), (ops.cast(ops.call("gelu", inner, approximate="tanh"), BF16),), name="g"
    )


def batched() -> Graph:
    a, b = leaf("a", 2, 3, M, K, dtype=F16), leaf("b", 2, 3, N, K, dtype=F16)
    y = ops.dot(a, ops.transpose(b, (0, 1, 3, 2)), out_dtype=F16)
    return Graph((a, b), (y,), name="g")


def heads() -> Graph:
    """A batch whose matrices lie side by side."""
    a, b = leaf("a", M, 4, K), leaf("b", K, 4, N)
    y = ops.dot(ops.transpose(a, (1, 0, 2)), ops.transpose(b, (1, 0, 2)), out_dtype=F32)
    return Graph((a, b), (y,), name="g")


def part() -> Graph:
    """An operand that starts inside its value, and rows that are two axes."""
    a, b = leaf("a", 2, M, 3 * K), leaf("b", K, N)
    left = ops.slice_(a, starts=(0, 0, K), stops=(2, M, 2 * K))
    y = ops.dot(ops.reshape(left, (2 * M, K)), b, out_dtype=F32)
    return Graph((a, b), (ops.reshape(y, (2, M, N)),), name="g")


def plain_graph(form: str, dtype: dt.DType, out: dt.DType) -> Graph:
    y, a, b = product(form, dtype, dtype if dtype is not dt.int8 else dt.int32)
    return Graph((a, b), (y if y.dtype is out else ops.cast(y, out),), name="g")


GRAPHS: dict[str, Any] = {
    **{f"f32 {f}": (lambda f=f: plain_graph(f, F32, F32)) for f in ("nn", "nt", "tn", "tt")},
    "bf16": lambda: plain_graph("nt", BF16, BF16),
    "bf16 to f32": lambda: plain_graph("tn", BF16, F32),
    "f16": lambda: plain_graph("nn", F16, F16),
    "int8": lambda: plain_graph("nt", dt.int8, dt.int32),
    "bias": with_bias,
    "residual": with_residual,
    "gelu": with_gelu,
    "batched": batched,
    "heads": heads,
    "part": part,
}  # fmt: skip


def values_for(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    out = {}
    for x in graph.inputs:
        made = rng.integers(-9, 9, x.shape) if x.dtype.is_int else rng.standard_normal(x.shape)
        out[x.attrs["name"]] = made.astype(x.dtype.numpy)
    return out


def compiled(graph: Graph, device: Any) -> Program:
    """Compiled, and read back from its file."""
    program = compile_graph(graph, device.caps)
    back = serial.loads(serial.dumps(program))
    assert back.steps == program.steps
    return back


def gemm(dtype: dt.DType = F32, **fields: Any) -> Gemm:
    a = Matrix(0, dtype, 0, (0, K, 1))
    b = Matrix(1, dtype, 0, (0, N, 1))
    c = Matrix(2, dtype, 0, (M * N, N, 1))
    return Gemm(M, N, K, 1, a, b, c, **fields)
