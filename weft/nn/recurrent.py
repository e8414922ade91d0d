"""LSTM, GRU and RNN over whole sequences, and one step of each: PyTorch's parameters and results.
weft.tensor.cells has the formulas."""

from __future__ import annotations

import math
from typing import Any

from weft.core.errors import UsageError
from weft.nn import init
from weft.nn.dropout import fresh_key, keep_key
from weft.nn.layers import empty
from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.tensor.keys import Lengths


class _Weights(Module):
    """The base of recurrent modules: sizes, and weights that start uniform in +- 1/sqrt(hidden).
    `_gates` is the number of gates."""

    _gates = 1
    hidden_size: int

    def _add(self, inputs: int, outputs: int, bias: bool, suffix: str = "") -> None:
        rows = self._gates * self.hidden_size
        setattr(self, f"weight_ih{suffix}", empty(rows, inputs))
        setattr(self, f"weight_hh{suffix}", empty(rows, outputs))
        for name in ("bias_ih", "bias_hh"):
            setattr(self, f"{name}{suffix}", empty(rows) if bias else None)

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)


class _Layers(_Weights):
    """Layers one after another, in one direction or two."""

    key: Tensor

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        proj_size: int = 0,
    ):  # fmt: skip
        kind = type(self).__name__
        if min(input_size, hidden_size, num_layers) < 1 or not 0 <= proj_size < hidden_size:
            raise UsageError(
                f"{kind}: sizes {input_size}, {hidden_size}, {num_layers} layers, proj_size "
                f"{proj_size}; expected positive ones, and a proj_size below hidden_size"
            )
        if not 0.0 <= dropout <= 1.0:
            raise UsageError(f"{kind}: {dropout} is not a probability")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional, self.proj_size = bidirectional, proj_size
        outputs = proj_size or hidden_size
        for layer in range(num_layers):
            inputs = outputs * (1 + bidirectional) if layer else input_size
            for way in ("", "_reverse")[: 1 + bidirectional]:
                self._add(inputs, outputs, bias, f"_l{layer}{way}")
                if proj_size:
                    setattr(self, f"weight_hr_l{layer}{way}", empty(proj_size, hidden_size))
        self.reset_parameters()
        keep_key(self)

    def _run(self, function: Any, x: Tensor, hx: Any, **options: Any) -> tuple[Tensor, ...]:
        drops = self.training and self.dropout and self.num_layers > 1
        made: tuple[Tensor, ...] = function(
            x, hx, list(self.parameters()), self.bias, self.num_layers, self.dropout, self.training,
            self.bidirectional, self.batch_first, key=self._keys if drops else None, **options,
        )  # fmt: skip
        return made

    def _keys(self, layer: int) -> Tensor:
        return fresh_key(self)


class LSTM(_Layers):
    """An LSTM over x[T, N, input_size], [N, T, input_size] with batch_first, or [T, input_size].
    Calling forward(x, hx) returns the results [T, N, D R] (in x's layout), and (h [L D, N, R], c [L
    D, N, H]) after the last step. `hx` = (h, c) is the state before the first step, zeros by
    default. H is hidden_size, R proj_size or else H, L num_layers and D the number of directions.
    `lengths` (integers [N], a tensor or a sequence, in any order) ends sequences early, as
    PyTorch's packed sequences do: later results are zeros, and nothing beyond a length is read.
    Parameters are PyTorch's: weight_ih_l0 [4 H, I], weight_hh_l0 [4 H, R], bias_ih_l0, bias_hh_l0,
    weight_hr_l0 [R, H], weight_ih_l0_reverse and so on. Raises ShapeError for sizes that do not
    fit, UsageError for invalid options.

    >>> out, (h, c) = nn.LSTM(3, 2, bidirectional=True)(weft.ones((5, 1, 3)))
    >>> out.shape, h.shape
    ((5, 1, 4), (2, 1, 2))
    """

    _gates = 4

    def forward(
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None, lengths: Lengths | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, h, c = self._run(F.lstm, x, hx, lengths=lengths)
        return out, (h, c)


class GRU(_Layers):
    """A GRU over x; sizes, layouts and parameters as in LSTM, with 3 H rows, one state h and no
    projections (Cho et al., arXiv:1406.1078).

    >>> out, h = nn.GRU(3, 2)(weft.ones((5, 2, 3)), lengths=[5, 1])
    >>> out[1:, 1].abs().sum().item()
    0.0
    """

    _gates = 3

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    ):  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )

    def forward(
        self, x: Tensor, hx: Tensor | None = None, lengths: Lengths | None = None
    ) -> tuple[Tensor, Tensor]:
        out, h = self._run(F.gru, x, hx, lengths=lengths)
        return out, h


def _check_nonlinearity(name: str, given: str) -> None:
    if given not in ("tanh", "relu"):
        raise UsageError(f"{name}: nonlinearity {given!r}; expected tanh or relu")


class RNN(_Layers):
    """An Elman network over x; sizes, layouts and parameters as in LSTM, with H rows, one state h
    and no projections. `nonlinearity` is "tanh" or "relu" (Elman 1990). Raises UsageError for
    another nonlinearity.

    >>> nn.RNN(3, 2, nonlinearity="relu")(weft.ones((5, 1, 3)))[0].shape
    (5, 1, 2)
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False,
    ):  # fmt: skip
        _check_nonlinearity("RNN", nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self.nonlinearity = nonlinearity

    def forward(
        self, x: Tensor, hx: Tensor | None = None, lengths: Lengths | None = None
    ) -> tuple[Tensor, Tensor]:
        out, h = self._run(F.rnn, x, hx, lengths=lengths, nonlinearity=self.nonlinearity)
        return out, h


class _Cell(_Weights):
    """One step of a recurrent layer."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self._add(input_size, hidden_size, bias)
        self.reset_parameters()

    def _weights(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


class LSTMCell(_Cell):
    """One step of an LSTM: forward(x[N, I] or [I], (h, c) or None) gives the new (h, c). Raises
    ShapeError for sizes that do not fit.

    >>> h, c = nn.LSTMCell(3, 2)(weft.ones((4, 3)))
    >>> h.shape, c.shape
    ((4, 2), (4, 2))
    """

    _gates = 4

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        return F.lstm_cell(x, hx, *self._weights())


class GRUCell(_Cell):
    """One step of a GRU: forward(x[N, I] or [I], h or None) gives the new h. Raises ShapeError for
    sizes that do not fit.

    >>> nn.GRUCell(3, 2)(weft.ones((4, 3))).shape
    (4, 2)
    """

    _gates = 3

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        return F.gru_cell(x, hx, *self._weights())


class RNNCell(_Cell):
    """One step of an Elman network: forward(x[N, I] or [I], h or None) gives the new h. Raises
    ShapeError for sizes that do not fit.

    >>> nn.RNNCell(3, 2)(weft.ones((4, 3))).shape
    (4, 2)
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
    ):
        _check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        return F.rnn_cell(x, hx, *self._weights(), nonlinearity=self.nonlinearity)
