"""A graph cut where values go elsewhere: the segments, one after the other, give what it gives."""

from __future__ import annotations

import numpy as np
import pytest

from weft import ops
from weft.backends import registry
from weft.compile.passes import compile_graph
from weft.core.dtypes import float32, int32
from weft.graph.ir import Graph, Node
from weft.program.session import Session
from weft.transform.gaps import Gap, cut_at

ROWS = 4


def given(name: str, dtype: object = float32, width: int = 3, role: str = "input") -> Node:
    rows = "n" if role == "input" else None
    return ops.input_node(name, (ROWS, width), dtype, role, rows=rows)


def summed() -> tuple[Graph, list[Gap]]:
    """y = z + sums', z = x * (place + 1), sums = the state after z was added; out = x + 2 y'."""
    gaps: list[Gap] = []

    def gap(x: Node) -> Node:
        gaps.append((x, given(f"came.{len(gaps)}")))
        return gaps[-1][1]

    with ops.building():
        x, place, held = given("x"), given("place", int32), given("held", role="state")
        z = ops.mul(x, ops.add(ops.cast(place, float32), 1.0))
        sums = ops.add(held, z)
        y = gap(ops.add(z, gap(sums)))
        out = ops.add(x, ops.mul(y, ops.cast(ops.add(place, 2), float32)))
    fed = (x, place, *(came for _, came in gaps), held)
    return Graph(fed, (out,), ((held, sums),), "summed"), gaps


def test_segments_give_what_the_graph_gives() -> None:
    graph, gaps = summed()
    segments = cut_at(graph, gaps, ROWS, "n")
    names = [[x.attrs["name"] for x in s.graph.inputs] for s in segments]
    assert len(segments) == 3 and sum("held" in n for n in names) == 1
    assert [len(s.graph.assigns) for s in segments] == [1, 0, 0]
    assert "place" in names[2]  # integers are given again, nothing made of them crosses
    device = registry.get("cpu")
    sessions = [Session(compile_graph(s.graph, device.caps, "s"), device) for s in segments]
    x, place = np.arange(12.0, dtype=np.float32).reshape(4, 3), np.ones((4, 3), np.int32)
    held = np.zeros((4, 3), np.float32)
    for _ in range(2):
        values: dict[str, np.ndarray] = {"x": x, "place": place}
        for k, (session, segment) in enumerate(zip(sessions, segments)):
            outs = session.run({n: values[n] for n in session.input_names}, {"n": ROWS})
            values |= dict(zip(segment.gives, outs))
            if k < 2:
                values[f"came.{k}"] = 10 * values[f"gap.{k}"]
        held = held + 2 * x
        want = x + 10 * (2 * x + 10 * held) * 3
        np.testing.assert_array_equal(values["out.0"], want)


def test_gaps_out_of_order_and_states_in_two_are_refused() -> None:
    graph, gaps = summed()
    with pytest.raises(ValueError, match="after the gap"):
        cut_at(graph, gaps[::-1], ROWS, "n")
    with ops.building():
        x, held = given("x"), given("held", role="state")
        came = given("came")
        both = ops.add(ops.add(came, x), held)
        out = ops.add(both, held)
    again = Graph((x, came, held), (out,), ((held, ops.add(held, x)),), "twice")
    with pytest.raises(ValueError, match="several segments"):
        cut_at(again, [(ops.add(held, x), came)], ROWS, "n")
