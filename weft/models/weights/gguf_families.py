"""Families whose GGUF files say something in another way than one key for each field: a function of
each adds the fields to what the table `family_gguf` gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.models.arch.family_gguf import MORE_TOKENS
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
)
from weft.models.weights.gguf_metadata import Metadata

_SIGMOID = 2  # the number of a router's function


def fill(data: dict[str, Any], name: str, value: Any) -> None:
    """Gives a value to a field that is null."""
    if data[name] is None:
        data[name] = value


def _gemma(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds the scale of scores, which differs in the 27B models, of 46 and 62 layers."""
    large = data["num_hidden_layers"] in (46, 62)
    data["query_pre_attn_scalar"] = (
        data["hidden_size"] // data["num_attention_heads"] if large else head_dim
    )


def _gemma4(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds the sizes of each layer. The usual head size is that of full layers; tensors show which
    layers have no values of their own, and whether there are experts."""
    layers = data["num_hidden_layers"]
    size = c.integer("attention.key_length_swa", 2, MAX_HEAD_DIM, head_dim)
    if c.integer("attention.value_length_swa", 1, MAX_HIDDEN, size) != size:
        raise c.refuse("attention.value_length_swa", f"not that of keys, which is {size}")
    if c.integer("rope.dimension_count_swa", 2, MAX_HIDDEN, size) != size:
        raise c.refuse("rope.dimension_count_swa", f"rotating a part of {size} is not supported")
    kv = c.each("attention.head_count_kv", MAX_HEADS, layers)
    ffn = c.each("feed_forward_length", MAX_FFN, layers)
    types = data.get("layer_types") or [
        "sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)
    ]
    types = [*types[:-1], "full_attention"]
    if not data["sliding_window"]:
        types = ["full_attention"] * layers
    data |= {"layer_types": types, "head_dim": head_dim, "num_key_value_heads": kv[-1]}
    data |= {"intermediate_size": ffn[-1], "enable_moe_block": c.has("blk.0.ffn_gate_inp.weight")}
    data["per_layer_config"] = {
        str(i): {
            "head_dim": size if kind == "sliding_attention" else head_dim,
            "num_key_value_heads": kv[i],
            "intermediate_size": ffn[i],
            "attention_k_eq_v": not c.has(f"blk.{i}.attn_v.weight"),
        }
        for i, kind in enumerate(types)
    }


def _delta(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Divides the width of all heads, and leaves out the layers that predict further tokens."""
    keys, values = (c.integer(f"ssm.{k}", 1, MAX_HEADS) for k in ("group_count", "time_step_rank"))
    inner = c.integer("ssm.inner_size", 1, MAX_HIDDEN)
    if values % keys or inner % values:
        raise c.refuse("ssm.inner_size", f"{values} heads of values share {keys} of keys")
    data["linear_value_head_dim"] = inner // values
    layers = c.integer("block_count", 1, MAX_LAYERS)
    data["num_hidden_layers"] = layers - c.integer(MORE_TOKENS, 0, layers - 1, 0)


def _olmo3(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    ropes = data["rope_parameters"]
    fill(ropes["sliding_attention"], "rope_theta", ropes["full_attention"]["rope_theta"])


def _stablelm(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Tensors show the variants, for llama.cpp too."""
    data["qk_layernorm"] = c.has("blk.0.attn_q_norm.weight")
    data["use_parallel_residual"] = not c.has("blk.0.ffn_norm.weight")


def _cohere(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    data["use_qk_norm"] = c.has("blk.0.attn_q_norm.weight")


def _glm4_moe(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Leaves out the layers that predict further tokens."""
    if c.value("expert_gating_func") not in (None, _SIGMOID):
        raise c.refuse("expert_gating_func", f"expected {_SIGMOID}, a sigmoid")
    data["use_qk_norm"] = c.has("blk.0.attn_q_norm.weight")
    layers = c.integer("block_count", 1, MAX_LAYERS)
    further = c.integer(MORE_TOKENS, 0, layers - 1, 0)
    data |= {"num_hidden_layers": layers - further, "num_nextn_predict_layers": further}


OWN: Mapping[str, Callable[[Metadata, dict[str, Any], int], None]] = {
    **dict.fromkeys(("gemma2", "gemma3_text"), _gemma),
    "gemma4_text": _gemma4,
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), _delta),
    "olmo3": _olmo3,
    "stablelm": _stablelm,
    "cohere": _cohere,
    "glm4_moe": _glm4_moe,
}
