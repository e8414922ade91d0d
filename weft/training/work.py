"""The computation of a run: steps, evaluations, the optimiser's state. This file is for one
process; shared.py is for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft import optim
from weft.program.device import Device
from weft.training.model import TrainableDecoder
from weft.training.pictures import PictureTable
from weft.training.settings import TrainingSettings
from weft.training.step import find_update, make_eval, make_optimizer, make_step
from weft.training.tokens import Batch as Batch

SCALER = "scaler."  # prefix of the names in a loss scaler's state


class TrainingWork:
    """The steps of one process, each one Program."""

    def __init__(self, model: TrainableDecoder, settings: TrainingSettings, device: Device) -> None:
        t, o = settings.train, settings.optimizer
        self.model, self.settings, self.device = model, settings, device
        self.opt = make_optimizer(model, o, t.steps)
        self.scaler = optim.LossScaler() if t.precision == "float16" else None
        self._step = make_step(model, self.opt, t, o, device, self.scaler)
        self._eval = make_eval(model, device)
        self.pictures: PictureTable | None = None

    def step(self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray) -> dict[str, float]:
        """Runs one step over parts (ids, targets int32 [A, B, T]; key uint32 [2] for dropout).
        Returns loss, norm, lr, and "finite": 0 if the update was not finite, in which case nothing
        changed."""
        ids, shown = self.seen(ids)
        return {k: float(v.item()) for k, v in self._step(ids, targets, key, shown).items()}

    def show(self, pictures: PictureTable | None) -> None:
        """Takes the pictures of the run's conversations."""
        self.pictures = pictures

    def seen(self, ids: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the ids that the model has, and the pictures (`PictureTable.inputs`)."""
        return (ids, {}) if self.pictures is None else self.pictures.inputs(ids)

    def evaluate(self, batches: Sequence[Batch]) -> list[float]:
        """Returns the mean loss of each batch, without dropout."""
        out = []
        for ids, targets in batches:
            ids, shown = self.seen(ids)
            out.append(float(self._eval(ids, targets, shown).item()))
        return out

    def worst(self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray) -> str:
        """Returns the first weight that the last step would have made NaN or infinite."""
        s = self.settings
        ids, shown = self.seen(ids)
        batch = (ids, targets, key, shown)
        return find_update(self.model, self.opt, s.train, s.optimizer, self.device, batch)

    def state(self) -> dict[str, np.ndarray]:
        """Returns the whole state of the optimiser and the loss scaler."""
        return {**self.opt.state_dict(), **self._scaled()}

    def load(self, weights: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> None:
        """Loads a checkpoint's weights (by role) and a result of `state`. Raises ModelError,
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
    """Returns the state of the optimiser, and that of the loss scaler."""
    scaler = {k.removeprefix(SCALER): v for k, v in state.items() if k.startswith(SCALER)}
    return {k: v for k, v in state.items() if not k.startswith(SCALER)}, scaler
