"""The fields of config.json for families with state spaces (see `family_fields`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEMOTRON_LAYERS = ["linear_attention", "moe", "full_attention", "mlp"]
_LIMITS = {"time_step_limit": None}
_MAMBA: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers")),
    "layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4, "use_bias": False,
    "use_conv_bias": True, "hidden_act": "silu", "state_size": 16, "time_step_rank": "auto",
    "tie_word_embeddings": True,
}  # fmt: skip
_HYBRID: Mapping[str, Any] = {
    **dict.fromkeys((
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "head_dim", "rope_parameters", "rope_scaling",
        "partial_rotary_factor", "original_max_position_embeddings",
    )),
    "rope_theta": 1e4, "num_key_value_heads": 8, "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "mamba_n_heads": 128, "mamba_d_head": "auto",
    "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_conv_bias": True, "mamba_proj_bias": False, **_LIMITS,
}  # fmt: skip

STATE_SPACE_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "mamba": _MAMBA,
    "falcon_mamba": {**_MAMBA, "mixer_rms_eps": 1e-6},
    "mamba2": {
        **{k: v for k, v in _MAMBA.items() if k != "time_step_rank"}, **_LIMITS,
        "tie_word_embeddings": False, "state_size": 128, "num_heads": 128, "head_dim": 64,
        "n_groups": 8,
    },
    "bamba": {**_HYBRID, "attn_layer_indices": None, "partial_rotary_factor": 0.5},
    "granitemoehybrid": {
        **{k: v for k, v in _HYBRID.items() if k != "mlp_bias"}, "num_key_value_heads": None,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "embedding_multiplier": 1.0,
        "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0,
        "num_local_experts": 8, "num_experts_per_tok": 2, "num_experts": None,
        "shared_intermediate_size": 1024, "position_embedding_type": None, "layer_types": None,
    },
    "falcon_h1": {
        **_HYBRID, "max_position_embeddings": 8192, "mamba_d_ssm": 1024,
        "mamba_norm_before_gate": True, "mamba_rms_norm": False, "projectors_bias": False,
        "lm_head_multiplier": 1.0, "embedding_multiplier": 1.0, "mlp_multipliers": None,
        "key_multiplier": 1.0, "attention_out_multiplier": 1.0, "attention_in_multiplier": 1.0,
        "ssm_multipliers": None, "ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0,
    },
    "nemotron_h": {
        **dict.fromkeys((
            "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
            "hybrid_override_pattern", "moe_latent_size", "sliding_window",
            "num_hidden_layers", "num_local_experts", *_LIMITS,
        )),
        "tie_word_embeddings": False, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 4096, "attention_bias": False, "mlp_hidden_act": "relu2",
        "mlp_bias": False, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
        "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4, "use_conv_bias": True,
        "use_bias": False, "layer_norm_epsilon": 1e-5, "n_routed_experts": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "num_nextn_predict_layers": 0, "layers_block_type": NEMOTRON_LAYERS,
    },
    "jamba": {
        **dict.fromkeys((
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads",
        )),
        "num_key_value_heads": 8, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "hidden_act": "silu", "num_experts_per_tok": 2,
        "num_experts": 16, "num_local_experts": None, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto",
        "layer_types": None,
        "mamba_conv_bias": True, "mamba_proj_bias": False,
    },
}  # fmt: skip
STATE_SPACE_ALIASES: Mapping[str, Mapping[str, str]] = {
    "granitemoehybrid": {"layers_block_type": "layer_types"},
    "nemotron_h": {"layer_types": "layers_block_type", "attention_head_dim": "head_dim",
                   "mamba_conv_bias": "use_conv_bias", "mamba_d_conv": "conv_kernel",
                   "mamba_n_groups": "n_groups", "mamba_dt_limit": "time_step_limit"},
}  # fmt: skip

_TRAINING = "is about training"
_SPEED = "is how transformers computes, not what"
_OTHER = "is not read by transformers' own code for the family"
_ALIKE: Mapping[str, str] = {
    **dict.fromkeys((
        "time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual",
        "time_step_init_scheme", "time_step_scale", "z_loss_coefficient",
    ), _TRAINING),
    **dict.fromkeys((
        "chunk_size", "mamba_chunk_size", "residual_in_fp32", "use_mamba_kernels", "use_mambapy",
        "use_falcon_mambapy", "use_associative_scan", "num_logits_to_keep",
        "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "fused_add_norm", "rms_norm",
    ), _SPEED),
    **dict.fromkeys((
        "time_step_rank", "intermediate_size", "expand", "mamba_proj_bias", "attn_rotary_emb",
        "ssm_cfg", "d_inner", "mamba_use_mlp", "mamba_expand", "normalization_function",
        "init_method", "mlp_expansion_factor", "num_key_value_heads", "mamba_dt_min",
        "mamba_dt_max", "mamba_dt_init_floor", "mtp_hybrid_override_pattern", "max_seq_len",
        "pad_vocab_size_multiple", "vocab_size_multiple", "sliding_window", "n_mamba_heads",
    ), _OTHER),
}  # fmt: skip
# Fields that do not matter, and why.
STATE_SPACE_INERT: Mapping[str, Mapping[str, str]] = dict.fromkeys(STATE_SPACE_FIELDS, _ALIKE)
