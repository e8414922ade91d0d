"""The names of decoders' tensors in Hugging Face checkpoints: those that most families share, and
the exceptions."""

from __future__ import annotations

import re

PROJECTIONS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "qkv": "self_attn.qkv_proj",
    "gate_up": "mlp.gate_up_proj",
    "conv_in": "conv.in_proj",
    "conv": "conv.conv",
    "conv_out": "conv.out_proj",
    "delta_qkvz": "linear_attn.in_proj_qkvz",
    "delta_qkv": "linear_attn.in_proj_qkv",
    "delta_z": "linear_attn.in_proj_z",
    "delta_ba": "linear_attn.in_proj_ba",
    "delta_b": "linear_attn.in_proj_b",
    "delta_a": "linear_attn.in_proj_a",
    "delta_out": "linear_attn.out_proj",
    "ssm_in": "mamba.in_proj",
    "ssm_x": "mamba.x_proj",
    "ssm_dt": "mamba.dt_proj",
    "ssm_out": "mamba.out_proj",
    "shared_gate_up": "mlp.shared_expert.gate_up_proj",
    "shared_up": "mlp.shared_expert.up_proj",
    "shared_gate": "mlp.shared_expert.gate_proj",
    "shared_down": "mlp.shared_expert.down_proj",
    "shared_by": "mlp.shared_expert_gate",
    "q_a": "self_attn.q_a_proj",
    "q_a_norm": "self_attn.q_a_layernorm",
    "q_b": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": "self_attn.kv_a_layernorm",
    "kv_b": "self_attn.kv_b_proj",
    "k_b": "self_attn.k_b_proj",  # the parts of kv_b, in no checkpoint
    "v_b": "self_attn.v_b_proj",
    "input_gate": "per_layer_input_gate",
    "input_proj": "per_layer_projection",
    "alt_router": "altup.modality_router",
    "alt_predict": "altup.prediction_coefs",
    "alt_correct": "altup.correction_coefs",
    "laurel_left": "laurel.linear_left",
    "laurel_right": "laurel.linear_right",
}
NORMS = {  # keyed by (norms before, norms after) a layer's parts
    (True, False): {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    (False, True): {
        "attn_post": "post_attention_layernorm",
        "mlp_post": "post_feedforward_layernorm",
    },
    (True, True): {
        "attn_norm": "input_layernorm",
        "attn_post": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post": "post_feedforward_layernorm",
    },
}
BESIDE = {  # norms for experts in parallel with a dense feed-forward
    "exps_norm": "pre_feedforward_layernorm_2",
    "dense_post": "post_feedforward_layernorm_1",
    "exps_post": "post_feedforward_layernorm_2",
}
# The last three are prefixes of the text model in a multimodal one.
PREFIXES = ("model.", "", "language_model.model.", "model.language_model.", "model.text_model.")
PREFIX_OF = {
    "gpt_neox": ("gpt_neox.", ""),
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2"), ("backbone.", "")),
    "nemotron_h": ("backbone.", "model.", ""),
}
# Names of the numbers that count for the choice of experts alone, and axes of 1 before theirs.
ROUTER_BIAS: dict[str, tuple[str, tuple[int, ...]]] = {
    "glm4_moe": ("gate.e_score_correction_bias", ()),
    "deepseek_v3": ("gate.e_score_correction_bias", ()),
    "nemotron_h": ("gate.e_score_correction_bias", ()),
    "ernie4_5_moe": ("moe_statics.e_score_correction_bias", (1,)),
}
TURNED_EXPERTS = ("gpt_oss", "llama4_text")  # whose joined experts are [in, out]
_ALONE = {  # layers with one part
    r"^embed_tokens": "embeddings",
    r"^norm\.": "norm_f.",
    r"input_layernorm|post_attention_layernorm": "norm",
    r"\.(mamba|self_attn|mlp)\.": ".mixer.",
}
_EXPERTS_OF_GRANITE = {
    r"mlp\.experts\.gate_up_proj": "block_sparse_moe.input_linear.weight",
    r"mlp\.experts\.down_proj": "block_sparse_moe.output_linear.weight",
    r"mlp\.router\.": "block_sparse_moe.router.layer.",
}
_FEED_FORWARD = {
    r"^norm\.": "final_layernorm.",
    r"post_attention_layernorm": "pre_ff_layernorm",
    r"mlp\.": "feed_forward.",
}
_SHARED = {r"mlp\.shared_expert\.": "mlp.shared_experts."}
RENAMED = {  # family -> pattern in the names above -> the family's own name
    "mixtral": {
        r"mlp\.gate\.": "block_sparse_moe.gate.",
        r"mlp\.experts\.\{\}\.gate_proj": "block_sparse_moe.experts.{}.w1",
        r"mlp\.experts\.\{\}\.up_proj": "block_sparse_moe.experts.{}.w3",
        r"mlp\.experts\.\{\}\.down_proj": "block_sparse_moe.experts.{}.w2",
    },
    "granitemoe": _EXPERTS_OF_GRANITE,
    "granitemoehybrid": {
        **_EXPERTS_OF_GRANITE,
        r"mlp\.(shared_expert\.)?gate_up_proj": "shared_mlp.input_linear",
        r"mlp\.(shared_expert\.)?down_proj": "shared_mlp.output_linear",
    },
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2"), _ALONE),
    "nemotron_h": {**_ALONE, r"\.mixer\.shared_expert\.": ".mixer.shared_experts."},
    "falcon_h1": _FEED_FORWARD,
    "bamba": _FEED_FORWARD,
    "jamba": {**_FEED_FORWARD, r"feed_forward\.gate\.": "feed_forward.router."},
    "stablelm": {r"self_attn\.([qk])_norm": r"self_attn.\1_layernorm.norms.{}"},
    "starcoder2": {r"mlp\.up_proj": "mlp.c_fc", r"mlp\.down_proj": "mlp.c_proj"},
    "gpt_neox": {
        r"^embed_tokens": "embed_in",
        r"^norm\.": "final_layer_norm.",
        r"^lm_head": "embed_out",
        r"self_attn\.qkv_proj": "attention.query_key_value",
        r"self_attn\.o_proj": "attention.dense",
        r"mlp\.up_proj": "mlp.dense_h_to_4h",
        r"mlp\.down_proj": "mlp.dense_4h_to_h",
    },
    "phi": {
        r"^norm\.": "final_layernorm.",
        r"self_attn\.o_proj": "self_attn.dense",
        r"self_attn\.([qk])_norm": r"self_attn.\1_layernorm",
        r"mlp\.up_proj": "mlp.fc1",
        r"mlp\.down_proj": "mlp.fc2",
    },
    "glm4": {
        r"post_attention_layernorm": "post_self_attn_layernorm",
        r"pre_feedforward_layernorm": "post_attention_layernorm",
        r"post_feedforward_layernorm": "post_mlp_layernorm",
    },
    "glm4_moe": _SHARED,
    "deepseek_v2": _SHARED,
    "deepseek_v3": _SHARED,
    "ernie4_5_moe": _SHARED,
    "llama4_text": {r"mlp\.": "feed_forward."},
    "hunyuan_v1_dense": {
        r"self_attn\.q_norm": "self_attn.query_layernorm",
        r"self_attn\.k_norm": "self_attn.key_layernorm",
    },
    "apertus": {
        r"input_layernorm": "attention_layernorm",
        r"post_attention_layernorm": "feedforward_layernorm",
    },
    "gemma4_text": {r"mlp\.(experts|router)": r"\1", r"router\.weight": "router.proj.weight"},
    "lfm2": {
        r"^norm\.": "embedding_norm.",
        r"input_layernorm": "operator_norm",
        r"post_attention_layernorm": "ffn_norm",
        r"self_attn\.([qk])_norm": r"self_attn.\1_layernorm",
        r"self_attn\.o_proj": "self_attn.out_proj",
        r"mlp\.gate_proj": "feed_forward.w1",
        r"mlp\.up_proj": "feed_forward.w3",
        r"mlp\.down_proj": "feed_forward.w2",
    },
}

_KEPT = "weft keeps keys and values as floats"
_BUFFER = "a buffer that is computed from config.json"
# Tensors of a checkpoint that nothing reads, and why they do not matter.
INERT = {
    r"(^|\.)(\w+_)?inv_freq$": _BUFFER,
    r"\.rotary_emb\.(cos|sin)_cached$": _BUFFER,
    r"\.[qkv]_(scale|zero_point|global_scale)$|\.(prob|softmax|kv)_scale$": _KEPT,
    r"\.(kv_cache|[kv])_scale(_float)?$": _KEPT,
    r"(^|\.)mtp(_\w+)?\.": "layers that guess further tokens: the answer is the same without",
}
INERT_OF = {
    "gpt_neox": {
        r"\.attention\.(bias|masked_bias)$": "the causal mask",
    },
    "gpt2": {r"\.attn\.(bias|masked_bias)$": "the causal mask"},
    "encoder": {
        r"(^|\.)embeddings\.position_ids$": "0, 1, 2, ...",
        r"(^|\.)pooler\.dense\.(weight|bias)$": "made of the first token alone, after the vectors",
        r"^cls\.(predictions|seq_relationship)\.": "a head that fills gaps, after the vectors",
        r"^lm_head\.": "a head that fills gaps, after the vectors",
        r"^vocab_(transform|layer_norm|projector)\.": "a head that fills gaps, after the vectors",
    },
}
SENSES = re.compile(
    r"(?:^|\.)(?:vision|visual|audio|image_tower|video_tower|embed_vision|embed_audio|embed_tokens_extend|multi_modal_projector|connector)\w*\."
    r"|(?:^|\.)image_newline$"
)
