"""Reads the weights in a Hugging Face folder, floats or packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.notices import say
from weft.hub.names import name_of
from weft.importers.hf_config import Fields
from weft.importers.safetensors import Checkpoint, open_checkpoint
from weft.models.arch.config import DecoderConfig, Layout
from weft.models.arch.matrices import Chosen
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import bind_weights, untied
from weft.models.weights.tensor_names import SENSES

if TYPE_CHECKING:
    import numpy as np

    from weft.core.dtypes import DType
    from weft.core.packed import Packed
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
    folder: Path, raw: Fields, layout: Layout, dtype: DType | None = None,
    wants: Callable[[str], bool] = lambda role: True,
) -> Mapping[str, np.ndarray | Packed]:  # fmt: skip
    """Returns role -> weight, for the wanted roles: floats unchanged; packed ones packed, or in
    `dtype` if it is given. Raises ModelError, FileFormatError."""
    checkpoint = _opened(folder, raw)
    if any(map(SENSES.search, checkpoint)):
        say(f"{name_of(folder)}: weft takes its text model alone, no images and no sound")
    if isinstance(checkpoint, Checkpoint):
        return bind_weights(layout, checkpoint, wants)
    from weft.models.weights.widening import PackedWeights

    return Chosen(PackedWeights(layout, checkpoint, dtype), wants)


def _opened(folder: Path, raw: Fields) -> Checkpoint | PackedCheckpoint:
    checkpoint = open_checkpoint(folder)
    if not is_packed(folder, raw):
        return checkpoint
    from weft.importers.packed.checkpoint import PackedCheckpoint, method_of

    return PackedCheckpoint(checkpoint, method_of(raw, folder))


def as_stored(folder: Path, raw: Fields, config: DecoderConfig) -> DecoderConfig:
    """Returns the config, untied if the weights in the folder have a head of their own."""
    if not config.tied or not untied(decoder_layout(config), _opened(folder, raw)):
        return config
    say(
        f"{name_of(folder)}: config.json ties the output layer to the embedding, but the weights "
        "hold another; weft takes both"
    )
    return replace(config, tied=False)
