"""Tiny checkpoints of further families for `model_zoo`: name -> (transformers config class, its
arguments), with odd sizes."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "vocab_size": 211, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 128, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
# Families whose heads always share the width.
_PLAIN = {k: v for k, v in _SIZES.items() if k != "head_dim"} | {"hidden_size": 72}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2}
_LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
_PART = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e3,
                             "partial_rotary_factor": 0.4}}  # fmt: skip

_DEEP = {
    **{k: v for k, v in _PLAIN.items() if k != "num_key_value_heads"}, "num_key_value_heads": 6,
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 9,
    "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 20,
    "kv_lora_rank": 18, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
    "routed_scaling_factor": 1.6,
}  # fmt: skip
# Families with state spaces: sizes that no vector divides, heads in groups.
_ALONE = {
    **{k: v for k, v in _SIZES.items() if k.startswith(("vocab", "hidden", "num_h")) or v is None},
    "state_size": 10, "conv_kernel": 3, "use_bias": True,
}  # fmt: skip
_HYBRID = {
    **_PLAIN, "num_hidden_layers": 3, "mamba_n_heads": 6, "mamba_d_head": "auto",
    "mamba_n_groups": 2, "mamba_d_state": 10, "mamba_d_conv": 3,
}  # fmt: skip
_GRANITE = {
    "attention_multiplier": 0.3, "embedding_multiplier": 5.3, "residual_multiplier": 0.22,
    "logits_scaling": 1.7,
}  # fmt: skip
_KINDS = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
STATE_SPACES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", _ALONE),
    "falcon_mamba": ("FalconMambaConfig", {**_ALONE, "use_bias": False, "time_step_rank": 5}),
    "mamba2": ("Mamba2Config", {**_ALONE, "num_heads": 6, "head_dim": 12, "n_groups": 2}),
    "bamba": ("BambaConfig", {**_HYBRID, "attn_layer_indices": [1], "mamba_proj_bias": True}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {**_HYBRID, **_LOCAL, **_GRANITE, **_KINDS, "intermediate_size": 20,
         "shared_intermediate_size": 28},
    ),
    "granitehybrid_dense": (
        "GraniteMoeHybridConfig",
        {**_HYBRID, **_GRANITE, **_KINDS, "num_local_experts": 0, "num_experts_per_tok": 0,
         "shared_intermediate_size": 28, "position_embedding_type": "rope"},
    ),
    "falcon_h1": (
        "FalconH1Config",
        {**_HYBRID, "num_hidden_layers": 2, "mamba_d_ssm": 72,
         "mlp_multipliers": [0.7, 1.3], "ssm_multipliers": [0.5, 0.8, 1.2, 0.9, 1.1],
         "key_multiplier": 0.6, "attention_in_multiplier": 0.8, "attention_out_multiplier": 1.4,
         "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7, "lm_head_multiplier": 0.4,
         "embedding_multiplier": 3.1},
    ),
    "falcon_h1_normed": (
        "FalconH1Config",
        {**_HYBRID, "num_hidden_layers": 2, "mamba_d_ssm": None,
         "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {**{k: v for k, v in _SIZES.items() if k != "num_hidden_layers"}, "mamba_num_heads": 6,
         "mamba_head_dim": 10, "n_groups": 2, "ssm_state_size": 14, "conv_kernel": 3,
         "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
         "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
         "moe_shared_expert_intermediate_size": 28, "moe_latent_size": 24,
         "time_step_min": 1e-9},  # transformers' prefill clamps to it, its decode does not
    ),
    "jamba": (
        "JambaConfig",
        {**_PLAIN, **_EXPERTS, "num_hidden_layers": 4, "attn_layer_period": 3,
         "attn_layer_offset": 1, "mamba_d_state": 10, "mamba_d_conv": 3, "mamba_dt_rank": 5},
    ),
}  # fmt: skip
# There are no names in GGUF for this one.
UNSAID = ("phi_normed",)
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralConfig", {**_SIZES, **_LOCAL, "sliding_window": 5}),
    "olmoe": ("OlmoeConfig", {**_PLAIN, **_EXPERTS, "clip_qkv": 0.4, "norm_topk_prob": True}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {
            **_PLAIN,
            **_EXPERTS,
            "num_hidden_layers": 3,
            "moe_intermediate_size": 20,
            "shared_expert_intermediate_size": 12,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 2,
        },
    ),
    "stablelm": ("StableLmConfig", {**_PLAIN, **_PART, "use_qkv_bias": True}),
    "stablelm_parallel": (
        "StableLmConfig",
        {**_PLAIN, **_PART, "qk_layernorm": True, "use_parallel_residual": True},
    ),
    "starcoder2": ("Starcoder2Config", {**_PLAIN, "sliding_window": 5}),
    "gpt_neox": ("GPTNeoXConfig", {**_PLAIN, **_PART}),
    "gpt_neox_serial": ("GPTNeoXConfig", {**_PLAIN, **_PART, "use_parallel_residual": False}),
    "phi": ("PhiConfig", {**_PLAIN, **_PART}),
    "phi_normed": ("PhiConfig", {**_PLAIN, "qk_layernorm": True}),
    "gemma": ("GemmaConfig", _SIZES),
    "cohere": ("CohereConfig", {**_PLAIN, "use_qk_norm": True, "logit_scale": 0.3}),
    "cohere2": (
        "Cohere2Config",
        {
            **_PLAIN,
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "logit_scale": 0.3,
        },
    ),
    "exaone4": (
        "Exaone4Config",
        {**_PLAIN, "num_hidden_layers": 4, "sliding_window": 5},
    ),
    "exaone4_full": (
        "Exaone4Config",
        {**_PLAIN, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "seed_oss": ("SeedOssConfig", _SIZES),
    "glm4": ("Glm4Config", _SIZES),
    "glm4_moe": (
        "Glm4MoeConfig",
        {
            **_SIZES,
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "use_qk_norm": True,
            "routed_scaling_factor": 1.7,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {
            **_DEEP,
            "n_group": 3,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "q_lora_rank": None,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **_DEEP,
            "n_group": 3,
            "topk_group": 2,
            "q_lora_rank": 22,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 5e3, "factor": 4.0, "beta_fast": 3.0,
                "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.8,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            **_SIZES,
            "num_hidden_layers": 4,
            "num_local_experts": 5,
            "intermediate_size": 20,
            "intermediate_size_mlp": 52,
            "interleave_moe_layer_step": 2,
            "floor_scale": 7,
            "attn_scale": 0.3,
        },
    ),
    "llama4_many": (
        "Llama4TextConfig",
        {
            **_SIZES,
            "num_hidden_layers": 3,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 20,
            "moe_layers": [0, 1],
            "no_rope_layers": [1, 0, 1],
            "attention_bias": True,
            "use_qk_norm": False,
        },
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        {
            **_SIZES,
            "num_hidden_layers": 6,
            "intermediate_size": [52, 52, 44, 44, 60, 60],
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 160,
            "hidden_size_per_layer_input": 7,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "laurel_rank": 10,
            "activation_sparsity_pattern": [0.95, 0.7, 0.0, 0.5, 0.0, 0.0],
            "final_logit_softcapping": 8.0,
        },
    ),
    "ernie4_5": ("Ernie4_5Config", {**_SIZES, "use_bias": True}),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        {**_PLAIN, "moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 20},
    ),
    "granitemoe": (
        "GraniteMoeConfig",
        {
            **_PLAIN,
            **_LOCAL,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 5.3,
            "residual_multiplier": 0.22,
            "logits_scaling": 1.7,
        },
    ),
    "hunyuan": (
        "HunYuanDenseV1Config",
        {
            **_SIZES,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 5e3, "alpha": 20.0, "factor": 1.0,
            },
        },
    ),
    "apertus": ("ApertusConfig", _PLAIN),
    "nemotron": ("NemotronConfig", {**_SIZES, "mlp_bias": True, "attention_bias": True}),
    "olmo": ("OlmoConfig", {**_PLAIN, "clip_qkv": 0.4}),
    **STATE_SPACES,
}  # fmt: skip
