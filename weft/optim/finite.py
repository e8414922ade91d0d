"""Looking for what is not finite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import GradientError
from weft.tensor.core import Tensor

LARGEST = float(np.finfo(np.float32).max)


def all_finite(tensors: Iterable[Any]) -> Tensor:
    """True if no element is NaN or infinite (bool []). It tests the largest magnitude, and NaN
    counts as the largest."""
    worst: Any = None
    for t in tensors:
        top = t.cast(dt.compute_dtype(t.dtype)).abs().max() if t.size else None
        worst = top if worst is None else worst if top is None else worst.maximum(top)
    if worst is None:
        raise GradientError("all_finite: nothing to look at; no parameter has a gradient")
    found: Tensor = ~(worst.isnan() | (worst > LARGEST))
    return found
