"""Recurrent layers with PyTorch's signatures, over whole sequences, and one step of each; cells.py
has the formulas.

Weights are PyTorch's: weight_ih [G H, I], weight_hh [G H, R] and biases [G H]. Their rows hold gate
after gate (LSTM: input, forget, cell, output; GRU: reset, update, new). An LSTM with projections
also has weight_hr [R, H]. Without projections R is H.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.errors import ShapeError, UsageError
from weft.tensor import random
from weft.tensor.base import place
from weft.tensor.cells import Act, Cell, State, gru_kind, lstm_kind, rnn_kind, run_layer, run_once
from weft.tensor.core import Tensor
from weft.tensor.create import zeros
from weft.tensor.dropouts import dropout as _dropout
from weft.tensor.keys import Lengths, lengths_of
from weft.tensor.shapes import cat, stack


def _stacked(
    name: str, kind: Callable[[Tensor | None], Cell], x: Tensor, hx: Sequence[Tensor | None],
    weights: Sequence[Tensor], bias: bool, layers: int, dropout: float, training: bool,
    bidirectional: bool, batch_first: bool, key: Any, lengths: Lengths | None,
    projected: bool = False,
) -> tuple[Tensor, State]:  # fmt: skip
    """The layers one after another; each gets the last one's results of all directions."""
    ways = 2 if bidirectional else 1
    each = 2 + 2 * bias + projected
    if len(weights) != layers * ways * each:
        raise ShapeError(
            f"{name}: {len(weights)} weights; {layers} layers in {ways} directions have {each} each"
        )
    single = x.ndim == 2
    x = x.unsqueeze(1) if single else x.transpose(0, 1) if batch_first else x
    hx = [None if h is None else h.unsqueeze(1) if single else h for h in hx]
    steps, count = x.shape[:2]
    ends = None if lengths is None else lengths_of(f"{name}: lengths", lengths, x, count, steps)
    finals: list[State] = []
    for layer in range(layers):
        if layer and dropout and training:
            x = _dropout(x, dropout, True, key(layer) if callable(key) else key)
            key = key if key is None or callable(key) else random.next_key(random.key_of(key))
        made = []
        for way in range(ways):
            at = layer * ways + way
            w_ih, w_hh, *rest = weights[at * each : (at + 1) * each]
            biases = tuple(rest[:2]) if bias else (None, None)
            cell = kind(rest[-1] if projected else None)
            first = _first(name, cell, x, w_ih, w_hh, rest, hx, at, layers * ways)
            out, last = run_layer(cell, x, w_ih, w_hh, biases, first, ends, way == 1)
            made.append(out)
            finals.append(last)
        x = made[0] if ways == 1 else cat(made, -1)
    last = tuple(stack(parts, 0) for parts in zip(*finals))
    if single:
        return x.squeeze(1), tuple(h.squeeze(1) for h in last)
    return x.transpose(0, 1) if batch_first else x, last


def _first(
    name: str, cell: Cell, x: Tensor, w_ih: Tensor, w_hh: Tensor, rest: Sequence[Tensor],
    hx: Sequence[Tensor | None], at: int, count: int,
) -> State:  # fmt: skip
    """The state before the first step of layer `at`. Raises ShapeError for what does not fit."""
    hidden = w_hh.shape[0] // len(cell.gates)
    sizes = [w_hh.shape[1], hidden][: cell.states]
    expected: list[tuple[Tensor, tuple[int, ...]]] = [
        (w_ih, (hidden * len(cell.gates), x.shape[-1])),
        (w_hh, (hidden * len(cell.gates), w_hh.shape[1])),
    ]
    expected += [(b, (hidden * len(cell.gates),)) for b in rest if b.ndim == 1]
    expected += [(h, (count, x.shape[1], n)) for h, n in zip(hx, sizes) if h is not None]
    for value, shape in expected:
        if value.shape != shape:
            raise ShapeError(f"{name}: {list(value.shape)} where {list(shape)} is expected, for "
                             f"input {list(x.shape)}")  # fmt: skip
    return tuple(
        zeros((x.shape[1], n), x.dtype, place(x)) if h is None else h[at] for h, n in zip(hx, sizes)
    )


def lstm(
    x: Tensor, hx: Sequence[Tensor] | None, weights: Sequence[Tensor], bias: bool = True,
    num_layers: int = 1, dropout: float = 0.0, training: bool = False, bidirectional: bool = False,
    batch_first: bool = False, *, key: Any = None, lengths: Lengths | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Runs an LSTM over x[T, N, I] ([N, T, I] with batch_first, [T, I] without a batch). Returns
    the results [T, N, D R], and the last h [L D, N, R] and c [L D, N, H]. It has L layers in D
    directions.

    `hx` is (h, c) before the first step, zeros by default. `weights` holds for each layer and
    direction weight_ih, weight_hh, bias_ih and bias_hh (if `bias`), and weight_hr where R is not H.
    In training, results between layers are dropped with probability `dropout` by `key`, an int or
    uint32[2] (or a function of the layer that returns one). `lengths` (integers [N]) ends sequences
    early. Raises ShapeError for shapes that do not agree.

    >>> weights = [weft.zeros(s) for s in ((8, 3), (8, 2), (8,), (8,))]
    >>> out, h, c = F.lstm(weft.ones((5, 1, 3)), None, weights)
    >>> out.shape, h.shape
    ((5, 1, 2), (1, 1, 2))
    """
    projected = len(weights) > 1 and weights[0].shape[0] != 4 * weights[1].shape[1]
    made, (h, c) = _stacked(
        "lstm", lambda hr: lstm_kind(projection=hr), x, hx or (None, None), weights, bias,
        num_layers, dropout, training, bidirectional, batch_first, key, lengths, projected,
    )  # fmt: skip
    return made, h, c


def _one_state(
    name: str, kind: Callable[[], Cell], x: Tensor, hx: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor]:
    made, (h,) = _stacked(name, lambda hr: kind(), x, (hx,), *options)
    return made, h


def gru(
    x: Tensor, hx: Tensor | None, weights: Sequence[Tensor], bias: bool = True,
    num_layers: int = 1, dropout: float = 0.0, training: bool = False, bidirectional: bool = False,
    batch_first: bool = False, *, key: Any = None, lengths: Lengths | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Runs a GRU over x. Returns the results and the last h; all else is as in `lstm`, with one
    state h.

    >>> weights = [weft.zeros(s) for s in ((6, 3), (6, 2), (6,), (6,))]
    >>> F.gru(weft.ones((5, 1, 3)), None, weights)[0].shape
    (5, 1, 2)
    """
    options = (bias, num_layers, dropout, training, bidirectional, batch_first, key, lengths)
    return _one_state("gru", gru_kind, x, hx, weights, *options)


def rnn(
    x: Tensor, hx: Tensor | None, weights: Sequence[Tensor], bias: bool = True,
    num_layers: int = 1, dropout: float = 0.0, training: bool = False, bidirectional: bool = False,
    batch_first: bool = False, *, nonlinearity: str = "tanh", key: Any = None,
    lengths: Lengths | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """An Elman network over x, with a nonlinearity of "tanh" or "relu"; everything else as in
    `gru`. Raises UsageError for another nonlinearity.

    >>> weights = [weft.zeros(s) for s in ((2, 3), (2, 2), (2,), (2,))]
    >>> F.rnn(weft.ones((5, 1, 3)), None, weights)[0].shape
    (5, 1, 2)
    """
    options = (bias, num_layers, dropout, training, bidirectional, batch_first, key, lengths)
    act = _nonlinearity("rnn", nonlinearity)
    return _one_state("rnn", lambda: rnn_kind(act), x, hx, weights, *options)


def _nonlinearity(name: str, which: str) -> Act:
    if which not in ("tanh", "relu"):
        raise UsageError(f'{name}: nonlinearity is "tanh" or "relu", not {which!r}')
    return Tensor.tanh if which == "tanh" else Tensor.relu


def _once(
    name: str, cell: Cell, x: Tensor, hx: Sequence[Tensor] | None, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None, b_hh: Tensor | None,
) -> State:  # fmt: skip
    """One step for x[N, I] or [I]."""
    row = x.reshape(1, -1, x.shape[-1])
    given: Sequence[Tensor | None] = hx or [None] * cell.states
    states = [h if h is None else h.reshape(1, -1, h.shape[-1]) for h in given]
    rest = [b for b in (b_ih, b_hh) if b is not None]
    first = _first(name, cell, row, w_ih, w_hh, rest, states, 0, 1)
    last = run_once(cell, row[0], w_ih, w_hh, (b_ih, b_hh), first)
    return tuple(h.reshape(*x.shape[:-1], h.shape[-1]) for h in last)


def lstm_cell(
    x: Tensor, hx: Sequence[Tensor] | None, w_ih: Tensor, w_hh: Tensor,
    b_ih: Tensor | None = None, b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Runs one step of an LSTM for x[N, I] or [I]. Returns h and c; hx = (h, c) is zeros by
    default.

    >>> h, c = F.lstm_cell(weft.ones((1, 3)), None, weft.zeros((8, 3)), weft.zeros((8, 2)))
    >>> h.shape, c.tolist()
    ((1, 2), [[0.0, 0.0]])
    """
    h, c = _once("lstm_cell", lstm_kind(), x, hx, w_ih, w_hh, b_ih, b_hh)
    return h, c


def gru_cell(
    x: Tensor, hx: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One step of a GRU for x[N, I] or [I]: h, from hx or zeros.

    >>> F.gru_cell(weft.ones((1, 3)), None, weft.zeros((6, 3)), weft.zeros((6, 2))).tolist()
    [[0.0, 0.0]]
    """
    before = None if hx is None else (hx,)
    return _once("gru_cell", gru_kind(), x, before, w_ih, w_hh, b_ih, b_hh)[0]


def rnn_cell(
    x: Tensor, hx: Tensor | None, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None, *, nonlinearity: str = "tanh",
) -> Tensor:  # fmt: skip
    """One step of an Elman network for x[N, I] or [I]: h, from hx or zeros.

    >>> F.rnn_cell(weft.ones((1, 3)), None, weft.zeros((2, 3)), weft.zeros((2, 2))).tolist()
    [[0.0, 0.0]]
    """
    cell = rnn_kind(_nonlinearity("rnn_cell", nonlinearity))
    before = None if hx is None else (hx,)
    return _once("rnn_cell", cell, x, before, w_ih, w_hh, b_ih, b_hh)[0]
