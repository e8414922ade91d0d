"""Products whose matrix is chosen at run time by a number in memory: read in place."""

from __future__ import annotations

import numpy as np
import pytest

from weft import ops
from weft.backends import registry
from weft.compile.passes import compile_graph
from weft.core.dtypes import DType, bfloat16, float32, int32
from weft.graph.ir import Graph
from weft.program.session import Session

N, E, PICKS, OUT = 5, 7, 3, 29


def graph(rows: int, depth: int, dtype: DType, inside: bool = True) -> Graph:
    """Of each entry the PICKS best of E matrices w[E, OUT, K], times x[N, rows, K]; the index could
    be outside unless `inside`."""
    with ops.building():
        given = ops.input_node("x", (N, rows, depth), float32, "input", rows="n")
        scores = ops.input_node("scores", (N, E), float32, "input", rows="n")
        w = [ops.input_node(name, (E, OUT, depth), dtype, "weight") for name in ("gate", "up")]
        order = ops.sort(scores, 1, descending=True, indices=True)
        chosen = ops.slice_(order, (0, 1), (N, 1 + PICKS))
        chosen = chosen if inside else ops.add(chosen, 1)
        x = ops.reshape(ops.cast(given, dtype), (N, 1, rows, depth))
        x = ops.broadcast(x, (N, PICKS, rows, depth))
        each = [ops.transpose(ops.gather(m, chosen), (0, 1, 3, 2)) for m in w]
        gate, up = (ops.dot(x, m, float32) for m in each)
        y = ops.mul(ops.call("silu", gate), up)
    return Graph((given, scores, *w), (y,), (), "picked", {"frozen": True})


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize(
    ("device", "dtype", "depth"),
    [
        ("cpu", float32, 37),
        ("cpu", bfloat16, 64),
        ("interp:cpu-avx512", float32, 300),
        ("interp:cuda", bfloat16, 64),
        ("interp:hip-wave64", float32, 37),
        ("interp:webgpu", bfloat16, 37),
    ],
)
def test_matrices_are_picked_in_place(device: str, dtype: DType, depth: int, rows: int) -> None:
    target = registry.get(device)
    program = compile_graph(graph(rows, depth, dtype), target.caps)
    copied = PICKS * OUT * depth * dtype.itemsize  # one entry's matrices
    made = [b.nbytes for b in program.buffers if b.role not in ("weight", "input", "output")]
    assert rows > 1 or sum(made) < copied + 2 * N * depth * 4  # of many rows also a product
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, rows, depth)).astype(np.float32)
    scores = rng.standard_normal((N, E)).astype(np.float32)
    w = [rng.standard_normal((E, OUT, depth)).astype(dtype.numpy) for _ in range(2)]
    session = Session(program, target, {"gate": w[0], "up": w[1]})
    got = session.run({"x": x, "scores": scores}, {"n": 4})[0][:4]
    chosen = np.argsort(-scores, 1, kind="stable")[:, 1 : 1 + PICKS]
    wide = x.astype(dtype.numpy).astype(np.float64)
    gate, up = (np.einsum("nrk,njmk->njrm", wide, m.astype(np.float64)[chosen]) for m in w)
    want = (gate / (1 + np.exp(-gate)) * up)[:4]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_an_index_that_could_be_outside_is_gathered() -> None:
    """Where nothing says that the numbers are valid, gather's NaN of what is outside holds."""
    target = registry.get("cpu")
    program = compile_graph(graph(1, 37, float32, inside=False), target.caps)
    made = [b.nbytes for b in program.buffers if b.role not in ("weight", "input", "output")]
    assert sum(made) > N * PICKS * OUT * 37 * 4


@pytest.mark.parametrize("device", ["cpu", "interp:cpu-avx512", "interp:cuda"])
@pytest.mark.parametrize(("count", "picks"), [(1, 1), (3, 1), (3, 5), (9, 1)])
def test_matrices_one_under_the_other(device: str, count: int, picks: int) -> None:
    """w[E * OUT, K], which a CPU keeps interleaved; one for all rows, or one for each."""
    rows, out, depth = 5, 32, 37
    target = registry.get(device)
    with ops.building():
        x = ops.input_node("x", (rows, depth), float32, "input", rows="n")
        number = ops.input_node("number", (picks,), int32, "input")
        w = ops.input_node("w", (count * out, depth), float32, "weight")
        matrix = ops.gather(ops.reshape(w, (count, out, depth)), ops.remainder(number, count))
        left = ops.reshape(x, (picks, rows // picks, depth))
        y = ops.reshape(ops.dot(left, ops.transpose(matrix, (0, 2, 1))), (rows, out))
    graph = Graph((x, number, w), (y,), (), "stacked", {"frozen": True})
    program = compile_graph(graph, target.caps)
    held = [b.name for b in program.buffers if b.role == "weight"]
    assert held == ([f"w@{target.caps.lanes}"] if target.caps.is_cpu else ["w"])
    rng = np.random.default_rng(0)
    given = rng.standard_normal((rows, depth)).astype(np.float32)
    numbers = rng.integers(0, 2 * count, picks).astype(np.int32)
    stack = rng.standard_normal((count * out, depth)).astype(np.float32)
    got = Session(program, target, {"w": stack}).run({"x": given, "number": numbers}, {"n": rows})
    each = stack.reshape(count, out, depth)[numbers % count]
    want = np.einsum("prk,pok->pro", given.reshape(picks, -1, depth), each).reshape(rows, out)
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
