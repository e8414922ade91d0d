"""torch.hann_window and its siblings: torch.signal's windows, periodic unless asked otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.tensor.core import Tensor
from weft.torch.signal import windows
from weft.torch.tensor import unlisted


def _periodic(name: str, of: Callable[..., np.ndarray], *options: str) -> Any:
    """torch.NAME_window: periodic unless asked otherwise; `options` come by position after that."""

    def function(
        window_length: int, periodic: bool = True, *args: float, dtype: Any = None,
        layout: Any = None, device: Any = None, pin_memory: bool = False,
        requires_grad: bool = False, **named: float,
    ) -> Tensor:  # fmt: skip
        given = {**dict(zip(options, args)), **named}
        n = window_length
        values = of(n, not periodic, **given) if n > 1 else np.ones(n)
        return windows._made(values, dtype, device, requires_grad)

    function.__name__ = function.__qualname__ = f"{name}_window"
    function.__doc__ = f"The {name} window of a number of points."
    return unlisted(function)


def _two_hamming(M: int, sym: bool, *, alpha: float = 0.54, beta: float = 0.46) -> np.ndarray:
    return windows._cosines(M, sym, (alpha, beta))


bartlett_window = _periodic("bartlett", windows._bartlett)
blackman_window = _periodic("blackman", windows._of(0.42, 0.5, 0.08))
hamming_window = _periodic("hamming", _two_hamming, "alpha", "beta")
hann_window = _periodic("hann", windows._of(0.5, 0.5))
kaiser_window = _periodic("kaiser", windows._kaiser, "beta")
