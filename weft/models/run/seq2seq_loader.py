"""Loads a Hugging Face folder with an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.core.dtypes import int8
from weft.core.errors import UsageError
from weft.importers.hf_config import Fields
from weft.models.arch.seq2seq_config import Seq2SeqConfig
from weft.models.arch.seq2seq_families import read_seq2seq
from weft.models.arch.weights import Weight
from weft.models.run.placed import Placed
from weft.models.run.seq2seq import Seq2Seq
from weft.models.text.maker import tokenizer_maker
from weft.models.weights.placement import Placement
from weft.models.weights.reading import read_weights
from weft.models.weights.seq2seq_names import seq2seq_layout
from weft.models.weights.weight_dtypes import main_dtype, ready, wanted, wanted_cache

if TYPE_CHECKING:
    from weft.program.device import Device


def load_seq2seq(folder: Path, raw: Fields, device: Device | None, place: Placement) -> Seq2Seq:
    """Returns the model in a folder, whose config.json is `raw`; one that hears is a Transcriber.
    Raises ModelError, FileFormatError, UsageError."""
    config = read_seq2seq(raw)
    weights: Mapping[str, Weight]
    weights = read_weights(folder, raw, seq2seq_layout(config), wanted(place.dtype))
    if place.quant is not None:
        from weft.quantize.kept import quantised

        config, weights = quantised(folder, config, weights, place.quant)
    config, arrays = ready(folder, config, weights, place, device)
    kept = wanted_cache(place.cache) or main_dtype(arrays)
    if kept is int8:
        raise UsageError(
            f"{folder}: {config.family} keeps its cache in floats; use cache='float16'"
        )
    config = replace(config, kv_dtype=kept)
    arrays = arrays.beside(_tables(config))
    placed, slots = Placed(arrays, device), min(place.max_batch, 8)
    tokenizer = tokenizer_maker(folder, config.vocab)
    kind = Seq2Seq
    if config.mels:
        from weft.models.run.whisper import Whisper as kind
    elif config.samples:
        from weft.models.run.moonshine import Moonshine as kind
    return kind(folder, config, arrays, placed, tokenizer, slots)


def _tables(c: Seq2SeqConfig) -> dict[str, np.ndarray]:
    """Returns the tables of positions that no checkpoint holds, by role."""
    if c.sinusoids:
        from weft.models.arch.seq2seq import sines

        return {"sines": sines(c)}
    if c.rope is None:
        return {}
    from weft.models.arch.rope import rope_tables

    out: dict[str, np.ndarray] = {}
    for prefix, length in (("e.", c.source), ("", c.max_positions)):
        made = rope_tables(c.rope, c.head_size, length)
        out |= {f"{prefix}rope.0.{name}": t for name, t in zip(("cos", "sin"), made)}
    return out
