"""Runners that read and change values at named places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.models.arch.config import DecoderConfig
from weft.models.arch.hooks import TrainingHooks
from weft.models.arch.places import Places, Visit
from weft.models.run.compiled_runner import CompiledRunner, model_caps
from weft.models.run.eager_runner import EagerRunner
from weft.models.run.edits import Edit
from weft.models.run.placed import Placed
from weft.models.run.runner import PICTURED, ROWS, SCORE, STEP, Runner

if TYPE_CHECKING:
    from weft.graph.ir import Graph


class Visiting(Runner):
    """A runner with changes, whose steps keep the values of the places that it reads."""

    edits: Sequence[Edit] = ()
    reads: tuple[str, ...] = ()

    def visits(self, reads: Sequence[str], edits: Sequence[Edit]) -> None:
        """Sets what the runner reads and changes, before its first step. Later only other values of
        the same shapes may follow."""
        self.reads, self.edits = tuple(reads), edits

    @property
    def places(self) -> Places:
        """The values that the Programs read and change."""
        return Places(self.reads, tuple(edit.change for edit in self.edits))

    def inputs(
        self,
        size: int,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        made = super().inputs(size, ids, slots, pos, adapters)
        for i, edit in enumerate(self.edits):
            made[f"change.{i}.at"] = edit.numbers(pos)
            made[f"change.{i}.values"] = edit.padded
        return made

    def passes(self, ids: Sequence[int], adapter: str = "") -> dict[str, np.ndarray]:
        """Feeds a whole text to slot 0; returns what was read, float32 [T, ...] by name, and the
        "logits" [T, vocab]."""
        kind = SCORE if self.scores else f"{ROWS}{STEP}"
        parts: list[list[np.ndarray]] = []
        for begin in range(0, len(ids), STEP):
            part = ids[begin : begin + STEP]
            n, pos = len(part), range(begin, begin + len(part))
            adapters = [adapter] * (1 if self.scores else n)
            rows = self.inputs(self.room(kind), part, [0] * n, pos, adapters)
            logits = self._feed(kind, rows, n, [(0, begin, n)])
            parts.append([x[:n].astype(np.float32) for x in (logits, *self.found)])
        whole = [np.concatenate(each) for each in zip(*parts)]
        return dict(zip(("logits", *self.reads), whole))

    found: Sequence[np.ndarray] = ()
    """What the last step read, valid until the next."""


class CompiledVisiting(Visiting, CompiledRunner):
    """A `Visiting` of compiled Programs."""

    def what(self, kind: str) -> object:
        return super().what(kind), self.places

    def graph(self, kind: str) -> Graph:
        from weft.models.arch.decoder import decoder_graph

        more: Any = {"visit": Visit(self.places), "pictured": kind == PICTURED}
        return decoder_graph(self.config, self._avals, *self._shape(kind), **more)

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        logits, *found = self.outputs(kind, rows, n)
        self.found = found[: len(self.reads)]
        return logits


class EagerVisiting(Visiting, EagerRunner):
    """A `Visiting` on the oracle."""

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        self._visit = Visit(self.places)
        logits = super().step(kind, rows, n)
        self.found = [np.asarray(x) for x in self._visit.results()]
        return logits

    def hooks(self, rows: dict[str, np.ndarray]) -> TrainingHooks:
        from weft.models.arch.decoder import hooks_of

        return hooks_of(self._visit, rows, rows.get("last"))


def visiting(
    config: DecoderConfig, placed: Placed, context: int, slots: int, pages: int
) -> Visiting:
    """Returns a runner that can read and change; see `Runner` for the arguments."""
    made: Any = EagerVisiting if placed.device is None else CompiledVisiting
    runner: Visiting = made(config, placed, context, slots, pages)
    return runner


def shapes_of(config: DecoderConfig, placed: Placed) -> dict[str, tuple[int, ...]]:
    """Returns the places of a model in the order of the pass, each with the shape of one token's
    value; that of attention's weights is (heads, positions), here for one page."""
    from weft.models.arch.decoder import decoder_graph
    from weft.models.arch.inputs import PAGE
    from weft.models.arch.stages import roles_of

    config = replace(config, kv_window=0)
    wants, visit = roles_of(config), Visit(Places(), everywhere=True)
    avals = {role: aval for role, aval in placed.avals.items() if wants(role)}
    decoder_graph(config, avals, 1, 1, 1, PAGE, True, False, "places", visit=visit)
    return {name: shape[1:] for name, shape in visit.shapes.items()}


def unembedding(config: DecoderConfig, placed: Placed) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the output layer as a function from float32 [N, hidden], N at most STEP, to logits
    [N, vocab], which are valid until the next call."""
    if placed.device is None:
        from weft.models.arch.unembed import forward

        return lambda x: np.asarray(forward(config, placed.weights, x))
    from weft.models.arch.stages import output, roles_of
    from weft.models.arch.unembed import unembed_graph
    from weft.tensor.program_cache import program_for

    wants = roles_of(output(config))
    avals = {role: aval for role, aval in placed.avals.items() if wants(role)}
    program = program_for(
        ("unembed", config, sorted(avals.items()), STEP), model_caps(placed.device.caps),
        lambda: unembed_graph(config, avals, STEP),
    )  # fmt: skip
    session = placed.session(program)
    return lambda x: session.run({"x": x}, {"n": len(x)})[0][: len(x)]
