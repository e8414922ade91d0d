"""Runners: the same three steps (prefill, decode, score) on NumPy or compiled Programs.

A runner owns the KV caches of `slots` sequences. Callers give the slot and position of each token.
A slot needs no clearing, because a row never looks beyond its own position.
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import OutOfMemoryError, UsageError
from weft.host.clock import compiling
from weft.host.progress import progress
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import CHUNK, cache_rows, intact, kv_counts, remembers, states
from weft.models.arch.matrices import Lent, joined

if TYPE_CHECKING:
    from weft.core.caps import Caps
    from weft.graph.ir import Graph
    from weft.program.arena import Arena
    from weft.program.device import Buffer, Device
    from weft.program.program import Program
    from weft.program.session import Session

DECODE_ROWS = 64  # sequences per decode step
SCORE_CHUNK = 64  # rows per step that returns every row's logits
OF_ONE = ("prefill", "score")  # steps whose rows belong to one slot


MakeRunner = Callable[..., "Runner"]
"""(slots, pages; 0: a cache by slot) -> a Runner of a model. Given a config too, of that part of
the model; given a class, one of that."""


class Runner(abc.ABC):
    """The base class of runners. `weights`: role -> array, including rotary tables
    (`inputs.with_tables`). With `pages`, keys and values are in pages, else by slot. `adapters` are
    names of adapters stacked in the weights (`adapters.stacked`), in order."""

    def __init__(
        self, config: DecoderConfig, context: int, slots: int, pages: int = 0,
        adapters: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.config, self.context, self.slots, self.pages = config, context, slots, pages
        self._by_name = {name: i for i, name in enumerate([*adapters, ""])}
        self._fed: list[list[int]] = [[] for _ in range(slots)]  # tokens whose keys each slot holds

    def knows(self, adapter: str) -> bool:
        """Returns True if the adapter exists; "" (no adapter) always does."""
        return adapter in self._by_name

    @abc.abstractmethod
    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Runs "prefill", "decode" or "score" on n rows; returns float32 [1 or >= n, vocab]."""

    @abc.abstractmethod
    def room(self, kind: str) -> int:
        """Returns the most rows that one step of this kind takes."""

    def resumes(self, fed: int, start: int) -> bool:
        """Returns True if a slot that was fed `fed` positions can resume from `start`. With start >
        fed, it resumes from another slot's positions, if keys and values are the whole state."""
        if not start:
            return True
        c = self.config
        return intact(c, self.context, fed, start) and (start <= fed or not remembers(c))

    def kept(self, slot: int, ids: Sequence[int]) -> int:
        """Returns how many of `ids`, without the last, a prefill of this slot may skip. Their keys
        and values, from prompts or answers, are stored with the bits that it would compute
        (docs/numerics.md, "One order of every sum")."""
        count = 0
        for have, want in zip(self._fed[slot], ids[:-1]):
            if have != want:
                break
            count += 1
        fed = len(self._fed[slot])
        return count if intact(self.config, self.context, fed, count) else 0

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; returns logits float32 [vocab] of the last
        one. Raises UsageError for an unknown adapter, like the methods below."""
        chunk = self.room("prefill")
        logits = np.empty(0, np.float32)
        for begin in range(0, len(ids), chunk):
            part = ids[begin : begin + chunk]
            rows = self._rows("prefill", part, [slot] * len(part), start + begin, [adapter])
            rows["last"] = np.array([len(part) - 1], np.int32)
            with self._feeding((slot, start + begin, part)):
                logits = self.step("prefill", rows, len(part))[0]
        return logits

    def decode(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        """Feeds one token for each of some slots, at the given positions (and with the given
        adapters); returns logits float32 [n, vocab]."""
        step = self.room("decode")
        parts = []
        for i in range(0, len(ids), step):
            part, at = ids[i : i + step], slice(i, i + step)
            rows = self._rows("decode", part, slots[at], pos[at], adapters[at])
            fed = zip(slots[i:], pos[i:], ([token] for token in part))
            with self._feeding(*fed):
                parts.append(self.step("decode", rows, len(part))[: len(part)])
            if len(ids) > step:
                parts[-1] = parts[-1].copy()  # the next step reuses its memory
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Returns logits float32 [len(ids), vocab] of every position, in slot 0."""
        return self.verify(0, ids)

    def verify(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; returns logits float32 [len(ids), vocab]. They
        equal those of single decoding bit for bit, so drafts can be checked as rows."""
        chunk = self.room("score")
        out = np.empty((len(ids), self.config.vocab), np.float32)
        for begin in range(0, len(ids), chunk):
            part = ids[begin : begin + chunk]
            rows = self._rows("score", part, [slot] * len(part), start + begin, [adapter])
            with self._feeding((slot, start + begin, part)):
                out[begin : begin + len(part)] = self.step("score", rows, len(part))[: len(part)]
        return out

    @contextmanager
    def _feeding(self, *parts: tuple[int, int, Sequence[int]]) -> Iterator[None]:
        """Wraps the step that feeds (slot, position of the first, ids), and records the contents of
        slots. After an interrupted step, a slot keeps its earlier tokens if intact. Raises
        UsageError for a position that a slot cannot resume from."""
        for slot, start, _ in parts:
            fed = self._fed[slot]
            if start and not intact(self.config, self.context, len(fed), start):
                raise UsageError(
                    f"slot {slot} has been fed {len(fed)} tokens and cannot go on from {start}: "
                    f"{self.config.family} keeps no earlier state; prefill from 0"
                )
            del fed[start:]
        try:
            yield
            for slot, start, ids in parts:
                if len(self._fed[slot]) == start:
                    self._fed[slot].extend(ids)
        except BaseException:
            for slot, start, ids in parts:  # any of the rows from `start` on may have been written
                if not intact(self.config, self.context, start + len(ids), 0):
                    self._fed[slot].clear()
            raise

    def _rows(
        self,
        kind: str,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: int | Sequence[int],
        adapters: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        """Returns the inputs of a step; an integer position counts up row by row. adapters: one per
        row, or one for all rows of a slot; (): none."""
        slot = np.asarray(slots, np.int32)
        place = np.arange(pos, pos + len(ids)) if isinstance(pos, int) else np.asarray(pos)
        place = place.astype(np.int32)
        rows = {"ids": np.asarray(ids, np.int32), "slot": slot, "place": place}
        count = 1 if kind in OF_ONE else len(ids)
        rows |= self._chosen(list(adapters) or [""] * count)
        return rows | self._places(slot, place, self.room(kind))

    def _chosen(self, adapters: Sequence[str]) -> dict[str, np.ndarray]:
        for name in adapters:
            if name not in self._by_name:
                known = ", ".join(filter(None, self._by_name)) or "none"
                raise UsageError(f"there is no adapter {name!r:.100}; there is {known}")
        if not self.config.adapters:
            return {}
        return {"adapter": np.array([self._by_name[name] for name in adapters], np.int32)}

    def _places(self, slot: np.ndarray, pos: np.ndarray, size: int) -> dict[str, np.ndarray]:
        """Returns the cache rows for keys and values."""
        return cache_rows(self.config, slot, pos, self.context, size)


class EagerRunner(Runner):
    """The oracle: runs every op at once through its NumPy meaning. Slow and simple."""

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, np.ndarray], context: int, slots: int,
        pages: int = 0, adapters: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(config, context, slots, pages, adapters)
        self._weights = weights
        kept = states(config, slots, context, pages)
        self._state = {k: np.zeros(shape, dtype.numpy) for k, (shape, dtype) in kept.items()}

    def kept(self, slot: int, ids: Sequence[int]) -> int:
        return 0  # NumPy's products of fewer rows may sum in another order

    def resumes(self, fed: int, start: int) -> bool:
        return start in (0, fed)  # for the same reason

    def room(self, kind: str) -> int:
        return min(self.slots, DECODE_ROWS) if kind == "decode" else CHUNK

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        from weft.models.arch import decoder

        at = {g: rows[f"at.{g}"][: n * g] for g in kv_counts(self.config)}
        last = rows["last"] if kind == "prefill" else None
        given = decoder.Rows(
            rows["ids"], rows["slot"], rows["place"], at, last, rows.get("table"),
            adapter=rows.get("adapter"),
        )  # fmt: skip
        logits, self._state = decoder.forward(self.config, self._weights, given, self._state)
        return np.asarray(logits)


class CompiledRunner(Runner):
    """A runner of compiled Programs, made on first use; they share weights and caches.

    `placed` are the `weight_buffers` of another runner on the same device, which are reused. The
    device then has the only copy of packed weights (`matrices.Parts`).
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Any],
        avals: Mapping[str, tuple[tuple[int, ...], Any]],
        context: int,
        slots: int,
        device: Device,
        arena: Arena,
        placed: dict[str, Buffer] | None = None,
        pages: int = 0,
        adapters: Sequence[str] = (),
    ) -> None:
        super().__init__(config, context, slots, pages, adapters)
        self._weights = weights
        self._placed = {} if placed is None else placed
        self._avals = avals
        self._state: dict[str, Buffer] = {}
        self._device, self.arena = device, arena
        self._sessions: dict[str, Session] = {}

    @property
    def weight_buffers(self) -> dict[str, Buffer]:
        """The weights in the Sessions; passing these on avoids another copy."""
        return self._placed

    def room(self, kind: str) -> int:
        if kind == "decode":
            return min(self.slots, DECODE_ROWS)
        return min(CHUNK if kind == "prefill" else SCORE_CHUNK, self.context)

    def session(self, kind: str) -> Session:
        """Returns the Session of one kind of step, compiled on first use."""
        made = self._sessions.get(kind)
        if made is None:
            text = f"compiling {kind} for {self._device.info.id}"
            with progress(text), compiling.running():
                made = self._sessions[kind] = self._compile(kind)
        return made

    def _shape(self, kind: str) -> tuple[int, int, int, bool, str, int, bool]:
        run, name = self.config.run, f"{self.config.family}.{kind}"
        last = kind == "prefill" and (run is None or run.end == self.config.layers)
        one = kind in OF_ONE
        return self.room(kind), self.slots, self.context, last, name, self.pages, one

    @property
    def weights(self) -> Mapping[str, Any]:
        """Roles to arrays, including rotary tables."""
        return self._weights

    def what(self, kind: str) -> object:
        """Returns the key of `graph(kind)` (see `program_for`)."""
        return self.config, sorted(self._avals.items()), self._shape(kind)

    def graph(self, kind: str) -> Graph:
        """Returns the graph of one kind of step, before compilation."""
        from weft.models.arch.decoder import decoder_graph

        return decoder_graph(self.config, self._avals, *self._shape(kind))

    def program(self, kind: str, caps: Caps) -> Program:
        """Returns one kind of step as a Program for `caps`: from weft's cache, or compiled."""
        from weft.compile.programs import program_for

        return program_for(self.what(kind), model_caps(caps), lambda: self.graph(kind))

    def _compile(self, kind: str) -> Session:
        return self._open(self.program(kind, self._device.caps))

    def _open(self, program: Program) -> Session:
        """Opens a Program over the shared weights and states. Raises OutOfMemoryError."""
        from weft.program.session import Session

        held = [b.nbytes for b in (*self._placed.values(), *self._state.values())]
        free = self._device.free_memory()
        given = given_weights(program, self._placed, self._weights)
        try:
            session = Session(
                program, self._device, given, self._state, self.arena, reuse_outputs=True
            )
        except OutOfMemoryError as error:
            from weft.models.run.fit import too_large

            free += sum(held) if free else 0
            needs = too_large(program, self.context, self.slots, free)
            raise OutOfMemoryError(f"{needs}. {error}") from None
        self._placed |= session.weights
        self._state |= session.state
        return session

    def step(self, kind: str, rows: dict[str, np.ndarray], n: int) -> np.ndarray:
        """Does Runner.step; a part of a model takes and returns that part's inputs and outputs."""
        session = self.session(kind)
        return session.run({name: rows[name] for name in session.input_names}, {"n": n})[0]


def given_weights(
    program: Program, placed: Mapping[str, Buffer], weights: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns the sources of the Program's weights: placed buffers, and the model's arrays."""
    names = [b.name for b in program.buffers if b.role == "weight"]
    there = {name: placed[name] for name in names if name in placed}
    uses = Counter(source for n in names if n not in there for source in program.sources(n))
    return joined(there, Lent(weights, uses))


def weight_avals(weights: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns role -> (shape, DType)."""
    return {k: (v.shape, as_dtype(v.dtype)) for k, v in weights.items()}


def model_caps(caps: Caps) -> Caps:
    """Returns the caps that models are compiled for, without vendors' products, whose sums may be
    cut differently for other numbers of rows. So a result does not depend on its batch."""
    return caps.without("gemm_library")
