"""The names of a decoder's weights in a Hugging Face checkpoint, and their required shapes.

The roles are those of `names`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from weft.models.arch.config import DecoderConfig, Kind, Layout
from weft.models.weights.layout_builder import LayoutBuilder
from weft.models.weights.mixer_names import (
    MIXERS,
    Projections,
    blocks_of,
    delta_vectors,
    space_vectors,
)
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
    TURNED_EXPERTS,
)

HEAD = "lm_head.weight"


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
        few, name = c.layer_vocab or c.vocab, "embed_tokens_per_layer.weight"
        b.add("embed", "layer_embed", name, few, wide)
        b.add("matrix", "layer_proj.w", "per_layer_model_projection.weight", wide, c.hidden)
        b.add("norm", "layer_proj_norm.w", "per_layer_projection_norm.weight", c.layer_input)
    for j in range(c.altup.streams - 1 if c.altup else 0):
        for role, name in (("in", "altup_projections"), ("out", "altup_unembed_projections")):
            b.both("matrix", f"alt_{role}_{j}", f"{name}.{j}", c.hidden, c.hidden, biased=False)
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
    for role, name in _norms(c, i).items():
        b.both("norm", f"{i}.{role}", f"{at}{name}", c.hidden, biased=shifted)
    if c.sinks:
        b.add("sinks", f"{i}.sinks", f"{at}self_attn.sinks", c.heads, divides=(c.heads,))
    if c.layer_scale:
        b.add("scale", f"{i}.scalar", f"{at}layer_scalar", 1)
    if c.altup is not None:
        b.add("scale", f"{i}.alt_scale", f"{at}altup.correct_output_scale", c.hidden)
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
    fed = _dense(c, i) if "dense" in feed else _shared(c) if "experts" in feed else {}
    parts: Projections = {}
    for mixer in c.mixer(i).split(" and "):
        parts |= MIXERS[mixer](c, i)
    parts |= fed | _layer_input(c) | _altup(c)
    for role, (kind, shape, biased) in parts.items():
        name, divides = at + PROJECTIONS[role], blocks_of(c, i).get(role, ())
        b.both(kind, f"{i}.{role}", name, *shape, biased=biased, divides=divides)
    if c.mixer(i) == "delta":
        delta_vectors(c, b, i, f"{at}linear_attn.")
    if "mamba" in c.mixer(i):
        space_vectors(c, b, i, f"{at}mamba.")
    normed = c.qk_norm not in ("", "turned") and c.mixer(i) == "attention"
    layer = c.layer(i)
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


def _norms(c: DecoderConfig, i: int) -> dict[str, str]:
    """Returns role -> name of the norms around a layer's parts."""
    if not c.norm_weight:
        return {}
    norms, kind = NORMS[c.pre_norms, c.post_norms], c.feed_forward(i)
    for part, none in (("attn", c.mixer(i)), ("mlp", kind)):
        if none == "none":
            norms = {role: name for role, name in norms.items() if not role.startswith(part)}
    if c.parallel == "one norm":
        norms = {role: name for role, name in norms.items() if role == "attn_norm"}
    if kind == "dense and experts":
        norms = norms | BESIDE
    if c.altup is not None:
        more = {"alt_norm": "altup.router_norm", "laurel_norm": "laurel.post_laurel_norm"}
        norms = norms | more
    return norms | {"input_post": "post_per_layer_input_norm"} if c.layer_input else norms


def _shared(c: DecoderConfig) -> Projections:
    """Returns the projections of the expert that all tokens use, if there is one."""
    if not c.shared_ffn:
        return {}
    up: tuple[Kind, tuple[int, ...], bool] = ("matrix", (c.shared_ffn, c.hidden), False)
    made: Projections = {"shared_by": ("gate", (1, c.hidden), False)} if c.shared_gate else {}
    made["shared_down"] = ("matrix", (c.hidden, c.shared_ffn), False)
    if c.fused_gate:
        made["shared_gate_up"] = ("matrix", (2 * c.shared_ffn, c.hidden), False)
        return made
    return made | {"shared_up": up} | ({"shared_gate": up} if c.gated else {})


def _layer_input(c: DecoderConfig) -> Projections:
    size = c.layer_input
    made: Projections = {
        "input_gate": ("matrix", (size, c.hidden), False),
        "input_proj": ("matrix", (c.hidden, size), False),
    }
    return made if size else {}


def _altup(c: DecoderConfig) -> Projections:
    if c.altup is None:
        return {}
    count, rank = c.altup.streams, c.altup.rank
    return {
        "alt_router": ("gate", (count, c.hidden), False),
        "alt_predict": ("gate", (count * count, count), False),
        "alt_correct": ("gate", (count, count), False),
        "laurel_left": ("matrix", (rank, c.hidden), False),
        "laurel_right": ("matrix", (c.hidden, rank), False),
    }


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
    wide = c.expert_hidden or c.hidden
    if c.expert_hidden:
        b.both("matrix", f"{i}.exps_in", f"{at}fc1_latent_proj", wide, c.hidden, biased=False)
        b.both("matrix", f"{i}.exps_out", f"{at}fc2_latent_proj", c.hidden, wide, biased=False)
    for role in ("gate", "up", "down") if c.gated else ("up", "down"):
        shape = (wide, c.expert_ffn) if role == "down" else (c.expert_ffn, wide)
        name = f"{at}experts.{{}}.{role}_proj.weight"
        b.add("experts", f"{i}.{role}_exps.w", name, c.experts, *shape)
        if c.mlp_bias:
            bias = name.replace("weight", "bias")
            b.add("bias", f"{i}.{role}_exps.b", bias, c.experts, shape[0])


def _fused_experts(c: DecoderConfig, b: LayoutBuilder, i: int, at: str) -> None:
    """Adds one tensor for all experts: gpt-oss's, which have biases, Llama 4's and Gemma 4's."""
    turned = c.family in TURNED_EXPERTS
    b.both("router", f"{i}.router", f"{at}router", c.experts, c.hidden, biased=c.mlp_bias)
    sizes = {"gate_up": (2 * c.expert_ffn, c.hidden), "down": (c.hidden, c.expert_ffn)}
    for role, (n, k) in sizes.items():
        name = f"{at}experts.{role}_proj"
        b.add("experts", f"{i}.{role}_exps.w", name, c.experts, n, k, turned=turned)
        if c.mlp_bias:
            b.add("bias", f"{i}.{role}_exps.b", f"{name}_bias", c.experts, n)
