"""torch.signal.windows: windows of M points, symmetric or periodic (sym=False)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.tensor.core import Tensor
from weft.torch.creation import get_default_dtype
from weft.torch.tensor import function_only, functions


def _places(M: int, sym: bool) -> np.ndarray:
    """0..1 over the window."""
    last = max(M - 1 if sym else M, 1)
    return np.arange(M) / last


def _made(values: np.ndarray, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    made = Tensor(values.astype((dtype or get_default_dtype()).numpy))
    made = made if device is None else made.to(str(device))
    return made.requires_grad_() if requires_grad else made


def _window(name: str, of: Callable[..., np.ndarray]) -> Any:
    def function(
        M: int, *args: Any, sym: bool = True, dtype: Any = None, layout: Any = None,
        device: Any = None, requires_grad: bool = False, **options: Any,
    ) -> Tensor:  # fmt: skip
        values = of(M, sym, *args, **options) if M > 1 else np.ones(M)
        return _made(values, dtype, device, requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {name} window of M points."
    return function_only(function)


def _cosines(M: int, sym: bool, a: Sequence[float]) -> np.ndarray:
    x = _places(M, sym) * 2 * math.pi
    total = np.zeros(M)
    for k, weight in enumerate(a):
        total += (-1) ** k * weight * np.cos(k * x)
    return total


def _of(*a: float) -> Callable[[int, bool], np.ndarray]:
    return lambda M, sym: _cosines(M, sym, a)


def _centred(M: int, sym: bool) -> np.ndarray:
    return np.arange(M) - (M - 1 if sym else M) / 2


def _exponential(M: int, sym: bool, *, center: Any = None, tau: float = 1.0) -> np.ndarray:
    middle = (M - 1 if sym else M) / 2 if center is None else center
    made: np.ndarray = np.exp(-np.abs(np.arange(M) - middle) / tau)
    return made


def _gaussian(M: int, sym: bool, *, std: float = 1.0) -> np.ndarray:
    made: np.ndarray = np.exp(-0.5 * (_centred(M, sym) / std) ** 2)
    return made


def _kaiser(M: int, sym: bool, *, beta: float = 12.0) -> np.ndarray:
    x = 2 * _places(M, sym) - 1
    made: np.ndarray = np.i0(beta * np.sqrt(np.clip(1 - x * x, 0, None))) / np.i0(beta)
    return made


def _cosine(M: int, sym: bool) -> np.ndarray:
    made: np.ndarray = np.sin(math.pi / (M if sym else M + 1) * (np.arange(M) + 0.5))
    return made


def _bartlett(M: int, sym: bool) -> np.ndarray:
    made: np.ndarray = 1 - np.abs(2 * _places(M, sym) - 1)
    return made


def _hamming(M: int, sym: bool, *, alpha: float = 0.54) -> np.ndarray:
    return _cosines(M, sym, (alpha, 1 - alpha))


bartlett = _window("bartlett", _bartlett)
blackman = _window("blackman", _of(0.42, 0.5, 0.08))
cosine = _window("cosine", _cosine)
exponential = _window("exponential", _exponential)
gaussian = _window("gaussian", _gaussian)
general_cosine = _window("general_cosine", lambda M, sym, *, a: _cosines(M, sym, a))
general_hamming = _window("general_hamming", _hamming)
hamming = _window("hamming", _hamming)
hann = _window("hann", _of(0.5, 0.5))
kaiser = _window("kaiser", _kaiser)
nuttall = _window("nuttall", _of(0.3635819, 0.4891775, 0.1365995, 0.0106411))


def __dir__() -> list[str]:
    return functions(globals())
