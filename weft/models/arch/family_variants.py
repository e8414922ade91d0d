"""Families that are a Llama with one or two differences: Seed-OSS, Exaone 4, GLM-4, Ernie 4.5,
Hunyuan, Apertus."""

from __future__ import annotations

from dataclasses import replace

from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig, Rope
from weft.models.arch.family_parts import MAX_POSITIONS, activation, base, refuse, windows_of
from weft.models.arch.family_ropes import said_of, single_rope


def seed_oss(c: Fields) -> DecoderConfig:
    """Reads Seed-OSS: biases of queries, keys and values."""
    made = base(c, "seed_oss", act=activation(c, "hidden_act", "silu"))
    return replace(
        made,
        qkv_bias=c.flag("attention_bias", True),
        out_bias=c.flag("attention_out_bias", False),
        mlp_bias=c.flag("mlp_bias", False),
        ropes=(single_rope(c, made.head_dim),),
    )


def exaone4(c: Fields) -> DecoderConfig:
    """Reads Exaone 4: norms after a layer's parts, norms of queries and keys. Where layers slide,
    only these have positions."""
    made = base(c, "exaone4", act=activation(c, "hidden_act", "silu"), qk_norm="head")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    # A word such as LLLG is what layer_types was made of.
    every = 0 if c.texts("layer_types") else c.integer("sliding_window_pattern", 0, 1024, 4)
    windows = windows_of(c, made.layers, window, lambda i: bool(every) and (i + 1) % every != 0)
    ropes = tuple(0 if w or not window else None for w in windows)
    rope = single_rope(c, made.head_dim)
    made = replace(made, pre_norms=False, post_norms=True, windows=windows)
    return replace(made, ropes=(rope,), layer_rope=ropes if window else ())


def glm4(c: Fields) -> DecoderConfig:
    """Reads GLM-4-0414: norms before and after, gate and up joined, a rope of adjacent elements in
    a part of the head."""
    made = base(c, "glm4", act=activation(c, "hidden_act", "silu"), post_norms=True)
    return replace(
        made,
        qkv_bias=c.flag("attention_bias", True),
        fused_gate=True,
        rope_pairs=True,
        ropes=(single_rope(c, made.head_dim, partial=True),),
    )


def ernie4_5(c: Fields) -> DecoderConfig:
    """Reads Ernie 4.5, dense: a Llama whose rope turns adjacent elements."""
    bias = c.flag("use_bias", False)
    made = base(c, "ernie4_5", act=activation(c, "hidden_act", "silu"), rope_pairs=True)
    made = replace(made, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    return replace(made, ropes=(single_rope(c, made.head_dim),))


def hunyuan(c: Fields) -> DecoderConfig:
    """Reads Hunyuan, dense: norms of queries and keys after the rope."""
    bias = c.flag("attention_bias", False)
    made = base(c, "hunyuan_v1_dense", act=activation(c, "hidden_act", "silu"), qk_norm="head")
    made = replace(made, qk_norm_late=True, qkv_bias=bias, out_bias=bias)
    return replace(made, ropes=(_longer_rope(c, made.head_dim),))


def _longer_rope(c: Fields, size: int) -> Rope:
    """Returns Hunyuan's rope: a type "dynamic" with an alpha lengthens the wavelengths once and for
    all, and nothing else in it counts."""
    alpha = said_of(c).number("alpha", 0.0, 1e9, 0.0)
    if not alpha:
        return single_rope(c, size)
    more = ("alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    rope = single_rope(c, size, renamed={"dynamic": "default"}, more=more)
    return replace(rope, theta=rope.theta * alpha ** (size / (size - 2)))


def apertus(c: Fields) -> DecoderConfig:
    """Reads Apertus: xIELU without a gate, norms of queries and keys."""
    refuse(c, "hidden_act", "xielu", "another activation")
    bias = c.flag("attention_bias", False)
    made = base(c, "apertus", act="xielu", gated=False, qk_norm="head")
    made = replace(made, qkv_bias=bias, out_bias=bias)
    return replace(made, ropes=(single_rope(c, made.head_dim),))
