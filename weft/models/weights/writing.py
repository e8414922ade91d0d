"""Writes a model as a Hugging Face folder that other programs can load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import as_dtype
from weft.core.errors import ModelError
from weft.host.files import write_bytes, write_json
from weft.importers.hf_config import Fields, read_bounded
from weft.importers.safetensors import SINGLE, save_file
from weft.models.arch.config import DecoderConfig
from weft.models.arch.families import DECODERS
from weft.models.text.chat import TEMPLATE
from weft.models.text.tokenizer_fields import FIX, OLDER_TOKENS, mended
from weft.models.text.tokenizer_settings import SETTINGS, read_settings
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import checkpoint_names, tensors_of
from weft.tensor.casting import cast_array

TOKENIZER_FILES = (
    "tokenizer.json", SETTINGS, "special_tokens_map.json", OLDER_TOKENS, TEMPLATE,
    "generation_config.json",
)  # fmt: skip


def write_model(
    folder: Path, config: DecoderConfig, raw: Mapping[str, Any], tokenizer: Path,
    weights: Mapping[str, np.ndarray], dtype: str = "float32",
) -> None:  # fmt: skip
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.
    Raises ModelError for a weight that overflows `dtype`."""
    kept = {k: v for k, v in raw.items() if k not in ("torch_dtype", "_name_or_path")}
    kept = said_of_head(kept, config)
    write_json(folder / "config.json", {**kept, "dtype": dtype})
    ends = {k: raw[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id") if k in raw}
    write_json(folder / "generation_config.json", ends)
    copy_tokenizer(tokenizer, folder)  # includes the base model's own generation_config.json
    names, specs = checkpoint_names(config), decoder_layout(config).weights
    out: dict[str, np.ndarray] = {}
    for role, value in weights.items():
        cast = cast_array(value, as_dtype(dtype))
        if not all_finite(cast) and all_finite(value):
            wider = "float32" if dtype == "bfloat16" else "bfloat16"
            raise ModelError(f"weight {names[role]!r} overflows {dtype}; use {wider}")
        out |= tensors_of(specs[role], names[role], cast)
    save_file(folder / SINGLE, out, {"format": "pt"})


def said_of_head(raw: Mapping[str, Any], config: DecoderConfig) -> dict[str, Any]:
    """Returns config.json's fields with the tying of the output layer that the weights have."""
    read = DECODERS.get(raw["model_type"])
    if read is None or read(Fields(raw, "config.json")).tied == config.tied:  # None: traced
        return dict(raw)
    # LFM2 reads its own spelling first.
    names = [name for name in ("tie_embedding",) if name in raw]
    return {**raw, **dict.fromkeys((*names, "tie_word_embeddings"), config.tied)}


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files and generation_config.json, as far as they exist. `target` may
    lack the config.json that FIX depends on, so its tokenizer.json is written with the fix
    applied."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            data = read_bounded(source / name)
            if name == "tokenizer.json" and read_settings(source).get(FIX):
                data = mended(data)
            write_bytes(target / name, data)
