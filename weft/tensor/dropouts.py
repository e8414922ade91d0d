"""Dropouts: elements or whole channels that are zero, or take the value of self-normalising nets.

The choice depends only on the key (an int or uint32[2]) and the place, so every device drops the
same. Without a key each call takes the next one of the global stream. x is floats; unless
`training`, the functions return x itself. They raise UsageError for a p beyond 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.core.errors import ShapeError, UsageError
from weft.tensor.base import place
from weft.tensor.convolution import image_axes, want_image
from weft.tensor.core import Tensor
from weft.tensor.random import rand

_LOWEST = -1.7580993408473766  # scale * -alpha of selu: its limit at minus infinity


def _drop(
    name: str, x: Tensor, p: float, training: bool, key: Any, channels: bool,
    apply: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """Returns apply(mask, x), where the mask is True with probability p for each element, or for
    each of the channels x[N, C, ...]."""
    if not 0.0 <= p <= 1.0:
        raise UsageError(f"{name}: {p} is not a probability")
    if not training:
        return x
    if p == 0.0:
        return x._fresh()
    shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if channels else x.shape
    return apply(rand(shape, key=key, device=place(x)) < p, x)


def _zeroed(p: float) -> Callable[[Tensor, Tensor], Tensor]:
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return lambda mask, x: mask.where(0.0, x * scale)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, key: Any = None) -> Tensor:
    """Returns x with each element zeroed with probability p and the others divided by 1 - p; x
    itself unless training. The choice depends only on the key (an int or uint32[2]) and the place,
    so every device drops the same elements. Without a key each call takes the next one of the
    global stream.

    >>> set(F.dropout(weft.ones((99,)), 0.5, key=7).tolist()) == {0.0, 2.0}
    True
    """
    return _drop("dropout", x, p, training, key, False, _zeroed(p))


def _channel_dropout(rank: int) -> Callable[..., Tensor]:
    name = f"dropout{rank}d"

    def drop(x: Tensor, p: float = 0.5, training: bool = True, key: Any = None) -> Tensor:
        want_image(name, x, rank)
        return _drop(name, x, p, training, key, True, _zeroed(p))

    drop.__name__ = drop.__qualname__ = name
    drop.__doc__ = f"""Returns x{image_axes(rank)} with each channel zeroed whole with
    probability p and the others divided by 1 - p (Tompson et al., arXiv:1411.4280). `training` and
    `key` are as in dropout.

    >>> y = F.{name}(weft.ones((1, 99{", 2" * rank})), 0.5, key=7)
    >>> set(y.flatten(2).mean(-1).flatten().tolist()) == {{0.0, 2.0}}
    True
    """
    return drop


dropout1d, dropout2d, dropout3d = map(_channel_dropout, (1, 2, 3))


def _normalised(p: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Sets what is dropped to the lowest value of selu; a scale and an offset then keep the mean 0
    and the variance 1 of normalised elements. A p of 1 gives zeros, as in PyTorch."""
    if p == 1.0:
        return lambda mask, x: mask.where(0.0, x)
    scale = 1.0 / math.sqrt((_LOWEST * _LOWEST * p + 1.0) * (1.0 - p))
    offset = -_LOWEST * scale * p
    low = _LOWEST * scale + offset
    return lambda mask, x: mask.where(low, x * scale + offset)


def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = True, key: Any = None) -> Tensor:
    """Dropout behind selu: sets each element to selu's lowest value with probability p, then scales
    and shifts all, so that a mean of 0 and a variance of 1 remain (Klambauer et al.,
    arXiv:1706.02515). `training` and `key` are as in dropout.

    >>> len(set(F.alpha_dropout(weft.ones((99,)), 0.5, key=7).tolist()))
    2
    """
    return _drop("alpha_dropout", x, p, training, key, False, _normalised(p))


def feature_alpha_dropout(
    x: Tensor, p: float = 0.5, training: bool = True, key: Any = None
) -> Tensor:
    """Returns alpha_dropout of whole channels of x[N, C, ...]. Raises ShapeError for fewer axes.

    >>> y = F.feature_alpha_dropout(weft.ones((1, 99, 4)), 0.5, key=7)
    >>> (y == y[:, :, :1]).all().item(), len(set(y.flatten().tolist()))
    (True, 2)
    """
    if x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: x {list(x.shape)}; expected [N, C, ...]")
    return _drop("feature_alpha_dropout", x, p, training, key, True, _normalised(p))
