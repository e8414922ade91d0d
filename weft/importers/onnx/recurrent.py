"""LSTM, GRU and RNN with ONNX's attributes; weft/tensor/cells.py has the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import weft
from weft.core.errors import ShapeError, UsageError
from weft.importers.onnx.activations import Act, activations
from weft.importers.onnx.table import NodeCall, op
from weft.tensor.cells import Cell, gru_kind, lstm_kind, rnn_kind, run_layer
from weft.tensor.core import Tensor


def _activations(call: NodeCall, default: Sequence[str], count: int) -> list[list[Act]]:
    """The activations of each direction."""
    names = call.get("activations") or list(default) * count
    if len(names) != len(default) * count:
        raise ShapeError(f"{len(names)} activations; {len(default) * count} are needed")
    alphas, betas = (call.get(f"activation_{name}") or [] for name in ("alpha", "beta"))
    made = activations(names, alphas, betas)
    each = len(default)
    return [made[i * each : (i + 1) * each] for i in range(count)]


def _clipped(call: NodeCall, acts: list[Act]) -> list[Act]:
    """The activations with the node's `clip` of what they take. It bounds the sums of gates; what
    an LSTM remembers is not bounded, as in ONNX Runtime."""
    edge = call.get("clip")
    if not edge:
        return acts
    gates, rest = acts[:2], acts[2:]
    return [lambda x, f=f: f(x.maximum(-edge).minimum(edge)) for f in gates] + rest


def _lstm(call: NodeCall, acts: list[Act], peep: Tensor | None) -> Cell:
    return lstm_kind("iofg", acts, peep, bool(call.get("input_forget", 0)))


def _gru(call: NodeCall, acts: list[Act], peep: None) -> Cell:
    return gru_kind("zrn", acts, bool(call.get("linear_before_reset", 0)))


def _rnn(call: NodeCall, acts: list[Act], peep: None) -> Cell:
    return rnn_kind(acts[0])


def _layer(
    name: str, gates: int, states: int, default: Sequence[str], make: Callable[..., Cell]
) -> Callable[..., Any]:
    def run(
        call: NodeCall, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None,
        lengths: Tensor | None = None, *more: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        given = [*more, None, None, None]
        firsts, peep = given[:states], given[2] if name == "LSTM" else None
        batch_first = call.get("layout", 0)
        if batch_first:
            x = x.transpose(0, 1)
            firsts = [None if v is None else v.transpose(0, 1) for v in firsts]
        way = call.get("direction", "forward")
        if way not in ("forward", "reverse", "bidirectional"):
            raise UsageError(f"direction {way!r:.40}; ONNX has forward, reverse and bidirectional")
        count = 2 if way == "bidirectional" else 1
        hidden = call.get("hidden_size", r.shape[-1])
        _check(x, count, hidden, gates, {"W": w, "R": r, "B": b, "P": peep}, firsts, lengths)
        acts = _activations(call, default, count)
        results = []
        for d in range(count):
            cell = make(call, _clipped(call, acts[d]), None if peep is None else peep[d])
            now = tuple(
                weft.zeros((x.shape[1], hidden), x.dtype) if v is None else v[d] for v in firsts
            )
            biases = (None, None) if b is None else b[d].chunk(2, 0)
            back = way == "reverse" or d == 1
            results.append(run_layer(cell, x, w[d], r[d], biases, now, lengths, back))
        rows = weft.stack([y for y, _ in results], 1)  # [T, directions, N, H]
        last = [weft.stack([s[i] for _, s in results], 0) for i in range(states)]
        if not x.shape[0]:  # an empty sequence ends in zeros, whatever its first state
            last = [weft.zeros_like(v) for v in last]
        elif lengths is not None:
            last = [(lengths.reshape(1, -1, 1) > 0).where(v, 0.0) for v in last]
        if batch_first:
            rows, last = rows.permute(2, 0, 1, 3), [v.transpose(0, 1) for v in last]
        return (rows, *last)

    return op(name)(run)


def _check(
    x: Tensor, count: int, hidden: int, gates: int, weights: Mapping[str, Tensor | None],
    firsts: Sequence[Tensor | None], lengths: Tensor | None,
) -> None:  # fmt: skip
    """Raises ShapeError for weights and states that contradict one another or the attributes."""
    if x.ndim != 3:
        raise ShapeError(f"X {list(x.shape)}; expected three axes")
    rows = gates * hidden
    expected = {"W": (count, rows, x.shape[2]), "R": (count, rows, hidden), "B": (count, 2 * rows),
                "P": (count, 3 * hidden)}  # fmt: skip
    found = [(name, value, expected[name]) for name, value in weights.items()]
    found += [("a first state", v, (count, x.shape[1], hidden)) for v in firsts]
    found.append(("sequence_lens", lengths, (x.shape[1],)))
    for name, value, shape in found:
        if value is not None and value.shape != shape:
            raise ShapeError(
                f"{name} {list(value.shape)}; hidden_size {hidden}, X {list(x.shape)} and "
                f"{count} directions need {list(shape)}"
            )


lstm = _layer("LSTM", 4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm)
_layer("GRU", 3, 1, ("Sigmoid", "Tanh"), _gru)
_layer("RNN", 1, 1, ("Tanh",), _rnn)
