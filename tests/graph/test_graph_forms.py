"""Graphs: the text form, the verifier, and passes that it checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft import ops
from weft.compile import passes
from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.core.errors import CompileError
from weft.graph import verify as structure
from weft.graph.ir import Graph, Node
from weft.graph.text import to_text
from weft.tensor import Spec, Tensor, trace


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
        (Graph((), (replace(X, attrs={**X.attrs, "part": (0, 2)}),)), "not among"),
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


def test_a_pass_that_breaks_a_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(graph: Graph, caps: Caps) -> Graph:
        return Graph((), graph.outputs)

    graph = Graph((X,), (Y,), (), "broken")
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, ("lose the inputs", lose)))
    with pytest.raises(CompileError, match=r"after pass 'lose the inputs'.*not among"):
        passes.simplify_graph(graph, PRESETS["cpu-avx512"])
    monkeypatch.setenv("WEFT_VERIFY", "0")
    assert not passes.simplify_graph(graph, PRESETS["cpu-avx512"]).inputs


def test_what_was_found_before_is_still_held_against_the_inputs() -> None:
    """What is well formed is not looked at twice, but an input that is no longer listed is seen."""
    x, y = (ops.input_node(name, (2,), dt.float32) for name in "xy")
    graph = Graph((x, y), (ops.add(x, y),))
    sound: dict[int, Node] = {}
    ops.check.verify(graph, sound)
    above = ops.neg(graph.outputs[0])
    ops.check.verify(replace(graph, outputs=(above,)), sound)
    assert id(above) in sound
    ops.check.verify(Graph((x,), (ops.neg(x),)), sound)
    with pytest.raises(CompileError, match="not among the graph's inputs"):
        ops.check.verify(replace(graph, inputs=(x,)), sound)
    wrong = Node("neg", (above,), {}, (3,), dt.float32)
    with pytest.raises(CompileError, match=r"should be float32\[2\]"):
        ops.check.verify(replace(graph, outputs=(wrong,)), sound)


def test_a_body_is_verified_once_and_a_broken_one_each_time() -> None:
    checked: list[str] = []

    def rule(op: str, operands: object, attrs: object) -> tuple[tuple[int, ...], dt.DType]:
        checked.append(op)
        return (2, 3), dt.float32

    body = Graph((X,), (Y,), (), "body")
    call = Node("call", (X,), {"name": "own", "params": {}}, (2, 3), dt.float32, body)
    for _ in range(3):
        structure.verify(Graph((X,), (replace(call),)), rule)
    assert checked.count("call") == 3 and checked.count("exp") == 1
    broken = replace(call, body=Graph((X,), (replace(Y, inputs=(S,)),), (), "body"))
    for _ in range(2):
        with pytest.raises(CompileError, match="not among the graph's inputs"):
            structure.verify(Graph((X,), (broken,)), rule)
