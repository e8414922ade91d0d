"""Beam search of models with an encoder and a decoder: each beam has a slot of the runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.core.errors import LimitError
from weft.engine.job import Job
from weft.models.run.beams import BeamSearch

if TYPE_CHECKING:
    from weft.models.run.seq2seq import Seq2Seq


def most_likely(
    model: Seq2Seq, given: np.ndarray, most: int, beams: int, penalty: float, early: bool | str
) -> list[int]:
    """Returns the ids of the most probable text of at most `most` tokens that the model writes
    about ids int32 [T]. Raises UsageError for settings of no search, LimitError for more beams than
    slots."""
    search = BeamSearch.of(beams, penalty, early, 1, lambda: None)
    assert search is not None
    if beams > model.slots:
        raise LimitError(
            f"num_beams is {beams}; this model was loaded for {model.slots} texts at once "
            "(max_batch, at most 8)"
        )
    c = model.config
    for slot in range(beams):
        model.runner.encode(slot, given)
    job = Job((c.start_id,), most, eos=frozenset(c.end_ids))
    (best,) = search.search(job, _Slots(model, beams).rows)
    return list(best.ids)


class _Slots:
    """The texts that the slots hold."""

    def __init__(self, model: Seq2Seq, count: int) -> None:
        self._model = model
        self._held: list[tuple[int, ...]] = [()] * count

    def rows(self, jobs: Sequence[Job]) -> list[np.ndarray]:
        """Returns the logits after each job's text: a slot that holds most of it reads the rest."""
        free, out = set(range(len(self._held))), []
        for job in jobs:
            slot = max(sorted(free), key=lambda s: _common(self._held[s], job.prompt))
            free.remove(slot)
            known = min(_common(self._held[slot], job.prompt), len(job.prompt) - 1)
            rest = job.prompt[known:]
            logits, _ = self._model.prefill(slot, rest, [len(rest) - 1], known)
            if not np.isfinite(logits[-1].max()):
                raise self._model.explain_bad("the logits are")
            self._held[slot] = job.prompt
            out.append(logits[-1])
        return out


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns how many first tokens two texts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
