"""Encoders that a page's player can run."""

from __future__ import annotations

from weft.models.arch.config import DecoderConfig
from weft.models.arch.pooling import NORMALIZE
from weft.models.run.embedder import Encoder


def unlike_page(model: Encoder) -> str | None:
    """Returns the part of a text's way to a vector that a page's player lacks."""
    how = model.pooling
    if model.prompt():
        return "a default prompt"
    if how.dim is not None:
        return "vectors that are cut"
    if isinstance(model.config, DecoderConfig):
        return "a decoder's layers"
    if not set(how.modes) <= {"cls", "mean", "max"}:
        return f"pooling by {', '.join(how.modes)}"
    return None if how.steps in ((), (NORMALIZE,)) else "steps after the pooling"
