"""Runners of models with an encoder and a decoder: by NumPy, or by compiled Programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.host.progress import progress
from weft.models.arch.seq2seq_config import (
    MAX_SECONDS,
    RATE,
    Seq2SeqConfig,
    least_samples,
    sampled_lengths,
)
from weft.models.run.compiled_runner import model_caps
from weft.models.run.placed import Placed

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.program.device import Buffer
    from weft.program.session import Session

STEPS = (1, 8, 64)  # rows of the decoder's Programs
TEXTS = (16, 64, 256, 512)  # tokens of the encoder's, for text
SOUNDS = (80_000, 240_000, MAX_SECONDS * RATE)  # samples of the encoder's, for sound

Heads = tuple[tuple[int, int], ...]


class Seq2SeqRunner:
    """The steps of a model for `slots` sequences; the state is held between them."""

    def __init__(self, config: Seq2SeqConfig, placed: Placed, slots: int) -> None:
        self.config, self.placed, self.slots = config, placed, slots
        self.seen = np.zeros(slots, np.int32)  # each slot's last position of the input

    def encode(self, slot: int, given: np.ndarray) -> np.ndarray:
        """Reads an input for a slot: features float32 [2 S, mels], samples float32 [n], or ids
        int32 [T <= S]. Returns the encoder's vectors, float32 [T, hidden], valid until the next
        call."""
        c = self.config
        counts = [len(given)]
        if c.mels:
            counts = [len(given) // 2]
        elif c.samples:
            given, counts = _padded(given)
        else:
            size = next((n for n in TEXTS if len(given) <= n <= c.source), c.source)
            ids = np.full((1, size), c.pad_id, np.int32)
            ids[0, : len(given)] = given
            given = ids
        size, count = c.positions(given.shape), counts[0]
        at = self._at(np.full(size, slot), np.arange(size), c.source)
        self.seen[slot] = count - 1
        return self._encode(given, np.array(counts, np.int32), at)[:count]

    def step(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        positions: Sequence[int],
        last: Sequence[int] | None = None,
        heads: Heads = (),
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Runs the decoder on at most 64 rows. Returns logits float32 [N or len(last), vocab], and
        for `heads` their cross attention, float32 [heads, N, S]; valid until the next call."""
        n = len(ids)
        size = next(s for s in STEPS if n <= s)
        rows = {
            name: np.zeros(size, np.int32) for name in ("ids", "slot", "place", "seen")
        }  # fmt: skip
        rows["ids"][:n], rows["slot"][:n], rows["place"][:n] = ids, slots, positions
        rows["seen"][:n] = self.seen[list(slots)]
        at = self._at(rows["slot"], rows["place"], self.config.max_positions)
        at.reshape(size, -1)[n:] = -1
        rows["at"] = at
        wanted = n if last is None else len(last)
        if size > STEPS[1]:
            rows["last"] = np.zeros(STEPS[1], np.int32)
            assert last is not None and wanted <= STEPS[1]
            rows["last"][:wanted] = last
        logits, maps = self._step(size, rows, heads)
        if size <= STEPS[1] and last is not None:
            logits = logits[list(last)]
        return logits[:wanted], None if maps is None else maps[:, :n]

    def _at(self, slots: np.ndarray, positions: np.ndarray, length: int) -> np.ndarray:
        """Returns the rows of a plane [slots, H, length, D], int32 [N * H]."""
        heads = np.arange(self.config.heads)
        rows = (slots[:, None] * len(heads) + heads) * length + positions[:, None]
        return np.ascontiguousarray(rows.reshape(-1), np.int32)

    def _encode(self, given: np.ndarray, length: np.ndarray, at: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _step(
        self, size: int, rows: dict[str, np.ndarray], heads: Heads
    ) -> tuple[np.ndarray, np.ndarray | None]:
        raise NotImplementedError


def _padded(samples: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Returns samples [n] with silence to the size of a Program, [size, 1], and the counts of
    positions that are sound, after the last and the first convolution."""
    lengths = sampled_lengths(max(len(samples), least_samples()))
    out = np.zeros((next(n for n in SOUNDS if len(samples) <= n), 1), np.float32)
    out[: len(samples), 0] = samples
    return out, [lengths[-1], lengths[0]]


class EagerSeq2Seq(Seq2SeqRunner):
    """The oracle."""

    def __init__(self, config: Seq2SeqConfig, placed: Placed, slots: int) -> None:
        from weft.models.arch.seq2seq import states

        super().__init__(config, placed, slots)
        kept = states(config, slots).items()
        self._state = {name: np.zeros(shape, dtype.numpy) for name, (shape, dtype) in kept}

    def _encode(self, given: np.ndarray, length: np.ndarray, at: np.ndarray) -> np.ndarray:
        from weft.models.arch.seq2seq import encode

        weights = self.placed.weights
        out, new = encode(self.config, weights, given, length, at, self._state)
        self._state |= new
        return np.asarray(out)

    def _step(
        self, size: int, rows: dict[str, np.ndarray], heads: Heads
    ) -> tuple[np.ndarray, np.ndarray | None]:
        from weft.models.arch.seq2seq import Rows, decode

        out, new, maps = decode(self.config, self.placed.weights, Rows(**rows), self._state, heads)
        self._state |= new
        return np.asarray(out), None if maps is None else np.asarray(maps)


class CompiledSeq2Seq(Seq2SeqRunner):
    """Programs on a device, each compiled on first use."""

    def __init__(self, config: Seq2SeqConfig, placed: Placed, slots: int) -> None:
        super().__init__(config, placed, slots)
        self._state: dict[str, Buffer] = {}
        self._sessions: dict[object, Session] = {}

    def _encode(self, given: np.ndarray, length: np.ndarray, at: np.ndarray) -> np.ndarray:
        session = self._session("encode", given.shape)
        return session.run({"given": given, "length": length, "at": at})[0]

    def _step(
        self, size: int, rows: dict[str, np.ndarray], heads: Heads
    ) -> tuple[np.ndarray, np.ndarray | None]:
        found = self._session("step", (size,), heads).run(rows)
        return found[0], found[1] if heads else None

    def _session(self, kind: str, shape: tuple[int, ...], heads: Heads = ()) -> Session:
        from weft.tensor.program_cache import program_for

        key = kind, shape, heads
        if key in self._sessions:
            return self._sessions[key]
        c, placed = self.config, self.placed
        avals = {role: v for role, v in placed.avals.items() if reads(c, kind, role)}
        what = c, sorted(avals.items()), self.slots, key

        def graph() -> Graph:
            from weft.models.arch.seq2seq_graphs import decoder_graph, encoder_graph

            if kind == "encode":
                return encoder_graph(c, avals, self.slots, shape)
            return decoder_graph(c, avals, self.slots, shape[0], shape[0] > STEPS[1], heads)

        with progress(f"compiling {c.family}.{kind} for {placed.target.info.id}"):
            program = program_for(what, model_caps(placed.target.caps), graph, placed.target)
            session = placed.session(program, self._state)
        self._state |= session.state
        placed.keep()
        self._sessions[key] = session
        return session


def reads(c: Seq2SeqConfig, kind: str, role: str) -> bool:
    """Returns True if a step of this kind reads a weight."""
    crossing = ".cross_k." in role or ".cross_v." in role
    if kind == "encode":
        own = role.startswith("e.") or crossing or role == "sines"
        return own or (role.startswith("embed") and not c.hears)
    return not role.startswith("e.") and not crossing
