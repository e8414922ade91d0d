"""Reads an adapter that mlx-lm wrote: adapter_config.json with lora_parameters, and
adapters.safetensors with "<layer>.lora_a" [in, rank] and "<layer>.lora_b" [rank, out]."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.importers.hf_config import Fields, read_config
from weft.importers.safetensors import SafetensorsFile
from weft.models.arch.config import DecoderConfig
from weft.models.weights.adapter_reader import MAX_ALPHA, MAX_RANK, AdapterReader
from weft.models.weights.adapters import CONFIG, Adapter

WEIGHTS = "adapters.safetensors"
LAYOUT = "an adapter of mlx-lm"
MODEL = "model"  # field with the name of the base model

_KINDS = ("lora", "dora", "full")
# The tensors show which layers are adapted; the other fields concern training.
_INERT = (
    "num_layers", "lora_layers", "train", "data", "seed", "batch_size", "iters", "val_batches",
    "learning_rate", "steps_per_report", "steps_per_eval", "resume_adapter_file", "adapter_path",
    "save_every", "test", "test_batches", "max_seq_length", "config", "grad_checkpoint",
    "lr_schedule", "optimizer", "optimizer_config", "mask_prompt", "report_to", "project_name",
    "wandb", "hf_dataset", "grad_accumulation_steps", "clear_cache_threshold", "use_chat_template",
    "prompt_feature", "completion_feature", "chat_feature", "text_feature",
)  # fmt: skip
_READ = ("fine_tune_type", "lora_parameters", "use_dora", MODEL)
_PARAMETERS = ("rank", "scale", "dropout", "keys", "alpha")  # mlx-lm does not read alpha
_EXPERTS = re.compile(r"(?:.+\.)?layers\.(\d{1,4})\.(?:.+\.)?switch_\w+\.(gate|up|down)_proj")
_HALF = re.compile(r"(.+)\.lora_([ab])")


def is_mlx(folder: Path) -> bool:
    """Returns True for a folder with an adapter of mlx-lm."""
    return (folder / WEIGHTS).exists() and (folder / CONFIG).exists()


def read(folder: Path, config: DecoderConfig) -> Adapter:
    """Reads the adapter in a folder and checks it against the model. Raises ModelError,
    FileFormatError."""
    given = read_config(folder, CONFIG, LAYOUT)
    say_unknown(given.where, given.data, _READ, _INERT)
    kind = given.text("fine_tune_type", "lora", _KINDS)
    fields: dict[str, Any] = {"r": 1, "lora_alpha": 1.0}
    parameters = given.section("lora_parameters")
    if kind != "full":
        if parameters is None:
            raise ModelError(f"{given.where}: lora_parameters is missing; expected rank and scale")
        say_unknown(parameters.where, parameters.data, _PARAMETERS)
        rank = parameters.integer("rank", 1, MAX_RANK)
        # mlx-lm multiplies by the scale itself, PEFT by lora_alpha / r.
        scale = parameters.number("scale", 0.0, MAX_ALPHA / MAX_RANK)
        fields = {"r": rank, "lora_alpha": scale * rank}
        fields["lora_dropout"] = parameters.number("dropout", 0.0, 1.0, 0.0)
        fields["use_dora"] = kind == "dora" or given.flag("use_dora", False)
    fields["base_model_name_or_path"] = given.text(MODEL, "")
    file = SafetensorsFile(folder / WEIGHTS)
    reader = AdapterReader(Fields(fields, given.where), file.path, config)
    for name, value in file.items():
        half, experts = _HALF.fullmatch(name), None
        if half is not None:
            experts = _EXPERTS.fullmatch(half[1])
        if half is not None and experts is not None:
            key = f"{experts[1]}.{experts[2]}_exps.w"
            reader.add_experts(name, key, half[2].upper(), value)
        elif half is not None:
            table = "embedding_" if half[1].endswith(("embed_tokens", "wte")) else ""
            end = "" if table else ".weight"
            peft = f"{half[1]}.lora_{table}{half[2].upper()}{end}"
            reader.add(name, value.T, peft)
        elif name.endswith(".m"):
            reader.add(name, value, f"{name[:-2]}.lora_magnitude_vector")
        else:
            reader.add(name, value)
    return reader.adapter()
