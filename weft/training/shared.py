"""Trains one run on several ranks. Rank 0 leads: it reads text, writes and reports.

Before each collective operation it sends a command to the other ranks, which only `follow`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.backends import registry
from weft.core import notices
from weft.core.errors import RankError, UsageError, WeftError
from weft.importers.hf_config import Fields
from weft.program.device import Device
from weft.ranks import Ranks, SingleRank
from weft.ranks.meeting import tell, troubles
from weft.training.meeting import differs, facts, hear
from weft.training.model import TrainableDecoder, config_of
from weft.training.parts import ParamSlice
from weft.training.pictures import PictureTable
from weft.training.settings import TrainingSettings
from weft.training.shard import Shard
from weft.training.weights import Trained
from weft.training.work import SCALER, Batch, TrainingWork, parted_state

ALONE = SingleRank()
END, MEET, STEP, EVALUATE, GIVE, TAKE = range(6)  # commands of rank 0
WORDS = 8  # int64 words of a command: its kind, then its numbers


def lead(
    settings: TrainingSettings, trained: Trained, raw: dict[str, Any], device: Device, ranks: Ranks
) -> TrainingWork | SharedWork:  # fmt: skip
    """Returns the work of a run: alone, or with the following ranks. Raises UsageError if a rank
    cannot take part."""
    if ranks.size == 1:
        return TrainingWork(trained.model, settings, device)
    said = {**facts(settings, trained, device), "config": raw}
    with _together(ranks, MEET):
        tell(ranks, said)
        trouble = troubles(ranks, "")
    if trouble:
        raise UsageError(trouble)
    return SharedWork(trained.model, settings, device, ranks)


@contextmanager
def leading(ranks: Ranks) -> Iterator[None]:
    """Wraps rank 0's run. At the end, or after an error between two commands, it tells the other
    ranks. After any other error (`ranks.torn`) this process can only exit."""
    status = 1
    ranks.watch()
    try:
        yield
        status = 0
    except UsageError:
        status = 2
        raise
    finally:
        if ranks.size > 1 and not ranks.torn:
            with _together(ranks, END, status):
                ranks.finish()


def follow(read: Callable[[], TrainingSettings], ranks: Ranks) -> int:
    """Runs every rank except 0, with the settings from `read`; returns the exit status. Raises
    RankError, and errors that keep this rank from computing its share."""
    ranks.watch()
    notices.hush()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets it too, saves and tells the others
    shard: Shard | None = None
    while True:
        word, *numbers = (int(v) for v in ranks.broadcast(np.zeros(WORDS, np.int64)))
        if word == END:
            ranks.finish()
            return numbers[0]
        if word == MEET:
            try:
                shard = _met(read, ranks)
            except UsageError:
                continue  # rank 0 reports it, then sends END
        elif shard is None:
            raise RankError(f"{ranks.name(0)} leads, but no settings were exchanged")
        else:
            _follow(shard, word, numbers)


def _met(read: Callable[[], TrainingSettings], ranks: Ranks) -> Shard:
    """Does a follower's part of `lead`. Raises UsageError if a rank has different work."""
    said = hear(ranks)
    try:
        settings = read()
        config = config_of(Fields(said["config"], ranks.name(0)))
        trained = Trained(settings, config, said["config"], Path())
        device = registry.get(settings.train.device)
        trouble = differs(facts(settings, trained, device), said)
    except WeftError as error:
        trouble = f"a problem: {error}"
    if trouble := troubles(ranks, trouble):
        raise UsageError(trouble)
    return Shard(trained.model, settings, device, ranks)


def _follow(shard: Shard, word: int, numbers: list[int]) -> None:
    ranks = shard.ranks
    if word == STEP:
        *shape, high, low = numbers[:5]
        both = ranks.broadcast(np.zeros((2, *shape), np.int32))
        shard.step(both[0], both[1], np.array([high, low], np.uint32))
    elif word == EVALUATE:
        both = ranks.broadcast(np.zeros((2, *numbers[:3]), np.int32))
        shard.evaluate(list(zip(both[0], both[1])))
    elif word == GIVE:
        _give(shard)
    elif word == TAKE:
        _take(shard, {}, {})
    else:
        raise RankError(f"{ranks.name(0)} says {word}, which is not a command")


class SharedWork:
    """Work, for rank 0 of several ranks."""

    def __init__(
        self, model: TrainableDecoder, settings: TrainingSettings, device: Device, ranks: Ranks
    ) -> None:
        self._shard, self._ranks = Shard(model, settings, device, ranks), ranks

    def step(self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray) -> dict[str, float]:
        """Does Work.step."""
        with _together(self._ranks, STEP, *ids.shape, *(int(k) for k in key)):
            self._ranks.broadcast(np.stack([ids, targets]))
            return self._shard.step(ids, targets, key)

    def evaluate(self, batches: Sequence[Batch]) -> list[float]:
        """Does Work.evaluate."""
        both = np.stack([np.stack([b[i] for b in batches]) for i in range(2)])
        with _together(self._ranks, EVALUATE, *both.shape[1:]):
            self._ranks.broadcast(both)
            return self._shard.evaluate(batches)

    def show(self, pictures: PictureTable | None) -> None:
        """Does Work.show. Raises UsageError for pictures, which ranks do not share."""
        if pictures is not None:
            raise UsageError(
                "conversations with pictures are trained on by one process, and "
                f"{self._ranks.size} share the work: start one"
            )

    def seen(self, ids: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Does Work.seen: ranks share no pictures."""
        return ids, {}

    def worst(self, ids: np.ndarray, targets: np.ndarray, key: np.ndarray) -> str:
        """Does Work.worst."""
        bad = (name for name, good in self._shard.flags.items() if not good)
        return next(bad, "unknown").partition("@")[0]

    def state(self) -> dict[str, np.ndarray]:
        """Does Work.state; the state is gathered here piece by piece."""
        with _together(self._ranks, GIVE):
            return _give(self._shard)

    def load(self, weights: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> None:
        """Does Work.load; the other ranks get their pieces."""
        with _together(self._ranks, TAKE):
            _take(self._shard, weights, state)


def _say(ranks: Ranks, word: int, *numbers: int) -> None:
    said = np.zeros(WORDS, np.int64)
    said[: 1 + len(numbers)] = word, *numbers
    ranks.broadcast(said)


@contextmanager
def _together(ranks: Ranks, word: int, *numbers: int) -> Iterator[None]:
    """Sends a command; its body involves all ranks."""
    with ranks.together():
        _say(ranks, word, *numbers)
        yield


# -- a run's state, in pieces ----------------------------------------------------------------------


def _held(shard: Shard) -> Iterator[tuple[str, ParamSlice, int]]:
    """Returns (slot, piece, owner) for all that the optimiser holds."""
    slots = shard.opt.SLOTS
    return ((s, p, r) for s in slots for p, r in zip(shard.pieces, shard.owner))


def _give(shard: Shard) -> dict[str, np.ndarray]:
    """Gathers the whole state on rank 0; returns {} on the others. All ranks call it."""
    ranks, mine = shard.ranks, shard.opt.state_dict()
    whole: dict[str, np.ndarray] = {}
    for slot, piece, owner in _held(shard):
        if ranks.rank == owner != 0:
            ranks.send(mine[f"{slot}.{piece.name}"], 0)
        if ranks.rank == 0:
            name = f"{slot}.{piece.role}"
            if name not in whole:
                whole[name] = np.empty(shard.shapes[piece.role], np.float32)
            came = ranks.receive(owner) if owner else mine[f"{slot}.{piece.name}"]
            piece.of(whole[name])[...] = came
    if ranks.rank:
        return {}
    scaler = {} if shard.scaler is None else shard.scaler.state_dict()
    whole["count"] = mine["count"]
    return {**whole, **{SCALER + name: value for name, value in scaler.items()}}


def _take(
    shard: Shard, weights: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]
) -> None:  # fmt: skip
    """Sends rank 0's weights to all ranks, and each rank its part of the state. All ranks call
    it."""
    ranks = shard.ranks
    for role, t in shard.model.named_parameters():
        mine = weights[role] if ranks.rank == 0 else np.zeros(t.shape, np.float32)
        shard.model.assign({role: ranks.broadcast(np.ascontiguousarray(mine, np.float32))})
    shard.refresh()
    rest, scaler = parted_state(state)
    own = {"count": _everywhere(ranks, rest.get("count"), np.int32)}
    for slot, piece, owner in _held(shard):
        part = np.ascontiguousarray(piece.of(rest[f"{slot}.{piece.role}"])) if rest else None
        if owner and ranks.rank == 0:
            assert part is not None
            ranks.send(part, owner)
        elif owner == ranks.rank:
            own[f"{slot}.{piece.name}"] = ranks.receive(0) if part is None else part
    shard.opt.load_state_dict(own)
    if shard.scaler is not None:
        kinds = {"scale": np.float32, "good_steps": np.int32}
        got = {name: _everywhere(ranks, scaler.get(name), kind) for name, kind in kinds.items()}
        shard.scaler.load_state_dict(got)


def _everywhere(ranks: Ranks, value: np.ndarray | None, dtype: Any) -> np.ndarray:
    """Returns a single number of rank 0, on all ranks."""
    made = np.zeros((), dtype) if value is None else np.array(value, dtype)
    return ranks.broadcast(made)
