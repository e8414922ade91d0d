"""Runners with keys and values in pages: the `PagedRunner` of an engine.

A page holds PAGE positions of one sequence, in every layer. `tables` says which page holds each
part of a slot's positions; the caller fills it in (Kwon et al., "PagedAttention",
arXiv:2309.06180).

A page is a block of keys, and attention cuts its sums at these blocks anyway, so every bit equals
that of a cache by slot. States of short convolutions and the delta rule are kept by slot.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.core.order import stream_rows
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import (
    CHUNK,
    PAGE,
    by_slot,
    columns,
    intact,
    page_rows,
    position_bytes,
    states,
)
from weft.models.run.base import Model
from weft.models.run.fit import pages_in
from weft.models.run.runner import DECODE_ROWS, CompiledRunner, EagerRunner, MakeRunner, Runner

ROWS = "rows"  # kind of a step that returns every row's logits, followed by its size


class Paged(Runner):
    """A `weft.engine.job.PagedRunner`; it takes the arguments of the other Runner in a class's
    bases."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.page = PAGE
        self.tables = np.zeros((self.slots, columns(self.context)), np.int32)

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; returns logits float32 [vocab] of the last
        one. Raises UsageError for an unknown slot, page or adapter and for a position that the slot
        cannot resume from, LimitError for one beyond the context."""
        return super().prefill(slot, ids, start, adapter)

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        """Feeds one token per row; rows of one slot are adjacent, in the order of positions.
        Returns logits float32 [n, vocab] of every row, valid until the next step. Raises the errors
        of `prefill`."""
        parts, begin = [], 0
        for size in self._cut(len(ids)):
            part = slice(begin, begin + size)
            parts.append(self._step(ids[part], slots[part], pos[part], adapters[part]))
            begin += size
            if begin < len(ids):
                parts[-1] = parts[-1].copy()  # the next step reuses its memory
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def resumes(self, fed: int, start: int) -> bool:
        """Returns True if a slot that was fed `fed` positions can resume from `start`."""
        return not start or intact(self.config, self.context, fed, start)

    def kept(self, slot: int, ids: Sequence[int]) -> int:
        """Returns 0: only the caller, who fills in `tables`, knows the contents of a slot's
        pages."""
        return 0

    # -- pages on the host

    def read_pages(self, pages: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns a copy of the contents of pages, by the names of `inputs.states`: [n, G, PAGE,
        ...]."""
        self._check(np.asarray(pages))
        return {name: self._read(name, pages) for name in self._planes()}

    def write_pages(self, pages: Sequence[int], held: Mapping[str, np.ndarray]) -> None:
        """Fills pages with a result of `read_pages`. Raises UsageError if its shapes do not
        match."""
        self._check(np.asarray(pages))
        for name, (shape, dtype) in self._planes().items():
            value = held.get(name)
            if value is None or value.shape != (len(pages), *shape[1:]):
                raise UsageError(f"{len(pages)} pages hold other planes than those given ({name})")
            self._write(name, pages, np.ascontiguousarray(value, dtype.numpy))

    def _planes(self) -> dict[str, Any]:
        kept = states(self.config, self.slots, self.context, self.pages)
        return {name: what for name, what in kept.items() if not by_slot(name)}

    @abc.abstractmethod
    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray: ...

    @abc.abstractmethod
    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None: ...

    # -- steps

    @abc.abstractmethod
    def _sizes(self) -> tuple[int, ...]:
        """Returns the numbers of rows of the step Programs, ascending."""

    def _cut(self, rows: int) -> list[int]:
        """Returns the sizes of the steps for `rows` rows."""
        most = self._sizes()[-1]
        cut = [most] * (rows // most)
        return [*cut, rows % most] if rows % most else cut

    def _step(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str],
    ) -> np.ndarray:
        kind = f"{ROWS}{next(size for size in self._sizes() if size >= len(ids))}"
        rows = self._rows(kind, ids, slots, pos, adapters)
        with self._feeding(*runs(ids, slots, pos)):
            return self.step(kind, rows, len(ids))[: len(ids)]

    def room(self, kind: str) -> int:
        """Returns the rows of a step: "prefill", or "rows16"."""
        return min(CHUNK, self.context) if kind == "prefill" else int(kind.removeprefix(ROWS))

    def _places(self, slot: np.ndarray, pos: np.ndarray, size: int) -> dict[str, np.ndarray]:
        if len(slot) and not 0 <= slot.min() <= slot.max() < self.slots:
            raise UsageError(f"a row of slot {slot.min()} or {slot.max()}; there are {self.slots}")
        if len(pos) and not 0 <= pos.min() <= pos.max() < self.context:
            raise LimitError(f"position {pos.max()} of a sequence; the context is {self.context}")
        self._check(self.tables[slot, pos // PAGE])
        at = page_rows(self.config, self.tables, slot, pos, size)
        return at | {"table": self.tables}

    def _check(self, pages: np.ndarray) -> None:
        if pages.size and not 0 <= pages.min() <= pages.max() < self.pages:
            raise UsageError(f"page {pages.min()} or {pages.max()}; there are {self.pages}")


class Pageable(Model):
    """The methods of a Decoder for pages."""

    config: DecoderConfig
    context: int
    _make_runner: MakeRunner
    _runners: dict[int, Runner]
    _fit: Callable[[int], int] | None = None  # set if other machines have a part of the model

    def paged_runner(self, slots: int, pages: int) -> Paged:
        """Returns a runner for `slots` sequences at once (`weft.engine.job.PagedRunner`), with keys
        and values in `pages` pages. It shares only the weights with the model's other runners.
        Raises UsageError for numbers below 1, and for a model from a file of compiled Programs."""
        for what, given in (("slots", slots), ("pages", pages)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise UsageError(f"{what} is {given!r}; expected 1 or more")
        made = self._make_runner(slots, pages)
        assert isinstance(made, Paged)
        return made

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of keys and values."""
        return position_bytes(self.config) * PAGE

    def pages_that_fit(self, slots: int, share: float = 0.9) -> int:
        """Returns how many pages fit in the device's free memory, at most as many as `slots` full
        sequences need.

        It uses `share` of the memory that remains after the weights (if no runner has placed them
        yet) and the states of short convolutions and the delta rule. If the device cannot report
        free memory, it returns that maximum. If other machines have a part of the model, the number
        fits on all of them. Raises OutOfMemoryError if not even one page fits.
        """
        return self.own_pages(slots, share) if self._fit is None else self._fit(slots)

    def own_pages(self, slots: int, share: float = 0.9) -> int:
        """Returns `pages_that_fit` for this machine alone."""
        most = slots * columns(self.context)
        free = 0 if self.device is None else self.device.free_memory()
        if not free:
            return most
        kept = states(self.config, slots, self.context, 1).items()
        taken = sum(math.prod(s) * d.itemsize for name, (s, d) in kept if by_slot(name))
        taken += 0 if self._runners else self.nbytes
        return pages_in(int(share * (free - taken)), self.page_bytes, most)


def runs(
    ids: Sequence[int], slots: Sequence[int], pos: Sequence[int]
) -> list[tuple[int, int, list[int]]]:
    """Groups consecutive rows of one slot: (slot, position of the first, ids)."""
    found: list[tuple[int, int, list[int]]] = []
    for token, slot, place in zip(ids, slots, pos):
        if found and found[-1][0] == slot and found[-1][1] + len(found[-1][2]) == place:
            found[-1][2].append(token)
        else:
            found.append((slot, place, [token]))
    return found


class EagerPaged(Paged, EagerRunner):
    """A paged runner that computes with NumPy: the oracle."""

    def _sizes(self) -> tuple[int, ...]:
        return (DECODE_ROWS,)

    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        return self._state[name][list(pages)]

    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        self._state[name] = held = self._state[name].copy()  # a step's results are read-only
        held[list(pages)] = value


class CompiledPaged(Paged, CompiledRunner):
    """A paged runner that runs compiled Programs."""

    def _sizes(self) -> tuple[int, ...]:
        """Returns the numbers of rows of Programs: one, the streaming maximum, a whole step."""
        few = stream_rows(self._device.caps, bounded=True)
        return tuple(sorted({1, few, DECODE_ROWS}))

    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        shape, dtype = self._planes()[name]
        size, buffer = self._page_bytes(name), self._buffer(name)
        read = self._device.read
        return np.stack([read(buffer, shape[1:], dtype, page * size) for page in pages])

    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        size, buffer = self._page_bytes(name), self._buffer(name)
        for page, part in zip(pages, value):
            self._device.write(buffer, part, page * size)

    def _page_bytes(self, name: str) -> int:
        shape, dtype = self._planes()[name]
        return int(np.prod(shape[1:])) * dtype.itemsize

    def _buffer(self, name: str) -> Any:
        if not self._state:
            self.session(f"{ROWS}{self._sizes()[0]}")
        return self._state[name]
