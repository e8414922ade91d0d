"""Llama 4, the text model."""

from __future__ import annotations

from dataclasses import replace

from weft.core.errors import ModelError
from weft.core.order import KEYS
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_LAYERS,
    MAX_POSITIONS,
    activation,
    base,
    experts_of,
    kinds_of,
)
from weft.models.arch.family_ropes import single_rope, turned_layers


def llama4(c: Fields) -> DecoderConfig:
    """Reads Llama 4: most layers turn adjacent elements, norm queries and keys after that, and see
    a chunk of the text alone; in the others queries grow far on. Experts weigh their inputs, and
    all tokens use one more."""
    bias = c.flag("attention_bias", False)
    dense = c.integer("intermediate_size_mlp", 1, MAX_FFN, 16384)
    made = base(
        c.over({"intermediate_size": dense}),
        "llama4_text",
        act=activation(c, "hidden_act", "silu"),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="turned" if c.flag("use_qk_norm", True) else "",
        qk_norm_late=True,
        rope_pairs=True,
    )
    ropes = turned_layers(c, made.layers)
    if c.flag("attn_temperature_tuning", True):
        made = replace(
            made,
            query_growth=c.number("attn_scale", 0.0, 1e3, 0.1),
            growth_span=c.integer("floor_scale", 1, MAX_POSITIONS, 8192),
            growth_ahead=1,
            growth_still=True,
        )
    rope = single_rope(c, made.head_dim)
    windows = _chunks(c, made, ropes)
    made = replace(made, layer_rope=ropes, ropes=(rope,), windows=windows, chunked=any(windows))
    return _with_experts(c, made)


def _chunks(c: Fields, made: DecoderConfig, ropes: tuple[int | None, ...]) -> tuple[int, ...]:
    """Returns the chunk that each layer sees, 0 for the whole text."""
    size = c.integer("attention_chunk_size", 1, MAX_POSITIONS, 0)
    size = 0 if size >= made.max_positions else size
    if size % KEYS:  # a chunk is whole pages of the cache
        raise ModelError(
            f"{c.where}: attention_chunk_size is {size}; expected a multiple of {KEYS}"
        )
    usual = ["full_attention" if rope is None else "chunked_attention" for rope in ropes]
    known = {"full_attention": 0, "chunked_attention": size}
    return kinds_of(c, known, made.layers, usual)


def _with_experts(c: Fields, made: DecoderConfig) -> DecoderConfig:
    """Returns the config with experts in the layers that have any."""
    every = c.integer("interleave_moe_layer_step", 0, MAX_LAYERS, 1)
    routed: tuple[int, ...] | range = c.integers("moe_layers", 0, MAX_LAYERS)
    if c.data.get("moe_layers") is None and every:
        routed = range(every - 1, made.layers, every)
    if not any(i in routed for i in range(made.layers)):
        return made
    experts = experts_of(c, "intermediate_size", names=("num_experts", "num_local_experts"))
    return replace(
        made,
        **experts,
        router="sigmoid",
        weighs_input=True,
        fused_experts="halves",
        shared_ffn=experts["expert_ffn"],
        shared_gate=False,
        feed_forwards=tuple("experts" if i in routed else "dense" for i in range(made.layers)),
    )
