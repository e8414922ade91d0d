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
    PREFIX_OF,
    PREFIXES,
    PROJECTIONS,
    RENAMED,
    ROUTER_BIAS,
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
    if c.traced is not None:
        return Layout(dict(c.traced.weights), probe=c.traced.weights["embed"].name)
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
    if c.norm_weight:
        b.both("norm", "norm", "norm", c.hidden, biased=_shifted(c))
    if not c.tied:
        b.add("head", "head", HEAD, c.vocab, c.hidden, divides=(c.vocab,))
    if c.head_bias:
        b.add("bias", "head.b", "lm_head.bias", c.vocab)
    if c.layer_input:
        wide = c.layers * c.layer_input
        b.add("embed", "layer_embed", "embed_tokens_per_layer.weight", c.vocab, wide)
        b.add("matrix", "layer_proj.w", "per_layer_model_projection.weight", wide, c.hidden)
        b.add("norm", "layer_proj_norm.w", "per_layer_projection_norm.weight", c.layer_input)
    spare: dict[str, str] = {}
    for i in range(c.layers):
        _layer(c, b, i, f"layers.{i}.")
        if c.layer(i).kv_of is not None:  # left over from training
            at, left = f"layers.{i}.self_attn.", {"k": "k_proj", "v": "v_proj", "k_norm": "k_norm"}
            spare |= {f"{i}.{role}.w": f"{at}{name}.weight" for role, name in left.items()}
    for role, spec in b.weights.items():
        name = _own_name(c, spec.name)
        b.weights[role] = replace(spec, name=name, usual="" if name == spec.name else spec.name)
    twin, probe = HEAD if c.tied else "", b.weights["embed"].name
    inert = INERT | INERT_OF.get(c.family, {})
    if c.further_layers:
        last = "|".join(str(c.layers + i) for i in range(c.further_layers))
        inert = inert | {rf"(^|\.)layers\.({last})\.": "layers that guess further tokens"}
    return Layout(b.weights, spare, PREFIX_OF.get(c.family, PREFIXES), probe, inert, twin)


def _layer(c: DecoderConfig, b: LayoutBuilder, i: int, at: str) -> None:
    """Adds the weights of layer i, whose names begin with `at`."""
    feed, shifted = c.feed_forward(i), _shifted(c)
    for role, name in _norms(c, feed).items():
        b.both("norm", f"{i}.{role}", f"{at}{name}", c.hidden, biased=shifted)
    if c.sinks:
        b.add("sinks", f"{i}.sinks", f"{at}self_attn.sinks", c.heads, divides=(c.heads,))
    if c.layer_scale:
        b.add("scale", f"{i}.scalar", f"{at}layer_scalar", 1)
    if c.act == "xielu":
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            one = (1,) if name.startswith("alpha") else ()
            b.add("scale", f"{i}.xielu_{name}", f"{at}mlp.act_fn.{name}", *one)
    if "experts" in feed:
        (_fused_experts if c.fused_experts else _experts)(c, b, i, f"{at}mlp.")
        if c.router_bias:
            name, each = ROUTER_BIAS[c.family]
            b.add("bias", f"{i}.router_bias", f"{at}mlp.{name}", *each, c.experts)
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
        name, size = f"{at}self_attn.{role}_norm", layer.head_dim
        if c.qk_norm == "heads":
            b.add("norm", f"{i}.{role}_norm.w", f"{name}.weight", heads, size)
        elif role in layer.projects:
            size *= heads if c.qk_norm == "whole" else 1
            b.both("norm", f"{i}.{role}_norm", name, size, biased=shifted)


def _shifted(c: DecoderConfig) -> bool:
    """Returns True if norms have a bias."""
    return c.norm == "layer" and c.norm_bias


def _own_name(c: DecoderConfig, name: str) -> str:
    """Returns the family's own name for one of the usual names."""
    for old, new in RENAMED.get(c.family, {}).items():
        name = re.sub(old, new, name)
    return name


def _norms(c: DecoderConfig, kind: str) -> dict[str, str]:
    """Returns role -> name of the norms around a layer's parts."""
    if not c.norm_weight:
        return {}
    norms = NORMS[c.pre_norms, c.post_norms]
    if c.parallel == "one norm":
        norms = {role: name for role, name in norms.items() if role == "attn_norm"}
    if kind == "dense and experts":
        norms = norms | BESIDE
    return norms | {"input_post": "post_per_layer_input_norm"} if c.layer_input else norms


# Role -> (kind, shape, True with a bias).
Projections = dict[str, tuple[Kind, tuple[int, ...], bool]]


def _attention(c: DecoderConfig, i: int) -> Projections:
    layer = c.layer(i)
    blocks = _blocks(c, i)["qkv"]
    q, one = c.heads * layer.head_dim, dict(zip("qkv", blocks))
    sizes = {"qkv": sum(blocks)} if c.fused_qkv else {r: one[r] for r in layer.projects}
    made: Projections = {role: ("matrix", (n, c.hidden), c.qkv_bias) for role, n in sizes.items()}
    if c.output_gate:
        made["q"] = ("matrix", (2 * q, c.hidden), c.qkv_bias)
    return made | {"o": ("matrix", (c.hidden, q), c.out_bias)}


def _blocks(c: DecoderConfig, i: int) -> dict[str, tuple[int, ...]]:
    """Returns the lengths of the blocks of rows in joined matrices."""
    layer = c.layer(i)
    q, kv = c.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    if c.fused_by_head:
        return {"qkv": (3 * q,)}
    return {"qkv": (q, kv, kv), "gate_up": (layer.ffn, layer.ffn)}


def _conv(c: DecoderConfig, i: int) -> Projections:
    return {
        "conv_in": ("matrix", (3 * c.hidden, c.hidden), c.conv_bias),
        "conv": ("conv", (c.hidden, 1, c.conv_taps), c.conv_bias),
        "conv_out": ("matrix", (c.hidden, c.hidden), c.conv_bias),
    }


def _latent(c: DecoderConfig, i: int) -> Projections:
    d = c.latent
    assert d is not None
    q, kv = c.heads * d.key, c.heads * (d.plain + d.value)
    made: Projections = {"q": ("matrix", (q, c.hidden), False)}
    if d.query_rank:
        made = {
            "q_a": ("matrix", (d.query_rank, c.hidden), c.qkv_bias),
            "q_a_norm": ("norm", (d.query_rank,), False),
            "q_b": ("matrix", (q, d.query_rank), False),
        }
    return made | {
        "kv_a": ("matrix", (d.rank + d.turned, c.hidden), c.qkv_bias),
        "kv_a_norm": ("norm", (d.rank,), False),
        "kv_b": ("matrix", (kv, d.rank), False),
        "o": ("matrix", (c.hidden, c.heads * d.value), c.out_bias),
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


_MIXERS = {"attention": _attention, "conv": _conv, "delta": _delta, "latent": _latent}


def _shared(c: DecoderConfig) -> Projections:
    """Returns the projections of the expert that all tokens use, if there is one."""
    if not c.shared_ffn:
        return {}
    up: tuple[Kind, tuple[int, ...], bool] = ("matrix", (c.shared_ffn, c.hidden), False)
    gate: Projections = {"shared_by": ("gate", (1, c.hidden), False)} if c.shared_gate else {}
    return gate | {
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
