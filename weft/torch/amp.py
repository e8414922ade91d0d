"""torch.amp: mixed precision."""

from weft.optim import LossScaler as GradScaler
from weft.torch.runtime import autocast as autocast

__all__ = ["GradScaler", "autocast"]
