"""torch.cuda.amp: mixed precision by its older names."""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import DType, float16
from weft.torch import amp


class GradScaler(amp.GradScaler):
    """See torch.amp.GradScaler."""

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def autocast(enabled: bool = True, dtype: DType = float16, cache_enabled: bool = True) -> Any:
    """See torch.autocast."""
    return amp.autocast("cuda", dtype, enabled)


def __dir__() -> list[str]:
    return ["GradScaler", "autocast"]
