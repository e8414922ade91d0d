"""A model whose layers are divided among ranks, one run of layers per rank (`stages`).

Rows of the residual stream go from rank to rank, and from the last back to rank 0, which has the
output layer. The next step begins when the logits are complete.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from weft.machines.link import STREAM, Lead, Leading, StepCommand, received, whole
from weft.models.arch.stages import entry, output
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.model import Decoder
from weft.models.run.runner import PREFILL
from weft.ranks import Ranks


class Piped(Leading):
    """Rank 0's Runner. Its own parts are the first layers and the output layer."""

    def __init__(self, lead: Lead, number: int, model: Decoder, slots: int, pages: int) -> None:
        super().__init__(lead, number, model, slots, pages)
        self._first, self._last = (
            CompiledRunner(part(model.config), model.placed, model.context, slots, pages)
            for part in (entry, output)
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return self._first.sizes

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        ranks = self._lead.ranks
        with self._lead.step(*self._numbers, self, kind, rows, n):
            ranks.send(whole(self._first.step(kind, rows, n)[:n]), 1, STREAM)
            x = received(ranks, ranks.size - 1, 1 if kind == PREFILL else n, self.config.hidden)
        end = {"last": np.zeros(1, np.int32)} if kind == PREFILL else {}
        return self._last.step(kind, rows | end | {"x": x}, len(x))


def follow_step(ranks: Ranks, runner: CompiledRunner, step: StepCommand) -> None:
    """Does a follower's part of a step."""
    x = received(ranks, ranks.rank - 1, step.n, runner.config.hidden)
    rows = {**step.inputs, "x": x}
    out = runner.step(step.kind, rows, step.n)
    end = ranks.rank == ranks.size - 1
    out = out[: 1 if end and step.kind == PREFILL else step.n]
    ranks.send(whole(out), 0 if end else ranks.rank + 1, STREAM)
