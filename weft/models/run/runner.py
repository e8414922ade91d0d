"""Runners: a model's steps on NumPy or compiled Programs, with keys and values in pages.

A runner is the `PagedRunner` of an engine. It has `slots` sequences and `pages` pages. A page holds
PAGE positions of one sequence, in every layer. `tables` says which page holds each part of a slot's
positions (Kwon et al., "PagedAttention", arXiv:2309.06180). At first each slot has consecutive
pages of its own, so that a runner works by itself; an engine fills the tables in.

A page is a block of keys, and attention cuts its sums at these blocks anyway, so no bit depends on
where pages are. States of short convolutions and recurrences are kept by slot. A slot needs no
clearing, because a row never looks beyond its own position.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.core.order import STREAM_ROWS
from weft.engine.insets import Inset, Insets
from weft.engine.windows import WindowPool
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import (
    CHUNK,
    PAGE,
    by_slot,
    columns,
    intact,
    kv_counts,
    remembers,
    slides,
    states,
    window_pages,
)
from weft.models.run.inset_rows import turn_rows, untaken, vector_rows

STEP = 64  # most rows of a step that returns every row's logits
DECODE = "decode"  # the kind of a step of one row
ROWS = "rows"  # the kind of a larger step that returns every row's logits, followed by its size
PREFILL = "prefill"  # the kind of a step that returns the last row's logits
SCORE = "score"  # the kind of a step that returns every row's logits, faster than ROWS if many
PICTURED = "pictured"  # the kind of a PREFILL whose rows may have vectors of their own
OF_ONE = (PREFILL, SCORE, PICTURED)  # steps whose rows belong to one slot
Fed = list[tuple[int, int, int]]  # rows of a step: (slot, position of the first, their number)

MakeRunner = Callable[[int, int], "Runner"]
"""(slots, pages) -> a Runner of a model."""


class Runner(abc.ABC):
    """The base class of runners. `adapters` are names of adapters stacked in the weights
    (`adapter_stack.stacked`), in order."""

    page = PAGE
    windows: WindowPool | None
    scores = False  # True if there is a SCORE step

    def __init__(
        self, config: DecoderConfig, context: int, slots: int, pages: int,
        adapters: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.config, self.context, self.slots, self.pages = config, context, slots, pages
        count = columns(context)
        own = np.arange(slots * count, dtype=np.int32) % pages
        self.tables = own.reshape(slots, count)
        self.windows, self.window_tables = None, np.empty((slots, 0), np.int32)
        if config.kv_window:
            short = window_pages(config, slots, pages)
            self.windows = WindowPool(short, config.kv_window, CHUNK)
            ring = max(short // slots, 1)  # enough for a step, unless pages are few
            near = np.arange(slots, dtype=np.int32)[:, None] * ring
            near = near + np.arange(count, dtype=np.int32) % ring
            self.window_tables = self.tables.copy() if short == pages else near
        self._adapters = adapters
        self.insets: dict[int, Insets] = {}
        self._fed = [0] * slots if remembers(config) else None  # rows that each slot was fed

    def knows(self, adapter: str) -> bool:
        """Returns True if the adapter exists; "" (no adapter) always does."""
        return not adapter or adapter in self._adapters

    @abc.abstractmethod
    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Runs a step of some kind on n rows; returns float32 [1 or >= n, vocab]."""

    @cached_property
    @abc.abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows of the DECODE and ROWS steps, ascending."""

    def room(self, kind: str) -> int:
        """Returns the most rows that a step of this kind takes, such as PREFILL or "rows16"."""
        most = min(CHUNK, self.context)
        fixed = {PREFILL: most, PICTURED: most, SCORE: STEP, DECODE: 1}
        return fixed[kind] if kind in fixed else int(kind.removeprefix(ROWS))

    def warm(self, pictured: bool = False) -> None:
        """Runs each kind of step once, PICTURED only if `pictured`, so that later ones find
        compiled Programs. The caches' content afterwards is meaningless."""
        self.prefill(0, [0])
        if pictured:
            vectors = np.zeros((1, self.config.hidden * (1 + self.config.deep)), np.float32)
            self.insets[0] = Insets((Inset(0, b"", vectors),), 1)
            self.prefill(0, [0])
            del self.insets[0]
        for n in self.sizes:
            count = min(n, self.context)
            pos = [*range(count - 1), 0]  # of two slots, because rows of one may be a SCORE step
            self.rows([0] * count, [0] * (count - 1) + [self.slots - 1], pos)
        if self.scores and self.context > STREAM_ROWS:
            count = STREAM_ROWS + 1
            self.rows([0] * count, [0] * count, range(count))

    def resumes(self, fed: int, start: int) -> bool:
        """Returns True if a slot that was fed `fed` positions can resume from `start`. With start >
        fed, it resumes from another slot's positions, if keys and values are the whole state."""
        return not start or intact(self.config, self.context, fed, start)

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; returns logits float32 [vocab] of the last
        one. Raises UsageError for an unknown slot, page or adapter and for a position that the slot
        cannot resume from, LimitError for one beyond the context."""
        chunk = self.room(PREFILL)
        logits = np.empty(0, np.float32)
        for begin in range(0, len(ids), chunk):
            part, first = ids[begin : begin + chunk], start + begin
            places = range(first, first + len(part))
            rows = self.inputs(chunk, part, [slot] * len(part), places, [adapter])
            rows["last"] = np.array([len(part) - 1], np.int32)
            shown = vector_rows(self.config, self.insets.get(slot), first, len(part), chunk)
            kind = PICTURED if shown else PREFILL
            logits = self._feed(kind, rows | shown, len(part), [(slot, first, len(part))])[0]
        return logits

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        """Feeds one token per row; rows of one slot are adjacent, in the order of positions.
        Returns logits float32 [n, vocab] of every row, valid until the next step. They equal those
        of rows fed one by one, so drafts can be checked as rows. Raises the errors of `prefill`."""
        most = self.sizes[-1]
        if len(ids) <= most:
            return self._few(ids, slots, pos, adapters)
        parts = []
        for i in range(0, len(ids), most):  # the next step reuses the memory of this one's logits
            at = slice(i, i + most)
            parts.append(self._few(ids[at], slots[at], pos[at], adapters[at]).copy())
        return np.concatenate(parts)

    def _few(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str],
    ) -> np.ndarray:
        """Does `rows` in one step."""
        n, adapters = len(ids), adapters or [""] * len(ids)
        size = next(size for size in self.sizes if size >= n)
        kind = kind_of(size)
        if self.scores and n > STREAM_ROWS and min(slots) == max(slots):
            kind, adapters = SCORE, adapters[:1]
        rows = self.inputs(self.room(kind), ids, slots, pos, adapters)
        fed = [] if self._fed is None else runs(slots, pos)
        return self._feed(kind, rows, n, fed)[:n]

    def _feed(self, kind: str, rows: dict[str, np.ndarray], n: int, fed: Fed) -> np.ndarray:
        """Runs a step, and records how far slots with a running state are. After an interrupted
        step, a slot keeps its earlier rows if intact. Raises UsageError for a position that a slot
        cannot resume from."""
        have = self._fed
        if have is None:
            return self.step(kind, rows, n)
        for slot, start, _ in fed:
            if start and not intact(self.config, self.context, have[slot], start):
                raise UsageError(
                    f"slot {slot} has been fed {have[slot]} tokens and cannot go on from {start}: "
                    f"{self.config.family} keeps no earlier state; prefill from 0"
                )
            have[slot] = start
        try:
            out = self.step(kind, rows, n)
        except BaseException:
            for slot, start, count in fed:  # any of these rows may have been written
                if not intact(self.config, self.context, start + count, 0):
                    have[slot] = 0
            raise
        for slot, start, count in fed:
            have[slot] = start + count
        return out

    def inputs(
        self,
        size: int,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        """Returns the inputs of a step of `size` rows. adapters: one per row, or one for all rows
        of a slot."""
        if len(ids) and not 0 <= min(slots) <= max(slots) < self.slots:
            raise UsageError(f"a row of slot {min(slots)} or {max(slots)}; there are {self.slots}")
        if len(ids) and not 0 <= min(pos) <= max(pos) < self.context:
            raise LimitError(f"position {max(pos)} of a sequence; the context is {self.context}")
        if size == len(ids) == 1:
            more = self._chosen(adapters) | self._turns(slots, pos, 1)
            return self._one(ids[0], slots[0], pos[0]) | more
        where = np.empty((len(ids), 2), np.int32)
        where[:, 0], where[:, 1] = slots, pos
        slot, place = where.T
        made = {"ids": np.array(ids, np.int32), "where": where}
        for name, tables, pages, starts in self._groups:
            page = tables[slot, place // PAGE]
            self._check(page, pages)
            row = (page * PAGE + place % PAGE)[:, None]
            made[f"{name}table"] = tables
            for count, heads in starts.items():
                at = np.full((size, count), -1, np.int32)
                at[: len(ids)] = row + heads
                made[f"{name}at.{count}"] = at.reshape(-1)
        return made | self._chosen(adapters) | self._turns(slots, pos, size)

    def takes(self, insets: Insets) -> str:
        """Returns "" if the model takes vectors in place of embeddings, else why not."""
        return untaken(self.config, insets, self.room(PICTURED))

    def _turns(self, slots: Sequence[int], pos: Sequence[int], size: int) -> dict[str, np.ndarray]:
        return turn_rows(self.insets, slots, pos, size) if self.config.turns_by else {}

    def _one(self, token: int, slot: int, place: int) -> dict[str, np.ndarray]:
        """Returns the inputs of one row as `inputs` makes them, by Python's arithmetic: a decode
        step spends a sixth of the time on it."""
        made = {
            "ids": np.array((token,), np.int32),
            "where": np.array(((slot, place),), np.int32),
        }
        for name, tables, pages, starts in self._groups:
            page = int(tables[slot, place // PAGE])
            if not 0 <= page < pages:
                raise UsageError(f"page {page}; there are {pages}")
            row = np.int32(page * PAGE + place % PAGE)
            made[f"{name}table"] = tables
            for count, heads in starts.items():
                made[f"{name}at.{count}"] = heads + row
        return made

    @cached_property
    def _groups(self) -> list[tuple[str, np.ndarray, int, dict[int, np.ndarray]]]:
        """The groups of layers with their own pages: the prefix of their inputs' names, their
        table, the number of their pages, and the first cache row of each key/value head, by the
        number of heads."""
        kinds = [("", self.tables, self.pages)]
        if self.windows is not None:
            kinds.append(("window_", self.window_tables, self.windows.count))
        return [
            (name, tables, pages, {
                g: np.arange(g, dtype=np.int32) * (pages * PAGE)
                for g in kv_counts(self.config, bool(name))
            })
            for name, tables, pages in kinds
        ]  # fmt: skip

    def _chosen(self, adapters: Sequence[str]) -> dict[str, np.ndarray]:
        numbers = {name: i for i, name in enumerate(self._adapters)} | {"": len(self._adapters)}
        for name in adapters:
            if name not in numbers:
                known = ", ".join(filter(None, self._adapters)) or "none"
                raise UsageError(f"unknown adapter {name!r:.100}; loaded: {known}")
        if not self.config.adapters:
            return {}
        return {"adapter": np.array([numbers[name] for name in adapters], np.int32)}

    def _check(self, pages: np.ndarray, count: int) -> None:
        # Read as unsigned, negative numbers are large.
        if pages.size and not pages.view(np.uint32).max() < count:
            raise UsageError(f"page {pages.min()} or {pages.max()}; there are {count}")

    # -- pages on the host

    def read_pages(self, pages: Sequence[int], window: bool = False) -> dict[str, np.ndarray]:
        """Returns a copy of the contents of pages (with `window`, of the layers that keep only
        their window), by the names of `inputs.states`: [n, G, PAGE, ...]."""
        planes = self._planes_of(pages, window)
        return {name: self._read(name, pages).swapaxes(0, 1) for name in planes}

    def write_pages(
        self, pages: Sequence[int], held: Mapping[str, np.ndarray], window: bool = False
    ) -> None:
        """Fills pages with a result of `read_pages`. Raises UsageError if its shapes do not
        match."""
        for name, ((groups, _, *rest), dtype) in self._planes_of(pages, window).items():
            value = held.get(name)
            if value is None or value.shape != (len(pages), groups, *rest):
                raise UsageError(f"{len(pages)} pages hold other planes than those given ({name})")
            self._write(name, pages, value.swapaxes(0, 1).astype(dtype.numpy, copy=False))

    @cached_property
    def _planes(self) -> dict[str, Any]:
        kept = states(self.config, self.slots, self.context, self.pages)
        return {name: what for name, what in kept.items() if not by_slot(name)}

    def _planes_of(self, pages: Sequence[int], window: bool) -> dict[str, Any]:
        """Returns the planes that the numbers of pages are of, after checking these."""
        count = self.pages if self.windows is None or not window else self.windows.count
        self._check(np.array(pages, np.int32), count)
        layers = {i for i in self.config.caches if slides(self.config, i) == window}
        return {n: what for n, what in self._planes.items() if int(n.partition(".")[2]) in layers}

    @abc.abstractmethod
    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        """Returns a copy of some pages of a plane: [G, n, PAGE, ...]."""

    @abc.abstractmethod
    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        """Fills some pages of a plane with [G, n, PAGE, ...]."""


def kind_of(size: int) -> str:
    """Returns the kind of a step of at most `size` rows that returns every row's logits."""
    return DECODE if size == 1 else f"{ROWS}{size}"


def runs(slots: Sequence[int], pos: Sequence[int]) -> Fed:
    """Groups consecutive rows of one slot: (slot, position of the first, their number)."""
    found: Fed = []
    for slot, place in zip(slots, pos):
        if found and found[-1][0] == slot and found[-1][1] + found[-1][2] == place:
            found[-1] = (slot, found[-1][1], found[-1][2] + 1)
        else:
            found.append((slot, place, 1))
    return found
