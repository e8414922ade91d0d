"""The conditions of a well-formed Graph. A rule that the caller passes in recomputes shapes, so
this package needs no table of ops (`weft.ops.check.verify` passes the primitives' rules)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import CompileError
from weft.graph.ir import Graph, Node, Shape, toposort

ROLES = ("input", "scalar", "state", "weight")
MAX_RANK = 8

# (op, operands as (shape, dtype), attrs) -> (shape, dtype); raises for an op that does not fit.
ShapeRule = Callable[[str, list[tuple[Shape, DType]], Mapping[str, Any]], tuple[Shape, DType]]


def verify(
    graph: Graph, rule: ShapeRule | None = None, sound: dict[int, Node] | None = None
) -> None:
    """Raises CompileError naming the graph, the node and what is wrong with it.

    `sound` maps ids to nodes that were found well formed before, and receives those found now.
    Nodes that a pass left unchanged are not checked twice.

    The checks: inputs are listed once and have distinct names. Every node reached has valid
    attributes, and (with a rule) the shape and dtype of its op. A body fits its call. Assignments
    go to state of the same shape and dtype.
    """
    _inputs(graph)
    sound = {} if sound is None else sound
    listed = {id(n) for n in graph.inputs}
    # Below a node found before there is nothing new, unless an input is no longer listed.
    still = all(_known(n, listed) for n in sound.values() if n.op == "input")
    for node in toposort((*graph.inputs, *graph.roots()), sound if still else ()):
        if node.op == "input":
            known = _known(node, listed)
            _require(known, graph, node, "is used but not among the graph's inputs")
            rows = node.attrs.get("rows", "")
            _require(isinstance(rows, str), graph, node, f"is bounded by rows {rows!r}, no name")
            sound[id(node)] = node
            continue
        if id(node) in sound:
            continue
        _node(graph, node, rule)
        if node.body is not None:
            _once(node.body, rule)
        sound[id(node)] = node
    _assigns(graph)


# Bodies that were found well formed, by id and rule: a composite's is the same in every graph.
_bodies: WeakValueDictionary[tuple[int, ShapeRule | None], Graph] = WeakValueDictionary()


def _once(body: Graph, rule: ShapeRule | None) -> None:
    """Verifies a body, unless it was before."""
    if _bodies.get((id(body), rule)) is not body:
        verify(body, rule)
        _bodies[id(body), rule] = body


def _known(node: Node, listed: set[int]) -> bool:
    return id(node) in listed or {"part", "whole"} <= node.attrs.keys()  # see compile/interleave.py


def _require(ok: bool, graph: Graph, node: Node | None, what: str) -> None:
    if not ok:
        at = f" ({node.where})" if node is not None and node.where else ""
        raise CompileError(f"graph {graph.name!r}: {node if node is not None else ''} {what}{at}")


def _inputs(graph: Graph) -> None:
    names = set()
    for node in graph.inputs:
        _require(node.op == "input" and not node.inputs, graph, node, "is listed as an input")
        name, role = node.attrs.get("name"), node.attrs.get("role")
        _require(isinstance(name, str) and bool(name), graph, node, "has no name")
        _require(name not in names, graph, node, f"shares the name {name!r} with another input")
        _require(role in ROLES, graph, node, f"has role {role!r}; expected one of {ROLES}")
        _require(role != "scalar" or node.shape == (), graph, node, "is a scalar with axes")
        _shape(graph, node)
        names.add(name)


def _shape(graph: Graph, node: Node) -> None:
    ok = isinstance(node.shape, tuple) and len(node.shape) <= MAX_RANK
    ok = ok and all(isinstance(d, int) and d >= 0 for d in node.shape)
    _require(ok, graph, node, f"has shape {node.shape!r}; at most {MAX_RANK} sizes >= 0")
    _require(isinstance(node.dtype, DType), graph, node, f"has dtype {node.dtype!r}")


def _node(graph: Graph, node: Node, rule: ShapeRule | None) -> None:
    _shape(graph, node)
    if node.op == "const":
        value = node.attrs.get("value")
        fits = isinstance(value, np.ndarray) and value.shape == node.shape
        _require(fits, graph, node, "holds no array of its shape")
    if node.op == "call":
        _body(graph, node)
    else:
        _require(node.body is None, graph, node, "has a body but is no call")
    if node.op == "result":
        _result(graph, node)
        return
    if rule is None:
        return
    operands = [(x.shape, x.dtype) for x in node.inputs]
    try:
        shape, dtype = rule(node.op, operands, node.attrs)
    except Exception as error:
        raise CompileError(f"graph {graph.name!r}: {node} does not fit: {error}") from error
    found = (shape, dtype) == (node.shape, node.dtype)
    _require(found, graph, node, f"should be {getattr(dtype, 'name', dtype)}{list(shape)}")


def _body(graph: Graph, node: Node) -> None:
    body = node.body
    _require(body is not None, graph, node, "is a call without a body")
    assert body is not None
    fits = len(body.inputs) == len(node.inputs) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(body.inputs, node.inputs)
    )
    _require(fits, graph, node, "has a body whose inputs do not fit its operands")
    plain = bool(body.outputs) and not body.assigns
    _require(plain, graph, node, "has a body without outputs, or with assignments")
    out = body.outputs[0]
    same = (out.shape, out.dtype) == (node.shape, node.dtype)
    _require(same, graph, node, f"has a body that gives {out}")


def _result(graph: Graph, node: Node) -> None:
    call = node.inputs[0] if len(node.inputs) == 1 else None
    body, index = call.body if call is not None else None, node.attrs.get("index")
    _require(body is not None, graph, node, "is a result of what is no call")
    assert body is not None
    known = type(index) is int and 0 < index < len(body.outputs)
    _require(known, graph, node, f"has index {index!r} of {len(body.outputs)} outputs")
    out = body.outputs[node.attrs["index"]]
    same = (out.shape, out.dtype) == (node.shape, node.dtype)
    _require(same, graph, node, f"stands for {out}")


def _assigns(graph: Graph) -> None:
    listed = {id(n) for n in graph.inputs}
    seen: set[int] = set()
    for state, new in graph.assigns:
        ok = id(state) in listed and state.attrs.get("role") == "state"
        _require(ok, graph, state, "is assigned to but is no state input")
        _require(id(state) not in seen, graph, state, "is assigned to twice")
        same = (state.shape, state.dtype) == (new.shape, new.dtype)
        _require(same, graph, state, f"is assigned {new}")
        seen.add(id(state))
