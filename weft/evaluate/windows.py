"""Calibration text: windows of tokens for measuring a model's inputs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from weft.core.errors import UsageError
from weft.evaluate.text import tokens_of
from weft.models.run.base import Model
from weft.models.run.generate import Generation
from weft.models.run.model import Decoder

LENGTH = 256  # tokens per window
LEAST = 4  # windows
GIVEN, DRAWN = 32_768, 2_048  # default tokens: from a text, and drawn from the model


def windows_of(model: Model, text: Path | None, tokens: int | None, seed: int = 0) -> np.ndarray:
    """Returns int32 [windows, length] from a UTF-8 file, or from text that the model draws at
    temperature 1 after its first token (a random one if it has none). `tokens` is the maximum in
    all.

    Raises UsageError if the text or a number is too small; raises what `tokens_of` raises.
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
        while len(ids) < length:  # an end of text begins the next text
            made = model.generate(
                ids[-1:], max_new_tokens=length - len(ids), temperature=1.0,
                top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0,
                seed=int(rng.integers(1 << 31)),
            )  # fmt: skip
            assert isinstance(made, Generation)
            ids += [*made.ids, *([int(token)] if made.finish_reason == "eos" else [])]
        out[i] = ids[:length]
    return out


def digest(ids: np.ndarray | None) -> str:
    """Returns a digest that tells calibration texts apart; "" for none."""
    if ids is None:
        return ""
    return hashlib.sha256(str(ids.shape).encode() + np.ascontiguousarray(ids).data).hexdigest()
