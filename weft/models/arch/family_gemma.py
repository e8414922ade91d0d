"""The Gemma families: Gemma 1 to 4, and 3n."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig, Layer
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HIDDEN,
    MAX_POSITIONS,
    MAX_VOCAB,
    activation,
    base,
    experts_of,
    layers_of,
    refuse,
    sharing,
    windows_of,
)
from weft.models.arch.family_ropes import single_rope, two_ropes
from weft.models.arch.mixer_sizes import AltUp


def _gemma(c: Fields, family: str) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    refuse(c, "use_bidirectional_attention", False, "bidirectional attention")
    made = base(
        c,
        family,
        act=activation(c, "hidden_activation", "gelu_pytorch_tanh"),
        norm_offset=1.0,
        post_norms=True,
        qkv_bias=bias,
        out_bias=bias,
        scale=c.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5,
        tied=c.flag("tie_word_embeddings", False),
    )
    return replace(made, embed_scale=made.hidden**0.5, embed_scale_rounded=True)


def _normed(c: Fields, family: str, **more: Any) -> DecoderConfig:
    """Reads the fields that Gemma 3n and 4 share: norms of queries, keys and values."""
    bias = c.flag("attention_bias", False)
    return base(
        c,
        family,
        act=activation(c, "hidden_activation", "gelu_pytorch_tanh"),
        qkv_bias=bias,
        out_bias=bias,
        post_norms=True,
        qk_norm="head",
        value_norm=True,
        scale=1.0,
        embed_scale_rounded=True,
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
        **more,
    )


def gemma(c: Fields) -> DecoderConfig:
    """Reads Gemma 1: a Llama with scaled embeddings and norms times 1 + w. transformers takes
    "gelu" for the tanh form."""
    bias = c.flag("attention_bias", False)
    refuse(c, "use_bidirectional_attention", False, "bidirectional attention")
    act = activation(c, "hidden_act", "gelu_pytorch_tanh")
    made = base(c, "gemma", act="gelu_tanh" if act == "gelu" else act, norm_offset=1.0)
    made = replace(made, qkv_bias=bias, out_bias=bias, embed_scale_rounded=True)
    return replace(made, embed_scale=made.hidden**0.5, ropes=(single_rope(c, made.head_dim),))


def gemma2(c: Fields) -> DecoderConfig:
    made = _gemma(c, "gemma2")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    return replace(
        made,
        ropes=(single_rope(c, made.head_dim),),
        windows=windows_of(c, made.layers, window, lambda i: i % 2 == 0),
        attn_softcap=c.number("attn_logit_softcapping", 0.0, 1e6, 0.0),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def gemma3(c: Fields) -> DecoderConfig:
    """Reads Gemma 3's text model: two ropes, one for the full and one for the sliding layers. Its
    attention caps no scores, even if a file sets a cap."""
    both_ways = bool(c.flag("use_bidirectional_attention", False))  # EmbeddingGemma
    made = _gemma(c.over({"use_bidirectional_attention": None}), "gemma3_text")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    window = window // 2 + 1 if both_ways and window else window
    every = c.integer("sliding_window_pattern", 1, 1024, None)
    every = every or c.integer("_sliding_window_pattern", 1, 1024, 6)
    windows = windows_of(c, made.layers, window, lambda i: (i + 1) % every != 0)
    full, local = (c.number(f"rope_{k}", 1.0, 1e12, 1e4) for k in ("theta", "local_base_freq"))
    return replace(
        made,
        causal=not both_ways,
        qk_norm="head",
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
        **two_ropes(c, windows, (full, local), (made.head_dim,) * 2),
    )


def gemma4(c: Fields) -> DecoderConfig:
    """Reads Gemma 4's text model: layers of different sizes (`layers_of`), an own input for each
    layer, norms of values, and in some sizes experts in addition to the dense feed-forward."""
    if c.data.get("use_bidirectional_attention") != "vision":  # this value concerns images
        refuse(c, "use_bidirectional_attention", False, "bidirectional attention")
    refuse(c, "vocab_size_per_layer_input", c.data.get("vocab_size"), "another vocabulary")
    made = _normed(
        c,
        "gemma4_text",
        layer_scale=True,
        layer_input=c.integer("hidden_size_per_layer_input", 0, MAX_HIDDEN, 0),
    )
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 512)
    windows = windows_of(c, made.layers, window, lambda i: (i + 1) % 6 != 0)
    windows = (*windows[:-1], 0)  # the last layer is always full
    layers = layers_of(c, made, windows)
    sizes = {bool(w): layer.head_dim for w, layer in zip(windows, layers)}
    both = two_ropes(c, windows, (1e6, 1e4), (sizes[False], sizes.get(True, made.head_dim)))
    made = replace(made, embed_scale=made.hidden**0.5, by_layer=layers, **both)
    if not c.flag("enable_moe_block", False):
        return made
    kinds = ("dense and experts",) * made.layers
    experts = experts_of(c, used="top_k_experts")
    return replace(made, feed_forwards=kinds, fused_experts="halves", expert_norm=True, **experts)


def gemma3n(c: Fields) -> DecoderConfig:
    """Reads Gemma 3n's text model: several residual streams, a learned residual, an own input for
    each layer, late layers on the keys and values of earlier ones, sparse activations."""
    refuse(c, "altup_correct_scale", True, "alternating updates without a scale")
    widths = c.integers("intermediate_size", 1, MAX_FFN) or (0,)
    made = _normed(
        c.over({"intermediate_size": widths[-1] or None}),
        "gemma3n_text",
        layer_input=c.integer("hidden_size_per_layer_input", 1, MAX_HIDDEN, 256),
    )
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 512)
    windows = windows_of(c, made.layers, window, lambda i: (i + 1) % 5 != 0)
    widths = widths * made.layers if len(widths) == 1 else widths
    _each(c, "intermediate_size", widths, made.layers)
    layers = [Layer(made.head_dim, made.kv_heads, n) for n in widths]
    first = made.layers - c.integer("num_kv_shared_layers", 0, made.layers - 1, 0)
    streams = c.integer("altup_num_inputs", 2, 64, 4)
    active = c.integer("altup_active_idx", 0, streams - 1, 0)
    few = c.integer("vocab_size_per_layer_input", 1, MAX_VOCAB, made.vocab)
    full, local = (c.number(f"rope_{k}", 1.0, 1e12, 1e4) for k in ("theta", "local_base_freq"))
    return replace(
        made,
        by_layer=sharing(c.where, layers, windows, first),
        embed_scale=made.hidden**0.5,
        layer_vocab=0 if few == made.vocab else few,
        altup=AltUp(streams, active, c.integer("laurel_rank", 1, MAX_HIDDEN, 64)),
        cuts=_cuts(c, made.layers),
        **two_ropes(c, windows, (full, local), (made.head_dim,) * 2),
    )


def _cuts(c: Fields, layers: int) -> tuple[float | None, ...]:
    """Returns where gates are cut in each layer, for the shares of them that are to be 0."""
    from statistics import NormalDist  # takes milliseconds to import

    usual = (0.95,) * (10 if layers > 10 else 0)
    shares = c.numbers("activation_sparsity_pattern", 0.0, 0.999999)
    shares = shares or usual + (0.0,) * (layers - len(usual))
    _each(c, "activation_sparsity_pattern", shares, layers)
    deviation = NormalDist().inv_cdf
    return tuple(deviation(float(np.float32(share))) if share else None for share in shares)


def _each(c: Fields, name: str, given: tuple[float, ...], layers: int) -> None:
    if len(given) != layers:
        raise ModelError(f"{c.where}: {name} has {len(given)} entries for {layers} layers")
