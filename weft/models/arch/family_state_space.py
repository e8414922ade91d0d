"""Families with state spaces: Mamba 1 and 2, and those that mix them with attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_moe import corrected, shared_experts
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    activation,
    base,
    experts_of,
    kinds_of,
    multipliers,
    refuse,
)
from weft.models.arch.family_ropes import single_rope
from weft.models.arch.mixer_sizes import StateSpace
from weft.models.arch.state_space_fields import NEMOTRON_LAYERS

_ENDLESS = 1 << 20  # positions of a model without attention: as many as anybody asks for
_MAX_STATE, _MAX_TAPS, _MAX_CHANNELS = 4096, 64, 1 << 20
_KINDS = {"full_attention": "attention", "attention": "attention", "linear_attention": "mamba2",
          "mamba": "mamba2"}  # fmt: skip


def mamba(c: Fields) -> DecoderConfig:
    """Reads Mamba: a state space in every layer, and no feed-forward."""
    return _alone(c, "mamba", "mamba", _selective(c, "state_size", "time_step_rank", "expand"))


def falcon_mamba(c: Fields) -> DecoderConfig:
    """Reads Falcon-Mamba: a Mamba that divides steps, keys and queries by their norms."""
    space = _selective(c, "state_size", "time_step_rank", "expand")
    eps = c.number("mixer_rms_eps", 0.0, 1.0, 1e-6)
    return _alone(c, "falcon_mamba", "mamba", replace(space, norms="plain", norms_eps=eps))


def mamba2(c: Fields) -> DecoderConfig:
    """Reads Mamba 2: a state space with heads in every layer, and no feed-forward."""
    wide = int(c.number("expand", 1e-3, 64.0, 2.0) * c.integer("hidden_size", 1, MAX_HIDDEN))
    heads = c.integer("num_heads", 1, _MAX_CHANNELS)
    space = StateSpace(
        heads=heads,
        width=c.integer("head_dim", 1, _MAX_CHANNELS, wide // heads),
        state=c.integer("state_size", 1, _MAX_STATE),
        groups=c.integer("n_groups", 1, MAX_HEADS),
        norm="gated",
        step_limits=_limits(c),
    )
    return _alone(c, "mamba2", "mamba2", _checked(c, space, wide))


def _alone(c: Fields, family: str, mixer: str, space: StateSpace) -> DecoderConfig:
    """Returns a model without attention and feed-forwards."""
    refuse(c, "hidden_act", "silu", "another activation of the convolution")
    sizes = {"num_attention_heads": 1, "intermediate_size": 1, "head_dim": 2}
    eps = c.number("layer_norm_epsilon", 0.0, 1.0, 1e-5)
    plain = c.over({**sizes, "max_position_embeddings": _ENDLESS})
    made = base(plain, family, norm_eps=eps)
    return replace(
        made,
        mixers=(mixer,) * made.layers,
        feed_forwards=("none",) * made.layers,
        layer_rope=(None,) * made.layers,
        space=replace(space, bias=c.flag("use_bias", False)),
        conv_taps=c.integer("conv_kernel", 2, _MAX_TAPS, 4),
        conv_bias=c.flag("use_conv_bias", True),
    )


def _selective(c: Fields, state: str, rank: str, expand: str) -> StateSpace:
    """Returns Mamba's state space, whose heads are its channels."""
    hidden = c.integer("hidden_size", 1, MAX_HIDDEN)
    width = int(c.number(expand, 1e-3, 64.0, 2.0) * hidden)
    usual = math.ceil(hidden / 16)
    steps = usual if c.data.get(rank) == "auto" else c.integer(rank, 1, MAX_HIDDEN, usual)
    size = c.integer(state, 1, _MAX_STATE)
    return StateSpace(heads=1, width=width, state=size, rank=steps)


def _limits(c: Fields) -> tuple[float, float]:
    """Returns the least and the greatest step of time. transformers writes infinity as an object;
    others write Infinity."""
    given = c.data.get("time_step_limit")
    if given is None:
        return 0.0, math.inf
    both = [math.inf if x == {"__float__": "Infinity"} else x for x in given]
    if len(both) != 2 or not all(isinstance(x, int | float) for x in both):
        raise ModelError(f"{c.where}: time_step_limit is {shown(given)}; expected two numbers")
    return float(both[0]), float(both[1])


def _checked(c: Fields, space: StateSpace, wide: int) -> StateSpace:
    """Returns a state space after checking that its heads are `wide` channels, in whole groups."""
    if space.inner != wide or space.heads % space.groups:
        raise ModelError(
            f"{c.where}: {space.heads} state-space heads of {space.width} in {space.groups} "
            f"groups; expected {wide} channels, and whole groups"
        )
    return space


def _hybrid(c: Fields, wide: int | None = None) -> dict[str, Any]:
    """Returns the config fields of Mamba 2's layers between others, `wide` channels of them."""
    refuse(c, "hidden_act", "silu", "another activation of the convolution")
    heads = c.integer("mamba_n_heads", 1, _MAX_CHANNELS)
    inner = wide or int(
        c.number("mamba_expand", 1e-3, 64.0, 2.0) * c.integer("hidden_size", 1, MAX_HIDDEN)
    )
    auto = c.data.get("mamba_d_head") == "auto"
    space = StateSpace(
        heads=heads,
        width=inner // heads
        if auto
        else c.integer("mamba_d_head", 1, _MAX_CHANNELS, inner // heads),
        state=c.integer("mamba_d_state", 1, _MAX_STATE),
        groups=c.integer("mamba_n_groups", 1, MAX_HEADS),
        bias=c.flag("mamba_proj_bias", False),
        norm="gated",
        step_limits=_limits(c),
    )
    return {
        "space": _checked(c, space, inner),
        "conv_taps": c.integer("mamba_d_conv", 2, _MAX_TAPS, 4),
        "conv_bias": c.flag("mamba_conv_bias", True),
    }


def bamba(c: Fields) -> DecoderConfig:
    """Reads Bamba: Mamba 2's layers, attention with half a rope in a few."""
    bias = c.flag("attention_bias", False)
    made = base(c, "bamba", act=activation(c, "hidden_act", "silu"))
    full = c.integers("attn_layer_indices", 0, MAX_LAYERS)
    return replace(
        made,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias", False),
        mixers=tuple("attention" if i in full else "mamba2" for i in range(made.layers)),
        ropes=(single_rope(c, made.head_dim, partial=True),),
        **_hybrid(c),
    )


def granitemoehybrid(c: Fields) -> DecoderConfig:
    """Reads Granite 4: Mamba 2's layers and attention, mostly without positions; experts and one
    that all tokens use, or that one alone."""
    bias = c.flag("attention_bias", False)
    shared = c.integer("shared_intermediate_size", 1, MAX_FFN)
    plain = c.over({"intermediate_size": shared})
    made = base(plain, "granitemoehybrid", act=activation(c, "hidden_act", "silu"))
    kind = c.text("position_embedding_type", None)
    ropes = None if kind == "rope" else (None,) * made.layers
    experts: dict[str, Any] = {}
    if c.integer("num_local_experts", 0, MAX_HEADS, 0) or c.data.get("num_experts"):
        width = {"intermediate_size": c.integer("intermediate_size", 1, MAX_FFN)}
        experts = experts_of(
            c.over(width), "intermediate_size", names=("num_experts", "num_local_experts")
        )
        kinds = ("experts",) * made.layers
        experts |= {"expert_norm": True, "fused_experts": "halves", "feed_forwards": kinds,
                    "shared_ffn": shared, "shared_gate": False}  # fmt: skip
    return replace(
        made,
        qkv_bias=bias,
        out_bias=bias,
        fused_gate=True,
        mixers=kinds_of(c, _KINDS, made.layers, ["mamba"] * made.layers),
        ropes=(single_rope(c, made.head_dim),),
        layer_rope=ropes or (),
        **multipliers(c),
        **experts,
        **_hybrid(c),
    )


def falcon_h1(c: Fields) -> DecoderConfig:
    """Reads Falcon-H1: attention and Mamba 2's state space in parallel in every layer, with factors
    throughout."""
    bias = c.flag("attention_bias", False)
    made = base(c, "falcon_h1", act=activation(c, "hidden_act", "silu"))
    found = _hybrid(c, c.integer("mamba_d_ssm", 1, _MAX_CHANNELS, None))

    def factor(name: str) -> float:
        return float(c.number(name, -1e6, 1e6, 1.0))

    mlp = c.numbers("mlp_multipliers", -1e6, 1e6) or (1.0, 1.0)
    parts = c.numbers("ssm_multipliers", -1e6, 1e6) or (1.0,) * 5
    if len(mlp) != 2 or len(parts) != 5:
        raise ModelError(f"{c.where}: expected 2 mlp_multipliers and 5 ssm_multipliers")
    refuse(c, "projectors_bias", c.flag("mamba_proj_bias", False), "bias in one projection alone")
    first = c.flag("mamba_norm_before_gate", True)
    normed = c.flag("mamba_rms_norm", False)
    found["space"] = replace(
        found["space"],
        norm=("first" if first else "gated") if normed else "",
        scale_in=factor("ssm_in_multiplier"),
        scales=parts,
        scale_out=factor("ssm_out_multiplier"),
        beside_in=factor("attention_in_multiplier"),
        beside_out=factor("attention_out_multiplier"),
    )
    return replace(
        made,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=c.flag("mlp_bias", False),
        mixers=("attention and mamba2",) * made.layers,
        ropes=(single_rope(c, made.head_dim),),
        scale=made.scale * factor("key_multiplier"),
        gate_scale=mlp[0],
        down_scale=mlp[1],
        embed_scale=factor("embedding_multiplier"),
        logit_scale=factor("lm_head_multiplier"),
        **found,
    )


# The letters of hybrid_override_pattern and the names of layers_block_type.
_NEMOTRON = {
    "M": ("mamba2", "none"), "*": ("attention", "none"), "-": ("none", "dense"),
    "E": ("none", "experts"),
}  # fmt: skip
_LETTERS = {
    "linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-",
    "moe": "E",
}  # fmt: skip


def nemotron_h(c: Fields) -> DecoderConfig:
    """Reads Nemotron-H and Nemotron 3: each layer is a state space, attention without positions, a
    feed-forward or experts alone."""
    refuse(c, "mamba_hidden_act", "silu", "another activation of the convolution")
    refuse(c, "sliding_window", None, "a sliding window")
    names = c.texts("layers_block_type") or NEMOTRON_LAYERS
    said = c.text("hybrid_override_pattern", "") or names
    letters = [_LETTERS.get(x, x) for x in said]
    if any(x not in _NEMOTRON for x in letters):
        raise ModelError(
            f"{c.where}: layers are {shown(said)}; expected a list of {', '.join(_LETTERS)}, or a "
            f"text of {' '.join(_NEMOTRON)}"
        )
    heads, width = (c.integer(f"mamba_{x}", 1, _MAX_CHANNELS) for x in ("num_heads", "head_dim"))
    bias, mlp_bias = c.flag("attention_bias", False), c.flag("mlp_bias", False)
    made = base(
        c.over({"num_hidden_layers": len(letters)}),
        "nemotron_h",
        act=activation(c, "mlp_hidden_act", "relu2"),
        norm_eps=c.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=mlp_bias,
    )
    experts: dict[str, Any] = {}
    if "E" in letters:
        refuse(c, "mlp_bias", False, "biases of experts")
        shared = c.integer("moe_shared_expert_intermediate_size", 1, MAX_FFN)
        experts = {**shared_experts(c, made.layers), **corrected(c), "shared_ffn": shared}
        experts["expert_hidden"] = c.integer("moe_latent_size", 1, MAX_HIDDEN, 0)
    space = StateSpace(
        heads=heads,
        width=width,
        state=c.integer("ssm_state_size", 1, _MAX_STATE),
        groups=c.integer("n_groups", 1, MAX_HEADS),
        bias=c.flag("use_bias", False),
        norm="gated",
        step_limits=_limits(c),
    )
    return replace(
        made,
        **experts | {"feed_forwards": tuple(_NEMOTRON[x][1] for x in letters)},
        mixers=tuple(_NEMOTRON[x][0] for x in letters),
        layer_rope=(None,) * made.layers,
        space=_checked(c, space, space.inner),
        conv_taps=c.integer("conv_kernel", 2, _MAX_TAPS, 4),
        conv_bias=c.flag("use_conv_bias", True),
    )


def jamba(c: Fields) -> DecoderConfig:
    """Reads Jamba: Mamba's layers, attention without positions in each eighth, experts in each
    second."""
    refuse(c, "hidden_act", "silu", "another activation of the convolution")
    space = _selective(c, "mamba_d_state", "mamba_dt_rank", "mamba_expand")
    made = base(c, "jamba", act=activation(c, "hidden_act", "silu"))
    space = replace(space, bias=c.flag("mamba_proj_bias", False), norms="weighted")

    def each(name: str) -> list[bool]:
        every = c.integer(f"{name}_layer_period", 1, MAX_LAYERS)
        first = c.integer(f"{name}_layer_offset", 0, every - 1)
        return [i % every == first for i in range(made.layers)]

    usual = ["full_attention" if yes else "linear_attention" for yes in each("attn")]
    kinds = {"full_attention": "attention", "linear_attention": "mamba"}
    experts = experts_of(c, "intermediate_size") if c.data.get("num_experts") != 1 else {}
    sparse = [yes and bool(experts) for yes in each("expert")]
    return replace(
        made,
        **experts,
        feed_forwards=tuple("experts" if yes else "dense" for yes in sparse),
        mixers=kinds_of(c, kinds, made.layers, usual),
        layer_rope=(None,) * made.layers,
        space=replace(space, norms_eps=made.norm_eps),
        conv_taps=c.integer("mamba_d_conv", 2, _MAX_TAPS, 4),
        conv_bias=c.flag("mamba_conv_bias", True),
    )
