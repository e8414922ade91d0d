"""A model whose matrices' columns are divided among ranks (`shares`).

A step's graph is cut where a rank needs the columns of the others. Each layer gathers four times:
the result of attention, its output projection, and the same for the feed-forward. Gathered values
are float32 (or the dtype that was widened to float32), in the order of ranks. No sum crosses ranks.
Rank 0 computes the embedding and joins the logits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from weft.core.dtypes import float32
from weft.graph.ir import Node
from weft.machines.link import STREAM, Lead, Leading, StepCommand, received, whole
from weft.models.arch.config import DecoderConfig, LayerRange
from weft.models.arch.places import before_widening
from weft.models.arch.shares import vocab_of
from weft.models.run.compiled_runner import CompiledRunner, model_caps
from weft.models.run.model import Decoder
from weft.models.run.runner import PREFILL
from weft.program.session import Session
from weft.ranks import Ranks
from weft.transform.gaps import Gap, GapSegment, cut_at

PROMPT = 128  # rows per prompt step; every segment has its own memory for them
Played = list[tuple[Session, tuple[str, ...]]]  # Sessions of a step, and the outputs of each


def middle(c: DecoderConfig) -> DecoderConfig:
    """Returns the config that every rank computes: layers and logits, from given embeddings."""
    assert c.run is not None
    return replace(c, run=c.run._replace(embeds=False))


def entry(c: DecoderConfig) -> DecoderConfig:
    """Returns the config of the embedding alone."""
    return replace(c, run=LayerRange(0, 0, embeds=True))


class ColumnRunner(CompiledRunner):
    """One rank's part of every step."""

    def __init__(
        self, ranks: Ranks, config: DecoderConfig, model: Decoder, slots: int, pages: int
    ) -> None:
        super().__init__(config, model.placed, model.context, slots, pages)
        self._ranks = ranks
        self._played: dict[str, Played] = {}

    def room(self, kind: str) -> int:
        most = super().room(kind)
        return min(most, PROMPT) if kind == PREFILL else most

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Returns this rank's columns of the logits."""
        if kind not in self._played:
            self._played[kind] = self._segments(kind)
        values = dict(rows)
        for k, (session, gives) in enumerate(self._played[kind]):
            bound = {"n": n} if "n" in session.program.scalars else {}
            outs = session.run({name: values[name] for name in session.input_names}, bound)
            if k == len(self._played[kind]) - 1:
                return outs[0]
            values |= {name: x[:n] for name, x in zip(gives, outs)}
            values[f"gathered.{k}"] = self._gathered(values[f"gap.{k}"])
        raise AssertionError("a step has segments")

    def _gathered(self, x: np.ndarray) -> np.ndarray:
        """Gathers x[n, M] from all ranks and returns the columns side by side."""
        size = self._ranks.size
        all_ = self._ranks.gather(whole(x).reshape(-1), [x.size] * size)
        return np.concatenate(all_.reshape(size, *x.shape), axis=1)

    def _segments(self, kind: str) -> Played:
        from weft.tensor.program_cache import program_for

        caps, made = model_caps(self._device.caps), []
        for k, segment in enumerate(self._graphs(kind)):
            what = (self.what(kind), "segment", k)
            program = program_for(what, caps, lambda: segment.graph)  # noqa: B023
            made.append((self._open(program), segment.gives))
        return made

    def _graphs(self, kind: str) -> list[GapSegment]:
        """Returns the graph of a step, cut where columns are gathered."""
        from weft import ops
        from weft.models.arch.decoder import decoder_graph

        gaps: list[Gap] = []
        size = self._ranks.size

        def gather(x: Node) -> Node:
            n, columns = x.shape
            x = before_widening(x)
            name, shape = f"gathered.{len(gaps)}", (n, columns * size)
            came = ops.input_node(name, shape, x.dtype, "input", rows="n")
            gaps.append((ops.reshape(x, (n, columns)), came))
            wide: Node = ops.cast(came, float32)
            return wide

        graph = decoder_graph(self.config, self._avals, *self._shape(kind), gather)
        return cut_at(graph, gaps, self.room(kind), "n")


def own_runner(ranks: Ranks, model: Decoder, slots: int, pages: int) -> ColumnRunner:
    """Returns this rank's part of a runner."""
    return ColumnRunner(ranks, middle(model.config), model, slots, pages)


def follow_step(ranks: Ranks, runner: ColumnRunner, step: StepCommand) -> None:
    """Does a follower's part of a step."""
    x = received(ranks, 0, step.n, runner.config.hidden)
    logits = runner.step(step.kind, {**step.inputs, "x": x}, step.n)
    ranks.send(whole(logits[: 1 if step.kind == PREFILL else step.n]), 0, STREAM)


class Divided(Leading):
    """Rank 0's Runner. Its own parts are the embedding and its columns of the rest."""

    def __init__(self, lead: Lead, number: int, model: Decoder, slots: int, pages: int) -> None:
        super().__init__(lead, number, model, slots, pages)
        self._first = ColumnRunner(lead.ranks, entry(model.config), model, slots, pages)
        self._own = own_runner(lead.ranks, model, slots, pages)

    def room(self, kind: str) -> int:
        return self._own.room(kind)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return self._own.sizes

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        ranks = self._lead.ranks
        with self._lead.steps(*self._numbers, self, kind) as begin:
            begin(rows, n)
            x = whole(self._first.step(kind, rows, n)[:n])
            self._lead.spread(x)
            count = 1 if kind == PREFILL else n
            parts = [self._own.step(kind, rows | {"x": x}, n)[:count]]
            for rank in range(1, ranks.size):
                first, end = vocab_of(self.config, rank, ranks.size)
                parts.append(received(ranks, rank, count, end - first))
        return np.concatenate(parts, axis=1)
