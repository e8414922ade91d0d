"""What a run has computed: its steps, its evaluations, the optimiser's state. Here by one process;
shared.py has the same done by several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft import optim
from weft.models.training.model import TrainableDecoder
from weft.models.training.settings import Settings
from weft.models.training.step import find_update, make_eval, make_optimizer, make_step
from weft.models.training.tokens import Batch as Batch
from weft.program.device import Device

SCALER = "scaler."  # what the names of a loss scaler's state begin with


class Work:
    """Steps of one process, each one Program."""

    def __init__(self, model: TrainableDecoder, settings: Settings, device: Device) -> None:
        t, o = settings.train, settings.optimizer
        self.model, self.settings, self.device = model, settings, device
        self.opt = make_optimizer(model, o, t.steps)
        self.scaler = optim.LossScaler() if t.precision == "float16" else None
        self._step = make_step(model, self.opt, t, o, device, self.scaler)
        self._eval = make_eval(model, device)

    def step(self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray) -> dict[str, float]:
        """One step over parts (ids, targets int32 [A, B, T]; key uint32 [2] of its dropout): loss,
        norm, lr, and whether the update is finite ("finite"; else nothing changed)."""
        return {k: float(v.item()) for k, v in self._step(ids, targets, key).items()}

    def evaluate(self, batches: Sequence[Batch]) -> list[float]:
        """The mean loss of each batch, without dropout."""
        return [float(self._eval(ids, targets).item()) for ids, targets in batches]

    def worst(self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray) -> str:
        """Which weight is the first that the step just made would have spoilt."""
        s = self.settings
        batch = (ids, targets, key)
        return find_update(self.model, self.opt, s.train, s.optimizer, self.device, batch)

    def state(self) -> dict[str, np.ndarray]:
        """Of optimiser and loss scaler, whole, whoever holds it."""
        return {**self.opt.state_dict(), **self._scaled()}

    def load(self, weights: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> None:
        """Takes a checkpoint's weights (by role) and what `state` gave. Raises ModelError,
        ShapeError."""
        self.model.assign(weights)
        rest, scaler = parted_state(state)
        if self.scaler is not None:
            self.scaler.load_state_dict(scaler)
        self.opt.load_state_dict(rest)

    def _scaled(self) -> dict[str, np.ndarray]:
        held = {} if self.scaler is None else self.scaler.state_dict()
        return {SCALER + name: value for name, value in held.items()}


def parted_state(
    state: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The state of the optimiser, and that of the loss scaler."""
    scaler = {k.removeprefix(SCALER): v for k, v in state.items() if k.startswith(SCALER)}
    return {k: v for k, v in state.items() if not k.startswith(SCALER)}, scaler
