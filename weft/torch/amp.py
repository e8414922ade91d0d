"""torch.amp: mixed precision."""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import DType, bfloat16, float16
from weft.host.boundary import guard_calls
from weft.optim import LossScaler
from weft.tensor.autocast import autocast as _autocast
from weft.tensor.core import Tensor
from weft.torch.tensor import own


def autocast(
    device_type: str, dtype: DType | None = None, enabled: bool = True,
    cache_enabled: bool | None = None,
) -> Any:  # fmt: skip
    """Mixed precision (see weft.autocast): in bfloat16, or float16 on CUDA, unless dtype says
    otherwise."""
    narrow = float16 if device_type == "cuda" else bfloat16
    return _autocast(dtype or narrow, enabled)


class GradScaler:
    """Scales the loss, so that small gradients do not vanish in float16 (see
    weft.optim.LossScaler). With enabled=False it changes nothing."""

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        self._enabled = enabled
        self._scaler = LossScaler(init_scale, growth_factor, backoff_factor, growth_interval)

    def is_enabled(self) -> bool:
        """True unless made with enabled=False."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale now."""
        return self._scaler.value() if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """A loss, or several, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return own(self._scaler.scale(outputs))
        return type(outputs)(map(self.scale, outputs))

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients by the scale, before they are clipped."""
        if self._enabled:
            self._scaler.unscale(optimizer.parameters())

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(), left out if a gradient is not finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        self._scaler.step(optimizer)
        return None

    def update(self, new_scale: float | None = None) -> None:
        """Sets the scale of the next step."""
        if self._enabled:
            self._scaler.update()
        if self._enabled and new_scale is not None:
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": new_scale})

    def state_dict(self) -> dict[str, Any]:
        """The scale and the number of good steps; empty if it is not enabled."""
        return dict(self._scaler.state_dict()) if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        if self._enabled:
            self._scaler.load_state_dict(state_dict)


__all__ = ["GradScaler", "autocast"]
guard_calls(globals(), __all__, deep=True)
