"""Adapters that come and go while a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.models.arch.config import DecoderConfig
from weft.models.arch.weights import Weight
from weft.models.run.placed import Placed

Arrays = Mapping[str, np.ndarray]


class AdapterSlots:
    """The free slots in a model's stack of adapters (`adapter_stack.stacked`). `config` and
    `weights` are the model's, as adapters see them.

    `read` may run in any thread. `put` and `drop` change what steps read, so no step may run
    meanwhile, and no sequence may use the slot. A name belongs to one adapter for good, since a
    cache keeps keys and values under it: a different adapter must have a different name.
    """

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Weight], placed: Placed
    ) -> None:
        self._config, self._weights, self._placed = config, weights, placed

    def read(self, name: str, path: Path) -> Arrays:
        """Returns the arrays of an adapter, which is called `name` in errors. Raises ModelError,
        FileFormatError, and LimitError for a rank that is too large."""
        from weft.models.weights.adapter_files import read
        from weft.models.weights.adapter_stack import check_room, slot

        made = slot(self._config, name, read(path, self._config), self._weights)
        check_room(name, self._placed.weights, len(self._placed.adapters), made)
        return made

    def put(self, name: str, arrays: Arrays) -> None:
        """Puts an adapter into a free slot. Raises LimitError if there is none."""
        from weft.models.weights.adapter_stack import FREE, fill

        placed, names = self._placed, self._placed.adapters
        if FREE not in names:
            raise LimitError(f"all {len(names)} slots for adapters are taken; unload one first")
        number = names.index(FREE)
        stack = {key: placed.weights[key] for key in placed.weights if ".loras_" in key}
        fill(stack, number, len(names), {key: arrays.get(key) for key in stack})
        placed.refresh(stack)
        names[number] = name

    def drop(self, name: str) -> None:
        """Frees the slot of an adapter. Raises UsageError for an unknown name."""
        from weft.models.weights.adapter_stack import FREE

        names = self._placed.adapters
        if not name or name not in names:
            raise UsageError(f"unknown adapter {name!r:.100}")
        names[names.index(name)] = FREE
