"""Graphs: the verifier, the text form, and the JSON form under hostile input."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import CompileError, FileFormatError
from weft.graph.ir import Graph, Node
from weft.graph.serial import to_json
from weft.graph.text import to_text
from weft.tensor import Spec, Tensor, trace
from weft.tensor import functional as F


def model(x: Tensor, ids: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    cache[ids] = x
    y = F.layer_norm(F.gelu(x)) * np.float32(np.inf) + weft.arange(4).cast("bf16").cast("f32")
    return F.softmax(y).pad([(1, 0), (0, 0)], float("-inf")), (x > 0).any(), cache[1:]


GRAPH = trace(
    model, [Spec((2, 4), rows="n"), Spec((2,), "int32"), Spec((5, 4), role="state", name="cache")]
)
TEXT = to_json(GRAPH)


def test_round_trip() -> None:
    loaded = ops.check.load_graph(TEXT)
    ops.check.verify(loaded)
    assert to_text(loaded, bodies=True) == to_text(GRAPH, bodies=True)
    assert to_json(loaded) == TEXT
    values = [np.ones((2, 4), "f4"), np.array([4, 0], np.int32), np.zeros((5, 4), "f4")]
    for a, b in zip(ops.evaluate(loaded, values), ops.evaluate(GRAPH, values)):
        np.testing.assert_array_equal(a, b)


def test_text_is_aligned() -> None:
    def fn(x: Tensor, s: Tensor) -> Tensor:
        s.assign(s + x)
        return x * 2

    text = to_text(trace(fn, [Spec((2,)), Spec((2,), role="state")]))
    body = [line.split("  #")[0].rstrip() for line in text.splitlines()]
    assert body == [
        "graph fn",
        "  %0  float32[2]  input name=x role=input",
        "  %1  float32[2]  input name=s role=state",
        "  %2  float32[]   const value=[2.0]",
        "  %3  float32[2]  broadcast %2 shape=(2)",
        "  %4  float32[2]  mul %0 %3",
        "  %5  float32[2]  add %1 %0",
        "  s <- %5",
        "  return %4",
    ]


# -- the verifier -------------------------------------------------------------------------------

X = ops.input_node("x", (2, 3), dt.float32)
S = ops.input_node("s", (2, 3), dt.float32, "state")
Y = Node("exp", (X,), {}, (2, 3), dt.float32, None, "user.py:3")
SOFTMAX = ops.call("softmax", X)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (Graph((), (Y,)), "not among"),
        (Graph((X, X), (Y,)), "shares the name"),
        (Graph((X,), (replace(Y, shape=(3, 2)),)), r"should be float32\[2, 3\].*user.py:3"),
        (Graph((X,), (replace(Y, dtype=dt.int32),)), "should be"),
        (Graph((X,), (replace(Y, shape=(2, -3)),)), "has shape"),
        (Graph((X,), (replace(Y, op="expp"),)), "no primitive"),
        (Graph((X,), (replace(Y, inputs=(X, X)),)), "does not fit"),
        (Graph((X,), (replace(Y, attrs={"axis": 1}),)), "does not fit"),
        (Graph((X,), (replace(Y, body=Graph((), ())),)), "body but is no call"),
        (Graph((X,), (replace(SOFTMAX, body=None),)), "without a body"),
        (Graph((X,), (replace(SOFTMAX, body=Graph((), (X,))),)), "do not fit its operands"),
        (Graph((X,), (replace(SOFTMAX, attrs={"name": "soft", "params": {}}),)), "no composite"),
        (Graph((Y,), (Y,)), "is listed as an input"),
        (Graph((ops.input_node("q", (), dt.int32, "boss"),), ()), "role"),
        (Graph((ops.input_node("q", (1,), dt.int32, "scalar"),), ()), "scalar with axes"),
        (Graph((X,), (), ((X, Y),)), "no state"),
        (Graph((X, S), (), ((S, Y), (S, Y))), "twice"),
        (Graph((X, S), (), ((S, ops.sum_(Y, 1)),)), "is assigned"),
        (Graph((), (Node("const", (), {"value": 3}, (), dt.int32),)), "holds no array"),
    ],
)
def test_verify_names_the_fault(graph: Graph, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        ops.check.verify(graph)


# -- hostile input ------------------------------------------------------------------------------


def test_garbage() -> None:
    texts = ["", "null", "[]", "{}", '{"weft_graph": 2}', '{"weft_graph": 1}', "[" * 100_000]
    texts += ['{"weft_graph": 1, "graphs": []}', '{"weft_graph": 1, "graphs": [3]}']
    for text in texts:
        with pytest.raises(FileFormatError):
            ops.check.load_graph(text)


def _paths(value: Any, path: tuple = ()) -> list[tuple]:
    found = [path] if path else []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for k, v in items:
        found += _paths(v, (*path, k))
    return found


PATHS = _paths(json.loads(TEXT))
JUNK = st.sampled_from(
    [None, -1, 0, 1, 10**30, 2**31, 1.5, "", "float32", "x", [], [1], [-1], {}, {"dtype": "bool"},
     {"array": "!!", "shape": [1], "of": "float32"}, True, "../../etc/passwd", [[1, 2]],
     {"array": "", "shape": [0, 2**60], "of": "int8"}, {"dict": {"x": 1}}]
)  # fmt: skip


@given(st.sampled_from(PATHS), JUNK, st.booleans())
@settings(max_examples=400, deadline=None)
def test_a_changed_file_is_refused_or_still_a_graph(path: tuple, junk: Any, drop: bool) -> None:
    data = json.loads(TEXT)
    at = data
    for key in path[:-1]:
        at = at[key]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = junk
    try:
        graph = ops.check.load_graph(json.dumps(data))
    except FileFormatError:
        return
    ops.check.verify(graph)


@given(st.integers(0, len(TEXT) - 1))
@settings(max_examples=60, deadline=None)
def test_a_truncated_file_is_refused(length: int) -> None:
    with pytest.raises(FileFormatError):
        ops.check.load_graph(TEXT[:length])
