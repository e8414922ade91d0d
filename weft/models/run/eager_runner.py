"""The runner on NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from weft.models.arch.config import DecoderConfig
from weft.models.arch.hooks import INFERENCE, TrainingHooks
from weft.models.arch.inputs import kv_counts, states
from weft.models.run.placed import Placed
from weft.models.run.runner import STEP, Runner


class EagerRunner(Runner):
    """The oracle: runs every op at once through its NumPy meaning. Slow and simple."""

    def __init__(
        self, config: DecoderConfig, placed: Placed, context: int, slots: int, pages: int
    ) -> None:
        super().__init__(config, context, slots, pages, placed.adapters)
        self._weights = placed.weights
        kept = states(config, slots, context, pages)
        self._state = {k: np.zeros(shape, dtype.numpy) for k, (shape, dtype) in kept.items()}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return (STEP,)

    def resumes(self, fed: int, start: int) -> bool:
        return start in (0, fed)  # NumPy's products of fewer rows may sum in another order

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        from weft.models.arch import decoder
        from weft.models.arch.cached import StepRows
        from weft.models.arch.picture_rows import of_arrays

        at = {g: rows[f"at.{g}"][: n * g] for g in kv_counts(self.config)}
        windowed = kv_counts(self.config, window=True)
        near = {g: rows[f"window_at.{g}"][: n * g] for g in windowed}
        slot, pos = rows["where"].T
        given = StepRows(
            rows["ids"], slot, pos, at, rows["table"], rows.get("last"),
            adapter=rows.get("adapter"), window_at=near, window_table=rows.get("window_table"),
            pictures=of_arrays(rows, n), turns=rows.get("turns"),
        )  # fmt: skip
        logits, self._state = decoder.forward(
            self.config, self._weights, given, self._state, hooks=self.hooks(rows)
        )
        return np.asarray(logits)

    def hooks(self, rows: dict[str, np.ndarray]) -> TrainingHooks:
        """Returns the hooks of a step with the inputs `rows`."""
        return INFERENCE

    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        return self._state[name][:, list(pages)]

    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        self._state[name] = held = self._state[name].copy()  # a step's results are read-only
        held[:, list(pages)] = value
