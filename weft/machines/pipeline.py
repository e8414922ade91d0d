"""A model whose layers are divided among ranks, one run of layers per rank (`stages`).

Rows of the residual stream go from rank to rank, and from the last back to rank 0, which has the
output layer. The next step begins when the logits are complete.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.machines.link import STREAM, Lead, Step, received, whole
from weft.models.arch.stages import entry, output
from weft.models.run.paged import CompiledPaged, Paged
from weft.models.run.runner import CompiledRunner, MakeRunner, Runner
from weft.ranks import Ranks


class Piped(Runner):
    """Rank 0's Runner, whose steps are shared with the following ranks. They know the model by the
    number `model`. `given` are the arguments of Runner."""

    def __init__(self, lead: Lead, model: int, make: MakeRunner, *given: Any) -> None:
        super().__init__(*given)
        self._lead, self._numbers = lead, (model, lead.enlist(self))
        first, last = (make(self.slots, self.pages, part(self.config)) for part in (entry, output))
        assert isinstance(first, CompiledRunner) and isinstance(last, CompiledRunner)
        self._first, self._last = first, last

    def room(self, kind: str) -> int:
        return self._first.room(kind)

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        ranks = self._lead.ranks
        with self._lead.step(*self._numbers, self, kind, rows, n):
            ranks.send(whole(self._first.step(kind, rows, n)[:n]), 1, STREAM)
            x = received(ranks, ranks.size - 1, 1 if kind == "prefill" else n, self.config.hidden)
        end = {"last": np.zeros(1, np.int32)} if kind == "prefill" else {}
        return self._last.step(kind, rows | end | {"x": x}, len(x))


class PipedPaged(Paged, Piped):
    """Piped, with keys and values in pages."""

    def _sizes(self) -> tuple[int, ...]:
        assert isinstance(self._first, CompiledPaged)
        return self._first._sizes()

    def _read(self, name: str, pages: Any) -> np.ndarray:
        raise UsageError("pages that lie on several machines are not read")

    def _write(self, name: str, pages: Any, value: np.ndarray) -> None:
        raise UsageError("pages that lie on several machines are not written")


def follow_step(ranks: Ranks, runner: CompiledRunner, step: Step) -> None:
    """Does a follower's part of a step."""
    x = received(ranks, ranks.rank - 1, step.n, runner.config.hidden)
    rows = {**step.inputs, "x": x}
    out = runner.step(step.kind, rows, step.n)
    end = ranks.rank == ranks.size - 1
    out = out[: 1 if end and step.kind == "prefill" else step.n]
    ranks.send(whole(out), 0 if end else ranks.rank + 1, STREAM)
