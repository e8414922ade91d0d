"""Decoder families: config.json of each in, one DecoderConfig out.

Field names and defaults follow transformers (`configuration_*.py`, 4.x and 5.x spellings).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.config import Activation, DecoderConfig, Rope

MAX_VOCAB, MAX_HIDDEN, MAX_LAYERS, MAX_HEADS = 1 << 22, 1 << 17, 1024, 1024
MAX_FFN, MAX_HEAD_DIM, MAX_POSITIONS = 1 << 20, 1024, 1 << 24

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def activation(c: Fields, name: str, default: str) -> Activation:
    """The activation that field `name` gives; ModelError lists the known ones."""
    return _ACTIVATIONS[c.text(name, default, choices=tuple(_ACTIVATIONS))]


def refuse(c: Fields, name: str, value: object, why: str) -> None:
    """ModelError when field `name` is set to something other than `value`."""
    given = c.data.get(name)
    if given is not None and given != value:
        raise ModelError(f"{c.where}: {name} is {str(given)[:60]!r}: {why} is not supported")


# -- shared parts ---------------------------------------------------------------------------------


def _rope(c: Fields, old: Fields | None, theta: float) -> Rope:
    """A Rope from a `rope_parameters` object (5.x) or a `rope_scaling` one beside rope_theta."""
    if old is None:
        return Rope(theta)
    kinds = ("default", "linear", "llama3", "yarn")
    kind = old.text("rope_type", None) or old.text("type", None) or "default"
    if kind not in kinds:
        raise ModelError(
            f"{old.where}: rope type {kind[:40]!r} is not supported; supported: {', '.join(kinds)}"
        )
    refuse(old, "partial_rotary_factor", 1.0, "partial rotary embedding")
    theta = old.number("rope_theta", 1.0, 1e12, theta)
    if kind == "default":
        return Rope(theta)
    factor = old.number("factor", 1.0, 1e6)
    if kind == "linear":
        return Rope(theta, "linear", factor)
    if kind == "yarn":
        return _yarn(old, theta, factor)
    low = old.number("low_freq_factor", 1e-3, 1e6)
    high = old.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise ModelError(f"{old.where}: high_freq_factor {high} must exceed low_freq_factor {low}")
    original = old.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
    return Rope(theta, "llama3", factor, low, high, original)


def _yarn(old: Fields, theta: float, factor: float) -> Rope:
    for name in ("mscale", "mscale_all_dim"):
        refuse(old, name, None, "YaRN with its own magnitude by depth")
    refuse(old, "truncate", True, "YaRN between pairs")
    if theta <= 1:
        raise ModelError(f"{old.where}: YaRN needs a rope_theta above 1, got {theta:g}")
    fast = old.number("beta_fast", 1e-3, 1e6, None) or 32.0
    slow = old.number("beta_slow", 1e-3, 1e6, None) or 1.0
    original = old.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    magnitude = old.number("attention_factor", 1e-6, 1e6, None) or usual
    return Rope(theta, "yarn", factor, slow, fast, original, magnitude)


def _single_rope(c: Fields) -> Rope:
    refuse(c, "partial_rotary_factor", 1.0, "partial rotary embedding")
    theta = c.number("rope_theta", 1.0, 1e12, 10000.0)
    return _rope(c, c.section("rope_parameters") or c.section("rope_scaling"), theta)


def _windows(c: Fields, layers: int, window: int, sliding: Callable[[int], bool]) -> Any:
    """The window of each layer: by `layer_types` where given, else by the family's own rule."""
    types = c.texts("layer_types")
    if types and len(types) != layers:
        raise ModelError(f"{c.where}: layer_types has {len(types)} entries; expected {layers}")
    for t in types:
        if t not in ("full_attention", "sliding_attention"):
            raise ModelError(f"{c.where}: layer type {t[:40]!r} is not supported")
    if types:
        return tuple(window if t == "sliding_attention" else 0 for t in types)
    return tuple(window if sliding(i) else 0 for i in range(layers))


def checked_heads(where: str, hidden: int, heads: int, kv: int, head_dim: int | None) -> int:
    """Elements per head (None: as many as share the width evenly), checked against the rest."""
    if head_dim is None:
        if hidden % heads:
            raise ModelError(f"{where}: hidden_size {hidden} is not a multiple of {heads} heads")
        head_dim = hidden // heads
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise ModelError(f"{where}: head_dim is {head_dim}; expected even, <= {MAX_HEAD_DIM}")
    if heads % kv:
        raise ModelError(f"{where}: {heads} heads are not a multiple of {kv} key/value heads")
    return head_dim


def _base(c: Fields, family: str, kv_default: int | None = None, **more: Any) -> DecoderConfig:
    """What all Llama-like configs share."""
    hidden = c.integer("hidden_size", 1, MAX_HIDDEN)
    heads = c.integer("num_attention_heads", 1, MAX_HEADS)
    kv = c.integer("num_key_value_heads", 1, MAX_HEADS, kv_default or heads)
    head_dim = c.integer("head_dim", 2, MAX_HEAD_DIM, None)
    head_dim = checked_heads(c.where, hidden, heads, kv, head_dim)
    made = DecoderConfig(
        family=family,
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        hidden=hidden,
        layers=c.integer("num_hidden_layers", 1, MAX_LAYERS),
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim,
        ffn=c.integer("intermediate_size", 1, MAX_FFN),
        max_positions=c.integer("max_position_embeddings", 1, MAX_POSITIONS, 2048),
        norm_eps=c.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        scale=head_dim**-0.5,
        tied=c.flag("tie_word_embeddings", False),
    )
    return replace(made, **more)


# -- families -------------------------------------------------------------------------------------


def gpt2(c: Fields) -> DecoderConfig:
    """GPT-2: learned positions, layer norms, fused qkv, Conv1D weights."""
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
        tied=c.flag("tie_word_embeddings", True),
    )


def llama(c: Fields) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    return _base(
        c,
        "llama",
        act=activation(c, "hidden_act", "silu"),
        ropes=(_single_rope(c),),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias", False),
    )


def mistral(c: Fields) -> DecoderConfig:
    made = _base(c, "mistral", 8, act=activation(c, "hidden_act", "silu"))
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = _windows(c, made.layers, window, lambda i: True)
    return replace(made, ropes=(_single_rope(c),), windows=windows)


def _qwen_windows(c: Fields, layers: int) -> Any:
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    first = c.integer("max_window_layers", 0, MAX_LAYERS * 4, 28)
    if not c.flag("use_sliding_window", False):
        window = 0
    return _windows(c, layers, window, lambda i: i >= first)


def qwen2(c: Fields) -> DecoderConfig:
    made = _base(c, "qwen2", act=activation(c, "hidden_act", "silu"), qkv_bias=True)
    return replace(made, ropes=(_single_rope(c),), windows=_qwen_windows(c, made.layers))


def qwen3(c: Fields) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    made = _base(c, "qwen3", act=activation(c, "hidden_act", "silu"), qk_norm=True)
    made = replace(made, qkv_bias=bias, out_bias=bias, ropes=(_single_rope(c),))
    return replace(made, windows=_qwen_windows(c, made.layers))


def _gemma(c: Fields, family: str) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    refuse(c, "use_bidirectional_attention", False, "bidirectional attention")
    made = _base(
        c,
        family,
        act=activation(c, "hidden_activation", "gelu_pytorch_tanh"),
        norm_offset=1.0,
        post_norms=True,
        qkv_bias=bias,
        out_bias=bias,
        scale=c.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5,
        tied=c.flag("tie_word_embeddings", True),
    )
    return replace(made, embed_scale=made.hidden**0.5)


def gemma2(c: Fields) -> DecoderConfig:
    made = _gemma(c, "gemma2")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 4096)
    return replace(
        made,
        ropes=(_single_rope(c),),
        windows=_windows(c, made.layers, window, lambda i: i % 2 == 0),
        attn_softcap=c.number("attn_logit_softcapping", 0.0, 1e6, 0.0),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def gemma3(c: Fields) -> DecoderConfig:
    """Gemma 3's text model: two ropes, one for the full and one for the sliding layers."""
    made = _gemma(c, "gemma3_text")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 4096)
    every = c.integer("sliding_window_pattern", 1, 1024, None)
    every = every or c.integer("_sliding_window_pattern", 1, 1024, 6)
    windows = _windows(c, made.layers, window, lambda i: (i + 1) % every != 0)
    both = c.section("rope_parameters")
    if both is not None:
        full = _rope(both, both.section("full_attention"), 1e6)
        local = _rope(both, both.section("sliding_attention"), 1e4)
    else:
        full = _rope(c, c.section("rope_scaling"), c.number("rope_theta", 1.0, 1e12, 1e6))
        local = Rope(c.number("rope_local_base_freq", 1.0, 1e12, 1e4))
    return replace(
        made,
        qk_norm=True,
        ropes=(full, local),
        layer_rope=tuple(1 if w else 0 for w in windows),
        windows=windows,
        attn_softcap=c.number("attn_logit_softcapping", 0.0, 1e6, 0.0),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


DECODERS: dict[str, Callable[[Fields], DecoderConfig]] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
}
