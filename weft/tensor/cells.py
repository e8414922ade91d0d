"""Recurrent layers over whole sequences, and their cells: LSTM (Hochreiter and Schmidhuber 1997;
Gers et al. 2000), GRU (Cho et al., arXiv:1406.1078) and RNN (Elman 1990).

A layer multiplies the whole input by its weights first, then goes step by step. Inside weft.compile
all steps of all layers and directions are one Program, and so is the backward pass. Narrow floats
keep their dtype from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.ops.steps import apart, products, together
from weft.tensor.autocast import narrowed
from weft.tensor.base import place
from weft.tensor.core import Tensor
from weft.tensor.create import arange, zeros

Act = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]
# (the input's share in all gates, the products with weight_hh, bias_hh or None, state) -> the new
# state
Step = Callable[[Tensor, Sequence[Act], Tensor | None, State], State]


@dataclass(frozen=True)
class Cell:
    """A kind of cell: `gates` names them in the order of its weights, `states` counts its states,
    and `step` takes one step. The recurrent bias of a `late` cell's last gate is left to the step,
    which multiplies it by another gate. `cuts` says that each gate has a product of its own."""

    gates: str
    states: int
    step: Step
    late: bool = False
    cuts: bool = False

    def products(self, recur: Tensor, steps: int) -> list[Act]:
        """The products of a state with the recurrent weight, or with each gate's part of it."""
        parts = recur.chunk(len(self.gates), 0) if self.cuts else (recur,)
        return [_times(w, steps) for w in parts]


def _times(weight: Tensor, steps: int = 1) -> Act:
    """The product of rows with weight^T, for the rows of several steps."""
    (weight,) = narrowed(weight)
    made = products(weight.value, steps)

    def times(h: Tensor) -> Tensor:
        (h,) = narrowed(h)
        return weight._wrap(made(h.value)) if h.dtype == weight.dtype else h @ weight.T

    return times


def lstm_kind(
    gates: str = "ifgo", acts: Sequence[Act] = (Tensor.sigmoid, Tensor.tanh, Tensor.tanh),
    peephole: Tensor | None = None, coupled: bool = False, projection: Tensor | None = None,
) -> Cell:  # fmt: skip
    """c' = f c + i g and h' = o tanh(c'), with i, f, o sigmoids and g a tanh of their sums unless
    `acts` are others. Peepholes [3 H] (of i, o, f) add the memory to gates; a `coupled` f is
    1 - i; a projection [R, H] multiplies h'."""
    gate, new, out = acts
    project = None if projection is None else _times(projection)

    def step(x: Tensor, recur: Sequence[Act], bias: Tensor | None, state: State) -> State:
        h, c = state
        parts = dict(zip(gates, (x + recur[0](h)).chunk(4, -1)))
        pi, po, pf = (None, None, None) if peephole is None else peephole.chunk(3, 0)
        i = gate(_plus(parts["i"], pi, c))
        f = 1.0 - i if coupled else gate(_plus(parts["f"], pf, c))
        c = f * c + i * new(parts["g"])
        h = gate(_plus(parts["o"], po, c)) * out(c)
        return h if project is None else project(h), c

    return Cell(gates, 2, step)


def _plus(x: Tensor, weight: Tensor | None, memory: Tensor) -> Tensor:
    return x if weight is None else x + memory * weight


def gru_kind(
    gates: str = "rzn", acts: Sequence[Act] = (Tensor.sigmoid, Tensor.tanh), late: bool = True
) -> Cell:
    """h' = (1 - z) n + z h with n = tanh(its sums), whose recurrent part r multiplies: `late`, as
    PyTorch has it, or h before its product with the weights (Cho et al.)."""
    gate, new = acts

    def step(x: Tensor, recur: Sequence[Act], bias: Tensor | None, state: State) -> State:
        (h,) = state
        xs = dict(zip(gates, x.chunk(3, -1)))
        if late:
            hs = dict(zip(gates, recur[0](h).chunk(3, -1)))
        else:
            times = dict(zip(gates, recur))
            hs = {g: times[g](h) for g in "rz"}
        r, z = (gate(xs[g] + hs[g]) for g in "rz")
        own = hs["n"] if late else times["n"](r * h)
        own = own if bias is None else own + bias
        n = new(xs["n"] + (r * own if late else own))
        return ((1.0 - z) * n + z * h,)

    return Cell(gates, 1, step, late, cuts=not late)


def rnn_kind(act: Act = Tensor.tanh) -> Cell:
    """h' = act(its sums)."""

    def step(x: Tensor, recur: Sequence[Act], bias: Tensor | None, state: State) -> State:
        return (act(x + recur[0](state[0])),)

    return Cell("n", 1, step)


def run_layer(
    cell: Cell, x: Tensor, weight: Tensor, recur: Tensor, biases: Sequence[Tensor | None],
    state: State, lengths: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, State]:  # fmt: skip
    """One layer in one direction over x[T, N, I]: its results [T, N, R] and its last state. Beyond
    its length a sequence keeps its state and gives zeros."""
    if lengths is not None:  # not even a NaN beyond a length may reach a gradient
        steps = arange(x.shape[0], dtype="int32", device=place(x)).reshape(-1, 1, 1)
        x = (lengths.cast("int32").reshape(1, -1, 1) > steps).where(x, 0.0)
    made, own = _seen(cell, x, weight, biases)
    times = cell.products(recur, x.shape[0])
    seen = [made._wrap(v) for v in apart(made.value)]
    rows: list[Any] = [None] * x.shape[0]
    for t in range(x.shape[0])[:: -1 if reverse else 1]:
        new = cell.step(seen[t], times, own, state)
        if lengths is not None:
            inside = (lengths.cast("int32") > t).unsqueeze(1)
            rows[t] = inside.where(new[0], 0.0)
            state = tuple(inside.where(a, b) for a, b in zip(new, state))
        else:
            rows[t], state = new[0], new
    if not rows:
        return zeros((0, *state[0].shape), x.dtype, place(x)), state
    return made._wrap(together([r.value for r in rows])), state


def run_once(
    cell: Cell, x: Tensor, weight: Tensor, recur: Tensor, biases: Sequence[Tensor | None],
    state: State,
) -> State:  # fmt: skip
    """The state after one step for x[N, I]. No other step shares its products, so an eager call is
    recorded as what it is: a few operations (tensor/played)."""
    made, own = _seen(cell, x, weight, biases)
    parts = recur.chunk(len(cell.gates), 0) if cell.cuts else (recur,)
    return cell.step(made, [partial(_product, w) for w in parts], own, state)


def _product(weight: Tensor, h: Tensor) -> Tensor:
    return h @ weight.T


def _seen(
    cell: Cell, x: Tensor, weight: Tensor, biases: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    """The input's share in all gates with all biases, except that of the last gate of a late cell,
    which comes apart."""
    made, (b, own) = x @ weight.T, biases
    late = None
    if own is not None and cell.late:
        size = own.shape[0] // len(cell.gates)
        rest = own.shape[0] - size
        late = own.narrow(0, rest, size)
        own = own.narrow(0, 0, rest).pad([(0, size)])
    if b is not None and own is not None:
        return made + (b + own), late
    both = b if own is None else own
    return made if both is None else made + both, late
