"""Decoder families: turns the config.json of each into a DecoderConfig. A family is one short
function.

A function reads the fields of `family_fields`, with transformers' values for fields that a file
leaves out. The defaults given here apply to fields that are null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch import (
    family_gemma,
    family_layer_norm,
    family_llama4,
    family_moe,
    family_qwen,
    family_state_space,
    family_variants,
)
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_fields import DECODER_FIELDS, WRAPPER_FIELDS
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    activation,
    base,
    experts_of,
    kinds_of,
    multipliers,
    refuse,
    windows_of,
)
from weft.models.arch.family_ropes import said_of, single_rope, turned_layers, two_ropes
from weft.models.arch.model_fields import check_architecture, seen


def gpt2(c: Fields) -> DecoderConfig:
    """Reads GPT-2: learned positions, layer norms, fused qkv, Conv1D weights."""
    refuse(c, "scale_attn_by_inverse_layer_idx", False, "scaling attention by layer")
    refuse(c, "add_cross_attention", False, "cross attention")
    hidden = c.integer("n_embd", 1, MAX_HIDDEN)
    heads = c.integer("n_head", 1, MAX_HEADS)
    if hidden % heads:
        raise ModelError(f"{c.where}: n_embd {hidden} is not a multiple of {heads} heads")
    head_dim = hidden // heads
    return DecoderConfig(
        family="gpt2",
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=hidden,
        layers=c.integer("n_layer", 1, MAX_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=c.integer("n_inner", 1, MAX_FFN, 4 * hidden),
        max_positions=c.integer("n_positions", 1, 1 << 20, 1024),
        norm="layer",
        norm_eps=c.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        act=activation(c, "activation_function", "gelu_new"),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        fused_qkv=True,
        transposed=True,
        ropes=(),
        scale=head_dim**-0.5 if c.flag("scale_attn_weights", True) else 1.0,
        tied=c.flag("tie_word_embeddings", False),
    )


def llama(c: Fields) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    made = base(c, "llama", act=activation(c, "hidden_act", "silu"))
    made = replace(made, qkv_bias=bias, out_bias=bias, mlp_bias=c.flag("mlp_bias", False))
    return replace(made, ropes=(single_rope(c, made.head_dim),))


def mistral(c: Fields) -> DecoderConfig:
    made = _mistral(c, "mistral")
    return replace(made, ropes=(single_rope(c, made.head_dim),))


def _mistral(c: Fields, family: str) -> DecoderConfig:
    made = base(c, family, act=activation(c, "hidden_act", "silu"))
    return replace(made, windows=(c.integer("sliding_window", 1, MAX_POSITIONS, 0),) * made.layers)


def phi3(c: Fields) -> DecoderConfig:
    """Reads Phi-3 and Phi-4-mini: fused projections, a rope that may turn a part of the head."""
    made = base(c, "phi3", act=activation(c, "hidden_act", "silu"), fused_qkv=True, fused_gate=True)
    windows = (c.integer("sliding_window", 1, MAX_POSITIONS, 0),) * made.layers
    rope = single_rope(
        c, made.head_dim, partial=True, renamed={"su": "longrope", "yarn": "longrope"}
    )
    return replace(made, ropes=(rope,), windows=windows)


def smollm3(c: Fields) -> DecoderConfig:
    """Reads SmolLM3: a Llama without positions in every fourth layer."""
    made = replace(llama(c), family="smollm3", tied=c.flag("tie_word_embeddings", False))
    ropes = turned_layers(c, made.layers)
    sliding = c.flag("use_sliding_window", False)
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = windows_of(c, made.layers, window if sliding else 0, lambda i: ropes[i] is None)
    return replace(made, layer_rope=ropes, windows=windows)


def ministral3(c: Fields) -> DecoderConfig:
    """Reads Ministral 3: a Mistral with YaRN, whose queries grow beyond its original context."""
    made = _mistral(c, "ministral3")
    said, beta = said_of(c), "llama_4_scaling_beta"
    growth = said.number(beta, 0.0, 1e3, 0.0)
    rope = single_rope(c, made.head_dim, more=(beta,))
    if growth and rope.scaling is None:
        original = said.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
        rope = replace(rope, original=original)
    return replace(made, query_growth=growth, ropes=(rope,))


def granite(c: Fields) -> DecoderConfig:
    """Reads Granite 3 and 4, dense: a Llama with multipliers."""
    return replace(llama(c), family="granite", **multipliers(c))


def olmo2(c: Fields) -> DecoderConfig:
    """Reads OLMo 2: norms only after the mixer and the feed-forward, and norms of whole queries and
    keys."""
    made = _olmo2(c, "olmo2")
    return replace(made, ropes=(single_rope(c, made.head_dim),))


def _olmo2(c: Fields, family: str) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    made = base(c, family, act=activation(c, "hidden_act", "silu"), qkv_bias=bias, out_bias=bias)
    return replace(made, pre_norms=False, post_norms=True, qk_norm="whole")


def olmo3(c: Fields) -> DecoderConfig:
    """Reads OLMo 3: an OLMo 2 in which three of four layers slide, without the rope's scaling."""
    made = _olmo2(c, "olmo3")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = windows_of(c, made.layers, window, lambda i: (i + 1) % 4 != 0)
    theta = c.number("rope_theta", 1.0, 1e12, 1e4)
    return replace(made, **two_ropes(c, windows, (theta,) * 2, (made.head_dim,) * 2))


def gpt_oss(c: Fields) -> DecoderConfig:
    """Reads gpt-oss: experts throughout, sinks, biases, limited gates, YaRN, every other layer
    sliding."""
    bias = c.flag("attention_bias", True)
    made = base(c, "gpt_oss", qkv_bias=bias, out_bias=bias, mlp_bias=True, sinks=True)
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    return replace(
        made,
        **experts_of(c, "intermediate_size", names=("num_experts", "num_local_experts")),
        expert_norm=True,
        feed_forwards=("experts",) * made.layers,
        fused_experts="turns",
        gate_limit=c.number("swiglu_limit", 1e-3, 1e6, 7.0),
        gate_slope=c.number("swiglu_alpha", 1e-3, 1e6, 1.702),
        windows=windows_of(c, made.layers, window, lambda i: i % 2 == 0),
        ropes=(single_rope(c, made.head_dim),),
    )


def lfm2(c: Fields) -> DecoderConfig:
    """Reads LFM2: short convolutions in most layers, attention in the others."""
    width = c.integer("block_ff_dim", 1, MAX_FFN, None) or c.integer(
        "intermediate_size", 1, MAX_FFN
    )
    if c.flag("block_auto_adjust_ff_dim", True):
        width = int(c.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * int(2 * width / 3))
        multiple = c.integer("block_multiple_of", 1, MAX_FFN, 256)
        width = -(-width // multiple) * multiple
    made = base(
        c.over({"intermediate_size": width}),
        "lfm2",
        norm_eps=c.number("norm_eps", 0.0, 1.0, 1e-5),
        qk_norm="head",
        tied=c.flag("tie_embedding", c.flag("tie_word_embeddings", False)),
        conv_taps=c.integer("conv_L_cache", 1, 64, 3),
        conv_bias=c.flag("conv_bias", False),
    )
    full = c.integers("full_attn_idxs", 0, MAX_LAYERS) or range(made.layers)
    usual = ["full_attention" if i in full else "conv" for i in range(made.layers)]
    known = {"full_attention": "attention", "conv": "conv"}
    mixers = kinds_of(c, known, made.layers, usual)
    return replace(made, mixers=mixers, ropes=(single_rope(c, made.head_dim),))


_READERS: dict[str, Callable[[Fields], DecoderConfig]] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "ministral3": ministral3,
    "qwen3_next": family_qwen.qwen3_next,
    "qwen3_5_text": family_qwen.qwen3_5,
    "qwen3_5_moe_text": family_qwen.qwen3_5_moe,
    "qwen2": family_qwen.qwen2,
    "qwen3": family_qwen.qwen3,
    "qwen3_moe": family_qwen.qwen3_moe,
    "qwen2_moe": family_qwen.qwen2_moe,
    "qwen2_vl_text": family_qwen.qwen2_vl,
    "qwen2_5_vl_text": family_qwen.qwen2_vl,
    "qwen3_vl_text": family_qwen.qwen3_vl,
    "gemma": family_gemma.gemma,
    "gemma2": family_gemma.gemma2,
    "gemma3_text": family_gemma.gemma3,
    "gemma3n_text": family_gemma.gemma3n,
    "gemma4_text": family_gemma.gemma4,
    "gemma4_unified_text": family_gemma.gemma4,  # the text part of a multimodal model
    "gpt_oss": gpt_oss,
    "lfm2": lfm2,
    "phi3": phi3,
    "phi4_multimodal": phi3,  # the text part of a multimodal model
    "smollm3": smollm3,
    "granite": granite,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "olmo": family_layer_norm.olmo,
    "gpt_neox": family_layer_norm.gpt_neox,
    "phi": family_layer_norm.phi,
    "stablelm": family_layer_norm.stablelm,
    "starcoder2": family_layer_norm.starcoder2,
    "cohere": family_layer_norm.cohere,
    "cohere2": family_layer_norm.cohere2,
    "nemotron": family_layer_norm.nemotron,
    "mixtral": family_moe.mixtral,
    "olmoe": family_moe.olmoe,
    "granitemoe": family_moe.granitemoe,
    "glm4_moe": family_moe.glm4_moe,
    "deepseek_v2": family_moe.deepseek_v2,
    "deepseek_v3": family_moe.deepseek_v3,
    "ernie4_5_moe": family_moe.ernie4_5_moe,
    "llama4_text": family_llama4.llama4,
    "seed_oss": family_variants.seed_oss,
    "exaone4": family_variants.exaone4,
    "glm4": family_variants.glm4,
    "ernie4_5": family_variants.ernie4_5,
    "hunyuan_v1_dense": family_variants.hunyuan,
    "apertus": family_variants.apertus,
    "mamba": family_state_space.mamba,
    "falcon_mamba": family_state_space.falcon_mamba,
    "mamba2": family_state_space.mamba2,
    "bamba": family_state_space.bamba,
    "granitemoehybrid": family_state_space.granitemoehybrid,
    "falcon_h1": family_state_space.falcon_h1,
    "nemotron_h": family_state_space.nemotron_h,
    "jamba": family_state_space.jamba,
}


def _read(kind: str, raw: Fields) -> DecoderConfig:
    check_architecture(raw, "text")
    made = read_stream(kind, raw)
    if not made.causal:
        raise ModelError(
            f"{raw.where}: tokens see later ones (use_bidirectional_attention), so the model "
            "writes no text; load it to embed texts"
        )
    return made


def read_stream(kind: str, raw: Fields) -> DecoderConfig:
    """Returns the config of a decoder that gives vectors, so its output layer may be missing."""
    if kind in WRAPPER_FIELDS:
        return _wrapped(kind, raw)
    return _READERS[kind](seen(raw, kind, DECODER_FIELDS[kind]))


def _wrapped(kind: str, raw: Fields) -> DecoderConfig:
    """Reads the text model of a multimodal model. Its own config is in text_config, but the wrapper
    decides about tied embeddings."""
    outer = seen(raw, kind, WRAPPER_FIELDS[kind], _OF_EYES)
    text = outer.section("text_config")
    if text is None and f"{kind}_text" in _READERS:  # older files have its fields beside others
        text = raw.having({k: v for k, v in raw.data.items() if k != "model_type"})
    inner = text.text("model_type", f"{kind}_text") if text is not None else ""
    if "llava" in kind and text is not None and inner in _LLAVA:
        text = text.having({**_LLAVA[inner], **text.data})
    if text is None or inner not in _READERS:
        known = ", ".join(_READERS)
        raise ModelError(
            f"{raw.where}: text_config has model_type {inner[:60]!r}; supported in it: {known}"
        )
    made = _READERS[inner](seen(text, inner, DECODER_FIELDS[inner]))
    return replace(made, tied=outer.flag("tie_word_embeddings", False))


def text_within(raw: Fields) -> DecoderConfig | None:
    """Returns the config of the text model in a wrapper of a type that is not listed here; None if
    it has no vision_config, or no text_config of a known family."""
    text, kind = raw.section("text_config"), raw.text("model_type", "")
    if text is None or raw.section("vision_config") is None or kind in WRAPPER_FIELDS:
        return None
    inner = text.text("model_type", "")
    if inner not in _READERS:
        return None
    return _READERS[inner](seen(text, inner, DECODER_FIELDS[inner]))


# Sizes that LLaVA's files leave out, as in transformers' configs.
_SEVEN = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
          "num_attention_heads": 32}  # fmt: skip
_LLAVA = {"llama": {**_SEVEN, "intermediate_size": 11008},
          "mistral": {**_SEVEN, "intermediate_size": 14336}}  # fmt: skip
# Fields of a wrapper that concern pictures, and how they are prepared.
_OF_EYES = dict.fromkeys(("scale_factor", "downsample_ratio", "use_image_newline_parameter"), "")

DECODERS: dict[str, Callable[[Fields], DecoderConfig]] = {
    kind: partial(_read, kind) for kind in (*_READERS, *WRAPPER_FIELDS)
}
