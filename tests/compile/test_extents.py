"""Extents beyond what 32-bit indices count: refused by name, or right; never another answer.

Everything is broadcast, so nothing here needs memory. The truth is Python's own integers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import weft
from weft import ops
from weft.compile import compile_graph
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import LimitError
from weft.graph.ir import Graph, Node
from weft.ops.graph_listener import input_node

LIMIT = (1 << 31) - (1 << 20)
ROW = input_node("row", (1,), dt.float32)


def wide(*shape: int) -> Node:
    return ops.broadcast(ROW, shape)


GRAPHS: dict[str, Callable[[], Node]] = {
    "sum of 2**41": lambda: ops.sum_(wide(1 << 41)),
    "sum of a matrix": lambda: ops.sum_(wide(1 << 21, 1 << 20)),
    "max": lambda: ops.max_(wide(1 << 20, 1 << 20)),
    "max of joined": lambda: ops.max_(ops.concat((wide(1 << 30), wide(1 << 30)), 0), 0),
    "max of padded": lambda: ops.max_(ops.pad(wide(1 << 30), (1 << 30,), (1 << 30,)), 0),
    "product": lambda: ops.dot(wide(2, 1 << 33), wide(1 << 33, 2)),
    "long vector": lambda: ops.dot(wide(1, 1 << 33), wide(1 << 33, 2)),
    "tall product": lambda: ops.sum_(ops.dot(wide(1 << 33, 8), wide(8, 1))),
    "softmax": lambda: ops.max_(ops.call("softmax", wide(1 << 20, 1 << 14))),
    "stored": lambda: ops.exp(wide(1 << 31)),
    "stored matrix": lambda: ops.exp(wide(1 << 16, 1 << 16)),
    "scattered": lambda: ops.scatter_add(
        wide(1 << 32), ops.broadcast(np.array([1], np.int32), (1,)), wide(1)
    ),
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_too_much_is_refused(name: str, preset: str) -> None:
    graph = Graph((ROW,), (GRAPHS[name](),))
    with pytest.raises(LimitError, match="at most"):
        compile_graph(graph, PRESETS[preset])


NORM = "norm of a long row"  # a kernel of GPUs takes it whole
LONG: dict[str, Callable[[], Node]] = {
    "sum of long rows": lambda: ops.sum_(wide(4, 1 << 32), 1),
    NORM: lambda: ops.max_(
        ops.call("rms_norm", wide(2, 1 << 32), wide(1 << 32), eps=1e-5, offset=0.0)
    ),
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", LONG)
def test_long_rows_are_cut(name: str, preset: str) -> None:
    """Each piece is small enough to be counted; what one kernel takes whole is refused, and so is
    what would have to be stored."""
    graph = Graph((ROW,), (LONG[name](),))
    small = preset == "webgpu-small"
    if (name == NORM and not PRESETS[preset].is_cpu) or (name != NORM and small):
        with pytest.raises(LimitError, match=r"at most|allows"):
            compile_graph(graph, PRESETS[preset])
    else:
        compile_graph(graph, PRESETS[preset])


@pytest.mark.parametrize("preset", [p for p in PRESETS if p != "webgpu-small"])
def test_large_loops_over_small_values_are_not_refused(preset: str) -> None:
    """2**34 differences that are never stored: each index by itself is small."""
    a = input_node("a", (1 << 13, 1, 1 << 8), dt.float32)
    b = input_node("b", (1 << 13,), dt.float32)
    shape = (1 << 13, 1 << 13, 1 << 8)
    right = ops.broadcast(ops.reshape(b, (1, 1 << 13, 1)), shape)
    far = ops.sum_(ops.abs_(ops.sub(ops.broadcast(a, shape), right)), 2)
    compile_graph(Graph((a, b), (far,)), PRESETS[preset])


def run(fn: Callable[[weft.Tensor], weft.Tensor], x: weft.Tensor, device: str) -> np.ndarray | None:
    try:
        return weft.compile(fn, device=device)(x).numpy()
    except LimitError as error:
        assert "at most" in str(error) and "\n" not in str(error)
        return None


@pytest.mark.parametrize("device", ["cpu", "interp"])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_few_elements_of_many(device: str, data: st.DataObject) -> None:
    """Slices and gathers out of broadcast, transposed, flattened, flipped and joined values."""
    k = data.draw(st.integers(1, 7), "values")
    n = data.draw(st.sampled_from([3, 1 << 20, 1 << 29, 1 << 31, (1 << 31) - 1, 1 << 33, 1 << 40]))
    turned, back = data.draw(st.booleans(), "transposed"), data.draw(st.booleans(), "flipped")
    joined = data.draw(st.booleans(), "joined")
    total = n * k * (2 if joined else 1)
    at = data.draw(st.integers(0, total - 1), "at")
    stop = min(at + 3, total)

    def few(x: weft.Tensor) -> weft.Tensor:
        y = x.reshape(k, 1).expand(k, n)
        y = (y.T if turned else y).reshape(n * k) * 2
        y = weft.concat([y, y + 1]) if joined else y
        y = y.flip() if back else y
        return y[at:stop] + 0.5

    def truth(i: int) -> float:
        i = total - 1 - i if back else i
        second, i = divmod(i, n * k)
        return (i % k if turned else i // n) * 2 + second + 0.5

    got = run(few, weft.arange(k).cast("float32"), device)
    if got is None:
        assert total > LIMIT
    else:
        np.testing.assert_array_equal(got, [truth(i) for i in range(at, stop)])


def test_positions_that_int32_cannot_hold() -> None:
    """The same in eager mode, before any memory is asked for."""
    x = weft.ones(1).expand(1 << 20, 1 << 12)
    index = weft.zeros((1 << 20, 1), "int32")
    pair = weft.tensor(np.array([0], np.int32))
    for fn in (
        lambda: x.take_along_axis(index, 1),
        lambda: x[pair, pair],
        lambda: weft.ones(1).expand(1 << 33).argmax(),
        lambda: weft.ones(1).expand(1 << 33).argsort(),
        lambda: weft.ones(1).expand(2, 1 << 33).topk(2),
        lambda: weft.arange(1 << 33),
        lambda: weft.functional.cross_entropy(x, weft.zeros((1 << 20,), "int32")),
    ):
        with pytest.raises(LimitError, match="int32 indices number at most 2,147,483,648"):
            fn()
