"""Families with experts in most layers, apart from the Qwen families, Gemma 4 and gpt-oss."""

from __future__ import annotations

from dataclasses import replace

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_parts import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_LAYERS,
    MAX_POSITIONS,
    activation,
    base,
    experts_of,
    multipliers,
    refuse,
)
from weft.models.arch.family_ropes import single_rope


def mixtral(c: Fields) -> DecoderConfig:
    """Reads Mixtral: a Mistral with experts in all layers."""
    made = base(c, "mixtral", act=activation(c, "hidden_act", "silu"), expert_norm=True)
    return replace(
        made,
        **experts_of(c, "intermediate_size", names=("num_experts", "num_local_experts")),
        feed_forwards=("experts",) * made.layers,
        windows=(c.integer("sliding_window", 1, MAX_POSITIONS, 0),) * made.layers,
        ropes=(single_rope(c, made.head_dim),),
    )


def olmoe(c: Fields) -> DecoderConfig:
    """Reads OLMoE: norms of whole queries and keys, experts in all layers."""
    bias = c.flag("attention_bias", False)
    made = base(c, "olmoe", act=activation(c, "hidden_act", "silu"), qk_norm="whole")
    return replace(
        made,
        qkv_bias=bias,
        out_bias=bias,
        qkv_clip=c.number("clip_qkv", 0.0, 1e6, 0.0),
        **experts_of(c, "intermediate_size"),
        expert_norm=c.flag("norm_topk_prob", False),
        feed_forwards=("experts",) * made.layers,
        ropes=(single_rope(c, made.head_dim),),
    )


def granitemoe(c: Fields) -> DecoderConfig:
    """Reads Granite 3 with experts in all layers."""
    bias = c.flag("attention_bias", False)
    made = base(c, "granitemoe", act=activation(c, "hidden_act", "silu"), expert_norm=True)
    return replace(
        made,
        qkv_bias=bias,
        out_bias=bias,
        **multipliers(c),
        **experts_of(c, "intermediate_size", names=("num_experts", "num_local_experts")),
        feed_forwards=("experts",) * made.layers,
        fused_experts="halves",
        ropes=(single_rope(c, made.head_dim),),
    )


def glm4_moe(c: Fields) -> DecoderConfig:
    """Reads GLM-4.5 and 4.6: the first layers are dense; the others have experts, chosen by
    sigmoids and a correction, and one that all tokens use."""
    made = base(c, "glm4_moe", act=activation(c, "hidden_act", "silu"))
    first = c.integer("first_k_dense_replace", 0, made.layers, 1)
    for name in ("n_group", "topk_group"):
        refuse(c, name, 1, "choosing groups of experts")
    experts = experts_of(c, names=("num_local_experts", "n_routed_experts"))
    shared = c.integer("n_shared_experts", 0, MAX_EXPERTS, 1)
    return replace(
        made,
        **experts,
        qkv_bias=c.flag("attention_bias", False),
        qk_norm="head" if c.flag("use_qk_norm", False) else "",
        expert_norm=c.flag("norm_topk_prob", True),
        expert_scale=c.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
        router="sigmoid",
        router_bias=True,
        shared_ffn=_width(c, shared * experts["expert_ffn"]),
        shared_gate=False,
        feed_forwards=tuple("dense" if i < first else "experts" for i in range(made.layers)),
        further_layers=c.integer("num_nextn_predict_layers", 0, MAX_LAYERS, 1),
        ropes=(single_rope(c, made.head_dim, partial=True),),
    )


def ernie4_5_moe(c: Fields) -> DecoderConfig:
    """Reads Ernie 4.5 with experts in most layers, chosen with a correction, and one that all
    tokens use. Its rope turns adjacent elements."""
    refuse(c, "use_bias", False, "biases")
    refuse(c, "moe_norm_min", 1e-12, "another least sum of weights")
    made = base(c, "ernie4_5_moe", act=activation(c, "hidden_act", "silu"))
    first = c.integer("moe_layer_start_index", 0, MAX_LAYERS, 1)
    end = c.integer("moe_layer_end_index", -1, MAX_LAYERS, -1)
    every = c.integer("moe_layer_interval", 1, MAX_LAYERS, 1)
    inside = range(first, made.layers if end == -1 else end + 1)
    kinds = ((i + 1) % every == 0 and i in inside for i in range(made.layers))
    experts = experts_of(c, used="moe_k", names=("num_experts", "moe_num_experts"))
    shared = c.integer("moe_num_shared_experts", 0, MAX_EXPERTS, 2)
    return replace(
        made,
        **experts,
        expert_norm=True,
        router_bias=True,
        shared_ffn=_width(c, shared * experts["expert_ffn"]),
        shared_gate=False,
        feed_forwards=tuple("experts" if yes else "dense" for yes in kinds),
        rope_pairs=True,
        ropes=(single_rope(c, made.head_dim),),
    )


def _width(c: Fields, width: int) -> int:
    """Returns the width of the shared experts together."""
    if width > MAX_FFN:
        raise ModelError(f"{c.where}: the shared experts are {width} wide; expected <= {MAX_FFN}")
    return width
