"""The adapters of a served model: each is the model under another name."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from weft.host.samples import files_digest
from weft.serve.prints import digest_of
from weft.serve.wire import HttpError

if TYPE_CHECKING:
    from weft.serve.metrics import ServerMetrics
    from weft.serve.served import ServedDecoder


class ServedAdapters:
    """The adapters of `model` by the names that requests use. An adapter that is removed keeps its
    slot until the last request for it has ended."""

    def __init__(self, model: ServedDecoder) -> None:
        self._model = model
        self._served: dict[str, ServedDecoder] = {}
        self._users: Counter[str] = Counter()  # requests by the model's own name for the adapter
        self._leaving: set[str] = set()

    def add(self, name: str, own: str, digest: str) -> None:
        """Serves an adapter that the model knows as `own`, under `name`. `digest`: of its files."""
        made = copy.copy(self._model)
        made.name, made.adapter = name, own
        made.print = digest_of(self._model.print, digest)
        self._served[name] = made
        self._metrics.adapters[own] = name

    def begin(self, paths: Mapping[str, str]) -> None:
        """Serves the adapters at these paths that the model was loaded with: all but its own."""
        for name in self._model.model.adapters:
            self._metrics.adapters[name] = name
            if name in paths:
                self.add(name, name, files_digest(Path(paths[name])))

    @property
    def _metrics(self) -> ServerMetrics:
        return self._model.player.metrics

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
        self._metrics.drop_adapter(own)
        if slots is not None:
            player.later(lambda: slots.drop(own))
