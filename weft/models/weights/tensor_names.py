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
    "shared_up": "mlp.shared_expert.up_proj",
    "shared_gate": "mlp.shared_expert.gate_proj",
    "shared_down": "mlp.shared_expert.down_proj",
    "shared_by": "mlp.shared_expert_gate",
    "input_gate": "per_layer_input_gate",
    "input_proj": "per_layer_projection",
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
# The last two are prefixes of the text model in a multimodal one.
PREFIXES = ("model.", "", "language_model.model.", "model.language_model.")
RENAMED = {  # family -> pattern in the names above -> the family's own name
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
    r"(?:^|\.)(?:vision|visual|audio|embed_vision|embed_audio|multi_modal_projector)\w*\."
)
