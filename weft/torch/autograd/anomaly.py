"""torch.autograd's watch for NaN in backward passes."""

from __future__ import annotations

from typing import Any

from weft.ops import anomaly
from weft.tensor.played import forget


class set_detect_anomaly:
    """Has backward passes raise GradientError at the first NaN, which names the op whose derivative
    made it, or not: from here on, or inside a `with`. Compiled functions are not watched."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = anomaly.watching()
        anomaly.watch(mode, check_nan)
        forget()  # recorded calls look at nothing

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None:
        anomaly.watch(*self._before)


class detect_anomaly(set_detect_anomaly):
    """`set_detect_anomaly(True)` inside a `with`."""

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(True, check_nan)


def is_anomaly_enabled() -> bool:
    """True if backward passes are watched."""
    return anomaly.watching()[0]


def is_anomaly_check_nan_enabled() -> bool:
    """True if backward passes are watched for NaN."""
    return anomaly.watching()[1]
