"""Calibration text: windows of tokens that a model's inputs are measured on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from weft.core.errors import UsageError
from weft.models.base import Model
from weft.models.evaluate_text import tokens_of
from weft.models.generate import Generation
from weft.models.model import Decoder

LENGTH = 256  # tokens of a window
LEAST = 4  # windows
GIVEN, DRAWN = 32_768, 2_048  # tokens by default: of a text, and of the model's own


def windows_of(model: Model, text: Path | None, tokens: int | None, seed: int = 0) -> np.ndarray:
    """int32 [windows, length] of a UTF-8 file, or of what the model itself writes at temperature 1
    from its first token on (any, where it has none); `tokens` in all at most.

    Raises UsageError for a text or a number that is too small; what `tokens_of` raises.
    """
    if not isinstance(model, Decoder):
        raise UsageError(f"{model.folder} writes no text; weft quantises decoders")
    length = min(LENGTH, model.config.max_positions, model.context)
    if tokens is not None and tokens < LEAST * length:
        raise UsageError(
            f"tokens is {tokens}; calibration wants {LEAST * length} or more "
            f"({LEAST} windows of {length})"
        )
    if text is None:
        return _drawn(model, (tokens or DRAWN) // length, length, seed)
    ids = tokens_of(text, model, None, tokens or GIVEN).ids
    count = len(ids) // length
    if count < LEAST:
        raise UsageError(
            f"{text} has {len(ids)} tokens; calibration wants {LEAST * length} or more "
            f"({LEAST} windows of {length})"
        )
    return ids[: count * length].reshape(count, length).astype(np.int32)


def _drawn(model: Decoder, count: int, length: int, seed: int) -> np.ndarray:
    count = max(count, LEAST)
    rng = np.random.Generator(np.random.Philox(seed))
    bos = model.tokens.bos
    first = rng.integers(model.config.vocab, size=count) if bos is None else [bos] * count
    out = np.zeros((count, length), np.int32)
    for i, token in enumerate(first):
        ids = [int(token)]
        while len(ids) < length:  # an end of text is the beginning of another
            made = model.generate(
                ids[-1:], max_new_tokens=length - len(ids), temperature=1.0,
                seed=int(rng.integers(1 << 31)),
            )  # fmt: skip
            assert isinstance(made, Generation)
            ids += [*made.ids, *([int(token)] if made.finish_reason == "eos" else [])]
        out[i] = ids[:length]
    return out


def digest(ids: np.ndarray | None) -> str:
    """What tells one calibration text from another; "" for none."""
    if ids is None:
        return ""
    return hashlib.sha256(str(ids.shape).encode() + np.ascontiguousarray(ids).data).hexdigest()
