"""Runners of models that keep nothing of earlier tokens: each step reads the whole text again.

The pages of such a runner hold token ids, which an engine shares, copies and drops as it does keys
and values. A text is computed alone, padded to the next of a few lengths. The length follows from a
token's position, so its logits have the same bits however a prompt is cut and whatever else is in
the batch. Padding changes nothing, because no token may see later ones: the first step of a model
proves it for this text and another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.dtypes import int32
from weft.core.errors import ModelError
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import PAGE
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.eager_runner import EagerRunner
from weft.models.run.placed import Placed
from weft.models.run.runner import DECODE, PREFILL, STEP, Runner

if TYPE_CHECKING:
    from weft.graph.ir import Graph

SHORTEST = 64  # tokens of the shortest text that is computed
PLANE = "ids.0"  # the name of the pages' content


class Recomputing(Runner):
    """A runner whose pages hold token ids."""

    scores = False

    def __init__(
        self, config: DecoderConfig, placed: Placed, context: int, slots: int, pages: int
    ) -> None:
        super().__init__(config, placed, context, slots, pages)  # type: ignore[arg-type]
        self._ids = np.zeros((1, pages, PAGE, 1), np.int32)
        self._shared = placed

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return 1, STEP

    def room(self, kind: str) -> int:
        return self.context if kind == PREFILL else super().room(kind)

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Does Runner.step, text by text."""
        slots, pos = rows["where"][:n].T
        self._ids.reshape(-1)[rows["at.1"][:n]] = rows["ids"][:n]
        asked = rows["last"] if kind == PREFILL else np.arange(n)
        out = np.empty((len(asked), self.config.vocab), np.float32)
        for slot, length, at in self._texts(slots[asked], pos[asked]):
            which = asked[at]
            table = self.tables[slot, : -(-length // PAGE)]
            text = self._ids[0, table].reshape(-1)[:length].copy()
            text[pos[slots == slot].max() + 1 :] = 0
            adapter = rows.get("adapter", np.zeros(1, np.int32))
            one = adapter[which[:1] if len(adapter) > 1 else slice(1)]
            out[at] = self.logits(text, pos[which], one)
        return out

    def _texts(self, slots: np.ndarray, pos: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yields the slot, the length of the text, and the numbers of the rows of each text to
        compute."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, (slot, place) in enumerate(zip(slots.tolist(), pos.tolist())):
            found.setdefault((slot, self._length(place + 1)), []).append(i)
        for (slot, length), at in found.items():
            yield slot, length, np.array(at)

    def _length(self, count: int) -> int:
        """Returns the length that a text of `count` tokens is padded to: a power of two, or the
        context."""
        return min(max(SHORTEST, 1 << (count - 1).bit_length()), self.context)

    def logits(self, text: np.ndarray, rows: np.ndarray, adapter: np.ndarray) -> np.ndarray:
        """Returns logits float32 [R, vocab] of some rows of a padded text. Raises ModelError for a
        model whose tokens see later ones."""
        if not self._shared.proved:
            self._prove()
            self._shared.proved = True
        return self._computed(text, rows, adapter)

    def _computed(self, text: np.ndarray, rows: np.ndarray, adapter: np.ndarray) -> np.ndarray:
        count = next(size for size in self.sizes if size >= len(rows))
        last = np.zeros(count, np.int32)
        last[: len(rows)] = rows
        given = {"ids": text, "last": last}
        if self.config.adapters:
            given["adapter"] = adapter
        return self.compute(f"{len(text)}x{count}", given)[: len(rows)]

    def _prove(self) -> None:
        """Raises ModelError unless the first half of a text has the same logits before any second
        half."""
        length = min(SHORTEST, self.context)
        ids = np.random.default_rng(0).integers(0, self.config.vocab, (2, length), np.int32)
        half = np.arange(length // 2, dtype=np.int32)
        none = np.array([self.config.adapters], np.int32)
        texts = ids[0], np.where(np.arange(length) < len(half), ids[0], ids[1]), ids[0].copy()
        texts[2][len(half) :] = 0
        first, *others = (self._computed(text, half, none).copy() for text in texts)
        if not all(np.array_equal(first, other) for other in others):
            raise ModelError(
                f"{self.config.family}: tokens see later ones, so logits predict no next token"
            )

    def compute(self, kind: str, given: dict[str, np.ndarray]) -> np.ndarray:
        """Returns logits float32 [R, vocab] of the rows "last" [R] of the text "ids"; `kind` names
        both sizes, as "64x1"."""
        raise NotImplementedError

    # -- pages on the host

    @cached_property
    def _planes(self) -> dict[str, Any]:
        return {PLANE: (self._ids.shape, int32)}

    def _planes_of(self, pages: Sequence[int], window: bool) -> dict[str, Any]:
        self._check(np.array(pages, np.int32), self.pages)
        return {} if window else self._planes

    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        return self._ids[:, list(pages)]

    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        self._ids[:, list(pages)] = value


class EagerRecomputing(Recomputing, EagerRunner):
    """A `Recomputing` on the oracle."""

    def compute(self, kind: str, given: dict[str, np.ndarray]) -> np.ndarray:
        from weft.models.arch.texts import text_forward

        adapter = given.get("adapter")
        made = text_forward(self.config, self._weights, given["ids"], given["last"], adapter)
        return np.asarray(made)


class CompiledRecomputing(Recomputing, CompiledRunner):
    """A `Recomputing` of compiled Programs, one for each length and number of rows."""

    def compute(self, kind: str, given: dict[str, np.ndarray]) -> np.ndarray:
        found = self.session(kind).run(given, {})
        self._placed.keep()
        return found[0]

    def what(self, kind: str) -> object:
        return self.config, sorted(self._avals.items()), "text", self._sizes(kind)

    def graph(self, kind: str) -> Graph:
        from weft.models.arch.texts import text_graph

        return text_graph(self.config, self._avals, *self._sizes(kind))

    def _sizes(self, kind: str) -> tuple[int, int]:
        """Returns the tokens and the rows of a kind; a prefill or a decode step is of the whole
        context."""
        if kind in (PREFILL, DECODE):
            return self.context, 1
        length, _, count = kind.partition("x")
        return int(length), int(count)


def recomputing(
    config: DecoderConfig, placed: Placed, context: int, slots: int, pages: int
) -> Recomputing:
    """Returns a runner that keeps ids alone; see `Runner` for the arguments."""
    kind: Any = EagerRecomputing if placed.device is None else CompiledRecomputing
    made: Recomputing = kind(config, placed, context, slots, pages)
    return made
