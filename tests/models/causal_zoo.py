"""Tiny random checkpoints of transformers' causal types, and what transformers makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES: tuple[str, ...] = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
PROMPT, NEW = 23, 16  # tokens
SPECIAL = 4  # ids below may be padding


def _named(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


# Sizes under the names that configs give them. A size that a config leaves None stays None.
SIZES: dict[str, Any] = {
    **_named("hidden_size n_embd d_model word_embed_proj_dim dim embedding_size", 64),
    **_named("input_hidden_size embed_dim hidden_dim lru_width", 64),
    **_named("intermediate_size ffn_dim n_inner ffn_hidden_size decoder_ffn_dim", 96),
    **_named("encoder_ffn_dim dff ffn_hidden_dim dim_ff", 96),
    **_named("num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers", 2),
    **_named("num_attention_heads n_head n_heads num_heads decoder_attention_heads", 4),
    **_named("encoder_attention_heads attention_heads", 4),
    **_named("head_dim attention_head_size dim_head v_head_dim qk_nope_head_dim", 16),
    **_named("max_position_embeddings n_positions n_ctx max_seq_len", 128),
    **_named("moe_intermediate_size shared_expert_intermediate_size", 48),
    **_named("num_experts num_local_experts n_routed_experts moe_num_experts", 8),
    **_named("num_experts_per_tok moe_k n_group mamba_expand", 2),
    **_named("topk_group first_k_dense_replace n_shared_experts", 1),
    **_named("linear_key_head_dim linear_value_head_dim mamba_d_head mamba_head_dim", 16),
    **_named("mamba_d_state state_size ssm_state_size mamba_n_heads mamba_num_heads", 8),
    **_named("n_groups mamba_n_groups linear_num_key_heads", 2),
    **_named("mamba_dt_rank time_step_rank linear_num_value_heads", 4),
    **_named("hidden_size_per_layer_input laurel_rank qk_rope_head_dim", 8),
    **_named("vocab_size vocab_size_per_layer_input", 97),
    "num_key_value_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "sliding_window": 7,
    "layer_norm_eps": 1e-5,
}
TOKENS = _named("pad_token_id bos_token_id eos_token_id", None)
_VISION = _named("hidden_size image_size embed_dim", 32) | _named("num_layers depth", 1)
_VISION |= _named("num_attention_heads num_heads", 2) | _named("intermediate_size mlp_dim", 48)
_VISION |= {"num_hidden_layers": 1, "patch_size": 16, "out_hidden_size": 64}
_OPEN = ("sliding_window", "num_key_value_heads", "head_dim")

# What a type needs beside, or in place of, these sizes; None here leaves the config's own.
_LATENT = {"head_dim": None, "num_key_value_heads": 4}
_ENDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_WRITES = {"is_decoder": True}
_HEADS = {"head_dim": 16, "num_key_value_heads": 2}
NEEDS: dict[str, dict[str, Any]] = {
    **_named(
        "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note_text "
        "glm4_moe_lite glm_moe_dsa kimi_linear longcat_flash minicpm3 sarvam_mla youtu", _LATENT
    ),
    **_named("emu3 mllama modernbert-decoder gemma4 gemma4_unified xlm prophetnet", _ENDS),
    **_named(
        "camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl",
        _ENDS | _WRITES,
    ),
    **_named("bert bert-generation electra ernie roc_bert big_bird megatron-bert", _WRITES),
    **_named("rembert roformer", _WRITES),
    **_named("codegen gptj", {"rotary_dim": 8}),
    **_named("hunyuan_v1_dense hunyuan_v1_moe ministral nemotron", _HEADS),
    "cwm": _ENDS | {"eos_token_id": [2, 3]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 7},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gemma3n_text": {
        "num_hidden_layers": 10, "num_kv_shared_layers": 4,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 2,
        "activation_sparsity_pattern": [0.95] * 4 + [0.0] * 6,
    },
    "falcon_h1": {"mamba_d_ssm": 128},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "longcat_flash": {"head_dim": 8, "zero_expert_num": 2, "expert_ffn_hidden_size": 48,
                      "moe_topk": 2, "num_key_value_heads": 4},
    **_named("inkling2_text inkling2_loop_text", {"unpadded_vocab_size": 97}),
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"], "chunk_size": 8},
    "xmod": _ENDS | _WRITES | {"languages": ["en_XX", "de_DE"], "default_language": "de_DE"},
    "reformer": _WRITES | {"axial_pos_embds": False},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "n_groups": 2},
}  # fmt: skip


# The same for parts of a config.
PARTS: dict[str, dict[str, dict[str, Any]]] = {
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"hidden_size": 64},
    },
    **_named("emu3 mllama", {"text_config": _ENDS}),
    "dots3_note": {"text_config": _LATENT},
}


def config_of(kind: str, **more: Any) -> Any:
    """Returns a config of a type with tiny sizes."""
    cls = CONFIG_MAPPING[kind]
    base = cls()
    given, names = _sized(base, SIZES | TOKENS), base.to_dict()
    for part in getattr(cls, "sub_configs", {}):
        below = getattr(base, part, None)
        if below is not None:
            given[part] = _sized(below, SIZES if part.startswith("text") else _VISION)
            kinds = getattr(below, "layer_types", None)
            if kinds:
                given[part]["layer_types"] = (list(dict.fromkeys(kinds)) * 2)[:2]
        given[part] = given.get(part, {}) | PARTS.get(kind, {}).get(part, {})
    if names.get("layer_types"):
        given["layer_types"] = (list(dict.fromkeys(names["layer_types"])) * 2)[:2]
    given |= NEEDS.get(kind, {}) | more
    return cls(**{k: v for k, v in given.items() if v is not None or k in TOKENS})


def _sized(config: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    names, alias = config.to_dict(), getattr(type(config), "attribute_map", {})
    given = {}
    for name, size in sizes.items():
        at = name if name in names else alias.get(name)
        if at not in names:
            continue
        old = names[at]
        if isinstance(old, list | tuple | dict) or (old is None and name in _OPEN):
            continue
        given[name] = size
    return given


def written(kind: str, folder: Path, seed: int = 0, **more: Any) -> Any:
    """Writes a random checkpoint of a type, and returns transformers' model of it."""
    whole = config_of(kind, **more)
    torch.manual_seed(seed)
    cls = MODEL_FOR_CAUSAL_LM_MAPPING[type(whole)]
    config = whole if isinstance(whole, cls.config_class) else whole.get_text_config()
    model = cls._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim < 2:
                value.add_(torch.randn_like(value) * 0.1)
            elif value.std() < 0.1:
                value.copy_(torch.randn_like(value) * 0.08)
        for name, value in model.named_buffers():
            if "bias" in name and value.is_floating_point() and value.ndim == 1:
                value.add_(torch.randn_like(value) * 0.05)
    model.save_pretrained(folder)
    if config is not whole:
        whole.save_pretrained(folder)
    return model


def prompt(model: Any, length: int = PROMPT) -> list[int]:
    """Returns random ids that are no special tokens."""
    vocab = model.config.get_text_config().vocab_size
    return np.random.default_rng(0).integers(SPECIAL, vocab, length).tolist()


def eager(model: Any, ids: list[int]) -> np.ndarray:
    """Returns transformers' logits float32 [T, vocab]."""
    with torch.no_grad():
        out: np.ndarray = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()
    return out


def greedy(model: Any, ids: list[int], count: int = NEW) -> list[int]:
    """Returns the most probable next tokens by transformers, each from the whole text so far."""
    now = list(ids)
    for _ in range(count):
        now.append(int(eager(model, now)[-1].argmax()))
    return now[len(ids) :]
