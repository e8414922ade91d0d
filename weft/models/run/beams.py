"""Beam search: the most probable texts, with transformers' rules.

Each step asks the engine for the logits after every beam. A beam is a job of one token, and finds
the pages of its prefix in the engine's cache, so a step computes a few tokens per beam. A model
with a running state (short convolutions, the delta rule) and the oracle compute each beam from its
start again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np

from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.engine.job import Finish, Job, Texts
from weft.engine.logprobs import leading
from weft.engine.sampler import Sampling, adjusted
from weft.models.run.generate import Generation, whole
from weft.models.text.prompts import checked_number

OFF = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # what a search does not take

Rows = Callable[[Sequence[Job]], list[np.ndarray]]
"""Returns the logits float32 [vocab] after each job's prompt."""


@dataclass(frozen=True)
class Beam:
    """A text of the search: its new ids, without the token that ended it, and the sum of their
    log-probabilities; of a finished text the score."""

    ids: tuple[int, ...] = ()
    total: float = 0.0
    eos: bool = False  # True if an end token ended it


@dataclass(frozen=True)
class BeamSearch:
    """The settings of a search with `beams` beams that returns the `best`. A finished text's score
    is the sum of its log-probabilities over length ** length_penalty; the length counts the end
    token. The search ends with early_stopping True once `beams` texts are finished; False: once the
    best running beam would not improve them at its present length; "never": at no length."""

    beams: int
    length_penalty: float
    early_stopping: bool | str
    best: int
    texts: Texts = field(compare=False)

    @classmethod
    def of(
        cls, beams: int, penalty: float, early: bool | str, best: int, texts: Texts
    ) -> BeamSearch | None:
        """Returns the search that the options of `generate` ask for; None for a single beam. Raises
        UsageError."""
        beams = checked_number("num_beams", beams, 1)
        if isinstance(penalty, bool) or not isinstance(penalty, int | float | np.number):
            raise UsageError(f"length_penalty is {penalty!r:.60}; expected a number")
        if not math.isfinite(penalty):
            raise UsageError(f"length_penalty is {penalty}; expected a finite number")
        if not isinstance(early, bool | np.bool_) and early != "never":
            raise UsageError(f'early_stopping is {early!r:.60}; expected True, False or "never"')
        if beams == 1:
            if penalty != 1.0 or early:
                raise UsageError("length_penalty and early_stopping need num_beams of 2 or more")
            return None
        if best > beams:
            raise UsageError(f"n is {best} with num_beams {beams}; expected n of at most that")
        return cls(beams, float(penalty), early, best, texts)

    def check(self, job: Job, stream: bool, edits: Sequence[object]) -> None:
        """Raises UsageError for options that a search does not take."""
        given = {
            "temperature, top_k, top_p or min_p": any(
                getattr(job.sampling, name) != off for name, off in OFF.items()
            ),
            "stop strings": bool(job.stop),
            "a schema, regex or grammar": job.constraint is not None,
            "a logits function": job.logits is not None,
            "logprobs": (job.logprobs, job.prompt_logprobs) != (None, None),
            "min_new_tokens": job.min_new_tokens > 0,
            "drafts": job.drafts,
            "stream": stream,
            "edits": bool(edits),
        }
        if wrong := [name for name, there in given.items() if there]:
            raise UsageError(
                f"num_beams is {self.beams}: it does not take {wrong[0]}; leave one out"
            )

    def search(self, job: Job, rows: Rows) -> list[Generation]:
        """Returns the best answers to a job's prompt, best first."""
        running, done, limit = [Beam()], list[Beam](), job.max_new_tokens
        if not limit:
            done = [Beam()] * self.best
        step = replace(job, max_new_tokens=1, eos=frozenset(), decoded=False, sampling=Sampling())
        for length in range(1, limit + 1):
            jobs = [replace(step, prompt=(*job.prompt, *beam.ids)) for beam in running]
            scores = [
                adjusted(_log_softmax(row), one.prompt, job.sampling, beam.ids)
                for row, one, beam in zip(rows(jobs), jobs, running)
            ]
            found = self._continuations(running, scores, max(2, 1 + len(job.eos)))
            last = length == limit
            ends = [last or beam.ids[-1] in job.eos for beam in found]
            done += [
                self._finished(beam, length, job.eos)
                for beam, end in zip(found[: self.beams], ends)
                if end
            ]
            done = sorted(done, key=lambda beam: -beam.total)[: self.beams]
            running = [beam for beam, end in zip(found, ends) if not end][: self.beams]
            if not running or not self._may_improve(running[0], done, length, limit):
                break
        return [self._generation(beam) for beam in done[: self.best]]

    def _continuations(
        self, running: Sequence[Beam], rows: Sequence[np.ndarray], times: int
    ) -> list[Beam]:
        """Returns the most probable continuations by one token, `times` the number of beams. Each
        row has the log-probabilities after a beam."""
        scores = np.stack(rows) + np.array([[beam.total] for beam in running])
        vocab = scores.shape[1]
        picks = leading(scores.reshape(-1), times * self.beams)
        return [
            Beam((*running[i // vocab].ids, i % vocab), float(scores[i // vocab, i % vocab]))
            for i in map(int, picks)
        ]

    def _finished(self, beam: Beam, length: int, eos: frozenset[int]) -> Beam:
        ended = beam.ids[-1] in eos
        ids = beam.ids[:-1] if ended else beam.ids
        return Beam(ids, beam.total / length**self.length_penalty, ended)

    def _may_improve(self, best: Beam, done: Sequence[Beam], length: int, limit: int) -> bool:
        if len(done) < self.beams:
            return True
        if self.early_stopping is True:
            return False
        if self.early_stopping == "never" and self.length_penalty > 0.0:
            length = limit
        return bool(best.total / length**self.length_penalty > done[-1].total)

    def _generation(self, beam: Beam) -> Generation:
        finish: Finish = "eos" if beam.eos else "length"
        return Generation(lambda: whole(self.texts, beam.ids), beam.ids, finish, score=beam.total)


def _log_softmax(row: np.ndarray) -> np.ndarray:
    wide = row.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))
