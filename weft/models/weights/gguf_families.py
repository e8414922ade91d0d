"""Families whose GGUF files say something in another way than one key for each field: a function of
each adds the fields to what the table `family_gguf` gave."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from weft.models.arch.family_gguf import MORE_TOKENS, SIGMOID, SOFTMAX
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
)
from weft.models.weights.gguf_metadata import Metadata

Own = Callable[[Metadata, dict[str, Any], int], None]


def fill(data: dict[str, Any], name: str, value: Any) -> None:
    """Gives a value to a field that is null."""
    if data[name] is None:
        data[name] = value


def sections_of(c: Metadata) -> list[int] | None:
    """Returns how many pairs of a rope turn by time, height and width; None if a file does not
    say."""
    given = c.value("rope.dimension_sections")
    if not isinstance(given, list):
        return None
    if len(given) not in (3, 4) or any(given[3:]):
        raise c.refuse("rope.dimension_sections", "expected three numbers of pairs")
    return given[:3]


def _sections(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    data["rope_parameters"]["mrope_section"] = sections_of(c)


def _gemma(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds the scale of scores, which differs in the 27B models, of 46 and 62 layers."""
    large = data["num_hidden_layers"] in (46, 62)
    data["query_pre_attn_scalar"] = (
        data["hidden_size"] // data["num_attention_heads"] if large else head_dim
    )


def _gemma4(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds the sizes of each layer. The usual head size is that of full layers; tensors show which
    layers lack values of their own, and whether there are experts."""
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


def _gemma3n(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds widths by layer, and the shares of gates that are to be 0: files say how many standard
    deviations above the mean the others are."""
    layers = c.integer("block_count", 1, MAX_LAYERS)
    data["intermediate_size"] = list(c.each("feed_forward_length", MAX_FFN, layers))
    data["vocab_size_per_layer_input"] = None
    data["laurel_rank"] = c.rows("blk.0.laurel_l.weight")
    scales = c.value("activation_sparsity_scale")
    if scales is not None:
        if not isinstance(scales, list) or not all(isinstance(x, float) for x in scales):
            raise c.refuse("activation_sparsity_scale", f"expected {layers} numbers")
        from statistics import NormalDist  # takes milliseconds to import

        share = NormalDist().cdf
        data["activation_sparsity_pattern"] = [share(x) if x > -math.inf else 0.0 for x in scales]


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
    if c.value("expert_gating_func") not in (None, SIGMOID):
        raise c.refuse("expert_gating_func", f"expected {SIGMOID}, a sigmoid")
    data["use_qk_norm"] = c.has("blk.0.attn_q_norm.weight")
    layers = c.integer("block_count", 1, MAX_LAYERS)
    further = c.integer(MORE_TOKENS, 0, layers - 1, 0)
    data |= {"num_hidden_layers": layers - further, "num_nextn_predict_layers": further}


def _of_width(field: str) -> Own:
    """Returns a function for a `field` that says how many times the model's width the channels of a
    state space are."""

    def add(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
        inner = c.integer("ssm.inner_size", 1, MAX_FFN)
        hidden = c.integer("embedding_length", 1, MAX_HIDDEN)
        data[field] = math.nextafter(inner / hidden, math.inf)  # the family rounds down

    return add


def _granite(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds the width of the only feed-forward, and whether there are positions."""
    _of_width("mamba_expand")(c, data, head_dim)
    if not c.value("expert_count"):
        data["shared_intermediate_size"] = c.integer("feed_forward_length", 1, MAX_FFN)
    turned = c.value("rope.scaling.finetuned")
    if turned not in (None, True, False):
        raise c.refuse("rope.scaling.finetuned", "expected true or false")
    data["position_embedding_type"] = "rope" if turned else "nope"


def _bamba(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds which layers attend, those with heads of keys."""
    _of_width("mamba_expand")(c, data, head_dim)
    layers = c.integer("block_count", 1, MAX_LAYERS)
    heads = _by_layer(c, "attention.head_count_kv", layers)
    data["attn_layer_indices"] = [i for i, kv in enumerate(heads) if kv]


def _by_layer(c: Metadata, name: str, layers: int) -> list[Any]:
    found = c.value(name)
    if not isinstance(found, list) or len(found) != layers:
        raise c.refuse(name, f"expected {layers} numbers")
    return found


def _falcon_h1(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    data["mamba_rms_norm"] = c.has("blk.0.ssm_norm.weight")


def _nemotron_h(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds the kind of each layer, which follows from its heads and its width."""
    layers = c.integer("block_count", 1, MAX_LAYERS)
    heads = c.integer("ssm.time_step_rank", 1, MAX_FFN)
    inner = c.integer("ssm.inner_size", 1, MAX_FFN)
    if inner % heads:
        raise c.refuse("ssm.inner_size", f"not a multiple of {heads} heads")
    data["mamba_head_dim"] = inner // heads
    names = "attention.head_count_kv", "feed_forward_length"
    kinds = []
    for i, (kv, width) in enumerate(zip(*(_by_layer(c, name, layers) for name in names))):
        fed = "moe" if c.has(f"blk.{i}.ffn_gate_inp.weight") else "mlp"
        kinds.append("full_attention" if kv else fed if width else "linear_attention")
    further = c.integer(MORE_TOKENS, 0, layers - 1, 0)
    data["layers_block_type"] = kinds[: layers - further]


def _jamba(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds which layers have experts, as their tensors show."""
    _of_width("mamba_expand")(c, data, head_dim)
    layers = c.integer("block_count", 1, MAX_LAYERS)
    sparse = [c.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(layers)]
    found = [i for i, yes in enumerate(sparse) if yes] or [layers]
    every = found[1] - found[0] if len(found) > 1 else layers + 1
    if sparse != [i % every == found[0] for i in range(layers)]:
        raise c.refuse("expert_count", "experts are not in every so-many-th layer")
    data |= {"expert_layer_offset": found[0], "expert_layer_period": every}
    if not any(sparse):
        data["num_experts"] = 1


def _latent(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds the sizes of heads, which newer files give in addition to those of the cache, and YaRN's
    scaling of scores. llama.cpp takes one number for both of its multipliers."""
    if c.value("expert_gating_func") not in (None, SOFTMAX, SIGMOID):
        raise c.refuse("expert_gating_func", f"expected {SOFTMAX}, softmax, or {SIGMOID}, sigmoid")
    if c.value("expert_gating_func") != SIGMOID and c.value("expert_weights_norm"):
        raise c.refuse("expert_weights_norm", "not supported with softmax")
    split = c.value("attention.key_length_mla") is not None
    names = [f"attention.{part}_length" + "_mla" * split for part in ("key", "value")]
    key, value = (c.integer(name, 1, MAX_HIDDEN) for name in names)
    if key <= head_dim:
        raise c.refuse(names[0], f"expected more than the {head_dim} elements that turn")
    data |= {"qk_nope_head_dim": key - head_dim, "qk_rope_head_dim": head_dim, "v_head_dim": value}
    data["num_key_value_heads"] = data["num_attention_heads"]
    layers = c.integer("block_count", 1, MAX_LAYERS)
    further = c.integer(MORE_TOKENS, 0, layers - 1, 0)
    data |= {"num_hidden_layers": layers - further, "num_nextn_predict_layers": further}
    data["q_lora_rank"] = data["q_lora_rank"] or None
    data["topk_method"] = "group_limited_greedy" if data["n_group"] else "greedy"
    rope = data["rope_parameters"]
    if rope["rope_type"] == "yarn":
        depth = c.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3) * 10
        rope |= {"mscale": depth, "mscale_all_dim": depth}


def _llama4(c: Metadata, data: dict[str, Any], head_dim: int) -> None:
    """Adds whether queries and keys are normed, which they are not with 128 experts. For a file
    without chunks, llama.cpp computes something other than the model's training did."""
    if c.value("attention.sliding_window") == 0:
        raise c.refuse("attention.sliding_window", "a model without chunks; load its folder")
    if c.value("attention.sliding_window_pattern") not in (None, 4):
        raise c.refuse("attention.sliding_window_pattern", "expected 4")
    data["use_qk_norm"] = data["num_local_experts"] != 128


OWN: Mapping[str, Own] = {
    **dict.fromkeys(("gemma2", "gemma3_text"), _gemma),
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), _delta),
    **dict.fromkeys(("qwen2_vl_text", "qwen3_vl_text"), _sections),
    "olmo3": _olmo3,
    "stablelm": _stablelm,
    "cohere": _cohere,
    "glm4_moe": _glm4_moe,
    "deepseek_v2": _latent,
    "llama4_text": _llama4,
    "deepseek_v3": _latent,
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2"), _of_width("expand")),
    "granitemoehybrid": _granite,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "jamba": _jamba,
}
