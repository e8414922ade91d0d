"""Low-rank adapters (Hu et al., arXiv:2106.09685) of a decoder, and their folder in PEFT's layout:
adapter_config.json, and adapter_model.safetensors with "base_model.model.<layer>.lora_A.weight".

`peft_files` reads PEFT's folders, `adapter_merge` applies adapters to weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.importers.safetensors import save_file
from weft.models.arch.config import DecoderConfig
from weft.models.arch.latent_weights import joined
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import checkpoint_names

LAYOUT = "a LoRA adapter in PEFT's layout"
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "weft.base"  # key in WEIGHTS's metadata, for the base model's adapter_base.fingerprint
PREFIX = "base_model.model."
TABLES = ("embed", "head")  # roles of the embedding and the output layer
_DEFAULT = {
    "gpt2": ("c_attn",),
    "phi3": ("qkv_proj",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gpt_neox": ("query_key_value",),
}  # other families: the query and value projections


@dataclass(frozen=True)
class Adapter:
    """An adapter: out += alpha / rank (x A^T) B^T, or alpha / sqrt(rank) if it is `stabilized`
    (Kalajdzievski, arXiv:2312.03732). `weights` holds "<role>.lora_a" [rank, in] and
    "<role>.lora_b" [out, rank], float32. `base` names the folder of its model; `base_digest` is
    that model's `adapter_base.fingerprint` ("": unknown).

    The parts of an adapter besides low-rank matrices, each in float32.

    - `magnitudes`: the norm of each row of role's adapted matrix [out] (DoRA, Liu et al.,
      arXiv:2402.09353).
    - `biases`: added to role's result [out].
    - `shared`, `own`: weights that replace the model's. An output layer tied to the embedding stays
      tied with `shared`, and becomes a matrix of its own with `own`.
    - `rows`: token ids and the rows that replace theirs in "embed" or "head".
    - `experts`: A [experts, rank, in] and B [experts, out, rank] of a stack of matrices.
    """

    rank: int
    alpha: float
    dropout: float
    base: str
    weights: dict[str, np.ndarray]
    base_digest: str = ""
    stabilized: bool = False
    magnitudes: Mapping[str, np.ndarray] = field(default_factory=dict)
    biases: Mapping[str, np.ndarray] = field(default_factory=dict)
    shared: Mapping[str, np.ndarray] = field(default_factory=dict)
    own: Mapping[str, np.ndarray] = field(default_factory=dict)
    rows: Mapping[str, tuple[Sequence[int], np.ndarray]] = field(default_factory=dict)
    experts: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        return scale_of(self.alpha, self.rank, self.stabilized)

    @property
    def roles(self) -> list[str]:
        """The layers with low-rank matrices, in the order of their names."""
        return sorted(key.removesuffix(".lora_a") for key in self.weights if key.endswith("_a"))


def scale_of(alpha: float, rank: int, stabilized: bool) -> float:
    """Returns the factor on a layer's low-rank product."""
    return alpha / (math.sqrt(rank) if stabilized else rank)


def modules(config: DecoderConfig) -> dict[str, str]:
    """Returns role ("0.q") -> the layer's full name in Hugging Face's model, for all adaptable
    layers."""
    config = joined(config)
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


def sizes(config: DecoderConfig, role: str) -> tuple[int, int]:
    """Returns (in, out) of a layer, of the tables as products."""
    if role in TABLES:
        return config.hidden, config.vocab
    a, b = decoder_layout(joined(config)).weights[f"{role}.w"].shape
    return (a, b) if config.transposed else (b, a)


def fresh(config: DecoderConfig, roles: Iterable[str], rank: int, seed: int) -> dict[str, Any]:
    """Returns new adapters, initialised like PEFT's: A uniform within 1 / sqrt(in), B zero."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 1]))
    out = {}
    for role in roles:
        inputs, outputs = sizes(config, role)
        a = rng.random((rank, inputs), np.float32) * 2 - 1
        out[f"{role}.lora_a"] = a * np.float32(inputs**-0.5)
        out[f"{role}.lora_b"] = np.zeros((outputs, rank), np.float32)
    return out


def file_names(config: DecoderConfig, keys: Iterable[str], inside: str = "") -> dict[str, str]:
    """Returns key ("0.q.lora_a") -> the tensor's name in WEIGHTS; `inside` is the text model's name
    within a model that sees ("language_model.")."""
    named, out = modules(config), {}
    for key in keys:
        role, _, which = key.rpartition(".lora_")
        out[key] = f"{PREFIX}{within(named[role], inside)}.lora_{which.upper()}.weight"
    return out


def within(name: str, inside: str) -> str:
    """Returns a layer's name in a model that sees: "model.layers..." becomes
    "model.language_model.layers..."."""
    return name.replace("model.", f"model.{inside}", 1) if name.startswith("model.") else name


def write(folder: Path, config: DecoderConfig, adapter: Adapter, inside: str = "") -> None:
    """Writes adapter_config.json and adapter_model.safetensors; `inside` as in `file_names`."""
    from weft.host.files import write_json

    named = file_names(config, adapter.weights, inside)
    tensors = {named[key]: value for key, value in adapter.weights.items()}
    targets: Any = sorted({name.split(".")[-3] for name in tensors})
    if inside:  # the tower's layers may have these names too, and PEFT would adapt them
        targets = rf".*{inside[:-1]}\..*\.({'|'.join(targets)})"
    known = {BASE: adapter.base_digest} if adapter.base_digest else {}
    save_file(folder / WEIGHTS, tensors, {"format": "pt", **known})
    rank, alpha = adapter.rank, adapter.alpha
    write_json(folder / CONFIG, {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": adapter.base,
        "r": rank, "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": adapter.dropout, "target_modules": targets, "bias": "none",
        "fan_in_fan_out": config.transposed, "inference_mode": True,
        "use_rslora": adapter.stabilized,
    })  # fmt: skip
