"""Products that compute the first rows alone write nothing that has meaning in other rows."""

from __future__ import annotations

import numpy as np
import pytest

from weft import ops
from weft.backends import registry
from weft.compile.passes import compile_graph
from weft.core.dtypes import bool_, float32, int32
from weft.graph.ir import Graph
from weft.ops.picks import first_rows
from weft.program.session import Session

N, K, R, M = 70, 24, 64, 40


def graph() -> Graph:
    """out where no adapter is chosen, else out + (x a) b: the second product is the larger one."""
    with ops.building():
        x = ops.input_node("x", (N, K), float32, "input")
        w, a, b = (
            ops.input_node(k, s, float32, "weight")
            for k, s in (("w", (K, M)), ("a", (1, K, R)), ("b", (1, R, M)))
        )
        some, count = ops.input_node("some", (1,), bool_, "input"), ops.input_node(
            "count", (1,), int32, "input"
        )  # fmt: skip
        rows = first_rows(ops.const(np.zeros(1, np.int32)), count)
        out, low = ops.dot(x, w), x
        for each in (a, b):
            low = ops.dot(low, ops.reshape(ops.gather(each, rows), each.shape[1:]))
        chosen = ops.broadcast(ops.reshape(some, (1, 1)), (N, M))
        made = ops.where(chosen, ops.add(out, low), out)
    return Graph((x, some, count, w, a, b), (made,), ())


@pytest.mark.parametrize("count", [0, 1, N])
def test_rows_beyond_the_count_keep_what_they_have(count: int) -> None:
    rng = np.random.default_rng(0)
    weights = {
        k: rng.standard_normal(s).astype(np.float32)
        for k, s in (("w", (K, M)), ("a", (1, K, R)), ("b", (1, R, M)))
    }
    x = rng.standard_normal((N, K)).astype(np.float32)
    device = registry.host()
    session = Session(compile_graph(graph(), device.caps), device, weights)
    given = {"x": x, "some": np.array([count > 0]), "count": np.array([count], np.int32)}
    got = session.run(given, {})[0]
    want = x @ weights["w"]
    rows = slice(0, count) if count else slice(0, N)
    if count:
        want = want + x @ weights["a"][0] @ weights["b"][0]
    np.testing.assert_allclose(np.asarray(got)[rows], want[rows], rtol=1e-3, atol=1e-3)
