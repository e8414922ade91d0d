"""Reads and writes low-rank adapters (Hu et al., arXiv:2106.09685) in PEFT's layout:
adapter_config.json, and adapter_model.safetensors with "base_model.model.<layer>.lora_A.weight"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.arrays import all_finite
from weft.core.dtypes import bfloat16, float16, float32, float64
from weft.core.errors import ModelError, UsageError
from weft.core.notices import say_unknown
from weft.core.packed import Packed
from weft.importers.hf_config import Fields, read_config
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.models.arch.config import DecoderConfig
from weft.models.arch.inputs import Stacked
from weft.models.arch.weights import Weight, held
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import checkpoint_names

LAYOUT = "a LoRA adapter in PEFT's layout"
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "weft.base"  # key in WEIGHTS's metadata, for the base model's adapter_base.fingerprint
_PREFIX = "base_model.model."
_DEFAULT = {
    "gpt2": ("c_attn",),
    "phi3": ("qkv_proj",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gpt_neox": ("query_key_value",),
}  # other families: the query and value projections
# Fields that this file does not read, and the values that mean "not used".
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none", None), "use_dora": (False, None),
    "modules_to_save": (None, []),
    "lora_bias": (False, None), "use_qalora": (False, None), "use_bdlora": (False, None),
    "alora_invocation_tokens": (None,), "layer_replication": (None,), "arrow_config": (None,),
    "trainable_token_indices": (None,), "target_parameters": (None, []),
    "megatron_config": (None,), "monteclora_config": (None,), "kasa_config": (None,),
    # other values change the model's own weights before training
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
_READ = (
    "r", "lora_alpha", "lora_dropout", "use_rslora", "base_model_name_or_path", "rank_pattern",
    "alpha_pattern", "layers_to_transform",
)  # fmt: skip
# The tensors show which layers are adapted; the other fields concern training.
_INERT = (
    "task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "target_modules",
    "exclude_modules", "fan_in_fan_out", "layers_pattern", "megatron_core", "loftq_config",
    "qalora_group_size", "runtime_config", "ensure_weight_tying", "eva_config", "corda_config",
    "lora_ga_config", "velora_config",
)  # fmt: skip
# Parts of tensor names that belong to something other than a linear layer.
_OTHERS = {
    "lm_head": "adapts the output layer", "embed": "adapts the embedding",
    ".wte.": "adapts the embedding", "modules_to_save": "replaces a part of the model",
    "magnitude": "is DoRA's", "lora_bias": "is an adapter's bias",
}  # fmt: skip
_FLOATS = (float16, bfloat16, float32, float64)
_RANKS = 16  # ranks in a stack are rounded up to a multiple, for whole vectors


@dataclass(frozen=True)
class Adapter:
    """An adapter: out += alpha / rank (x A^T) B^T, or alpha / sqrt(rank) if it is `stabilized`
    (Kalajdzievski, arXiv:2312.03732). `weights` holds "<role>.lora_a" [rank, in] and
    "<role>.lora_b" [out, rank], float32. `base` names the folder of its model; `base_digest` is
    that model's `adapter_base.fingerprint` ("": unknown)."""

    rank: int
    alpha: float
    dropout: float
    base: str
    weights: dict[str, np.ndarray]
    base_digest: str = ""
    stabilized: bool = False

    @property
    def scale(self) -> float:
        return _scale(self.alpha, self.rank, self.stabilized)


def modules(config: DecoderConfig) -> dict[str, str]:
    """Returns role ("0.q") -> the layer's full name in Hugging Face's model, for all adaptable
    layers."""
    layout = decoder_layout(config).weights
    return {
        role.removesuffix(".w"): name.removesuffix(".weight")
        for role, name in checkpoint_names(config).items()
        if layout[role].kind in ("matrix", "router", "gate")
    }


def is_adapter(role: str) -> bool:
    """Returns True for the role of half of an adapter: "0.q.lora_a"."""
    return ".lora_" in role


def target_roles(config: DecoderConfig, targets: Sequence[str]) -> list[str]:
    """Returns the roles of the layers that PEFT calls `targets` (default: PEFT's for the family).
    Raises UsageError for an unknown name."""
    named = modules(config)
    wanted = tuple(targets) or _DEFAULT.get(config.family, ("q_proj", "v_proj"))
    known = sorted({name.rpartition(".")[2] for name in named.values()})
    for target in wanted:
        if target not in known:
            raise UsageError(f"[lora] targets: no layer is called {target}; known: {known}")
    return [role for role, name in named.items() if name.rpartition(".")[2] in wanted]


def _sizes(config: DecoderConfig, role: str) -> tuple[int, int]:
    """Returns (in, out) of a layer."""
    a, b = decoder_layout(config).weights[f"{role}.w"].shape
    return (a, b) if config.transposed else (b, a)


def fresh(config: DecoderConfig, roles: Iterable[str], rank: int, seed: int) -> dict[str, Any]:
    """Returns new adapters, initialised like PEFT's: A uniform within 1 / sqrt(in), B zero."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 1]))
    out = {}
    for role in roles:
        inputs, outputs = _sizes(config, role)
        a = rng.random((rank, inputs), np.float32) * 2 - 1
        out[f"{role}.lora_a"] = a * np.float32(inputs**-0.5)
        out[f"{role}.lora_b"] = np.zeros((outputs, rank), np.float32)
    return out


def file_names(config: DecoderConfig, keys: Iterable[str]) -> dict[str, str]:
    """Returns key ("0.q.lora_a") -> the tensor's name in WEIGHTS."""
    named, out = modules(config), {}
    for key in keys:
        role, _, which = key.rpartition(".lora_")
        out[key] = f"{_PREFIX}{named[role]}.lora_{which.upper()}.weight"
    return out


def write(folder: Path, config: DecoderConfig, adapter: Adapter) -> None:
    """Writes adapter_config.json and adapter_model.safetensors."""
    from weft.host.files import write_json

    named = file_names(config, adapter.weights)
    tensors = {named[key]: value for key, value in adapter.weights.items()}
    targets = {name.split(".")[-3] for name in tensors}
    known = {BASE: adapter.base_digest} if adapter.base_digest else {}
    save_file(folder / WEIGHTS, tensors, {"format": "pt", **known})
    rank, alpha = adapter.rank, adapter.alpha
    write_json(folder / CONFIG, {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": adapter.base,
        "r": rank, "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": adapter.dropout, "target_modules": sorted(targets), "bias": "none",
        "fan_in_fan_out": config.transposed, "inference_mode": True,
        "use_rslora": adapter.stabilized,
    })  # fmt: skip


def read(folder: Path, config: DecoderConfig) -> Adapter:
    """Reads the adapter in a folder and checks it against the model. Raises ModelError,
    FileFormatError."""
    given = read_config(folder, CONFIG, LAYOUT)
    for name, plain in _PLAIN.items():
        if name in given.data and given.data[name] not in plain:
            raise ModelError(f"{given.where}: {name} = {given.data[name]!r} is not supported")
    say_unknown(given.where, given.data, _READ, _INERT, _PLAIN)
    rank = given.integer("r", 1, 1 << 14)
    alpha = given.number("lora_alpha", 0.0, 1e9)
    stabilized = given.flag("use_rslora", False)
    only = given.integers("layers_to_transform", 0, 1 << 20)
    file = SafetensorsFile(folder / WEIGHTS)
    roles = {name: role for role, name in modules(config).items()}
    usual = _scale(alpha, rank, stabilized) or 1.0
    weights: dict[str, np.ndarray] = {}
    for name, value in file.items():
        layer, _, which = name.removeprefix(_PREFIX).rpartition(".lora_")
        # The prefix of vision-language models.
        role = roles.get(layer.replace("language_model.", ""))
        if role is None or which not in ("A.weight", "B.weight"):
            what = next((said for part, said in _OTHERS.items() if part in name), "")
            what = f"{what}, which weft does not support" if what else "belongs to no layer"
            raise ModelError(f"{file.path}: tensor {name!r} {what} of the model")
        if only and role.split(".")[0] not in map(str, only):
            said = f"which layers_to_transform {list(only)[:8]} leaves out"
            raise ModelError(f"{file.path}: tensor {name!r} is of a layer {said}")
        inputs, outputs = _sizes(config, role)
        rank, alpha = _of_layer(given, layer)
        shape = (rank, inputs) if which[0] == "A" else (outputs, rank)
        if value.shape != shape:
            raise ModelError(
                f"{file.path}: {name!r} has shape {list(value.shape)}; expected {list(shape)}"
            )
        key = f"{role}.lora_{which[0].lower()}"
        if key in weights:
            raise ModelError(f"{file.path}: {name!r} is there under another name too")
        weights[key] = _floats(value, f"{file.path}: {name!r}")
        if key.endswith("_b"):  # one scale for all layers: differences go into B
            weights[key] = weights[key] * np.float32(_scale(alpha, rank, stabilized) / usual)
    for key in weights:
        if key[:-1] + ("b" if key.endswith("a") else "a") not in weights:
            raise ModelError(f"{file.path}: half of the adapter of layer {key[:-7]!r} is missing")
    if not weights:
        raise ModelError(f"{file.path}: it holds no tensor, so it adapts nothing")
    dropout = given.number("lora_dropout", 0.0, 1.0, 0.0)
    base, digest = given.text("base_model_name_or_path", ""), file.metadata.get(BASE, "")
    rank, alpha = given.data["r"], float(given.data["lora_alpha"])
    return Adapter(rank, alpha, dropout, base, weights, digest, stabilized)


def _scale(alpha: float, rank: int, stabilized: bool) -> float:
    return alpha / (math.sqrt(rank) if stabilized else rank)


def _of_layer(given: Fields, layer: str) -> tuple[int, float]:
    """Returns rank and alpha of a layer. The first pattern that equals the layer's name, or its end
    after a dot, overrides the defaults. Raises ModelError for a regular expression."""
    out: list[Any] = []
    for name, usual in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")):
        at, key = given.section(name), None
        for pattern in () if at is None else at.data:
            if not re.fullmatch(r"[\w.]+", pattern):
                raise ModelError(
                    f"{given.where}: {name} holds {pattern[:60]!r}; expected names of layers"
                )
            if key is None and f".{layer}".endswith(f".{pattern}"):
                key = pattern
        source, key = (given, usual) if at is None or key is None else (at, key)
        lo, hi = (1, 1 << 14) if usual == "r" else (0, 10**9)
        out.append(source.integer(key, lo, hi) if usual == "r" else source.number(key, lo, hi))
    return out[0], out[1]


def _floats(value: np.ndarray, what: str) -> np.ndarray:
    """Returns an adapter's tensor in float32."""
    if value.dtype not in [d.numpy for d in _FLOATS]:
        known = ", ".join(d.name for d in _FLOATS)
        raise ModelError(f"{what} is of {value.dtype}; an adapter's tensors are {known}")
    with np.errstate(over="ignore"):
        out = np.asarray(value, np.float32)
    if not all_finite(out):
        raise ModelError(f"{what} holds NaN or infinity; the adapter is damaged")
    return out


def stacked(config: DecoderConfig, adapters: Mapping[str, Adapter]) -> Stacked:
    """Stacks E adapters, so that rows can choose one by number. For each adapted layer it returns
    "<role>.loras_a" [E * r, in] and "<role>.loras_b" [E * out, r], float32; loras_b includes the
    scale. Zeros, which change no sum, fill up smaller ranks and missing layers. Raises ModelError
    for an adapter that overflows float32."""
    keys = sorted({key for one in adapters.values() for key in one.weights})
    arrays: dict[str, np.ndarray] = {}
    for role in (key.removesuffix(".lora_a") for key in keys if key.endswith("_a")):
        inputs, outputs = _sizes(config, role)
        has = {n: one for n, one in enumerate(adapters.values()) if f"{role}.lora_a" in one.weights}
        ranks = {n: len(one.weights[f"{role}.lora_a"]) for n, one in has.items()}
        rank = -(-max(ranks.values()) // _RANKS) * _RANKS
        a = np.zeros((len(adapters), rank, inputs), np.float32)
        b = np.zeros((len(adapters), outputs, rank), np.float32)
        for n, one in has.items():
            a[n, : ranks[n]] = one.weights[f"{role}.lora_a"]
            with np.errstate(over="ignore"):
                b[n, :, : ranks[n]] = one.weights[f"{role}.lora_b"] * np.float32(one.scale)
            if not all_finite(b[n]):
                raise ModelError(f"adapter {[*adapters][n]}: {role} overflows by lora_alpha")
        arrays[f"{role}.loras_a"] = a.reshape(-1, inputs)
        arrays[f"{role}.loras_b"] = b.reshape(-1, rank)
    return Stacked(tuple(adapters), arrays)


def added(
    config: DecoderConfig, weights: Mapping[str, Weight], adapter: Adapter
) -> tuple[DecoderConfig, Mapping[str, Weight]]:
    """Returns config and weights of the model with the adapter: merged, or separate in float32 if
    the weights are packed, since merging would undo the packing."""
    plain: dict[str, np.ndarray] = {}
    for role, weight in weights.items():
        value = weight.value()
        if isinstance(value, Packed):
            beside = {role: held(half, "adapter") for role, half in adapter.weights.items()}
            return replace(config, adapter_scale=adapter.scale), {**weights, **beside}
        plain[role] = value
    whole = merged(config, plain, adapter)
    return config, {role: weights[role].of(value) for role, value in whole.items()}


def merged(
    config: DecoderConfig, weights: Mapping[str, np.ndarray], adapter: Adapter
) -> dict[str, np.ndarray]:
    """Returns the model's weights with the adapter added, each in its own dtype; without other
    adapters."""
    out = {role: value for role, value in weights.items() if not is_adapter(role)}
    for key, a in adapter.weights.items():
        if not key.endswith("_a"):
            continue
        role = key.removesuffix(".lora_a")
        change = (adapter.weights[f"{role}.lora_b"] @ a) * np.float32(adapter.scale)
        before = out[f"{role}.w"]
        whole = before.astype(np.float32) + (change.T if config.transposed else change)
        out[f"{role}.w"] = whole.astype(before.dtype)
    return out
