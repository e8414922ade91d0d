"""The adapters of a served model: each is the model under another name."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from weft.host.samples import files_digest
from weft.serve.wire import HttpError

if TYPE_CHECKING:
    from weft.serve.served import ServedDecoder


class ServedAdapters:
    """The adapters of `model` by the names that requests use. An adapter that is removed keeps its
    slot until the last request for it has ended."""

    def __init__(self, model: ServedDecoder) -> None:
        self._model = model
        self._served: dict[str, ServedDecoder] = {}
        self._users: Counter[str] = Counter()  # requests by the model's own name for the adapter
        self._leaving: set[str] = set()

    def add(self, name: str, own: str, path: Path) -> None:
        """Serves an adapter that the model knows as `own`, under `name`."""
        made = copy.copy(self._model)
        made.name, made.adapter = name, own
        whole = f"{self._model.print} {files_digest(path)}"
        made.print = "fp_" + hashlib.sha256(whole.encode()).hexdigest()[:16]
        self._served[name] = made

    def begin(self, paths: Mapping[str, str]) -> None:
        """Serves the adapters at these paths that the model was loaded with: all but its own."""
        for name in self._model.model.adapters:
            if name in paths:
                self.add(name, name, Path(paths[name]))

    def under(self, name: str) -> ServedDecoder:
        """The model with an adapter. Raises HttpError for one that has gone."""
        if name not in self._served:
            raise HttpError(404, f"the adapter {name!r:.100} has been unloaded", "model")
        return self._served[name]

    @contextlib.contextmanager
    def using(self, served: ServedDecoder) -> Iterator[ServedDecoder]:
        """Keeps the adapter of `served` in its slot while the context lasts."""
        own = served.adapter
        self._users[own] += 1
        try:
            yield served
        finally:
            self._users[own] -= 1
            if not self._users[own] and own in self._leaving:
                self._free(own)

    def remove(self, name: str) -> None:
        """Serves an adapter no longer; frees its slot, at once if no request uses it."""
        own = self._served.pop(name).adapter
        self._leaving.add(own)
        if not self._users[own]:
            self._free(own)

    def _free(self, own: str) -> None:
        slots, player = self._model.model.slots, self._model.player
        self._leaving.discard(own)
        del self._users[own]
        if slots is not None:
            player.later(lambda: slots.drop(own))
