"""Families with experts in most layers, apart from the Qwen families, Gemma 4 and gpt-oss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_parts import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    activation,
    base,
    experts_of,
    multipliers,
    refuse,
)
from weft.models.arch.family_ropes import said_of, single_rope
from weft.models.arch.mixer_sizes import Latent


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
    return replace(
        made,
        qkv_bias=c.flag("attention_bias", False),
        qk_norm="head" if c.flag("use_qk_norm", False) else "",
        **shared_experts(c, made.layers),
        **corrected(c),
        ropes=(single_rope(c, made.head_dim, partial=True),),
    )


def shared_experts(c: Fields, layers: int, best: int = 2) -> dict[str, Any]:
    """Returns the config fields for dense first layers, and experts in the others with one that all
    tokens use. The `best` experts of a group decide whether it is used."""
    first = c.integer("first_k_dense_replace", 0, MAX_LAYERS, 0)
    experts = experts_of(c, names=("num_local_experts", "n_routed_experts"))
    shared = c.integer("n_shared_experts", 0, MAX_EXPERTS, 0)
    groups = c.integer("n_group", 1, experts["experts"], 1)
    used = c.integer("topk_group", 1, groups, groups)
    each, rest = divmod(experts["experts"], groups)
    if rest or experts["experts_used"] > each * used or (groups > 1 and each < best):
        raise ModelError(
            f"{c.where}: n_group is {groups} and topk_group {used}: {experts['experts']} experts "
            f"do not divide so that {experts['experts_used']} can be chosen"
        )
    return {
        **experts,
        "expert_groups": groups,
        "groups_used": used,
        "group_best": best,
        "expert_scale": c.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
        "shared_ffn": _width(c, shared * experts["expert_ffn"]),
        "shared_gate": False,
        "feed_forwards": tuple("dense" if i < first else "experts" for i in range(layers)),
    }


def corrected(c: Fields) -> dict[str, Any]:
    """Returns the config fields for a router by sigmoids with a correction."""
    norm = c.flag("norm_topk_prob", True)
    further = c.integer("num_nextn_predict_layers", 0, MAX_LAYERS, 1)
    return {
        "router": "sigmoid", "router_bias": True, "expert_norm": norm, "further_layers": further,
    }  # fmt: skip


def deepseek_v2(c: Fields) -> DecoderConfig:
    """Reads DeepSeek-V2: latent attention, and experts in all layers but the first."""
    refuse(c, "mlp_bias", False, "biases of the feed-forward")
    made = _latent(c, "deepseek_v2")
    made = replace(made, **shared_experts(c, made.layers, best=1))
    method = c.text("topk_method", "greedy", choices=("greedy", "group_limited_greedy"))
    return made if method != "greedy" else replace(made, expert_groups=1, groups_used=1)


def deepseek_v3(c: Fields) -> DecoderConfig:
    """Reads DeepSeek-V3 and R1: latent attention, and GLM-4.5's experts, chosen from groups."""
    made = _latent(c, "deepseek_v3")
    pairs = c.flag("rope_interleave", True)
    return replace(made, rope_pairs=pairs, **shared_experts(c, made.layers), **corrected(c))


def _latent(c: Fields, family: str) -> DecoderConfig:
    """Reads latent attention. A YaRN's mscale_all_dim sharpens the scores."""
    sizes = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank, plain, turned, value = (c.integer(name, 1, MAX_HIDDEN) for name in sizes)
    size = max(plain + turned, value)
    heads = c.integer("num_attention_heads", 1, MAX_HEADS)
    refuse(c, "num_key_value_heads", heads, "fewer heads of keys than of queries")
    bias = c.flag("attention_bias", False)
    made = base(
        c.over({"head_dim": size + size % 2}),
        family,
        act=activation(c, "hidden_act", "silu"),
        qkv_bias=bias,
        out_bias=bias,
        rope_pairs=True,
    )
    rope, said = single_rope(c, turned), said_of(c)
    depth = said.number("mscale_all_dim", 0.0, 1e3, 0.0) if rope.scaling == "yarn" else 0.0
    sharper = 0.1 * depth * math.log(rope.factor) + 1 if depth else 1.0
    return replace(
        made,
        kv_heads=heads,
        latent=Latent(c.integer("q_lora_rank", 1, MAX_HIDDEN, 0), rank, plain, turned, value),
        mixers=("latent",) * made.layers,
        scale=(plain + turned) ** -0.5 * sharper**2,
        ropes=(replace(rope, rotary=turned),),
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
