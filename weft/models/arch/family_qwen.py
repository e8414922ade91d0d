"""The Qwen families: Qwen 2, 3, 3.5 and Qwen3-Next, dense and with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    activation,
    base,
    experts_of,
    kinds_of,
    windows_of,
)
from weft.models.arch.family_ropes import said_of, single_rope
from weft.models.arch.mixer_sizes import Delta


def _qwen_windows(c: Fields, layers: int) -> Any:
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    first = c.integer("max_window_layers", 0, MAX_LAYERS * 4, 0)
    if not c.flag("use_sliding_window", False):
        window = 0
    return windows_of(c, layers, window, lambda i: i >= first)


def qwen2(c: Fields) -> DecoderConfig:
    made = base(c, "qwen2", act=activation(c, "hidden_act", "silu"), qkv_bias=True)
    return replace(
        made, ropes=(single_rope(c, made.head_dim),), windows=_qwen_windows(c, made.layers)
    )


def _qwen3(c: Fields, family: str) -> DecoderConfig:
    bias = c.flag("attention_bias", False)
    made = base(c, family, act=activation(c, "hidden_act", "silu"), qk_norm="head")
    return replace(made, qkv_bias=bias, out_bias=bias, ropes=(single_rope(c, made.head_dim),))


def qwen3(c: Fields) -> DecoderConfig:
    made = _qwen3(c, "qwen3")
    return replace(made, windows=_qwen_windows(c, made.layers))


def qwen2_vl(c: Fields) -> DecoderConfig:
    """Reads the text model of Qwen2-VL and Qwen2.5-VL: a Qwen 2 whose rope turns by three
    positions, a section of its pairs each."""
    made = base(c, "qwen2", act=activation(c, "hidden_act", "silu"), qkv_bias=True)
    rope = single_rope(c, made.head_dim, renamed={"mrope": "default"})
    made = replace(made, ropes=(rope,), windows=_qwen_windows(c, made.layers))
    sections = _sections(c, made.head_dim // 2)
    by = [k % 3 for k, count in enumerate(sections) for _ in range(count)]
    return replace(made, turns_by=tuple(by))


def qwen3_vl(c: Fields) -> DecoderConfig:
    """Reads the text model of Qwen3-VL: a Qwen 3 whose rope turns by three positions in turn."""
    return turned(c, _qwen3(c, "qwen3"))


def turned(c: Fields, made: DecoderConfig, usual: tuple[int, ...] = ()) -> DecoderConfig:
    """Returns a text model whose rope turns by three positions in turn, as Qwen3-VL's and
    Qwen 3.5's with pictures; `usual` are the sections that a file may leave out. Raises
    ModelError for sections that do not fit the rope."""
    pairs = (made.ropes[0].rotary or made.head_dim) // 2
    sections = _sections(c, pairs, usual)
    by = [0] * pairs
    for axis in range(1, len(sections)):
        for k in range(axis, min(3 * sections[axis], pairs), 3):
            by[k] = axis
    return replace(made, turns_by=tuple(by))


def _sections(c: Fields, pairs: int, usual: tuple[int, ...] = ()) -> tuple[int, ...]:
    said = said_of(c)
    found = said.integers("mrope_section", 0, MAX_HEAD_DIM) or usual or (pairs,)
    if sum(found) != pairs or len(found) > 3:
        raise ModelError(
            f"{said.where}: mrope_section is {list(found)}; expected three numbers that add up to "
            f"{pairs}"
        )
    return (*found, 0, 0)[:3]


def qwen3_moe(c: Fields) -> DecoderConfig:
    """Reads Qwen 3 with experts in place of the feed-forward of some layers, mostly of all."""
    made = replace(_qwen3(c, "qwen3_moe"), **experts_of(c))
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = (window if c.flag("use_sliding_window", False) else 0,) * made.layers
    norm = c.flag("norm_topk_prob", False)
    kinds = _sparse(c, made.layers)
    return replace(made, feed_forwards=kinds, windows=windows, expert_norm=norm)


def qwen2_moe(c: Fields) -> DecoderConfig:
    """Reads Qwen 1.5 and 2 with experts, and one that all tokens use."""
    bias = c.flag("qkv_bias", True)
    made = base(c, "qwen2_moe", act=activation(c, "hidden_act", "silu"), qkv_bias=bias)
    window = c.integer("sliding_window", 0, MAX_POSITIONS, 0)
    first = c.integer("max_window_layers", 0, MAX_LAYERS * 4, 0)
    if not c.flag("use_sliding_window", False):
        window = 0
    return replace(
        _shared_experts(c, made),
        feed_forwards=_sparse(c, made.layers),
        expert_norm=c.flag("norm_topk_prob", False),
        windows=windows_of(c, made.layers, window, lambda i: i % 2 == 0 and i < first),
        ropes=(single_rope(c, made.head_dim),),
    )


def _sparse(c: Fields, layers: int) -> tuple[str, ...]:
    """Returns the kind of each layer: "experts" or "dense"."""
    every = c.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    plain = c.integers("mlp_only_layers", 0, MAX_LAYERS)
    sparse = (i not in plain and (i + 1) % every == 0 for i in range(layers))
    return tuple("experts" if s else "dense" for s in sparse)


def _delta_net(c: Fields, family: str, **delta: Any) -> DecoderConfig:
    """Reads models with the gated delta rule in most layers and gated attention in every fourth.
    `delta` says how the weights of the former are joined."""
    bias = c.flag("attention_bias", False)
    heads = c.integer("linear_num_key_heads", 1, MAX_HEADS, 16)
    values = c.integer("linear_num_value_heads", 1, MAX_HEADS, 32)
    if values % heads:
        raise ModelError(f"{c.where}: {values} linear value heads are not a multiple of {heads}")
    sizes = (c.integer(f"linear_{x}_head_dim", 1, MAX_HEAD_DIM, 128) for x in ("key", "value"))
    made = base(
        c,
        family,
        act=activation(c, "hidden_act", "silu"),
        norm_offset=1.0,
        qk_norm="head",
        qkv_bias=bias,
        out_bias=bias,
        output_gate=True,
        conv_taps=c.integer("linear_conv_kernel_dim", 1, 64, 4),
        delta=Delta(heads, values, *sizes, **delta),
    )
    every = c.integer("full_attention_interval", 1, MAX_LAYERS, 4)
    usual = [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(made.layers)
    ]
    known = {"full_attention": "attention", "linear_attention": "delta"}
    mixers = kinds_of(c, known, made.layers, usual)
    return replace(made, mixers=mixers, ropes=(single_rope(c, made.head_dim, partial=True),))


def qwen3_5(c: Fields) -> DecoderConfig:
    """Reads the text model of Qwen 3.5."""
    return _delta_net(c, "qwen3_5_text")


def _shared_experts(c: Fields, made: DecoderConfig) -> DecoderConfig:
    """Adds experts, and one expert that all tokens use."""
    shared = c.integer("shared_expert_intermediate_size", 1, MAX_FFN)
    return replace(made, **experts_of(c), shared_ffn=shared)


def qwen3_5_moe(c: Fields) -> DecoderConfig:
    """Reads Qwen 3.5 with experts in all layers."""
    plain = c.over({"intermediate_size": 1})  # this family has no dense feed-forward
    made = _shared_experts(c, _delta_net(plain, "qwen3_5_moe_text"))
    return replace(made, expert_norm=True, feed_forwards=("experts",) * made.layers)


def qwen3_next(c: Fields) -> DecoderConfig:
    """Reads Qwen3-Next: Qwen 3.5's layers with joined weights, and experts in most of them."""
    made = _delta_net(c, "qwen3_next", fused_qkvz=True, fused_ba=True)
    kinds = _sparse(c, made.layers)
    norm = c.flag("norm_topk_prob", False)
    return replace(_shared_experts(c, made), feed_forwards=kinds, expert_norm=norm)
