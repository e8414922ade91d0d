"""The tiny checkpoints of model_zoo as GGUF files, written with the gguf package as llama.cpp's
converter writes them: its names, its order of the rows under an interleaved rope, 1 added to
Gemma's norms, vectors in float32."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf_more as more
import gguf_space as space
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf_files import finish

from weft.importers.safetensors import open_checkpoint

# Hugging Face's name -> llama.cpp's, within a layer and around them
_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.dt_proj": "ssm_dt", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp",
    "router.per_expert_scale": "ffn_down_exps", "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "layer_scalar": "layer_output_scale",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down", "ln_1": "attn_norm", "ln_2": "ffn_norm",
}  # fmt: skip
_AFTER = {  # of families with norms after a layer's parts
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "embedding_norm": "token_embd_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm",
}  # fmt: skip
ARCHS = {
    "gemma3_text": "gemma3", "mistral": "llama", "ministral3": "mistral3", "olmo3": "olmo2",
    "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next", "gemma4_text": "gemma4",
    "qwen2_vl_text": "qwen2vl", "qwen2_5_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl",
}  # fmt: skip
ARCHS |= more.ARCHS | space.ARCHS
TURNED = ("llama", "smollm3", "mistral3", "granite", *more.TURNED, *space.TURNED)
Pack = Callable[[str, np.ndarray], tuple[np.ndarray, Kind | None]]


def arch_of(config: Mapping[str, Any]) -> str:
    kind = config["model_type"]
    if kind == "nemotron_h" and "moe" in config.get("layers_block_type", ()):
        return "nemotron_h_moe"
    return ARCHS.get(kind, kind)


def tensor_name(arch: str, name: str) -> str:
    """llama.cpp's name of a tensor that Hugging Face calls `name`."""
    stem, _, what = name.removeprefix("model.").removeprefix("transformer.").rpartition(".")
    if not stem.startswith(("layers.", "h.")):
        return f"{_TOP[stem]}.{what}"
    _, layer, part = stem.split(".", 2)
    if what == "A_log":
        return f"blk.{layer}.ssm_a"
    after = arch.startswith(("gemma", "olmo", "gpt-oss", "qwen35", "qwen3next"))
    names = _LAYER | _AFTER if after else _LAYER
    return f"blk.{layer}.{names[part]}.{what}"


def converted(arch: str, name: str, value: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """The values as the converter changes them; `name` is llama.cpp's."""
    part = name.rsplit(".", 2)[-2]
    if arch in TURNED and part in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
        halves = value.reshape(heads, 2, len(value) // heads // 2, *value.shape[1:])
        return halves.swapaxes(1, 2).reshape(value.shape)
    shifted = arch.startswith(("gemma2", "gemma3", "qwen35", "qwen3next")) and arch != "gemma3n"
    if shifted and part.endswith("norm"):
        if part == "ssm_norm":
            return value
        return value.astype(np.float32) + np.float32(1)
    if arch in more.ADDED and name.endswith("norm.weight"):
        return value.astype(np.float32) + np.float32(1)
    if arch == "gpt2" and value.ndim == 2 and name.startswith("blk."):
        return value.T
    return value


def plain(name: str, value: np.ndarray) -> tuple[np.ndarray, Kind | None]:
    """Matrices as they are, vectors in float32."""
    return (value if value.ndim > 1 else value.astype(np.float32)), None


def packed(kind: Kind) -> Pack:
    """Matrices in `kind` where the package can write it."""

    def pack(name: str, value: np.ndarray) -> tuple[np.ndarray, Kind | None]:
        if value.ndim == 1:
            return plain(name, value)
        return gguf.quants.quantize(value.astype(np.float32), kind), kind

    return pack


def write_keys(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """config.json as metadata."""
    if config["model_type"] in space.ARCHS:
        space.write_keys(writer, config)
        return
    if config["model_type"] == "gpt2":
        writer.add_block_count(config["n_layer"])
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_feed_forward_length(4 * config["n_embd"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if "conv_L_cache" in config:
        wide, multiple = int(2 * config["intermediate_size"] / 3), config["block_multiple_of"]
        writer.add_feed_forward_length(-(-wide // multiple) * multiple)
        heads = config["num_key_value_heads"]
        writer.add_head_count_kv([0 if t == "conv" else heads for t in config["layer_types"]])
    else:
        if "intermediate_size" in config:
            writer.add_feed_forward_length(config["intermediate_size"])
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        latents = "kv_lora_rank" in config and not config.get("joined")
        writer.add_head_count_kv(1 if latents else heads)
    writer.add_head_count(config["num_attention_heads"])
    eps = (config.get(key) for key in ("layer_norm_eps", "norm_epsilon", "norm_eps"))
    if "rms_norm_eps" in config or "conv_L_cache" in config:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    elif found := next((value for value in eps if value), None):
        writer.add_layer_norm_eps(found)
    if config.get("head_dim") and "kv_lora_rank" not in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    write_family(writer, config, rope)
    full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(more.theta(config) if "alpha" in full else full["rope_theta"])
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if "mrope_section" in full:
        writer.add_rope_dimension_sections([*full["mrope_section"], 0])
    if full.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if "sliding_attention" in config.get("layer_types", ()) and config["model_type"] != "mistral":
        pattern = [t == "sliding_attention" for t in config["layer_types"]]
        writer.add_array(f"{arch_of(config)}.attention.sliding_window_pattern", pattern)
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("query_pre_attn_scalar"):
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)


def delta_net(
    tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """Layers by the delta rule as the converter has them: Qwen 3.5's heads of values side by side
    that have different keys, Qwen3-Next's z apart from q, k and v, the speed's exponential."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    wide, size = config["linear_key_head_dim"], config["linear_value_head_dim"]
    share = heads // keys

    def tiled(x: np.ndarray) -> np.ndarray:
        if config["model_type"] == "qwen3_next":
            return x
        return x.reshape(keys, share, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)

    for name, value in tensors.items():
        stem, part = name.rsplit(".", 1)[0], name.removesuffix(".weight").rpartition(".")[2]
        if "linear_attn." not in name or part in ("norm", "in_proj_ba"):
            yield name, value
        elif part == "in_proj_qkvz":
            cuts = np.cumsum([wide, wide, share * size])
            parts = np.split(value.reshape(keys, -1, value.shape[1]), cuts, axis=1)
            *qkv, z = (x.reshape(-1, value.shape[1]) for x in parts)
            yield name.replace("qkvz", "qkv"), np.concatenate(qkv)
            yield name.replace("qkvz", "z"), z
        elif part in ("in_proj_qkv", "conv1d"):
            value = value[:, 0] if part == "conv1d" else value
            head = 2 * keys * wide
            yield name, np.concatenate([value[:head], tiled(value[head:])])
        elif part == "out_proj":
            yield name, tiled(value.T).T
        elif part == "A_log":
            yield name, tiled(-np.exp(value))
        else:
            yield (f"{stem}.dt_proj.bias" if part == "dt_bias" else name), tiled(value)


def unfused(tensors: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """gpt-oss's experts as the converter has them: [out, in], gate and up apart; LFM2's
    convolutions without the axis of one channel."""
    for name, value in tensors.items():
        if name.endswith("sinks"):
            yield f"{name}.weight", value
        elif name.endswith("conv.conv.weight"):
            yield name, value[:, 0]
        elif name.endswith("layer_scalar"):
            yield f"{name}.weight", value
        elif name.endswith(("router.scale", "per_expert_scale")):
            yield f"{name}.scale", value
        elif ".experts." in name and ".mlp." not in name and not name.endswith(".weight"):
            yield f"{name}.weight", value  # Gemma 4's
        elif re.search(r"experts\.\w+_proj(_bias)?$", name):
            stem, _, what = name.partition("_bias")[0], 0, "bias" if "_bias" in name else "weight"
            value = value if what == "bias" else value.swapaxes(1, 2)
            if "gate_up" not in stem:
                yield f"{stem}.{what}", value
                continue
            for i, part in enumerate(("gate", "up")):
                yield f"{stem.replace('gate_up', part)}.{what}", value[:, i::2]
        else:
            yield name, value


def stacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of a layer's experts as one each, as the converter has them."""
    out: dict[str, Any] = {}
    for name, value in unfused(tensors):
        one = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        number = re.search(r"\.experts\.(\d+)\.", name)
        if number is None:
            out[name] = value
        else:
            out.setdefault(one, {})[int(number[1])] = value
    return {
        k: np.stack([v[i] for i in range(len(v))]) if isinstance(v, dict) else v
        for k, v in out.items()
    }


def write_family(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]
) -> None:
    """The keys that only some families have."""
    for name, add in (
        ("attention_multiplier", writer.add_attention_scale),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("logits_scaling", writer.add_logit_scale),
    ):
        if name in config:
            add(config[name])
    if "linear_num_key_heads" in config:
        heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * size)
        writer.add_full_attention_interval(4)
        writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    if config.get("shared_expert_intermediate_size"):
        width = config["shared_expert_intermediate_size"]
        writer.add_expert_shared_feed_forward_length(width)
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        writer.add_expert_count(experts)
        used = config.get("num_experts_per_tok") or config["top_k_experts"]
        writer.add_expert_used_count(used)
        width = config.get("moe_intermediate_size") or config["intermediate_size"]
        writer.add_expert_feed_forward_length(width)
    if config["model_type"] == "gemma4_text":
        write_gemma4(writer, config)
    if "conv_L_cache" in config:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if "llama_4_scaling_beta" in rope:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_float32("mistral3.attention.temperature_scale", rope["llama_4_scaling_beta"])
    if config["model_type"] == "phi3":
        size = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * size))
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def write_gemma4(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Lists where layers differ; the usual sizes of heads are those of full layers."""
    own = [config["per_layer_config"].get(str(i), {}) for i in range(config["num_hidden_layers"])]
    shared = config["num_kv_shared_layers"]
    first = len(own) - shared
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_key_length(own[-1]["head_dim"])
    writer.add_value_length(own[-1]["head_dim"])
    writer.add_rope_dimension_count(own[-1]["head_dim"])
    for add in (writer.add_key_length_swa, writer.add_value_length_swa,
                writer.add_rope_dimension_count_swa):  # fmt: skip
        add(config["head_dim"])
    if config["use_double_wide_mlp"]:
        width = config["intermediate_size"]
        writer.add_feed_forward_length([width * (1 + (i >= first)) for i in range(len(own))])
    heads = config["num_key_value_heads"]
    writer.add_head_count_kv([layer.get("num_key_value_heads", heads) for layer in own])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def extra_tensors(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What the converter makes of a rope's scaling by pairs: LongRoPE's factors, or one divisor per
    frequency."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        names = {"short": "rope_factors_short.weight", "long": "rope_factors_long.weight"}
        return {to: np.array(rope[f"{k}_factor"], np.float32) for k, to in names.items()}
    if config["model_type"] == "gemma4_text":  # 1e30 for what stands still
        size = next(x for x in config["per_layer_config"].values())["head_dim"]
        turning = int(size * rope["full_attention"]["partial_rotary_factor"] / 2)
        still = np.arange(size // 2) >= turning
        return {"rope_freqs.weight": np.where(still, 1e30, 1.0).astype(np.float32)}
    divisors = rope_divisors(config)
    return {} if divisors is None else {"rope_freqs.weight": divisors}


def rope_divisors(config: Mapping[str, Any]) -> np.ndarray | None:
    """What the converter makes of Llama 3.1's scaling: one divisor per frequency."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") != "llama3":
        return None
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found = []
    for i in range(0, size, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / size)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = min(max((turns - low) / (high - low), 0), 1)
        found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(found, np.float32)


def write_gguf(
    folder: Path,
    path: Path,
    pack: Pack = plain,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
    change: Callable[[dict[str, np.ndarray]], None] | None = None,
    keys: Mapping[str, Any] | None = None,
    parts: int = 0,
) -> Path:
    """The model in a Hugging Face folder as a GGUF file, or files of `parts` tensors. `change` may
    edit the tensors by name; `keys` take the place of those that say what the model is."""
    config = json.loads((folder / "config.json").read_text())
    arch = arch_of(config)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=parts)
    write_keys(writer, config)
    if tokenizer is None:
        writer.add_vocab_size(config["vocab_size"])
    else:
        tokenizer(writer)
    tensors = {}
    read: Any = open_checkpoint(folder)
    if config["model_type"] in more.KINDS:
        more.write_keys(writer, config, read)
        read = dict(more.tensors(dict(read.items()), config))
    if config["model_type"] in space.ARCHS:
        read = dict(space.tensors(dict(read.items()), config))
    if "linear_num_key_heads" in config:
        read = dict(delta_net(dict(read.items()), config))
    for name, value in stacked(read).items():
        if config["model_type"] in space.ARCHS:
            ours = space.own_name(name, arch) or more.tensor_name(arch, name)
        elif config["model_type"] in more.KINDS:
            ours = more.own_name(name) or more.tensor_name(arch, name)
        else:
            ours = tensor_name(arch, name)
        tensors[ours] = converted(arch, ours, value, config)
    tensors |= extra_tensors(config)
    if change is not None:
        change(tensors)
    for key, value in (keys or {}).items():
        writer.kv_data[0].pop(key, None)
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    for name, value in tensors.items():
        data, kind = pack(name, np.ascontiguousarray(value))
        writer.add_tensor(name, data, raw_dtype=kind)
    finish(writer)
    return path
