"""Merges a LoRA adapter into its model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import UsageError
from weft.host.files import replacing_folder
from weft.importers.hf_config import read_config
from weft.models.weights import adapter_files, adapter_merge, adapters
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.reading import PACKED_KEYS, is_packed, read_weights
from weft.models.weights.terms import copy_terms
from weft.models.weights.writing import write_model
from weft.training.model import config_of


def merge_folders(
    base: Path, adapter: Path, output: Path, dtype: DType | None = None
) -> str | None:
    """Writes the model in `base`, with the adapter in `adapter` merged, as the new folder `output`
    in `dtype` (default: the model's). Packed weights are widened to `dtype` (default: that of the
    norms); then its name is returned. Raises UsageError if `output` exists, ModelError,
    FileFormatError."""
    if output.exists():
        raise UsageError(f"{output} is there already; name a new folder")
    if not adapter.is_file():
        read_config(adapter, adapters.CONFIG, adapters.LAYOUT)
    fields = read_config(base)
    config = config_of(fields, base)
    if config.traced is not None:
        raise UsageError(
            f"{base}: {config.family} is traced from transformers, and weft writes no such model; "
            "load the model with --adapter instead"
        )
    layout, packed = decoder_layout(config), is_packed(base, fields)
    first = read_weights(base, fields, layout)["norm.w" if packed else "embed"].value()
    assert isinstance(first, np.ndarray)
    target = dtype or as_dtype(first.dtype)
    weights = read_weights(base, fields, layout, target)
    wide = {r: value for r, w in weights.items() if isinstance(value := w.value(), np.ndarray)}
    config, whole = adapter_merge.merged(config, wide, adapter_files.read(adapter, config))
    raw = {key: value for key, value in fields.data.items() if key not in PACKED_KEYS}
    with replacing_folder(output) as folder:
        write_model(folder, config, raw, base, whole, target.name)
        copy_terms(base, folder)
    return target.name if packed else None
