"""Presents a Runner's slots as the pages of a `PagedRunner`: each page is one whole sequence.

This is for files of compiled Programs, whose caches are by slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.run.runner import Runner


class Slotted:
    """A `weft.engine.job.PagedRunner` in which page p is slot p of the wrapped runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.slots = self.pages = runner.slots
        self.context = self.page = runner.context
        self.tables = np.zeros((self.slots, 1), np.int32)

    def knows(self, adapter: str) -> bool:
        """Returns True if the adapter exists; "" (no adapter) always does."""
        return self._runner.knows(adapter)

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; returns logits float32 [vocab] of the last
        one. Raises UsageError for an unknown adapter."""
        return self._runner.prefill(int(self.tables[slot, 0]), ids, start, adapter)

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        """Feeds one token per row; returns logits float32 [n, vocab] of every row, valid until the
        next step. Raises UsageError for an unknown adapter."""
        adapters = list(adapters) or [""] * len(ids)
        below = self.tables[list(slots), 0].tolist()
        runs = _runs(below)
        single = [begin for begin, end in runs if end == begin + 1]
        if len(single) == len(ids):
            return self._runner.decode(ids, below, pos, adapters)
        out = np.empty((len(ids), self._runner.config.vocab), np.float32)
        for begin, end in runs:
            if end > begin + 1:
                given = below[begin], ids[begin:end], pos[begin], adapters[begin]
                out[begin:end] = self._runner.verify(*given)
        if single:
            token, slot, at = ([values[i] for i in single] for values in (ids, below, pos))
            out[single] = self._runner.decode(token, slot, at, [adapters[i] for i in single])
        return out

    def resumes(self, fed: int, start: int) -> bool:
        """Returns True if a slot that was fed `fed` positions can resume from `start`."""
        return self._runner.resumes(fed, start)


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (begin, end) of the adjacent rows of each slot."""
    edges = [i for i, slot in enumerate(slots) if not i or slot != slots[i - 1]]
    return list(zip(edges, [*edges[1:], len(slots)]))
