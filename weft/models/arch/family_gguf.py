"""The families' names in GGUF files: one row per `model_type`, as data.

A row gives llama.cpp's architecture, and the key of each field of config.json. A reader
turns a file's metadata into these fields and calls the family's own function (`families`); a writer
goes the other way. Fields that no key gives have the values of `family_fields`.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.models.arch.family_fields import DECODER_FIELDS
from weft.models.arch.gguf_row import GgufFamily, Key
from weft.models.arch.state_space_gguf import STATE_SPACES

MORE_TOKENS = "nextn_predict_layers"  # the number of last layers that predict further tokens


KEYS = (
    Key("vocab_size", "vocab_size", "vocab"),
    Key("context_length", "max_position_embeddings", "max_positions", needed=True),
    Key("embedding_length", "hidden_size", "hidden"),
    Key("block_count", "num_hidden_layers", "layers"),
    Key("feed_forward_length", "intermediate_size", "ffn"),
    Key("attention.head_count", "num_attention_heads", "heads"),
    Key("attention.head_count_kv", "num_key_value_heads", "kv_heads"),
    Key("attention.key_length", "head_dim", "head_dim"),
    Key("attention.value_length", ""),
    Key("attention.scale", ""),
    Key("attention.layer_norm_rms_epsilon", "rms_norm_eps", "norm_eps", needed=True),
    Key("attention.sliding_window", "sliding_window"),
    Key("rope.freq_base", ".rope_theta", "ropes.0.theta"),
    Key("rope.scale_linear", ""),  # an older form of the factor
    Key("rope.scaling.type", ".rope_type", "ropes.0.scaling"),
    Key("rope.scaling.factor", ".factor", "ropes.0.factor"),
    Key("rope.scaling.yarn_beta_slow", ".beta_slow", "ropes.0.low_factor"),
    Key("rope.scaling.yarn_beta_fast", ".beta_fast", "ropes.0.high_factor"),
    Key("rope.scaling.original_context_length", ".original_max_position_embeddings",
        "ropes.0.original"),
)  # fmt: skip
# The keys that a writer writes for each way of scaling a rope.
SCALING: Mapping[str | None, tuple[str, ...]] = {
    None: (),
    "llama3": (),  # the tensor of divisors says it all
    "linear": ("rope.scaling.type", "rope.scaling.factor"),
    "yarn": ("rope.scaling.type", "rope.scaling.factor", "rope.scaling.yarn_beta_slow",
             "rope.scaling.yarn_beta_fast", "rope.scaling.original_context_length"),
    "longrope": ("rope.scaling.original_context_length", "rope.scaling.attn_factor"),
}  # fmt: skip

SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func
_PARTIAL = Key("rope.dimension_count", ".partial_rotary_factor")
_SOFT = Key("final_logit_softcapping", "final_logit_softcapping", "logit_softcap")
_LOCAL = Key("rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta", "ropes.1.theta")


def _experts(
    count: str = "num_experts", used: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
) -> tuple[Key, ...]:  # fmt: skip
    return (
        Key("expert_count", count, "experts"),
        Key("expert_used_count", used, "experts_used"),
        Key("expert_feed_forward_length", width, "expert_ffn"),
    )


_LOGITS = Key("logit_scale", "logit_scale", "logit_scale", needed=True)
_SHARED = (
    *_experts(),
    Key("expert_shared_feed_forward_length", "shared_expert_intermediate_size", "shared_ffn"),
)  # fmt: skip
_DELTA = (
    _PARTIAL,
    Key("ssm.group_count", "linear_num_key_heads", needed=True),
    Key("ssm.time_step_rank", "linear_num_value_heads", needed=True),
    Key("ssm.state_size", "linear_key_head_dim", needed=True),
    Key("ssm.inner_size", "linear_value_head_dim", needed=True),  # all heads together
    Key("ssm.conv_kernel", "linear_conv_kernel_dim", needed=True),
    Key("full_attention_interval", "full_attention_interval"),
    Key(MORE_TOKENS, ""),
)
_DELTA_NAMES = {
    "ffn_norm": "post_attention_norm", "shortconv.conv": "ssm_conv1d",
}  # fmt: skip
_ROUTED = (
    Key("expert_weights_scale", "routed_scaling_factor", "expert_scale"),
    Key("expert_group_count", "n_group", "expert_groups"),
    Key("expert_group_used_count", "topk_group", "groups_used"),
)
_NORMED = Key("expert_weights_norm", "norm_topk_prob", "expert_norm")
_LATENT = (
    *(Key(name, "") for name in (
        "attention.key_length", "attention.key_length_mla", "attention.value_length_mla",
        "rope.dimension_count", "attention.head_count_kv", "expert_gating_func", MORE_TOKENS,
        "rope.scaling.yarn_log_multiplier",
    )),
    Key("attention.kv_lora_rank", "kv_lora_rank", "latent.rank", needed=True),
    Key("attention.q_lora_rank", "q_lora_rank", "latent.query_rank"),
    *_experts("n_routed_experts"),
    Key("expert_shared_count", "n_shared_experts", needed=True),
    Key("leading_dense_block_count", "first_k_dense_replace"),
    *_ROUTED,
)  # fmt: skip
_GRANITE = (
    Key("attention.scale", "attention_multiplier", "scale"),
    Key("embedding_scale", "embedding_multiplier", "embed_scale"),
    Key("residual_scale", "residual_multiplier", "residual_scale"),
    Key("logit_scale", "logits_scaling", "logit_divisor"),
)


def _eps(field: str = "layer_norm_eps") -> Key:
    return Key("attention.layer_norm_epsilon", field, "norm_eps", needed=True)


GGUF: Mapping[str, GgufFamily] = {
    "gpt2": GgufFamily("gpt2", (
        Key("context_length", "n_positions", "max_positions", needed=True),
        Key("embedding_length", "n_embd", "hidden"),
        Key("block_count", "n_layer", "layers"),
        Key("feed_forward_length", "n_inner", "ffn", needed=True),
        Key("attention.head_count", "n_head", "heads"),
        Key("attention.layer_norm_epsilon", "layer_norm_epsilon", "norm_eps", needed=True),
    )),
    "llama": GgufFamily("llama", turned=True),
    "mistral": GgufFamily("llama", slides=True, turned=True),
    "ministral3": GgufFamily(
        "mistral3",
        (
            Key("attention.temperature_scale", ".llama_4_scaling_beta", "query_growth"),
            Key("rope.scaling.yarn_log_multiplier", ".mscale_all_dim"),
        ),
        {"rope_parameters": {"mscale": 1.0}},
        turned=True,
    ),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3"),
    "qwen2_vl_text": GgufFamily("qwen2vl", written=False),
    "qwen3_vl_text": GgufFamily("qwen3vl", (Key("n_deepstack_layers", ""),), written=False),
    "gemma2": GgufFamily(
        "gemma2",
        (_SOFT, Key("attn_logit_softcapping", "attn_logit_softcapping", "attn_softcap")),
        {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3_text": GgufFamily("gemma3", (_SOFT, _LOCAL)),
    "gemma3n_text": GgufFamily(
        "gemma3n",
        (
            _SOFT, _LOCAL,
            Key("attention.shared_kv_layers", "num_kv_shared_layers"),
            Key("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
            Key("altup.num_inputs", "altup_num_inputs"),
            Key("altup.active_idx", "altup_active_idx"),
            Key("activation_sparsity_scale", ""), Key("feed_forward_length", ""),
        ),
        {"final_logit_softcapping": 30.0},
        without=("attention.scale",), written=False,
    ),
    "gemma4_text": GgufFamily(
        "gemma4",
        (
            _SOFT, _LOCAL, *_experts(used="top_k_experts"),
            Key("attention.shared_kv_layers", "num_kv_shared_layers"),
            Key("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
            *(Key(name, "") for name in (
                "attention.head_count_kv", "feed_forward_length", "attention.key_length_swa",
                "attention.value_length_swa", "rope.dimension_count_swa",
            )),
        ),
        without=("attention.scale",), written=False,
    ),
    "qwen3_moe": GgufFamily("qwen3moe", _experts(), {"norm_topk_prob": True}),
    "gpt_oss": GgufFamily(
        "gpt-oss",
        _experts(count="num_local_experts", width="intermediate_size"),
        {"rope_parameters": {"truncate": False}},
        names={"ffn_norm": "post_attention_norm"}, written=False,
    ),
    "lfm2": GgufFamily(
        "lfm2",
        (
            Key("attention.layer_norm_rms_epsilon", "norm_eps", "norm_eps", needed=True),
            Key("attention.head_count_kv", "num_key_value_heads", needed=True),
            Key("shortconv.l_cache", "conv_L_cache", "conv_taps", needed=True),
        ),
        {"block_auto_adjust_ff_dim": False},
        other="conv", names={"output_norm": "token_embd_norm"},
    ),
    "phi3": GgufFamily("phi3", (
        _PARTIAL,
        Key("rope.scaling.attn_factor", ".attention_factor", "ropes.0.magnitude"),
        Key("rope.scaling.original_context_length", "original_max_position_embeddings",
            "ropes.0.original"),
    )),
    "smollm3": GgufFamily("smollm3", turned=True),
    "granite": GgufFamily("granite", _GRANITE, turned=True),
    "qwen3_5_text": GgufFamily(
        "qwen35", _DELTA,
        tiled=True, other="linear_attention", names=_DELTA_NAMES, written=False,
    ),
    "qwen3_5_moe_text": GgufFamily(
        "qwen35moe", (*_DELTA, *_SHARED),
        tiled=True, other="linear_attention", names=_DELTA_NAMES, written=False,
    ),
    "qwen3_next": GgufFamily(
        "qwen3next", (*_DELTA, *_SHARED), {"norm_topk_prob": True},
        other="linear_attention", names=_DELTA_NAMES, written=False,
    ),
    "olmo2": GgufFamily("olmo2"),
    "olmo3": GgufFamily("olmo2", (_LOCAL,), slides=True),
    "olmo": GgufFamily(
        "olmo",
        (Key("attention.clamp_kqv", "clip_qkv", "qkv_clip"),
         Key("attention.layer_norm_epsilon", "")),
        turned=True,
    ),
    "mixtral": GgufFamily(
        "llama", _experts("num_local_experts")[:2], sparse=True, turned=True
    ),
    "olmoe": GgufFamily("olmoe", _experts()[:2], {"norm_topk_prob": False}),
    "qwen2_moe": GgufFamily("qwen2moe", _SHARED, {"norm_topk_prob": False}),
    "granitemoe": GgufFamily(
        "granitemoe", (*_GRANITE, *_experts("num_local_experts")[:2]), turned=True, written=False
    ),
    "glm4_moe": GgufFamily(
        "glm4moe",
        (
            _PARTIAL, *_experts("n_routed_experts"),
            Key("expert_shared_count", "n_shared_experts", needed=True),
            Key("leading_dense_block_count", "first_k_dense_replace", needed=True),
            *_ROUTED, _NORMED,
            Key(MORE_TOKENS, "num_nextn_predict_layers"), Key("expert_gating_func", ""),
        ),
        names={"ffn_norm": "post_attention_norm"},
    ),
    "deepseek_v2": GgufFamily("deepseek2", (*_LATENT, Key("expert_weights_norm", ""))),
    "deepseek_v3": GgufFamily(
        "deepseek2", (*_LATENT, _NORMED), {"norm_topk_prob": False},
        flag="expert_gating_func", flagged=SIGMOID,
    ),
    "ernie4_5_moe": GgufFamily(
        "ernie4_5-moe",
        (
            *_experts("moe_num_experts", "moe_k"),
            Key("expert_shared_count", "moe_num_shared_experts"),
            Key("expert_shared_feed_forward_length", ""),
            Key("leading_dense_block_count", "moe_layer_start_index"),
            Key("interleave_moe_layer_step", "moe_layer_interval"),
        ),
        written=False,
    ),
    "llama4_text": GgufFamily(
        "llama4",
        (
            Key("feed_forward_length", "intermediate_size_mlp", "ffn"),
            Key("expert_count", "num_local_experts", "experts", needed=True),
            Key("expert_used_count", "num_experts_per_tok", "experts_used"),
            Key("expert_feed_forward_length", "intermediate_size", "expert_ffn", needed=True),
            Key("interleave_moe_layer_step", "interleave_moe_layer_step", needed=True),
            Key("attention.sliding_window", ""), Key("attention.sliding_window_pattern", ""),
        ),
        written=False,
    ),
    "gpt_neox": GgufFamily("gptneox", (
        _eps(), _PARTIAL,
        Key("use_parallel_residual", "use_parallel_residual", needed=True),
    )),
    "phi": GgufFamily("phi2", (_eps(), _PARTIAL)),
    "stablelm": GgufFamily("stablelm", (_eps(), _PARTIAL, Key("use_parallel_residual", ""))),
    "starcoder2": GgufFamily("starcoder2", (_eps("norm_epsilon"),)),
    "cohere": GgufFamily("command-r", (_eps(), _LOGITS)),
    "cohere2": GgufFamily("cohere2", (_eps(), _LOGITS)),
    "nemotron": GgufFamily("nemotron", (_eps("norm_eps"), _PARTIAL)),
    "gemma": GgufFamily("gemma"),
    "seed_oss": GgufFamily("seed_oss", names={"ffn_norm": "post_attention_norm"}),
    "exaone4": GgufFamily("exaone4"),
    "glm4": GgufFamily("glm4", (_PARTIAL,)),
    "ernie4_5": GgufFamily("ernie4_5"),
    "hunyuan_v1_dense": GgufFamily("hunyuan-dense"),
    "apertus": GgufFamily("apertus", written=False),
    **STATE_SPACES,
}  # fmt: skip


def families_of(arch: object) -> dict[str, GgufFamily]:
    """Returns the families of an architecture, by `model_type`; none if weft does not know it."""
    return {kind: row for kind, row in GGUF.items() if arch in (row.arch, row.with_experts)}


def architectures() -> tuple[str, ...]:
    names = (name for row in GGUF.values() for name in (row.arch, row.with_experts))
    return tuple(dict.fromkeys(name for name in names if name))


def keys_of(kind: str) -> tuple[Key, ...]:
    """Returns the keys of a family, with full paths. Keys of fields that it lacks are left out."""
    own = GGUF[kind].keys
    taken = {*GGUF[kind].without, *(key.name for key in own), *(key.field for key in own)} - {""}
    general = (key for key in KEYS if key.name not in taken and key.field not in taken)
    rope = "rope_parameters" + (".full_attention" if _LOCAL in own else "")
    keys = (key._replace(field=_full(key.field, rope)) for key in (*general, *own))
    return tuple(k for k in keys if k.field.partition(".")[0] in ("", *DECODER_FIELDS[kind]))


def _full(path: str, rope: str) -> str:
    return rope + path if path.startswith(".") else path
