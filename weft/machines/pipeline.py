"""A model whose layers are divided among ranks, one run of layers per rank (`stages`).

Rows of the residual stream go from rank to rank, and from the last back to rank 0, which has the
output layer. The next step begins when the logits are complete. Rows of a prompt go in parts
(micro-batches: Huang et al., "GPipe", arXiv:1811.06965), so that ranks compute at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from weft.machines.link import STREAM, Lead, Leading, StepCommand, received, whole
from weft.models.arch.stages import entry, output
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.model import Decoder
from weft.models.run.runner import PREFILL
from weft.ranks import Ranks

PART = 128  # rows of a prompt that a rank computes before it passes them on


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
        ranks, sent = self._lead.ranks, []
        with self._lead.steps(*self._numbers, self, kind) as begin:
            parts = list(parts_of(rows, n)) if kind == PREFILL else [(rows, n)]
            for part, count in parts:
                begin(part, count)
                x = self._first.step(kind, part, count)[:count].copy()  # the next part's is there
                sent.append(ranks.start_send(x, 1, STREAM))
            for _, count in parts:
                back = 1 if kind == PREFILL else count
                x = received(ranks, ranks.size - 1, back, self.config.hidden)
            for each in sent:
                each.wait()
        end = {"last": np.zeros(1, np.int32)} if kind == PREFILL else {}
        return self._last.step(kind, rows | end | {"x": x}, len(x))


def parts_of(rows: Mapping[str, np.ndarray], n: int) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """The inputs of a PREFILL of n rows as those of several, of at most PART rows each."""
    for begin in range(0, n, PART):
        end = min(begin + PART, n)
        made = dict(rows)
        for name, value in rows.items():
            if name in ("ids", "where"):
                made[name] = value[begin:end]
            elif name.startswith("at."):  # first cache rows of each row's heads; -1 beyond n
                at = np.full_like(value, -1)
                heads = int(name.removeprefix("at."))
                at[: (end - begin) * heads] = value[begin * heads : end * heads]
                made[name] = at
        made["last"] = np.array([end - begin - 1], np.int32)
        yield made, end - begin


def follow_step(ranks: Ranks, runner: CompiledRunner, step: StepCommand) -> None:
    """Does a follower's part of a step."""
    x = received(ranks, ranks.rank - 1, step.n, runner.config.hidden)
    rows = {**step.inputs, "x": x}
    out = runner.step(step.kind, rows, step.n)
    end = ranks.rank == ranks.size - 1
    out = out[: 1 if end and step.kind == PREFILL else step.n]
    ranks.send(whole(out), 0 if end else ranks.rank + 1, STREAM)
