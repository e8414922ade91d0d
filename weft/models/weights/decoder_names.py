"""The names of a decoder's weights in a Hugging Face checkpoint, and their required shapes.

The roles are those of `names`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from weft.models.arch.config import DecoderConfig, Kind, Layout, WeightSpec
from weft.models.weights.tensor_names import (
    BESIDE,
    INERT,
    INERT_OF,
    NORMS,
    PREFIXES,
    PROJECTIONS,
    RENAMED,
)

HEAD = "lm_head.weight"


class LayoutBuilder:
    """A collector of role -> WeightSpec."""

    def __init__(self) -> None:
        self.weights: dict[str, WeightSpec] = {}

    def add(
        self, kind: Kind, role: str, name: str, *shape: int, turned: bool = False,
        divides: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.weights[role] = WeightSpec(name, shape, kind, turned, divides)

    def both(
        self, kind: Kind, role: str, name: str, *shape: int, biased: bool = True,
        divides: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Adds a weight and its bias, if it has one, with the length of the shape's first axis. A
        matrix without other blocks divides as one."""
        divides = divides or (shape[:1] if kind == "matrix" else ())
        self.add(kind, f"{role}.w", f"{name}.weight", *shape, divides=divides)
        if biased:
            self.add("bias", f"{role}.b", f"{name}.bias", shape[0], divides=divides)


def decoder_layout(c: DecoderConfig) -> Layout:
    """Returns names and shapes of a decoder's weights."""
    return _gpt2(c) if c.family == "gpt2" else _llama(c)


def _gpt2(c: DecoderConfig) -> Layout:
    b = LayoutBuilder()
    b.add("embed", "embed", "wte.weight", c.vocab, c.hidden)
    b.add("table", "pos", "wpe.weight", c.max_positions, c.hidden)
    b.both("norm", "norm", "ln_f", c.hidden)
    if not c.tied:
        b.add("head", "head", HEAD, c.vocab, c.hidden, divides=(c.vocab,))
    for i in range(c.layers):
        at = f"h.{i}."
        b.both("norm", f"{i}.attn_norm", f"{at}ln_1", c.hidden)
        b.both("norm", f"{i}.mlp_norm", f"{at}ln_2", c.hidden)
        for role, name, k, blocks in (
            ("qkv", "attn.c_attn", c.hidden, (c.hidden,) * 3),
            ("o", "attn.c_proj", c.hidden, (c.hidden,)),
            ("up", "mlp.c_fc", c.hidden, (c.ffn,)),
            ("down", "mlp.c_proj", c.ffn, (c.hidden,)),
        ):
            n = sum(blocks)
            shape = (k, n) if c.transposed else (n, k)  # Conv1D: [in, out]
            b.add("matrix", f"{i}.{role}.w", f"{at}{name}.weight", *shape, divides=blocks)
            b.add("bias", f"{i}.{role}.b", f"{at}{name}.bias", n, divides=blocks)
    inert, twin = INERT | INERT_OF["gpt2"], HEAD if c.tied else ""
    return Layout(b.weights, {}, ("transformer.", ""), "wte.weight", inert, twin)


def _llama(c: DecoderConfig) -> Layout:
    b = LayoutBuilder()
    b.add("embed", "embed", "embed_tokens.weight", c.vocab, c.hidden)
    b.add("norm", "norm.w", "norm.weight", c.hidden)
    if not c.tied:
        b.add("head", "head", HEAD, c.vocab, c.hidden, divides=(c.vocab,))
    if c.layer_input:
        wide = c.layers * c.layer_input
        b.add("embed", "layer_embed", "embed_tokens_per_layer.weight", c.vocab, wide)
        b.add("matrix", "layer_proj.w", "per_layer_model_projection.weight", wide, c.hidden)
        b.add("norm", "layer_proj_norm.w", "per_layer_projection_norm.weight", c.layer_input)
    spare: dict[str, str] = {}
    for i in range(c.layers):
        at, feed = f"layers.{i}.", c.feed_forward(i)
        for role, name in _norms(c, feed).items():
            b.add("norm", f"{i}.{role}.w", f"{at}{name}.weight", c.hidden)
        if c.sinks:
            b.add("sinks", f"{i}.sinks", f"{at}self_attn.sinks", c.heads, divides=(c.heads,))
        if c.layer_scale:
            b.add("scale", f"{i}.scalar", f"{at}layer_scalar", 1)
        if "experts" in feed:
            (_fused_experts if c.fused_experts else _experts)(c, b, i, f"{at}mlp.")
        if feed == "dense and experts":
            b.add("norm", f"{i}.router_norm.w", f"{at}router.scale", c.hidden)
            b.add("scale", f"{i}.exps_scale", f"{at}router.per_expert_scale", c.experts)
        parts = _MIXERS[c.mixer(i)](c, i) | (_dense(c, i) if "dense" in feed else _shared(c))
        for role, (kind, shape, biased) in (parts | _layer_input(c)).items():
            name, divides = at + PROJECTIONS[role], _blocks(c, i).get(role, ())
            b.both(kind, f"{i}.{role}", name, *shape, biased=biased, divides=divides)
        if c.mixer(i) == "delta":
            _delta_vectors(c, b, i, f"{at}linear_attn.")
        layer, normed = c.layer(i), c.qk_norm and c.mixer(i) == "attention"
        for role, heads in (("q", c.heads), ("k", layer.kv_heads)) if normed else ():
            size = layer.head_dim * (heads if c.qk_norm == "whole" else 1)
            if role in layer.projects:
                b.add("norm", f"{i}.{role}_norm.w", f"{at}self_attn.{role}_norm.weight", size)
        if layer.kv_of is not None:  # left over from training
            left = {"k": "k_proj", "v": "v_proj", "k_norm": "k_norm"}
            spare |= {f"{i}.{r}.w": f"{at}self_attn.{name}.weight" for r, name in left.items()}
    for old, new in RENAMED.get(c.family, {}).items():
        for role, spec in b.weights.items():
            b.weights[role] = replace(spec, name=re.sub(old, new, spec.name))
    twin = HEAD if c.tied else ""
    return Layout(b.weights, spare, PREFIXES, "embed_tokens.weight", INERT, twin)


def _norms(c: DecoderConfig, kind: str) -> dict[str, str]:
    """Returns role -> name of the norms around a layer's parts."""
    norms = NORMS[c.pre_norms, c.post_norms]
    if kind == "dense and experts":
        norms = norms | BESIDE
    return norms | {"input_post": "post_per_layer_input_norm"} if c.layer_input else norms


# Role -> (kind, shape, True with a bias).
Projections = dict[str, tuple[Kind, tuple[int, ...], bool]]


def _attention(c: DecoderConfig, i: int) -> Projections:
    layer = c.layer(i)
    blocks = _blocks(c, i)["qkv"]
    q, one = blocks[0], dict(zip("qkv", blocks))
    sizes = {"qkv": sum(blocks)} if c.fused_qkv else {r: one[r] for r in layer.projects}
    made: Projections = {role: ("matrix", (n, c.hidden), c.qkv_bias) for role, n in sizes.items()}
    if c.output_gate:
        made["q"] = ("matrix", (2 * q, c.hidden), c.qkv_bias)
    return made | {"o": ("matrix", (c.hidden, q), c.out_bias)}


def _blocks(c: DecoderConfig, i: int) -> dict[str, tuple[int, ...]]:
    """Returns the lengths of the blocks of rows in joined matrices."""
    layer = c.layer(i)
    q, kv = c.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    return {"qkv": (q, kv, kv), "gate_up": (layer.ffn, layer.ffn)}


def _conv(c: DecoderConfig, i: int) -> Projections:
    return {
        "conv_in": ("matrix", (3 * c.hidden, c.hidden), c.conv_bias),
        "conv": ("conv", (c.hidden, 1, c.conv_taps), c.conv_bias),
        "conv_out": ("matrix", (c.hidden, c.hidden), c.conv_bias),
    }


def _delta(c: DecoderConfig, i: int) -> Projections:
    d = c.delta
    assert d is not None
    fused = {"qkvz": d.channels + d.values} if d.fused_qkvz else {"qkv": d.channels, "z": d.values}
    gates = {"ba": 2 * d.value_heads} if d.fused_ba else dict.fromkeys("ba", d.value_heads)
    made: Projections = {}
    made |= {f"delta_{part}": ("matrix", (n, c.hidden), False) for part, n in fused.items()}
    made |= {f"delta_{part}": ("gate", (n, c.hidden), False) for part, n in gates.items()}
    return made | {"delta_out": ("matrix", (c.hidden, d.values), False)}


def _delta_vectors(c: DecoderConfig, b: LayoutBuilder, i: int, at: str) -> None:
    d = c.delta
    assert d is not None
    b.add("conv", f"{i}.conv.w", f"{at}conv1d.weight", d.channels, 1, c.conv_taps)
    b.add("decay", f"{i}.decay", f"{at}A_log", d.value_heads)
    b.add("bias", f"{i}.decay_bias", f"{at}dt_bias", d.value_heads)
    b.add("norm", f"{i}.delta_norm.w", f"{at}norm.weight", d.value_dim)


_MIXERS = {"attention": _attention, "conv": _conv, "delta": _delta}


def _shared(c: DecoderConfig) -> Projections:
    """Returns the projections of the expert that all tokens use, if there is one."""
    if not c.shared_ffn:
        return {}
    up: tuple[Kind, tuple[int, ...], bool] = ("matrix", (c.shared_ffn, c.hidden), False)
    return {
        "shared_by": ("gate", (1, c.hidden), False),
        "shared_down": ("matrix", (c.hidden, c.shared_ffn), False),
        "shared_up": up,
        "shared_gate": up,
    }


def _layer_input(c: DecoderConfig) -> Projections:
    size = c.layer_input
    made: Projections = {
        "input_gate": ("matrix", (size, c.hidden), False),
        "input_proj": ("matrix", (c.hidden, size), False),
    }
    return made if size else {}


def _dense(c: DecoderConfig, i: int) -> Projections:
    ffn = c.layer(i).ffn
    sizes = {"gate_up": 2 * ffn} if c.fused_gate else {"up": ffn, "gate": ffn}
    if not c.gated:
        del sizes["gate"]
    made: Projections = {role: ("matrix", (n, c.hidden), c.mlp_bias) for role, n in sizes.items()}
    return made | {"down": ("matrix", (c.hidden, ffn), c.mlp_bias)}


def _experts(c: DecoderConfig, b: LayoutBuilder, i: int, at: str) -> None:
    """Adds experts with Qwen's names, a tensor per expert. Those with biases only come from
    GGUF."""
    b.both("router", f"{i}.router", f"{at}gate", c.experts, c.hidden, biased=c.mlp_bias)
    for role in ("gate", "up", "down"):
        shape = (c.hidden, c.expert_ffn) if role == "down" else (c.expert_ffn, c.hidden)
        name = f"{at}experts.{{}}.{role}_proj.weight"
        b.add("experts", f"{i}.{role}_exps.w", name, c.experts, *shape)
        if c.mlp_bias:
            bias = name.replace("weight", "bias")
            b.add("bias", f"{i}.{role}_exps.b", bias, c.experts, shape[0])


def _fused_experts(c: DecoderConfig, b: LayoutBuilder, i: int, at: str) -> None:
    """Adds one tensor for all experts: gpt-oss's, whose matrices are [in, out] and have biases, and
    Gemma 4's."""
    turned = c.fused_experts == "turns"
    b.both("router", f"{i}.router", f"{at}router", c.experts, c.hidden, biased=c.mlp_bias)
    sizes = {"gate_up": (2 * c.expert_ffn, c.hidden), "down": (c.hidden, c.expert_ffn)}
    for role, (n, k) in sizes.items():
        name = f"{at}experts.{role}_proj"
        b.add("experts", f"{i}.{role}_exps.w", name, c.experts, n, k, turned=turned)
        if c.mlp_bias:
            b.add("bias", f"{i}.{role}_exps.b", f"{name}_bias", c.experts, n)
