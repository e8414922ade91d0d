"""Architectures of transformers with a few weights: class, configuration, kind of input."""

from __future__ import annotations

from typing import Any

import torch

_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
_DECODER = _TEXT | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "use_cache": False}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}

ZOO: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertModel", _TEXT, "ids"),
    "albert": ("AlbertModel", _TEXT | {"embedding_size": 16}, "ids"),
    "electra": ("ElectraModel", _TEXT | {"embedding_size": 16}, "ids"),
    "modernbert": ("ModernBertModel", _TEXT | {"pad_token_id": 0}, "ids"),
    "squeezebert": ("SqueezeBertModel", _TEXT | {"embedding_size": 32}, "ids"),
    "roformer": ("RoFormerModel", _TEXT | {"embedding_size": 32}, "ids"),
    "convbert": ("ConvBertModel", _TEXT | {"embedding_size": 32}, "ids"),
    "deberta-v2": (
        "DebertaV2Model",
        _TEXT
        | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
        "ids",
    ),
    "convnext": (
        "ConvNextModel",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        "image64",
    ),
    "swin": (
        "SwinModel",
        {
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "image_size": 32,
            "patch_size": 4,
        },
        "image",
    ),
    "swinv2": (
        "Swinv2Model",
        {
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "image_size": 32,
            "patch_size": 4,
        },
        "image",
    ),
    "resnet": (
        "ResNetModel",
        {"embedding_size": 16, "hidden_sizes": [16, 24], "depths": [1, 1]},
        "image64",
    ),
    "mobilenet_v2": ("MobileNetV2Model", {"depth_multiplier": 0.25}, "image64"),
    "mobilenet_v1": ("MobileNetV1Model", {"depth_multiplier": 0.25}, "image64"),
    "mobilevit": (
        "MobileViTModel",
        {
            "hidden_sizes": [32, 32, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 64],
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "image_size": 64,
        },
        "image64",
    ),
    "segformer": (
        "SegformerModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "hidden_sizes": [16, 32],
            "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
        },
        "image64",
    ),
    "dinov2": ("Dinov2Model", _VISION, "image"),
    "deit": ("DeiTModel", _VISION, "image"),
    "beit": ("BeitModel", _VISION | {"use_relative_position_bias": True}, "image"),
    "vit": ("ViTModel", _VISION, "image"),
    "dinov3": ("DINOv3ViTModel", _VISION, "image"),
    "yolos": ("YolosModel", _VISION | {"image_size": [32, 32], "num_detection_tokens": 4}, "image"),
    "siglip_v": ("SiglipVisionModel", _VISION, "image"),
    "levit": (
        "LevitModel",
        {
            "image_size": 64,
            "hidden_sizes": [16, 32, 48],
            "num_attention_heads": [1, 2, 3],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        "image64",
    ),
    "pvt": (
        "PvtModel",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 4],
        },
        "image64",
    ),
    "focalnet": (
        "FocalNetModel",
        {
            "image_size": 32,
            "embed_dim": 16,
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
        "image",
    ),
    "hiera": (
        "HieraModel",
        {
            "image_size": [64, 64],
            "embed_dim": 16,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 2, 4, 8],
        },
        "image64",
    ),
    "dpt": ("DPTModel", _VISION | {"is_hybrid": False}, "image"),
    "audio_ast": (
        "ASTModel",
        _VISION | {"patch_size": 16, "max_length": 64, "num_mel_bins": 32},
        "spectrogram",
    ),
    "wav2vec2": (
        "Wav2Vec2Model",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "conv_dim": [16, 16],
            "conv_stride": [5, 2],
            "conv_kernel": [10, 3],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        },
        "wave",
    ),
    "t5": (
        "T5EncoderModel",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
        "ids",
    ),
    "t5full": (
        "T5Model",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 99,
            "use_cache": False,
        },
        "both",
    ),
    "bart": (
        "BartModel",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "vocab_size": 99,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        "both",
    ),
    "opt": (
        "OPTForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "vocab_size": 99,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "use_cache": False,
        },
        "ids",
    ),
    "bloom": (
        "BloomForCausalLM",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "use_cache": False},
        "ids",
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "vocab_size": 99,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        "ids",
    ),
    "falcon": (
        "FalconForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 99,
            "use_cache": False,
        },
        "ids",
    ),
    "mistral": ("MistralForCausalLM", _DECODER | {"sliding_window": 4}, "ids"),
    "gemma": ("GemmaForCausalLM", _DECODER, "ids"),
    "gemma2": ("Gemma2ForCausalLM", _DECODER | {"sliding_window": 4}, "ids"),
    "gemma3": ("Gemma3ForCausalLM", _DECODER | {"sliding_window": 4}, "ids"),
    "phi": ("PhiForCausalLM", _DECODER, "ids"),
    "phi3": ("Phi3ForCausalLM", _DECODER, "ids"),
    "stablelm": ("StableLmForCausalLM", _DECODER, "ids"),
    "mixtral": ("MixtralForCausalLM", _DECODER | {"num_local_experts": 4}, "ids"),
    "cohere": ("CohereForCausalLM", _DECODER, "ids"),
    "qwen3": ("Qwen3ForCausalLM", _DECODER, "ids"),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        _DECODER | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        "ids",
    ),
    "mamba": (
        "MambaForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "vocab_size": 99,
            "use_cache": False,
        },
        "ids",
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "vocab_size": 99,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "use_cache": False,
        },
        "ids",
    ),
    "rwkv": (
        "RwkvForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "vocab_size": 99,
            "use_cache": False,
        },
        "ids",
    ),
    "granite": ("GraniteForCausalLM", _DECODER, "ids"),
    "lfm2": ("Lfm2ForCausalLM", _DECODER | {"layer_types": ["conv", "full_attention"]}, "ids"),
    "videomae": ("VideoMAEModel", _VISION | {"num_frames": 4, "tubelet_size": 2}, "video"),
    "timesformer": ("TimesformerModel", _VISION | {"num_frames": 4}, "video"),
    "swin2sr": (
        "Swin2SRModel",
        {"embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 4, "image_size": 32},
        "image",
    ),
    "patchtst": (
        "PatchTSTModel",
        {
            "num_input_channels": 3,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
        },
        "series",
    ),
}

_SHAPES = {
    "image": (2, 3, 32, 32),
    "image64": (2, 3, 64, 64),
    "spectrogram": (2, 64, 32),
    "wave": (2, 400),
    "video": (1, 4, 3, 32, 32),
    "series": (2, 32, 3),
}


def example(kind: str) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Arguments of a model: positional and named."""
    if kind in _SHAPES:
        return (torch.randn(_SHAPES[kind]),), {}
    ids = torch.randint(5, 90, (2, 9))
    named = {"decoder_input_ids": torch.randint(5, 90, (2, 5))} if kind == "both" else {}
    return (ids,), named
