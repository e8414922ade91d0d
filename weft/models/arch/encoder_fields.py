"""The fields of config.json that each encoder's reader takes, with transformers' values for those
that a file leaves out."""

from __future__ import annotations

from collections.abc import Mapping

from weft.models.arch.family_fields import Table

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
          "intermediate_size")  # fmt: skip
_BERT: Table = {
    **dict.fromkeys(_SIZES), "hidden_act": "gelu", "max_position_embeddings": 512,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    "position_embedding_type": "absolute", "is_decoder": False,
}  # fmt: skip
_ROBERTA: Table = {**_BERT, "pad_token_id": 1}
_ROPES: Table = {"rope_parameters": None, "rope_scaling": None, "rope_theta": None,
                 "head_dim": None, "position_embedding_type": None}  # fmt: skip
_T5: Table = {
    "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu", "pad_token_id": 0,
    "is_decoder": False, "is_encoder_decoder": None, "n_positions": 512,
}  # fmt: skip
# Choices of Nomic's first release, which its models make alike.
NOMIC: Table = {
    "activation_function": "swiglu", "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "prenorm": False, "parallel_block": False, "use_rms_norm": False,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "causal": False,
    "rotary_scaling_factor": None, "rotary_emb_scale_base": None, "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False, "parallel_block_tied_norm": False,
}  # fmt: skip
ENCODER_FIELDS: Mapping[str, Table] = {
    "bert": {**_BERT, "feed_forward_type": "original"},  # the last in Jina's
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": {
        **dict.fromkeys(("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim")),
        "max_position_embeddings": 512, "activation": "gelu", "pad_token_id": 0,
    },
    "electra": {**_BERT, "embedding_size": 128},
    "albert": {
        **_BERT, "hidden_act": "gelu_new", "embedding_size": 128, "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
    "mpnet": {
        **{k: v for k, v in _BERT.items() if k != "type_vocab_size"}, "pad_token_id": 1,
        "relative_attention_num_buckets": 32,
    },
    "modernbert": {
        **dict.fromkeys(_SIZES), "hidden_activation": "gelu", "max_position_embeddings": 8192,
        "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
        "local_attention": 128, "global_attn_every_n_layers": 3, "layer_types": None,
        "rope_parameters": None, "rope_scaling": None, "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0, "pad_token_id": 50283,
    },
    "nomic_bert": {
        **_BERT, **_ROPES, **dict.fromkeys(NOMIC), "hidden_act": "silu", "rope_theta": 1000.0,
        "max_position_embeddings": 2048,
    },
    "jina_embeddings_v3": {
        **_ROBERTA, **_ROPES, "max_position_embeddings": 8194, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "rope_theta": 20000.0,
    },
    "gte": {
        **_BERT, **_ROPES, "max_position_embeddings": 8192, "type_vocab_size": 1,
        "pad_token_id": 1, "rope_theta": 160000.0,
    },
    "deberta-v2": {
        **_BERT, "type_vocab_size": 0, "layer_norm_eps": 1e-7, "relative_attention": False,
        "max_relative_positions": -1, "position_buckets": -1, "norm_rel_ebd": "none",
        "share_att_key": False, "pos_att_type": None, "position_biased_input": True,
        "conv_kernel_size": 0, "embedding_size": None, "attention_head_size": None,
    },
    "deberta": {
        **_BERT, "vocab_size": 50265, "type_vocab_size": 0, "layer_norm_eps": 1e-7,
        "relative_attention": False, "max_relative_positions": -1, "pos_att_type": None,
        "position_biased_input": True, "talking_head": False, "embedding_size": None,
    },
    "t5": _T5,
    "mt5": {
        **_T5, "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
    },
    "umt5": {
        **_T5, "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
    },
}  # fmt: skip
