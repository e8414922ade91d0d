"""Loss scaling for float16 (Micikevicius et al. 2018), with the rules of torch.amp.GradScaler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import ModelError, UsageError
from weft.optim.finite import LARGEST, all_finite
from weft.optim.optimizer import Optimizer
from weft.tensor.autograd import no_grad
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.guards import Watched


class LossScaler(Watched):
    """Multiplies the loss, so that small gradients do not vanish in float16, and divides the
    gradients again.

        scaler.scale(loss).backward()
        scaler.step(opt)        # unscales (unless done); skips the step if a gradient overflowed
        scaler.update()         # the next scale

    All of it works eagerly and inside `weft.compile`: the Program decides if it skips the step. The
    scale is halved after a skipped step and doubled after `growth_interval` good ones.
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000,
    ):  # fmt: skip
        if init_scale <= 0 or growth_factor <= 1 or not 0 < backoff_factor < 1:
            raise UsageError("LossScaler: init_scale > 0, growth_factor > 1 > backoff_factor > 0")
        self._factors = (float(growth_factor), float(backoff_factor), int(growth_interval))
        self._scale = Tensor(np.array(init_scale, np.float32), "scaler.scale")
        self._good = Tensor(np.zeros((), np.int32), "scaler.good_steps")
        # True if this step's gradients are finite; set when they are unscaled
        self._finite: Tensor | None = None

    def __repr__(self) -> str:
        growth, backoff, interval = self._factors
        scale = "traced" if CURRENT.trace is not None else f"{self.value():g}"
        return (
            f"LossScaler({scale}, growth_factor={growth:g}, backoff_factor={backoff:g}, "
            f"growth_interval={interval})"
        )

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, in float32 at least."""
        return loss.cast(dt.compute_dtype(loss.dtype)) * self._scale

    def unscale(self, params: Iterable[Tensor], finite: Tensor | None = None) -> Tensor:
        """Divides the gradients by the scale, for instance before they are clipped; returns whether
        all are finite (bool []): `finite`, where that is known of more gradients than these."""
        if self._finite is not None:
            raise UsageError("LossScaler: unscaled twice before update()")
        with no_grad():
            held = [p for p in params if p.grad is not None]
            self._finite = all_finite([p.grad for p in held]) if finite is None else finite
            inverse = 1.0 / self._scale
            for p in held:
                grad: Any = p.grad
                p.grad = grad * inverse.cast(grad.dtype)
        return self._finite

    def step(self, opt: Optimizer, unless: Tensor | None = None) -> None:
        """opt.step(), which changes nothing if a gradient is not finite, or where `unless` (bool
        []) holds."""
        if self._finite is None:
            self.unscale(opt.parameters())
        assert self._finite is not None
        skip = ~self._finite
        opt.step(unless=skip if unless is None else skip | unless)

    def update(self) -> None:
        """Sets the scale of the next step."""
        if self._finite is None:
            raise UsageError("LossScaler: update() comes after step()")
        growth, backoff, interval = self._factors
        with no_grad():
            finite, self._finite = self._finite, None
            good = finite.where(self._good + 1, 0)
            grows = good == interval
            grown = self._scale * growth
            grown = (grown > LARGEST).where(self._scale, grown)
            self._scale.assign(finite.where(grows.where(grown, self._scale), self._scale * backoff))
            self._good.assign(grows.where(0, good))

    def forget(self) -> None:
        """Forgets that the gradients were unscaled; the scale stays."""
        self._finite = None

    def value(self) -> float:
        """The scale now."""
        return float(self._scale.item())

    def to(self, device: Any) -> LossScaler:
        """Moves the state to a device; returns self."""
        for t in (self._scale, self._good):
            t.to_(device)
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """ "scale" and "good_steps", as copies."""
        found = {"scale": self._scale, "good_steps": self._good}
        return {name: np.array(t.numpy()) for name, t in found.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        if set(state) != {"scale", "good_steps"}:
            raise ModelError(f"LossScaler: {sorted(state)}; expected scale and good_steps")
        for t, name in ((self._scale, "scale"), (self._good, "good_steps")):
            t.assign(Tensor(np.asarray(state[name]).astype(t.dtype.numpy)).to(t.device))
