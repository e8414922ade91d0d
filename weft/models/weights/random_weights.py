"""Writes a model folder with random weights, for tests, conformance and benchmarks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import ModelError
from weft.host.files import write_json
from weft.importers.hf_config import Fields
from weft.importers.safetensors import SINGLE, save_file
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.encoder_names import encoder_layout
from weft.models.weights.names import OUTPUTS, tensors_of


def random_folder(
    path: str | os.PathLike[str], config: Mapping[str, Any], seed: int = 0, scale: float = 0.02
) -> Path:
    """Writes a folder with `config` (config.json's fields, including "model_type") and random
    weights.

    The weights are drawn with `seed`: matrices normal with deviation `scale`, norms and scalars
    near 1, biases near 0, in the dtype config["dtype"] (float32). Raises ModelError for a config
    that weft cannot load.
    """
    fields = Fields(config, "config")
    kind = fields.text("model_type")
    if kind in DECODERS:
        made = DECODERS[kind](fields)
        layout, offset = decoder_layout(made), made.norm_offset
    elif kind in ENCODERS:
        layout, offset = encoder_layout(ENCODERS[kind](fields)), 0.0
    else:
        known = ", ".join([*DECODERS, *ENCODERS])
        raise ModelError(f"config: model_type {kind!r} is not supported; supported: {known}")
    dtype = as_dtype(fields.text("dtype", "float32")).numpy
    rng = np.random.Generator(np.random.Philox(seed))
    tensors: dict[str, np.ndarray] = {}
    for role, spec in layout.weights.items():
        value = rng.standard_normal(spec.shape, np.float32) * np.float32(scale)
        if spec.kind in ("norm", "scale"):
            offsets = spec.kind == "norm" and ".delta_norm." not in role
            value += np.float32(1.0 - offset if offsets else 1.0)
        prefix = "" if role in OUTPUTS else layout.prefixes[0]
        tensors |= tensors_of(spec, prefix + spec.name, value.astype(dtype))
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", dict(config))
    save_file(folder / SINGLE, tensors, {"format": "pt"})
    return folder
