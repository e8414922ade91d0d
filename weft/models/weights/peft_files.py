"""Reads an adapter in PEFT's layout, and checks it against its model.

The tensors say what an adapter changes; adapter_config.json says ranks and scales, and what must be
there. weft rejects unsupported fields that would change results, with an error naming them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.importers.hf_config import read_config
from weft.importers.safetensors import SafetensorsFile
from weft.models.arch.config import DecoderConfig
from weft.models.weights.adapter_reader import AdapterReader
from weft.models.weights.adapters import BASE, CONFIG, LAYOUT, WEIGHTS, Adapter

# Fields that weft does not compute, and the values that mean "not used".
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "use_qalora": (False, None), "use_bdlora": (False, None),
    "alora_invocation_tokens": (None,), "layer_replication": (None,), "arrow_config": (None,),
    "megatron_config": (None,), "monteclora_config": (None,), "kasa_config": (None,),
    # other values change the model's own weights before training
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
_READ = (
    "r", "lora_alpha", "lora_dropout", "use_rslora", "base_model_name_or_path", "rank_pattern",
    "alpha_pattern", "layers_to_transform", "bias", "use_dora", "lora_bias", "modules_to_save",
    "trainable_token_indices", "target_parameters", "fan_in_fan_out",
)  # fmt: skip
# The tensors show which layers are adapted; the other fields concern training.
_INERT = (
    "task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "target_modules",
    "exclude_modules", "layers_pattern", "megatron_core", "loftq_config", "qalora_group_size",
    "runtime_config", "ensure_weight_tying", "eva_config", "corda_config", "lora_ga_config",
    "velora_config",
)  # fmt: skip


def read(folder: Path, config: DecoderConfig) -> Adapter:
    """Reads the adapter in a folder and checks it against the model. Raises ModelError,
    FileFormatError."""
    given = read_config(folder, CONFIG, LAYOUT)
    for name, plain in _PLAIN.items():
        if name in given.data and given.data[name] not in plain:
            raise ModelError(f"{given.where}: {name} = {given.data[name]!r:.80} is not supported")
    say_unknown(given.where, given.data, _READ, _INERT, _PLAIN)
    file = SafetensorsFile(folder / WEIGHTS)
    reader = AdapterReader(given, file.path, config)
    for name, value in file.items():
        reader.add(name, value)
    return reader.adapter(file.metadata.get(BASE, ""))
