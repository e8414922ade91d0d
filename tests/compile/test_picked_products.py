"""Products whose matrix is chosen at run time by a number in memory: read in place."""

from __future__ import annotations

import numpy as np
import pytest

from weft import ops
from weft.backends import registry
from weft.compile.passes import compile_graph
from weft.core.dtypes import DType, bfloat16, float32
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
