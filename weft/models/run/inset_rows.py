"""The inputs of steps whose rows have vectors in place of their tokens' embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.engine.insets import Insets
from weft.models.arch.config import DecoderConfig


def vector_rows(
    c: DecoderConfig, insets: Insets | None, first: int, count: int, size: int
) -> dict[str, np.ndarray]:
    """Returns the inputs of `PictureRows` for `count` rows from position `first` on, in a step of
    `size` rows; {} if none has vectors."""
    parts = [] if insets is None else list(insets.between(first, first + count))
    if not parts:
        return {}
    vectors = np.zeros((size, c.hidden * (1 + c.deep)), np.float32)
    here = np.zeros(size, np.int32)
    span = np.repeat(np.arange(first, first + size, dtype=np.int32)[:, None], 2, axis=1)
    span[count:] = 0
    for part in parts:
        begin, end = max(part.start, first), min(part.end, first + count)
        at = slice(begin - first, end - first)
        vectors[at] = part.vectors[begin - part.start : end - part.start]
        here[at] = 1
        if part.whole:
            span[at] = part.start, part.end - 1
    made = {"vectors": vectors, "here": here}
    return made | ({"span": span} if c.looks else {})


def turn_rows(
    insets: Mapping[int, Insets], slots: Sequence[int], pos: Sequence[int], size: int
) -> dict[str, np.ndarray]:
    """Returns the rotary positions of a step's rows, int32 [size, 3]."""
    places, where = np.array(pos, np.int32), np.array(slots, np.int32)
    out = np.zeros((size, 3), np.int32)
    out[: len(places)] = places[:, None]
    for slot, found in insets.items():
        own = np.flatnonzero(where == slot)
        if len(own):
            out[own] = found.turned(places[own])
    return {"turns": out}


def blind(c: DecoderConfig) -> str:
    """Returns "" if steps of a model could take pictures, else why not, after a colon."""
    if c.traced is not None:
        return ": it is traced from another library's code"
    return "" if c.run is None else ": it runs on several machines"


def untaken(c: DecoderConfig, insets: Insets, room: int) -> str:
    """Returns "" if steps of a model of at most `room` rows take the vectors, else why not."""
    if why := blind(c):
        return f"{c.family} reads text alone{why}"
    if insets.turns is not None and not c.turns_by:
        return f"{c.family} has one position for each token"
    for part in insets.parts:
        wide = c.hidden * (1 + c.deep)
        if part.vectors.ndim != 2 or part.vectors.shape[1] != wide:
            return f"vectors are {list(part.vectors.shape)}; expected [N, {wide}]"
        if part.whole and not c.looks:
            return f"{c.family} reads its tokens in order, those of a picture too"
        if part.whole and len(part.vectors) > room:
            return f"a picture has {len(part.vectors)} tokens; one step holds {room}"
    return ""
