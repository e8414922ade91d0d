"""A decoder in a file or folder, before it is placed on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from weft.core.records import dataclass
from weft.engine.defaults import NO_DEFAULTS, GenerationDefaults
from weft.models.arch.config import DecoderConfig, TokenIds, TokenizerContent
from weft.models.arch.weights import Weight


@dataclass(frozen=True)
class Source:
    """The content of a Hugging Face folder or a GGUF file. `made` returns the tokenizer inside a
    file; None if it has none, or is a folder. `advice` reads the author's settings for generating.
    The weights are read on demand."""

    path: Path
    config: DecoderConfig
    tokens: TokenIds
    weights: Mapping[str, Weight] = field(default_factory=dict)
    made: Callable[[], TokenizerContent | None] = lambda: None
    advice: Callable[[], GenerationDefaults] = lambda: NO_DEFAULTS
