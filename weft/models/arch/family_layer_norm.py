"""Families with layer norms: GPT-NeoX, Phi 2, StableLM, StarCoder 2, Cohere, Nemotron, OLMo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_parts import MAX_POSITIONS, activation, base, windows_of
from weft.models.arch.family_ropes import single_rope


def _made(c: Fields, family: str, eps: str, act: str = "silu", **more: Any) -> DecoderConfig:
    """Reads the fields that these families share; `eps` is the field of the norms' epsilon."""
    norms: dict[str, Any] = {"norm": "layer", "norm_eps": c.number(eps, 0.0, 1.0, 1e-5)}
    return base(c, family, act=activation(c, "hidden_act", act), **norms, **more)


def gpt_neox(c: Fields) -> DecoderConfig:
    """Reads GPT-NeoX and Pythia: mixer and feed-forward side by side, q, k and v joined head by
    head, a rope of a part of the head."""
    bias = c.flag("attention_bias", True)
    made = _made(c, "gpt_neox", "layer_norm_eps", "gelu", qkv_bias=bias, out_bias=bias)
    return replace(
        made,
        gated=False,
        mlp_bias=True,
        fused_qkv=True,
        fused_by_head=True,
        parallel="two norms" if c.flag("use_parallel_residual", True) else "",
        ropes=(single_rope(c, made.head_dim, partial=True),),
    )


def phi(c: Fields) -> DecoderConfig:
    """Reads Phi 1, 1.5 and 2: one norm for mixer and feed-forward side by side, biases throughout,
    in the output layer too."""
    made = _made(c, "phi", "layer_norm_eps", "gelu_new", qkv_bias=True, out_bias=True)
    return replace(
        made,
        gated=False,
        mlp_bias=True,
        parallel="one norm",
        head_bias=True,
        qk_norm="head" if c.flag("qk_layernorm", False) else "",
        ropes=(single_rope(c, made.head_dim, partial=True),),
    )


def stablelm(c: Fields) -> DecoderConfig:
    """Reads StableLM 2 and 3B: a rope of a part of the head; the largest has norms of each head and
    its parts side by side."""
    made = _made(c, "stablelm", "layer_norm_eps", qkv_bias=c.flag("use_qkv_bias", False))
    return replace(
        made,
        parallel="one norm" if c.flag("use_parallel_residual", False) else "",
        qk_norm="heads" if c.flag("qk_layernorm", False) else "",
        ropes=(single_rope(c, made.head_dim, partial=True),),
    )


def starcoder2(c: Fields) -> DecoderConfig:
    """Reads StarCoder 2: biases, and no gate in the feed-forward."""
    bias = c.flag("use_bias", True)
    made = _made(c, "starcoder2", "norm_epsilon", "gelu_pytorch_tanh", gated=False)
    return replace(
        made,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        windows=(c.integer("sliding_window", 1, MAX_POSITIONS, 0),) * made.layers,
        ropes=(single_rope(c, made.head_dim),),
    )


def _cohere(c: Fields, family: str) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    made = _made(c, family, "layer_norm_eps", qkv_bias=bias, out_bias=bias, norm_bias=False)
    return replace(
        made,
        parallel="one norm",
        rope_pairs=True,
        logit_scale=c.number("logit_scale", 1e-6, 1e6, 0.0625),
        ropes=(single_rope(c, made.head_dim),),
    )


def cohere(c: Fields) -> DecoderConfig:
    """Reads Command R: parts side by side, norms without a bias, scaled logits, a rope of adjacent
    elements."""
    return replace(_cohere(c, "cohere"), qk_norm="heads" if c.flag("use_qk_norm", False) else "")


def cohere2(c: Fields) -> DecoderConfig:
    """Reads Command R7B and A: a Command R in which three of four layers slide, and only these have
    positions."""
    made = _cohere(c, "cohere2")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    every = c.integer("sliding_window_pattern", 1, 1024, 4)
    windows = windows_of(c, made.layers, window, lambda i: (i + 1) % every != 0)
    return replace(made, windows=windows, layer_rope=tuple(0 if w else None for w in windows))


def nemotron(c: Fields) -> DecoderConfig:
    """Reads Nemotron and Minitron: norms times 1 + w, squared relu, a rope of a part of the
    head."""
    bias = c.flag("attention_bias", False)
    made = _made(c, "nemotron", "norm_eps", "relu2", norm_offset=1.0, gated=False)
    return replace(
        made,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias", False),
        ropes=(single_rope(c, made.head_dim, partial=True),),
    )


def olmo(c: Fields) -> DecoderConfig:
    """Reads OLMo 1: norms without weights, and limits of queries, keys and values."""
    bias = c.flag("attention_bias", False)
    made = base(c, "olmo", act=activation(c, "hidden_act", "silu"), qkv_bias=bias, out_bias=bias)
    return replace(
        made,
        norm="layer",
        norm_eps=1e-5,
        norm_weight=False,
        qkv_clip=c.number("clip_qkv", 0.0, 1e6, 0.0),
        ropes=(single_rope(c, made.head_dim),),
    )
