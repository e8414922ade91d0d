"""Dropouts of elements and of whole channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.nn.module import Module
from weft.tensor import functional as F
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.tensor.random import example_key, next_key, randint
from weft.tensor.recomputing import once


def keep_key(module: Module) -> None:
    """Gives a module the buffer `key` (uint32 [2]: a random word of the global stream and the
    number of draws so far), outside the state dict."""
    word = randint(-(1 << 31), 1 << 31).cast(dt.uint32).item()
    module.register_buffer("key", Tensor(np.array([word, 0], np.uint32)), persistent=False)


def fresh_key(module: Any) -> Tensor:
    """The key of a module's next draw, which advances its buffer, also inside weft.compile."""

    def advance() -> Tensor:
        with no_grad():
            now = Tensor(module.key.value)
            module.key.assign(next_key(now))
        return now

    return example_key(once(advance))


class _Drop(Module):
    """A dropout with probability p, which draws with the module's key in training."""

    key: Tensor
    _apply: ClassVar[Callable[..., Tensor]]

    def __init__(self, p: float = 0.5, inplace: bool = False):
        if not 0.0 <= p <= 1.0:
            raise UsageError(f"{type(self).__name__}: {p} is not a probability")
        self.p = p
        keep_key(self)

    def forward(self, x: Tensor) -> Tensor:
        key = fresh_key(self) if self.training and self.p else None
        return type(self)._apply(x, self.p, self.training, key)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout(_Drop):
    """In training, zeroes each element with probability p and divides the others by 1 - p
    (Srivastava et al. 2014).

    `key` (uint32 [2]: a random word and the number of calls so far) is a buffer outside the state
    dict. Each training call draws from it and advances it, also inside `weft.compile`. The word is
    from the global stream (`weft.manual_seed`); set `key` to repeat a run from the middle.
    `inplace` changes nothing: tensors are values. x is floats of any shape. Raises UsageError for a
    p beyond 0..1.

    >>> nn.Dropout(0.5).eval()(weft.ones((2,))).tolist()
    [1.0, 1.0]
    """

    _apply = staticmethod(F.dropout)


class Dropout1d(_Drop):
    """In training, zeroes each channel of x[N, C, L] whole with probability p and divides the
    others by 1 - p. `key` is as in Dropout; see weft.functional.dropout1d.

    >>> y = nn.Dropout1d(0.5)(weft.ones((4, 9, 2)))
    >>> (y[:, :, 0] == y[:, :, 1]).all().item()
    True
    """

    _apply = staticmethod(F.dropout1d)


class Dropout2d(_Drop):
    """In training, zeroes each channel of images x[N, C, H, W] whole with probability p and divides
    the others by 1 - p. `key` is as in Dropout; see weft.functional.dropout2d.

    >>> nn.Dropout2d(0.5).eval()(weft.ones((1, 1, 1, 2))).tolist()
    [[[[1.0, 1.0]]]]
    """

    _apply = staticmethod(F.dropout2d)


class Dropout3d(_Drop):
    """In training, zeroes each channel of volumes x[N, C, D, H, W] whole with probability p and
    divides the others by 1 - p. `key` is as in Dropout; see weft.functional.dropout3d.

    >>> nn.Dropout3d(0.5)(weft.ones((2, 3, 4, 4, 4))).shape
    (2, 3, 4, 4, 4)
    """

    _apply = staticmethod(F.dropout3d)


class AlphaDropout(_Drop):
    """In training, sets each element to selu's lowest value with probability p. It then scales and
    shifts all to keep a mean of 0 and a variance of 1. x has floats of any shape; `key` is as in
    Dropout. See weft.functional.alpha_dropout.

    >>> nn.AlphaDropout(0.5).eval()(weft.ones((2,))).tolist()
    [1.0, 1.0]
    """

    _apply = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_Drop):
    """An AlphaDropout that drops whole channels of x[N, C, ...]. `key` is as in Dropout; see
    weft.functional.feature_alpha_dropout.

    >>> nn.FeatureAlphaDropout(0.5)(weft.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    _apply = staticmethod(F.feature_alpha_dropout)
