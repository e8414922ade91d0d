"""A proof that a traced model's rows are apart: only attention lets a token see others.

The steps run twice on graph Nodes with stand-ins for what the engine computes, once with the tokens
as rows (as the engine runs them) and once side by side in one sequence. Then every Node is walked:
where the rows lie in it, and that no operator joins two of them or tells them apart by their place.
A model that fails (it counts positions itself, or mixes neighbours) would give wrong logits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from weft import ops
from weft.core.dtypes import float32, int32
from weft.core.errors import WeftError
from weft.graph.ir import Graph, Node
from weft.models.arch.config import DecoderConfig
from weft.models.arch.hooks import INFERENCE
from weft.models.arch.layers import Pass
from weft.models.arch.traced import tracing
from weft.models.zoo.stand_ins import Mixed, StandIns
from weft.ops.primitive import PRIMITIVES
from weft.tensor.core import Tensor

COUNT = 7  # rows of the proof


class _Rows(NamedTuple):
    """The place of the rows in a value's elements, in their order: `outer` runs of COUNT rows of
    `inner` elements each."""

    outer: int
    inner: int


class _Known(NamedTuple):
    """The facts about a value: where its rows are (None: it depends on no row), and then the axes
    along which all elements are equal."""

    rows: _Rows | None
    uniform: frozenset[int] = frozenset()


def mixed(c: DecoderConfig) -> str:
    """Returns "" if the model's rows are apart, else the reason why that is not proved."""
    for shape in ((COUNT, 1), (1, COUNT)):
        try:
            graph = _graph(c, shape)
            found = _walked(graph, {id(n): _start(n, shape) for n in graph.inputs})
            if found[id(graph.outputs[0])].rows != _Rows(1, graph.outputs[0].size // COUNT):
                return "its logits are not one row for each token"
        except Mixed as error:
            return str(error)
        except WeftError as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _start(node: Node, shape: tuple[int, int]) -> _Known:
    return _Known(_Rows(1, 1)) if node.attrs["role"] == "input" else _Known(None)


def _graph(c: DecoderConfig, shape: tuple[int, int]) -> Graph:
    body = c.traced
    assert body is not None
    with ops.building():
        given = [ops.input_node(name, shape, int32) for name in ("ids", "pos")]
        weights = {
            k: ops.input_node(k, s.shape, float32, "weight") for k, s in body.weights.items()
        }
        with tracing(given[0]):
            past: Any = None
            run = StandIns(Pass(c, weights, {}, past, INFERENCE))
            logits = run.all(Tensor(given[0]), Tensor(given[1])).value
    return Graph((*given, *weights.values()), (logits,))


# -- where rows lie -------------------------------------------------------------------------------


def _walked(graph: Graph, known: dict[int, _Known]) -> dict[int, _Known]:
    """Returns the facts about every Node. Raises Mixed."""
    results: dict[int, dict[int, _Known]] = {}
    for node in graph.nodes():
        if id(node) in known:
            continue
        if node.op == "call" and node.body is not None:
            inside = {id(given): known[id(x)] for given, x in zip(node.body.inputs, node.inputs)}
            results[id(node)] = _walked(node.body, inside)
            known[id(node)] = results[id(node)][id(node.body.outputs[0])]
        elif node.op == "result":
            call = node.inputs[0]
            assert call.body is not None
            known[id(node)] = results[id(call)][id(call.body.outputs[node.attrs["index"]])]
        else:
            known[id(node)] = _after(node, [known[id(x)] for x in node.inputs])
    return known


def _after(node: Node, given: list[_Known]) -> _Known:
    kind = PRIMITIVES[node.op].kind
    rule = _RULES.get(node.op) or _RULES.get(kind)
    if not node.size:  # nothing of any row
        return _Known(None, frozenset(range(len(node.shape))))
    if rule is None:
        if all(x.rows is None for x in given):
            return _Known(None)
        raise Mixed(f"{node.op} at {node.where or 'an unnamed place'} may join tokens")
    found: _Known = rule(node, given)
    return found


class _Place(NamedTuple):
    """The axis that the rows lie in: it has `outer` runs of COUNT rows of `inner` elements each."""

    axis: int
    outer: int
    inner: int

    def moved(self, shape: tuple[int, ...], axis: int) -> _Rows:
        """Returns the place of the rows in a value of this shape, where the axis is another."""
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        return _Rows(outer * self.outer, self.inner * inner)


def _place(node: Node, shape: tuple[int, ...], rows: _Rows) -> _Place:
    """Returns the axis that the rows lie in, alone or joined with others (heads of tokens are often
    one axis)."""
    for k, size in enumerate(shape):
        before, after = math.prod(shape[:k]), math.prod(shape[k + 1 :])
        if rows.outer % before == 0 and rows.inner % after == 0:
            outer, inner = rows.outer // before, rows.inner // after
            if outer * COUNT * inner == size:
                return _Place(k, outer, inner)
    raise Mixed(f"{node.op} of {list(shape)}: tokens are not an axis of their own")


def _joined(node: Node, given: list[_Known]) -> _Known:
    """Values of one shape, element by element."""
    places = {x.rows for x in given if x.rows is not None}
    if not places:
        return _Known(None, frozenset.intersection(*(x.uniform for x in given)))
    if len(places) > 1:
        raise Mixed(f"{node.op} joins different tokens")
    (rows,) = places
    for x in given:
        varies = x.rows is None and len(x.uniform) < len(node.shape)
        if varies and _place(node, node.shape, rows).axis not in x.uniform:
            raise Mixed(f"{node.op} tells tokens apart by their place in the step")
    return _Known(rows)


def _const(node: Node, given: list[_Known]) -> _Known:
    value = node.attrs["value"]
    axes = range(value.ndim)
    return _Known(None, frozenset(k for k in axes if np.all(value == value.take([0], k))))


def _iota(node: Node, given: list[_Known]) -> _Known:
    return _Known(None, frozenset(range(len(node.shape))) - {node.attrs["axis"]})


def _reshape(node: Node, given: list[_Known]) -> _Known:
    (x,) = given
    if x.rows is not None:
        return x
    shape = node.inputs[0].shape
    if len(x.uniform) == len(shape):
        return _Known(None, frozenset(range(len(node.shape))))
    kept = set()
    for k, size in enumerate(node.shape):
        place = (math.prod(node.shape[:k]), size)
        found = [j for j, n in enumerate(shape) if (math.prod(shape[:j]), n) == place]
        if size == 1 or any(j in x.uniform for j in found):
            kept.add(k)
    return _Known(None, frozenset(kept))


def _transpose(node: Node, given: list[_Known]) -> _Known:
    (x,), perm = given, node.attrs["perm"]
    if x.rows is None:
        return _Known(None, frozenset(k for k, j in enumerate(perm) if j in x.uniform))
    at = _place(node, node.inputs[0].shape, x.rows)
    return _Known(at.moved(node.shape, perm.index(at.axis)))


def _broadcast(node: Node, given: list[_Known]) -> _Known:
    (x,), shape = given, node.inputs[0].shape
    more = len(node.shape) - len(shape)
    if x.rows is not None:
        at = _place(node, shape, x.rows)
        return _Known(at.moved(node.shape, at.axis + more))
    grown = {k for k in range(len(node.shape)) if k < more or shape[k - more] == 1}
    return _Known(None, frozenset(grown | {k + more for k in x.uniform}))


def _slice(node: Node, given: list[_Known]) -> _Known:
    (x,), shape = given, node.inputs[0].shape
    if x.rows is None:
        return x
    at = _place(node, shape, x.rows)
    if node.shape[at.axis] != shape[at.axis] or node.attrs["steps"][at.axis] != 1:
        raise Mixed("a slice takes some of the tokens")
    return _Known(at.moved(node.shape, at.axis))


def _pad(node: Node, given: list[_Known]) -> _Known:
    (x,), shape = given, node.inputs[0].shape
    if x.rows is None:
        same = (k for k in x.uniform if node.shape[k] == shape[k])
        return _Known(None, frozenset(same))
    at = _place(node, shape, x.rows)
    if node.shape[at.axis] != shape[at.axis]:
        raise Mixed("padding moves tokens")
    return _Known(at.moved(node.shape, at.axis))


def _concat(node: Node, given: list[_Known]) -> _Known:
    axis = node.attrs["axis"]
    places = {
        _place(node, x.shape, known.rows)
        for x, known in zip(node.inputs, given)
        if known.rows is not None
    }
    if not places:
        return _Known(None, frozenset.intersection(*(x.uniform for x in given)) - {axis})
    at = places.pop()
    if places or at.axis == axis:
        raise Mixed("a concatenation joins tokens")
    if any(x.rows is None and at.axis not in x.uniform for x in given):
        raise Mixed("a concatenation tells tokens apart by their place in the step")
    return _Known(at.moved(node.shape, at.axis))


def _reduce(node: Node, given: list[_Known]) -> _Known:
    (x,), shape = given, node.inputs[0].shape
    axes = node.attrs.get("axes", (node.attrs.get("axis"),))
    left = [k for k in range(len(shape)) if k not in axes]
    if x.rows is None:
        return _Known(None, frozenset(i for i, k in enumerate(left) if k in x.uniform))
    at = _place(node, shape, x.rows)
    if at.axis in axes:
        raise Mixed(f"{node.op} joins tokens")
    return _Known(at.moved(node.shape, left.index(at.axis)))


def _sort(node: Node, given: list[_Known]) -> _Known:
    (x,) = given
    if x.rows is not None and _place(node, node.shape, x.rows).axis == node.attrs["axis"]:
        raise Mixed("a sort joins tokens")
    return _Known(x.rows)


def _gather(node: Node, given: list[_Known]) -> _Known:
    (table, index), axis = given, node.attrs["axis"]
    x, at = node.inputs
    if table.rows is None and index.rows is None:
        return _Known(None)
    if table.rows is None:
        assert index.rows is not None
        place = _place(node, at.shape, index.rows)
        return _Known(place.moved(node.shape, axis + place.axis))
    place = _place(node, x.shape, table.rows)
    k = place.axis
    if index.rows is not None or k == axis:
        raise Mixed("a gather picks among tokens")
    return _Known(place.moved(node.shape, k if k < axis else k + len(at.shape) - 1))


def _dot(node: Node, given: list[_Known]) -> _Known:
    a, b = given
    if a.rows is None and b.rows is None:
        return _Known(None)
    left, right = (x.shape for x in node.inputs)
    lead, found = len(node.shape) - 2, set()
    for known, shape, outer in ((a, left, lead), (b, right, lead + 1)):
        if known.rows is not None:
            at = _place(node, shape, known.rows)
            if at.axis < len(shape) - 2:
                found.add(at._replace(axis=at.axis + len(node.shape) - len(shape)))
            elif (at.axis == len(shape) - 2) == (outer == lead):
                found.add(at._replace(axis=outer))
            else:
                raise Mixed("a product adds over tokens")
    if len(found) > 1:
        raise Mixed("a product joins tokens")
    at = found.pop()
    k = at.axis
    if k < lead and not all(
        x.rows is not None or k in x.uniform or len(n.shape) == 2
        for x, n in zip(given, node.inputs)
    ):
        raise Mixed("a product tells tokens apart by their place in the step")
    return _Known(at.moved(node.shape, k))


_RULES: dict[str, Any] = {
    "elementwise": _joined, "const": _const, "iota": _iota, "reshape": _reshape,
    "transpose": _transpose, "broadcast": _broadcast, "slice": _slice, "pad": _pad,
    "concat": _concat, "reduce": _reduce, "sort": _sort, "gather": _gather, "dot": _dot,
}  # fmt: skip
