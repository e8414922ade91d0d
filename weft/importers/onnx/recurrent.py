"""LSTM, GRU and RNN: products with the whole input first, then step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import weft
from weft.core.errors import ShapeError, UsageError
from weft.importers.onnx.activations import Act, activations
from weft.importers.onnx.table import Call, op
from weft.tensor.core import Tensor

Cell = Callable[..., tuple[Tensor, ...]]


def _activations(call: Call, default: Sequence[str], count: int) -> list[list[Act]]:
    """The activations of each direction."""
    names = call.get("activations") or list(default) * count
    if len(names) != len(default) * count:
        raise ShapeError(f"{len(names)} activations; {len(default) * count} are needed")
    alphas, betas = (call.get(f"activation_{name}") or [] for name in ("alpha", "beta"))
    made = activations(names, alphas, betas)
    each = len(default)
    return [made[i * each : (i + 1) * each] for i in range(count)]


def _clipped(call: Call, acts: list[Act]) -> list[Act]:
    edge = call.get("clip")
    if not edge:
        return acts
    return [lambda x, f=f: f(x.maximum(-edge).minimum(edge)) for f in acts]  # type: ignore[misc]


def _parts(x: Tensor, count: int) -> tuple[Tensor, ...]:
    return x.chunk(count, -1)


def _lstm(call: Call, acts: list[Act], hidden: int, bias: Any, peep: Any) -> Cell:
    f, g, h = acts
    weights = (0.0, 0.0, 0.0) if peep is None else peep.chunk(3, 0)
    plain = peep is None

    def cell(x: Tensor, recur: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        i, o, keep, new = _parts(x + state @ recur.T, 4)
        if not plain:
            i, keep = i + memory * weights[0], keep + memory * weights[2]
        gate = f(i)
        kept = 1.0 - gate if call.get("input_forget", 0) else f(keep)
        memory = kept * memory + gate * g(new)
        o = o if plain else o + memory * weights[1]
        return f(o) * h(memory), memory

    return cell


def _gru(call: Call, acts: list[Act], hidden: int, bias: Any, peep: Any) -> Cell:
    f, g = acts
    late = call.get("linear_before_reset", 0)

    def cell(x: Tensor, recur: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        xz, xr, xh = _parts(x, 3)
        rz, rr, rh = recur.split(hidden, 0)
        z = f(xz + state @ rz.T)
        r = f(xr + state @ rr.T)
        if late:
            own = state @ rh.T
            own = own if bias is None else own + bias.narrow(0, 2 * hidden, hidden)
            new = g(xh + r * own)
        else:
            new = g(xh + (r * state) @ rh.T)
        return ((1.0 - z) * new + z * state,)

    return cell


def _rnn(call: Call, acts: list[Act], hidden: int, bias: Any, peep: Any) -> Cell:
    return lambda x, recur, state: (acts[0](x + state @ recur.T),)


def _layer(
    name: str, gates: int, states: int, default: Sequence[str], make: Callable[..., Cell]
) -> Callable[..., Any]:
    def run(
        call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None,
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
            back = way == "reverse" or d == 1
            late = name == "GRU" and bool(call.get("linear_before_reset", 0))
            inside = (
                None if b is None or not late else b[d].narrow(0, gates * hidden, gates * hidden)
            )
            cell = make(
                call, _clipped(call, acts[d]), hidden, inside, None if peep is None else peep[d]
            )
            now = [weft.zeros((x.shape[1], hidden), x.dtype) if v is None else v[d] for v in firsts]
            seen = _seen(
                x, w[d], None if b is None else b[d], gates * hidden, hidden if late else 0
            )
            results.append(_steps(call, seen, r[d], now, cell, lengths, back))
        rows = weft.stack([y for y, _ in results], 1)  # [T, directions, N, H]
        last = [weft.stack([s[i] for _, s in results], 0) for i in range(states)]
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


def _seen(x: Tensor, w: Tensor, b: Tensor | None, size: int, apart: int) -> Tensor:
    """The input's share in all gates at all steps, with both biases; of the last `apart` gates the
    recurrent bias is left to the cell."""
    made = x @ w.T
    if b is None:
        return made
    own = b.narrow(0, size, size)
    if apart:
        own = own.narrow(0, 0, size - apart).pad([(0, apart)])
    return made + (b.narrow(0, 0, size) + own)


def _steps(
    call: Call, x: Tensor, r: Tensor, state: list[Tensor], cell: Cell, lengths: Tensor | None,
    back: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """All steps of one direction: [T, N, H], and the last state. Beyond its length a sequence keeps
    its state and gives zeros."""
    rows: list[Any] = [None] * x.shape[0]
    for t in range(x.shape[0])[:: -1 if back else 1]:
        made = cell(x[t], r, *state)
        if lengths is not None:
            inside = (lengths.cast("int32") > t).unsqueeze(1)
            rows[t] = inside.where(made[0], 0.0)
            state = [inside.where(new, old) for new, old in zip(made, state)]
        else:
            rows[t], state = made[0], list(made)
    if not rows:
        return weft.zeros((0, *state[0].shape), x.dtype), state
    return weft.stack(rows, 0), state


lstm = _layer("LSTM", 4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm)
_layer("GRU", 3, 1, ("Sigmoid", "Tanh"), _gru)
_layer("RNN", 1, 1, ("Tanh",), _rnn)
