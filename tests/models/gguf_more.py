"""The families of `family_zoo` as llama.cpp's converter writes them, by the gguf package's table of
tensors' names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import MODEL_ARCH_NAMES

ARCHS = {
    "mixtral": "llama", "qwen2_moe": "qwen2moe", "gpt_neox": "gptneox", "phi": "phi2",
    "cohere": "command-r", "glm4_moe": "glm4moe", "ernie4_5_moe": "ernie4_5-moe",
    "hunyuan_v1_dense": "hunyuan-dense", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "llama4_text": "llama4", "gemma3n_text": "gemma3n",
}  # fmt: skip
SAME = (
    "olmoe", "granitemoe", "stablelm", "starcoder2", "gemma", "cohere2", "exaone4", "seed_oss",
    "glm4", "ernie4_5", "apertus", "nemotron", "olmo",
)  # fmt: skip
KINDS = (*ARCHS, *SAME)
TURNED = ("granitemoe", "olmo")
ADDED = ("gemma", "nemotron")  # 1 to the weights of norms


def tensor_name(arch: str, name: str) -> str:
    """llama.cpp's name by the package's table."""
    kind = next(k for k, known in MODEL_ARCH_NAMES.items() if known == arch)
    table = gguf.get_tensor_name_map(kind, 16)
    found = table.get_name(name, (".weight", ".bias"))
    assert found is not None, name
    return found


def tensors(
    given: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors under names that the table has, joined and cut as the converter does."""
    heads, stacks = config["num_attention_heads"], dict[str, dict[int, np.ndarray]]()
    for name, value in given.items():
        if found := re.match(r"(.*[qk]_)layernorm\.norms\.(\d+)\.weight", name):
            stacks.setdefault(f"{found[1]}norm.weight", {})[int(found[2])] = value
        elif found := re.match(r"(.*)\.block_sparse_moe(\.experts\.)(\d+)(\.w\d)\.weight", name):
            layer = found[1].removeprefix("model.")
            where = f"{layer}.feed_forward.experts{found[4]}.weight"
            stacks.setdefault(where, {})[int(found[3])] = value
        elif "query_key_value" in name:
            parts = value.reshape(heads, 3, -1, *value.shape[1:])
            yield name, np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(value.shape)
        elif "input_linear" in name:
            for i, part in enumerate(("gate", "up")):
                half = np.split(value, 2, axis=1)[i]
                yield name.replace("input_linear", f"experts.{part}"), half
        elif "kv_b_proj" in name and not config.get("joined"):
            both = value.reshape(heads, -1, value.shape[1])
            keys, values = np.split(both, [config["qk_nope_head_dim"]], axis=1)
            yield name.replace("kv_b", "k_b"), keys.swapaxes(1, 2)
            yield name.replace("kv_b", "v_b"), values
        elif config["model_type"] == "llama4_text" and ".experts." in name:
            turned = value.swapaxes(1, 2)
            if "down_proj" in name:
                yield f"{name}.weight", turned
                continue
            for part, half in zip(("gate", "up"), np.split(turned, 2, axis=1)):
                yield name.replace("gate_up_proj", f"{part}_proj.weight"), half
        elif found := re.match(r"(.*altup_\w*projections)\.(\d+)\.weight", name):
            stacks.setdefault(f"{found[1]}.weight", {})[int(found[2])] = value
        elif name.endswith("correct_output_scale"):
            yield f"{name}.weight", value
        elif "e_score_correction_bias" in name:
            yield name.replace("correction_bias", "correction.bias"), value.reshape(-1)
        elif ".act_fn." not in name:
            yield name, value
    for name, parts in stacks.items():
        yield name, np.stack([parts[i] for i in range(len(parts))])


def own_name(name: str) -> str:
    """Names that only the converter gives."""
    for part in ("gate", "up"):
        if f"block_sparse_moe.experts.{part}.weight" in name:
            return f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight"
    return ""


def write_keys(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], given: Mapping[str, np.ndarray]
) -> None:
    """config.json as metadata, as far as all families' keys do not say it."""
    kind, heads = config["model_type"], config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config["rope_parameters"]
    if "partial_rotary_factor" in rope:
        writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * size))
    if kind == "olmo":
        writer.add_layer_norm_eps(1e-5)
        writer.add_clamp_kqv(config["clip_qkv"])
    if kind in ("gpt_neox", "stablelm"):
        writer.add_parallel_residual(config["use_parallel_residual"])
    if "logit_scale" in config:
        writer.add_logit_scale(config["logit_scale"])
    if kind == "cohere2":
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind in ("glm4_moe", "ernie4_5_moe"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if kind == "glm4_moe":
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "kv_lora_rank" in config:
        write_latent(writer, config)
    if kind == "ernie4_5_moe":
        writer.add_expert_count(config["moe_num_experts"])
        writer.add_expert_used_count(config["moe_k"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        shared = config["intermediate_size"] // config["num_key_value_heads"]
        writer.add_expert_shared_feed_forward_length(shared)
    if kind == "llama4_text":
        writer.add_feed_forward_length(config["intermediate_size_mlp"])
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if kind == "gemma3n_text":
        writer.add_altup_num_inputs(config["altup_num_inputs"])
        writer.add_altup_active_idx(config["altup_active_idx"])
        writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
        writer.add_shared_kv_layers(config["num_kv_shared_layers"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        shares = np.array(config["activation_sparsity_pattern"], np.float32)
        scales = torch.distributions.Normal(0, 1).icdf(torch.from_numpy(shares))
        writer.add_activation_sparsity_scale(scales.tolist())
    if kind == "apertus":
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            values = [
                float(np.asarray(given[f"model.layers.{i}.mlp.act_fn.{name}"]).reshape(-1)[0])
                for i in range(config["num_hidden_layers"])
            ]
            getattr(writer, f"add_xielu_{name}")(values)


def write_latent(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """The keys of latent attention, in files that join or split its matrix."""
    turned, value, rope = (config[k] for k in ("qk_rope_head_dim", "v_head_dim", "rope_parameters"))
    key, rank = config["qk_nope_head_dim"] + turned, config["kv_lora_rank"]
    if config.get("joined"):
        writer.add_key_length(key)
        writer.add_value_length(value)
    else:
        writer.add_key_length(rank + turned)
        writer.add_value_length(rank)
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_rope_dimension_count(turned)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    if config["model_type"] == "deepseek_v3":
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def theta(config: Mapping[str, Any]) -> float:
    """The base wavelength, which Hunyuan's alpha lengthens."""
    rope, size = config["rope_parameters"], config.get("head_dim") or 0
    power = size / (size - 2) if "alpha" in rope else 0.0
    return float(rope["rope_theta"] * rope.get("alpha", 1.0) ** power)
