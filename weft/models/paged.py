"""Runners whose keys and values are in pages: the `PagedRunner` that an engine plays on.

A page holds PAGE positions of one sequence, in every layer; `tables` says which page holds each
part of a slot's positions, and whoever plays decides it (Kwon et al., "PagedAttention",
arXiv:2309.06180). A page is a block of keys, at which attention's order of sums is cut anyway, so
every bit is that of a cache by slot. What short convolutions and the delta rule remember is kept by
slot.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.core.order import stream_rows
from weft.models.base import Model
from weft.models.config import DecoderConfig
from weft.models.fit import pages_in
from weft.models.inputs import (
    CHUNK,
    PAGE,
    by_slot,
    columns,
    intact,
    page_rows,
    position_bytes,
    states,
)
from weft.models.runner import DECODE_ROWS, CompiledRunner, EagerRunner, MakeRunner, Runner

ROWS = "rows"  # the kind of a step that returns every row's logits, with its size behind


class Paged(Runner):
    """See `weft.engine.job.PagedRunner`; made as the Runner beside it in a class's bases is."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.page = PAGE
        self.tables = np.zeros((self.slots, columns(self.context)), np.int32)

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; logits float32 [vocab] of the last one. Raises
        UsageError for a slot, a page or an adapter that is not there and for a position that the
        slot cannot go on from, LimitError for one beyond the context."""
        return super().prefill(slot, ids, start, adapter)

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        """Feeds one token per row, several of one slot side by side in the order of positions;
        logits float32 [n, vocab] of every row, until the next step. Raises as `prefill` does."""
        parts, begin = [], 0
        for size in self._cut(len(ids)):
            part = slice(begin, begin + size)
            parts.append(self._step(ids[part], slots[part], pos[part], adapters[part]))
            begin += size
            if begin < len(ids):
                parts[-1] = parts[-1].copy()  # the next step reuses its memory
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def resumes(self, fed: int, start: int) -> bool:
        """Whether a slot that was fed `fed` positions can go on from `start`."""
        return not start or intact(self.config, self.context, fed, start)

    def kept(self, slot: int, ids: Sequence[int]) -> int:
        """None: what a slot's pages hold, whoever fills in `tables` knows."""
        return 0

    # -- pages on the host

    def read_pages(self, pages: Sequence[int]) -> dict[str, np.ndarray]:
        """A copy of what some pages hold, by the names of `inputs.states`: [n, G, PAGE, ...]."""
        self._check(np.asarray(pages))
        return {name: self._read(name, pages) for name in self._planes()}

    def write_pages(self, pages: Sequence[int], held: Mapping[str, np.ndarray]) -> None:
        """Fills pages with what `read_pages` gave. Raises UsageError where that is of others."""
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
        """How many rows the Programs of a step take, ascending."""

    def _cut(self, rows: int) -> list[int]:
        """Steps for so many rows."""
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
        """Rows of a step: "prefill", or "rows16"."""
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
    """What a Decoder has to do with pages."""

    config: DecoderConfig
    context: int
    _make_runner: MakeRunner
    _runners: dict[int, Runner]
    _fit: Callable[[int], int] | None = None  # where other machines have a part of the model

    def paged_runner(self, slots: int, pages: int) -> Paged:
        """A runner for `slots` sequences at once (`weft.engine.job.PagedRunner`), with keys and
        values in `pages` pages. It shares the weights with the model's other runners, nothing else.
        Raises UsageError for numbers below 1, and where the model comes from a file of compiled
        Programs."""
        for what, given in (("slots", slots), ("pages", pages)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise UsageError(f"{what} is {given!r}; expected 1 or more")
        made = self._make_runner(slots, pages)
        assert isinstance(made, Paged)
        return made

    @property
    def page_bytes(self) -> int:
        """Bytes that one page of keys and values takes."""
        return position_bytes(self.config) * PAGE

    def pages_that_fit(self, slots: int, share: float = 0.9) -> int:
        """How many pages the device's free memory takes now, and no more than `slots` sequences of
        the whole context fill: of `share` of what is left by the weights (where no runner has them
        there yet) and by what short convolutions and the delta rule keep. Where the device cannot
        tell, as many as these sequences fill; where others have a part of the model, as many as all
        of them take. Raises OutOfMemoryError where not one fits."""
        return self.own_pages(slots, share) if self._fit is None else self._fit(slots)

    def own_pages(self, slots: int, share: float = 0.9) -> int:
        """`pages_that_fit` as this machine sees it."""
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
    """Rows that follow one another in one slot, together: slot, position of the first, ids."""
    found: list[tuple[int, int, list[int]]] = []
    for token, slot, place in zip(ids, slots, pos):
        if found and found[-1][0] == slot and found[-1][1] + len(found[-1][2]) == place:
            found[-1][2].append(token)
        else:
            found.append((slot, place, [token]))
    return found


class EagerPaged(Paged, EagerRunner):
    """By NumPy's meaning: the oracle."""

    def _sizes(self) -> tuple[int, ...]:
        return (DECODE_ROWS,)

    def _read(self, name: str, pages: Sequence[int]) -> np.ndarray:
        return self._state[name][list(pages)]

    def _write(self, name: str, pages: Sequence[int], value: np.ndarray) -> None:
        self._state[name] = held = self._state[name].copy()  # a step's results are read-only
        held[list(pages)] = value


class CompiledPaged(Paged, CompiledRunner):
    """By compiled Programs."""

    def _sizes(self) -> tuple[int, ...]:
        """A row alone, as many as stream, as many as a step takes."""
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
