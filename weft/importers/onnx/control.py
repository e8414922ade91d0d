"""Branches and loops. While tracing they are written out: their conditions are known by then, or
the node runs by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft.core.errors import FileFormatError, LimitError
from weft.importers.onnx.graph import OnnxGraph
from weft.importers.onnx.movement import cut
from weft.importers.onnx.table import NodeCall, Value, is_host, op, scalar

MOST_TURNS = 1 << 16  # most turns of one loop
TURN = 8  # nodes that a turn counts for, besides its own


@op("If", host=(0,))
def if_(call: NodeCall, condition: np.ndarray) -> tuple[Value, ...]:
    branch: OnnxGraph = call.need("then_branch" if scalar(condition) else "else_branch")
    return tuple(call.run.subgraph(branch, call.frame, []))


@op("Loop", host=(0, 1), raw=True)
def loop(call: NodeCall, most: Any, condition: Any, *state: Value) -> tuple[Value, ...]:
    """The body run with (number, condition, *state) until its condition fails or `most` turns are
    over: the last state, and what else each turn gave, stacked."""
    body: OnnxGraph = call.need("body")
    turns = MOST_TURNS if most is None else int(scalar(most))
    going = True if condition is None else bool(scalar(condition))
    if going and turns > MOST_TURNS and most is not None and _unending(body):
        raise LimitError(f"a loop of {turns} turns; at most {MOST_TURNS}")
    values, kept = list(state), [[] for _ in body.outputs[len(state) + 1 :]]  # type: list[Value], list[list[Value]]
    number = 0
    while going and number < turns:
        if number >= MOST_TURNS:
            raise LimitError(f"a loop of more than {MOST_TURNS} turns")
        call.run.spend(TURN)
        made = call.run.subgraph(
            body, call.frame, [np.array(number, np.int64), np.array(going), *values]
        )
        values = made[1 : len(state) + 1]
        for rows, x in zip(kept, made[len(state) + 1 :]):
            rows.append(x)
        number += 1
        if number < turns:
            going = bool(scalar(call.host(made[0], "the condition")))
    return (
        *values,
        *(_stacked(call, rows, p) for rows, p in zip(kept, body.outputs[len(state) + 1 :])),
    )


def _unending(body: OnnxGraph) -> bool:
    """True if the condition that a body gives is the one it takes, or a constant that holds."""
    made_by = {o: n for n in body.nodes for o in n.outputs}
    name = body.outputs[0].name
    while name in made_by and made_by[name].op == "Identity" and not made_by[name].domain:
        name = made_by[name].inputs[0]
    constant = body.constants.get(name)
    if constant is not None and constant.size == 1:
        return bool(constant.reshape(()))
    return name == body.inputs[1].name


def _stacked(call: NodeCall, rows: list[Value], port: Any) -> Value:
    if rows and all(map(is_host, rows)):
        return np.stack(rows)
    if rows:
        return weft.stack([call.tensor(x) for x in rows], 0)
    if port.shape is None or not all(isinstance(d, int) for d in port.shape):
        shown = port.text()
        raise FileFormatError(f"{shown}: no turn of the loop gives it, and its size is undeclared")
    return np.zeros((0, *port.shape), port.dtype)


@op("Scan", raw=True)
def scan(call: NodeCall, *values: Value) -> tuple[Value, ...]:
    """The body run along an axis of its inputs: the last state, and what each step gave, stacked.
    Before opset 9 operands begin with lengths, and everything with a batch axis."""
    if call.version < 9:
        return _scan_batches(call, *values)
    return _scan_one(call, list(values), call.attrs)


def _scan_batches(call: NodeCall, lengths: Value, *values: Value) -> tuple[Value, ...]:
    if lengths is not None:
        raise FileFormatError("a Scan of opset 8 with lengths of sequences; weft has it without")
    turned = {"num_scan_inputs": call.need("num_scan_inputs"), "body": call.need("body")}
    ways = call.get("directions")
    turned |= {"scan_input_directions": ways} if ways else {}
    batches = [
        _scan_one(call, [cut(call.tensor(v), 0, i, 1).squeeze(0) for v in values], turned)
        for i in range(values[0].shape[0])
    ]
    return tuple(
        weft.stack([call.tensor(b[i]) for b in batches], 0) for i in range(len(batches[0]))
    )


def _scan_one(call: NodeCall, values: list[Value], attrs: Any) -> tuple[Value, ...]:
    body, count = attrs["body"], attrs["num_scan_inputs"]
    first = len(values) - count
    if not 0 < count <= len(values):
        raise FileFormatError(f"a Scan along {count} of {len(values)} values")
    state, inputs = values[:first], [call.tensor(v) for v in values[first:]]
    gives = len(body.outputs) - first
    axes = attrs.get("scan_input_axes") or [0] * count
    out_axes = attrs.get("scan_output_axes") or [0] * gives
    ways = attrs.get("scan_input_directions") or [0] * count
    out_ways = attrs.get("scan_output_directions") or [0] * gives
    length = inputs[0].shape[axes[0]]
    if length > MOST_TURNS:
        raise LimitError(f"a Scan of {length} steps; at most {MOST_TURNS}")
    rows: list[list[Value]] = [[] for _ in range(gives)]
    for i in range(length):
        at = [length - 1 - i if way else i for way in ways]
        now = [cut(x, a % x.ndim, j, 1).squeeze(a) for x, a, j in zip(inputs, axes, at)]
        made = call.run.subgraph(body, call.frame, [*state, *now])
        state = made[:first]
        for kept, x in zip(rows, made[first:]):
            kept.append(x)
    turned = (r[::-1] if way else r for r, way in zip(rows, out_ways))
    joined = [weft.stack([call.tensor(x) for x in r], axis) for r, axis in zip(turned, out_axes)]
    return (*state, *joined)
