"""Families with state spaces as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import numpy as np

ARCHS = {
    "mamba": "mamba", "falcon_mamba": "mamba", "mamba2": "mamba2", "jamba": "jamba",
    "granitemoehybrid": "granitehybrid", "bamba": "granitehybrid", "falcon_h1": "falcon-h1",
    "nemotron_h": "nemotron_h",
}  # fmt: skip
TURNED = ("granitehybrid",)
_KINDS = {"linear_attention": 0, "full_attention": 1, "mlp": 0, "moe": 0}


def sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """Channels, heads (or the rank of steps), state, groups and taps."""

    def given(*names: str) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), None)

    heads = given("num_heads", "mamba_n_heads", "mamba_num_heads", "time_step_rank",
                  "mamba_dt_rank")  # fmt: skip
    inner = given("mamba_d_ssm") or given("expand", "mamba_expand") * config["hidden_size"]
    if config["model_type"] == "nemotron_h":
        inner = heads * config["mamba_head_dim"]
    state = given("state_size", "mamba_d_state", "ssm_state_size")
    groups = given("n_groups", "mamba_n_groups") or 0
    return inner, heads, state, groups, given("conv_kernel", "mamba_d_conv")


def write_keys(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    kind, (inner, heads, state, groups, taps) = config["model_type"], sizes(config)
    types = config.get("layer_types") or config.get("layers_block_type")
    if kind == "jamba":
        every, first = config["attn_layer_period"], config["attn_layer_offset"]
        types = ["full_attention" if i % every == first else "linear_attention"
                 for i in range(config["num_hidden_layers"])]  # fmt: skip
    if kind == "bamba":
        types = ["full_attention" if i in config["attn_layer_indices"] else "linear_attention"
                 for i in range(config["num_hidden_layers"])]  # fmt: skip
        size = config["hidden_size"] // config["num_attention_heads"]
        part = config["rope_parameters"]["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(size * part))
        writer.add_rope_scaling_finetuned(True)
    layers = config.get("num_hidden_layers") or len(types)
    writer.add_block_count(layers)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_context_length(config.get("max_position_embeddings", 1 << 20))
    eps = config.get("rms_norm_eps") or config["layer_norm_epsilon"]
    writer.add_layer_norm_rms_eps(eps)
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    if groups:
        writer.add_ssm_group_count(groups)
    if kind in ("mamba", "falcon_mamba"):
        writer.add_ssm_dt_b_c_rms(kind == "falcon_mamba")
    attends = "num_attention_heads" in config
    writer.add_head_count(config["num_attention_heads"] if attends else 0)
    if not attends:
        writer.add_feed_forward_length(0)
        return
    writer.add_vocab_size(config["vocab_size"])
    kv = config["num_key_value_heads"]
    width = config["intermediate_size"]
    writer.add_head_count_kv([kv * _KINDS[t] for t in types] if types else kv)
    if kind == "nemotron_h":
        sparse = "moe" in types
        width = config["moe_intermediate_size"] if sparse else width
        width = [width * (t == ("moe" if sparse else "mlp")) for t in types]
        if sparse:
            write_experts(writer, config)
    writer.add_feed_forward_length(width)
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "rope_parameters" in config:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts and kind != "nemotron_h":
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if kind == "granitemoehybrid":
        shared = config["shared_intermediate_size"]
        writer.add_feed_forward_length(width if experts else shared)
        writer.add_expert_shared_feed_forward_length(shared)
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def write_experts(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Nemotron 3's."""
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    shared = config["moe_shared_expert_intermediate_size"]
    writer.add_expert_shared_feed_forward_length(shared)
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    if config.get("moe_latent_size"):
        writer.add_moe_latent_size(config["moe_latent_size"])


_FACTORS = {  # of Falcon-H1's weights
    "embed_tokens.weight": ("embedding_multiplier",), "lm_head.weight": ("lm_head_multiplier",),
    "q_proj.weight": ("attention_in_multiplier",), "v_proj.weight": ("attention_in_multiplier",),
    "k_proj.weight": ("attention_in_multiplier", "key_multiplier"),
    "o_proj.weight": ("attention_out_multiplier",),
    "mamba.out_proj.weight": ("ssm_out_multiplier",),
}  # fmt: skip


def tensors(
    given: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors under names that the package's table has: the speed's exponential, groups of the
    norm apart, factors and halves."""
    kind, (inner, heads, state, groups, _) = config["model_type"], sizes(config)
    for name, value in given.items():
        if kind == "falcon_h1":
            value = _scaled(name, value, config, (inner, inner, *(groups * state,) * 2, heads))
        if name.endswith("A_log"):
            value = -np.exp(value)
            yield name, value if value.ndim > 1 else value.reshape(-1, 1)
        elif name.endswith(".D"):
            yield name, value.reshape(-1, 1) if groups else value
        elif name.endswith("dt_bias"):
            yield name.replace("dt_bias", "dt_proj.bias"), value
        elif name.endswith("conv1d.weight"):
            yield name, value[:, 0]
        elif groups and name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            yield name, value.reshape(groups, -1)
        elif "shared_mlp" in name or "block_sparse_moe" in name:
            yield from _granite(name, value, bool(config["num_local_experts"]))
        else:
            yield name, value


def _scaled(
    name: str, value: np.ndarray, config: Mapping[str, Any], parts: tuple[int, ...]
) -> np.ndarray:
    for end, factors in _FACTORS.items():
        for factor in factors if name.endswith(end) else ():
            value = value * np.float32(config[factor])
    for end, factor in zip(("gate_proj.weight", "down_proj.weight"), config["mlp_multipliers"]):
        value = value * np.float32(factor) if name.endswith(end) else value
    if name.endswith("mamba.in_proj.weight"):
        by = np.repeat(np.array(config["ssm_multipliers"], np.float32), parts)
        value = value * by[:, None] * np.float32(config["ssm_in_multiplier"])
    return value


def _granite(name: str, value: np.ndarray, sparse: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Its feed-forwards, whose gate and rest are halves of one matrix."""
    at = f"blk.{name.split('.')[2]}."
    end = "_exps" if "block_sparse_moe" in name else "_shexp" if sparse else ""
    if "router" in name:
        yield f"{at}ffn_gate_inp.weight", value
    elif "output_linear" in name:
        yield f"{at}ffn_down{end}.weight", value
    else:
        for part, half in zip(("gate", "up"), np.split(value, 2, axis=-2)):
            yield f"{at}ffn_{part}{end}.weight", half


def own_name(name: str, arch: str) -> str:
    """Names that only the converter gives."""
    if name.startswith("blk."):
        return name
    name = name.removeprefix("backbone.").removeprefix("model.")
    if ".mamba." in name or ".mixer." in name or name.endswith(".norm.weight"):
        _, layer, part = name.split(".", 2)
        part = part.replace("mixer.", "").replace("mamba.", "")
        whole_names = ("A_log", "ssm_a"), ("D", "ssm_d")
        whole_names += (("gate.e_score_correction_bias", "exp_probs_b.bias"),)
        for whole, ours in whole_names:
            if part == whole:
                return f"blk.{layer}.{ours}"
        inside = ".mixer." in name or ".mamba." in name
        stem, _, what = part.rpartition(".")
        table = {
            "in_proj": "ssm_in", "x_proj": "ssm_x", "dt_proj": "ssm_dt", "conv1d": "ssm_conv1d",
            "out_proj": "ssm_out", "norm": "ssm_norm" if inside else "attn_norm",
            "dt_layernorm": "ssm_dt_norm", "b_layernorm": "ssm_b_norm",
            "c_layernorm": "ssm_c_norm", "q_proj": "attn_q", "k_proj": "attn_k",
            "v_proj": "attn_v", "o_proj": "attn_output", "up_proj": "ffn_up",
            "down_proj": "ffn_down", "gate": "ffn_gate_inp", "experts.up_proj": "ffn_up_exps",
            "experts.down_proj": "ffn_down_exps", "shared_experts.up_proj": "ffn_up_shexp",
            "shared_experts.down_proj": "ffn_down_shexp", "fc1_latent_proj": "ffn_latent_down",
            "fc2_latent_proj": "ffn_latent_up",
        }  # fmt: skip
        return f"blk.{layer}.{table[stem]}.{what}"
    if name.startswith(("norm_f.", "final_layernorm.")):
        return "output_norm.weight"
    if name.startswith("embeddings."):
        return "token_embd.weight"
    if arch == "falcon-h1":  # whose norm the package names without "weight", and llama.cpp reads so
        return ""
    for theirs, ours in (("pre_ff_layernorm", "ffn_norm"), ("feed_forward.router", "ffn_gate_inp"),
                         ("feed_forward.experts.gate_proj", "ffn_gate_exps"),
                         ("feed_forward.experts.up_proj", "ffn_up_exps"),
                         ("feed_forward.experts.down_proj", "ffn_down_exps"),
                         ("feed_forward.gate_proj", "ffn_gate"),
                         ("feed_forward.up_proj", "ffn_up"),
                         ("feed_forward.down_proj", "ffn_down")):  # fmt: skip
        if f".{theirs}." in name:
            return f"blk.{name.split('.')[1]}.{ours}.weight"
    return ""
