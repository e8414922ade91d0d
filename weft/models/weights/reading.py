"""Reads the weights in a Hugging Face folder, floats or packed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.notices import say
from weft.hub.names import name_of
from weft.importers.hf_config import Fields
from weft.importers.safetensors import Checkpoint, open_checkpoint
from weft.models.arch.config import DecoderConfig, Layout
from weft.models.arch.tower_families import USUAL
from weft.models.arch.weights import Weight
from weft.models.text.generation_config import read_defaults
from weft.models.text.token_ids import read_token_ids
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import bind_weights, untied
from weft.models.weights.source import Source
from weft.models.weights.tensor_names import SENSES

if TYPE_CHECKING:
    from weft.core.dtypes import DType
    from weft.importers.packed.checkpoint import PackedCheckpoint

# Keys of config.json; the second is MLX's, the third compressed-tensors' older one.
PACKED_KEYS = ("quantization_config", "quantization", "compression_config")
_OLD = "quantize_config.json"


def says_packed(raw: Fields) -> bool:
    """Returns True if a config.json says that weights are packed."""
    return any(raw.data.get(key) for key in PACKED_KEYS)


def is_packed(folder: Path, raw: Fields) -> bool:
    """Returns True if a folder, whose config.json is `raw`, says so in any file."""
    return says_packed(raw) or (folder / _OLD).exists()


def read_weights(
    folder: Path, raw: Fields, layout: Layout, dtype: DType | None = None
) -> dict[str, Weight]:
    """Returns role -> weight: floats unchanged; packed ones packed, or in `dtype` if it is given.
    Raises ModelError, FileFormatError."""
    eyes = raw.text("model_type", "") in USUAL
    return _weights(folder, opened(folder, raw), layout, dtype, eyes)


def folder_source(
    folder: Path, raw: Fields, config: DecoderConfig, dtype: DType | None = None
) -> Source:
    """Returns the decoder in a folder, whose config.json is `raw`; for `dtype` see `read_weights`.
    Raises ModelError, FileFormatError."""
    checkpoint = opened(folder, raw)
    config = _untied(folder, config, checkpoint)
    eyes = raw.text("model_type", "") in USUAL
    weights = _weights(folder, checkpoint, decoder_layout(config), dtype, eyes)
    return Source(
        folder, config, read_token_ids(folder, raw), weights,
        advice=partial(read_defaults, folder, config.vocab),
    )  # fmt: skip


def stream_weights(
    folder: Path, raw: Fields, config: DecoderConfig, dtype: DType | None = None
) -> tuple[DecoderConfig, dict[str, Weight]]:
    """Returns the weights of a decoder in a folder without its output layer, which may be missing
    there, and its config; for `dtype` see `read_weights`."""
    config = replace(config, tied=True, head_bias=False)
    return config, read_weights(folder, raw, decoder_layout(config), dtype)


def as_stored(folder: Path, raw: Fields, config: DecoderConfig) -> DecoderConfig:
    """Returns the config, untied if the weights in the folder have a head of their own."""
    return _untied(folder, config, opened(folder, raw)) if config.tied else config


def opened(folder: Path, raw: Fields) -> Checkpoint | PackedCheckpoint:
    """Returns the checkpoint in a folder, whose config.json is `raw`. Raises ModelError."""
    checkpoint = open_checkpoint(folder)
    if not is_packed(folder, raw):
        return checkpoint
    from weft.importers.packed.checkpoint import PackedCheckpoint, method_of

    return PackedCheckpoint(checkpoint, method_of(raw, folder))


def _weights(
    folder: Path,
    checkpoint: Checkpoint | PackedCheckpoint,
    layout: Layout,
    dtype: DType | None,
    eyes: bool = False,
) -> dict[str, Weight]:
    if any(map(SENSES.search, checkpoint)) and not eyes:
        say(f"{name_of(folder)}: weft takes its text model alone, no images and no sound")
    if isinstance(checkpoint, Checkpoint):
        return bind_weights(layout, checkpoint)
    from weft.models.weights.widening import packed_weights

    return packed_weights(layout, checkpoint, dtype)


def _untied(
    folder: Path, config: DecoderConfig, checkpoint: Checkpoint | PackedCheckpoint
) -> DecoderConfig:
    if not config.tied or not untied(decoder_layout(config), checkpoint):
        return config
    say(
        f"{name_of(folder)}: config.json ties the output layer to the embedding, but the weights "
        "hold another; weft takes both"
    )
    return replace(config, tied=False)
