"""The fields of config.json that each family's reader uses.

A family's table gives each field and the value that transformers 5 uses if a file leaves it out
(`configuration_*.py`). A reader sees no other fields. A null field counts as missing a value,
whatever the table says. Sizes are required: a file must give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.arch.state_space_fields import STATE_SPACE_ALIASES, STATE_SPACE_FIELDS

Table = Mapping[str, Any]

_SIZES: Table = dict.fromkeys((
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
))  # fmt: skip
ROPE: Table = {
    **dict.fromkeys(("rope_parameters", "rope_scaling", "partial_rotary_factor")),
    "rope_theta": 1e4, "original_max_position_embeddings": None,
}  # fmt: skip
_BASE: Table = {
    **_SIZES, **ROPE, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA: Table = {**_BASE, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_OLMO: Table = {**_BASE, "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-5}
_SLIDES: Table = {"use_sliding_window": False, "sliding_window": 4096}
_SPARSE: Table = {
    "decoder_sparse_step": 1, "mlp_only_layers": None, "num_local_experts": None,
}  # fmt: skip
_QWEN2: Table = {
    **_BASE, "hidden_act": "silu", "num_key_value_heads": 32, "max_position_embeddings": 32768,
    **_SLIDES, "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
_QWEN2_VL: Table = {
    **_QWEN2, "num_key_value_heads": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
}  # fmt: skip
_GEMMA: Table = {
    **_BASE, "hidden_activation": "gelu_pytorch_tanh", "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "attention_bias": False,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "layer_types": None,
    "final_logit_softcapping": None, "use_bidirectional_attention": None,
}  # fmt: skip
_GEMMA4: Table = {
    **{k: v for k, v in _GEMMA.items() if k != "query_pre_attn_scalar" and k not in ROPE},
    "max_position_embeddings": 131072, "sliding_window": 512,
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": None,
    "attention_k_eq_v": False, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
    "global_head_dim": 512, "num_global_key_value_heads": None, "per_layer_config": None,
    "enable_moe_block": False, "num_experts": None, "top_k_experts": None,
    "moe_intermediate_size": None, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        "sliding_attention": {},
    },
}  # fmt: skip
_GEMMA3N: Table = {
    **{k: v for k, v in _GEMMA.items() if k not in ("query_pre_attn_scalar",
                                                   "use_bidirectional_attention")},
    "num_key_value_heads": 2, "max_position_embeddings": 32768, "rope_theta": 1e6,
    "rope_local_base_freq": 1e4, "sliding_window": 512, "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
    "altup_active_idx": 0, "altup_correct_scale": True, "altup_num_inputs": 4,
    "num_kv_shared_layers": 15, "laurel_rank": 64, "activation_sparsity_pattern": None,
}  # fmt: skip
_DELTA: Table = {
    **_BASE, "hidden_act": "silu", "attention_bias": False, "head_dim": 256,
    "max_position_embeddings": 32768, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
    "layer_types": None, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}  # fmt: skip
_SHARED: Table = {
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_local_experts": None,
}  # fmt: skip
_YARN: Table = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_GPT_OSS_YARN: Table = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_LAYER_NORM: Table = {
    **{k: v for k, v in _BASE.items() if k != "rms_norm_eps"}, "hidden_act": "silu",
    "layer_norm_eps": 1e-5, "attention_bias": False,
}  # fmt: skip
_COHERE: Table = {
    **_LAYER_NORM, "rope_theta": 5e5, "max_position_embeddings": 8192, "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}  # fmt: skip
_ERNIE: Table = {
    **_BASE, "hidden_act": "silu", "rope_theta": 5e5, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "use_bias": False,
}  # fmt: skip
_APERTUS_ROPE: Table = {
    "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_DEEPSEEK: Table = {
    **{k: v for k, v in _BASE.items() if k != "head_dim"}, "hidden_act": "silu",
    "attention_bias": False, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "num_local_experts": None,
}  # fmt: skip
_NO_WIDTH = ("intermediate_size",)  # if all layers have experts

_PHI3: Table = {
    **_BASE, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "original_max_position_embeddings": 4096, "sliding_window": None,
}  # fmt: skip
DECODER_FIELDS: Mapping[str, Table] = {
    "gpt2": {
        **dict.fromkeys(("vocab_size", "n_embd", "n_layer", "n_head", "n_inner")),
        "n_positions": 1024, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False, "tie_word_embeddings": True,
    },
    "llama": _LLAMA,
    "mistral": {
        **_BASE, "hidden_act": "silu", "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "ministral3": {
        **_BASE, "hidden_act": "silu", "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "sliding_window": None,
        "rope_parameters": _YARN,
    },
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128, "attention_bias": False},
    "qwen3_moe": {
        **{k: v for k, v in _QWEN2.items() if k not in ("max_window_layers", "layer_types")},
        **_SPARSE, "num_key_value_heads": 4, "attention_bias": False, "norm_topk_prob": False,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
    },
    "qwen3_next": {
        **_DELTA, **_SHARED, **_SPARSE, "norm_topk_prob": True, "num_experts_per_tok": 10,
        "num_experts": 512,
    },
    "qwen3_5_text": {**_DELTA, "num_key_value_heads": 4},
    "qwen3_5_moe_text": {
        **{k: v for k, v in _DELTA.items() if k not in _NO_WIDTH}, **_SHARED,
        "num_experts_per_tok": 8, "num_experts": 256,
    },
    "qwen2_vl_text": _QWEN2_VL, "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": {
        **_BASE, "hidden_act": "silu", "head_dim": 128, "attention_bias": False,
        "num_key_value_heads": 32, "max_position_embeddings": 128000, "rope_theta": 5e5,
    },
    "gemma2": {**_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3_text": {
        **_GEMMA, "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8,  # wrappers leave these out
        "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "sliding_window_pattern": None, "_sliding_window_pattern": None,
    },
    "gemma3n_text": _GEMMA3N,
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": {
        **_GEMMA4, "hidden_size_per_layer_input": 0, "sliding_window": 1024,
    },
    "gpt_oss": {
        **_BASE, "rope_theta": 150000.0, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 128,
        "layer_types": None, "attention_bias": True, "num_experts": None,
        "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
        "swiglu_alpha": 1.702, "rope_parameters": _GPT_OSS_YARN,
    },
    "lfm2": {
        **{k: v for k, v in _BASE.items() if k != "rms_norm_eps"}, "rope_theta": 1e6,
        "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5,
        "tie_word_embeddings": True, "tie_embedding": None, "block_ff_dim": None,
        "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256, "conv_L_cache": 3, "conv_bias": False,
        "full_attn_idxs": None, "layer_types": None,
    },
    "phi3": _PHI3,
    "phi4_multimodal": {
        **_PHI3, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "smollm3": {
        **_LLAMA, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rope_theta": 2e6, "tie_word_embeddings": True, **_SLIDES, "sliding_window": None,
        "no_rope_layers": None, "no_rope_layer_interval": 4, "layer_types": None,
    },
    "granite": {
        **_LLAMA, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0, "logits_scaling": 1.0,
    },
    "olmo2": _OLMO,
    "olmo3": {**_OLMO, "rope_theta": 5e5, "sliding_window": 4096, "layer_types": None},
    "olmo": {
        **{k: v for k, v in _OLMO.items() if k != "rms_norm_eps"}, "clip_qkv": None,
    },
    "mixtral": {
        **_BASE, "hidden_act": "silu", "num_key_value_heads": 8, "rope_theta": 1e6,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": None,
        "num_experts_per_tok": 2, "num_local_experts": 8, "num_experts": None,
    },
    "olmoe": {
        **_OLMO, "max_position_embeddings": 4096, "clip_qkv": None, "num_experts_per_tok": 8,
        "num_experts": 64, "num_local_experts": None, "norm_topk_prob": False,
    },
    "qwen2_moe": {
        **_QWEN2, **_SPARSE, "num_key_value_heads": 16, "qkv_bias": True, "norm_topk_prob": False,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "num_experts": 60,
    },
    "granitemoe": {
        **_BASE, "hidden_act": "silu", "attention_bias": False, "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0,
        "num_local_experts": 8, "num_experts_per_tok": 2, "num_experts": None,
    },
    "glm4_moe": {
        **_BASE, "hidden_act": "silu", "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "partial_rotary_factor": 0.5, "attention_bias": False,
        "use_qk_norm": False, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "n_routed_experts": 128, "num_local_experts": None, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "num_nextn_predict_layers": 1,
    },
    "deepseek_v2": {
        **_DEEPSEEK, "first_k_dense_replace": 0, "n_group": None, "topk_group": None,
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": None,
        "moe_intermediate_size": 1407, "routed_scaling_factor": 1.0, "topk_method": "greedy",
        "mlp_bias": False,
    },
    "deepseek_v3": {
        **_DEEPSEEK, "num_key_value_heads": 128, "max_position_embeddings": 4096,
        "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rope_interleave": True,
        "num_nextn_predict_layers": 1,
    },
    "llama4_text": {
        **_BASE, "hidden_act": "silu", "rope_theta": 5e5, "num_key_value_heads": 8,
        "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "num_local_experts": 16,
        "num_experts": None, "moe_layers": None, "interleave_moe_layer_step": 1,
        "use_qk_norm": True, "no_rope_layers": None, "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192, "layer_types": None, "attn_temperature_tuning": True,
        "floor_scale": 8192, "attn_scale": 0.1, "attention_bias": False,
    },
    "ernie4_5_moe": {
        **_ERNIE, "num_key_value_heads": 4, "moe_intermediate_size": 1536, "moe_k": 6,
        "moe_num_experts": 64, "num_experts": None, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1,
        "moe_norm_min": 1e-12,
    },
    "gpt_neox": {
        **{k: v for k, v in _LAYER_NORM.items() if k not in ("head_dim", "num_key_value_heads")},
        "hidden_act": "gelu", "attention_bias": True, "partial_rotary_factor": 0.25,
        "use_parallel_residual": True,
    },
    "phi": {
        **{k: v for k, v in _LAYER_NORM.items() if k != "attention_bias"},
        "hidden_act": "gelu_new", "partial_rotary_factor": 0.5, "qk_layernorm": False,
    },
    "stablelm": {
        **{k: v for k, v in _LAYER_NORM.items() if k != "attention_bias"},
        "num_key_value_heads": 32, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25,
        "use_qkv_bias": False, "qk_layernorm": False, "use_parallel_residual": False,
    },
    "starcoder2": {
        **{k: v for k, v in _LAYER_NORM.items() if k not in ("attention_bias", "layer_norm_eps")},
        "hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 2, "norm_epsilon": 1e-5,
        "max_position_embeddings": 4096, "sliding_window": None, "use_bias": True,
        "tie_word_embeddings": True,
    },
    "cohere": {**_COHERE, "use_qk_norm": False},
    "cohere2": {
        **_COHERE, "rope_theta": 1e4, "sliding_window": 4096, "sliding_window_pattern": 4,
        "layer_types": None,
    },
    "nemotron": {
        **{k: v for k, v in _LAYER_NORM.items() if k != "layer_norm_eps"}, "norm_eps": 1e-5,
        "hidden_act": "relu2", "max_position_embeddings": 4096, "partial_rotary_factor": 0.5,
        "mlp_bias": False,
    },
    "gemma": {
        **{k: v for k, v in _GEMMA.items() if k in (*_BASE, "attention_bias",
                                                   "use_bidirectional_attention")},
        "hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 16,
    },
    "seed_oss": {
        **_LLAMA, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288,
        "attention_bias": True, "attention_out_bias": False,
    },
    "exaone4": {
        **_BASE, "hidden_act": "silu", "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
        "sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None,
    },
    "glm4": {
        **_BASE, "hidden_act": "silu", "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5, "attention_bias": True,
    },
    "ernie4_5": {**_ERNIE, "num_key_value_heads": 2, "head_dim": 128},
    "hunyuan_v1_dense": {
        **_BASE, "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False,
    },
    "apertus": {
        **_BASE, "hidden_act": "xielu", "rope_theta": 12e6, "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5, "attention_bias": False, "rope_parameters": _APERTUS_ROPE,
    },
    **STATE_SPACE_FIELDS,
}  # fmt: skip

# A wrapper's text model has its own config; only the wrapper's tied embeddings count.
WRAPPER_FIELDS: Mapping[str, Table] = {
    kind: {"text_config": None, "vision_config": None, "tie_word_embeddings": tied}
    for kind, tied in {
        "mistral3": True, "gemma3": True, "qwen3_5": False, "qwen3_5_moe": False, "gemma4": True,
        "gemma4_unified": True, "llama4": False, "gemma3n": True, "llava": False,
        "llava_next": False, "llava_onevision": False, "llava_next_video": False,
        "video_llava": False, "vipllava": False,
        "idefics3": False, "smolvlm": False, "qwen2_vl": False,
        "qwen2_5_vl": False, "qwen3_vl": False, "internvl": True,
    }.items()
}  # fmt: skip

# Other spellings of fields; they take precedence over the family's own.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    },
    **STATE_SPACE_ALIASES,
    "gpt_neox": {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    "nomic_bert": {
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
    },
    "distilbert": {
        "hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
    },
}  # fmt: skip
