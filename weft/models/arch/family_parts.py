"""Parts shared by the readers of decoder families: limits, windows, sizes.

Field names follow transformers (`configuration_*.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.arch.config import Activation, DecoderConfig, Layer

MAX_VOCAB, MAX_HIDDEN, MAX_LAYERS, MAX_HEADS = 1 << 22, 1 << 17, 1024, 1024
MAX_EXPERTS = 4096
MAX_FFN, MAX_HEAD_DIM, MAX_POSITIONS = 1 << 20, 1024, 1 << 24

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


def activation(c: Fields, name: str, default: str) -> Activation:
    """Returns the activation in field `name`. Raises ModelError with the known ones."""
    return _ACTIVATIONS[c.text(name, default, choices=tuple(_ACTIVATIONS))]


def refuse(c: Fields, name: str, value: object, why: str) -> None:
    """Raises ModelError if field `name` is set to something other than `value`."""
    given = c.data.get(name)
    if given is not None and given != value:
        raise ModelError(
            f"{c.where}: {c.name(name)} is {str(given)[:60]!r}: {why} is not supported"
        )


def windows_of(c: Fields, layers: int, window: int, sliding: Callable[[int], bool]) -> Any:
    """Returns the window of each layer: by `layer_types` if given, else by the family's own
    rule."""
    known = {"full_attention": 0, "sliding_attention": window}
    usual = ["sliding_attention" if sliding(i) else "full_attention" for i in range(layers)]
    return kinds_of(c, known, layers, usual)


def kinds_of(c: Fields, known: dict[str, Any], layers: int, usual: list[str]) -> tuple[Any, ...]:
    """Returns the value in `known` for each layer's kind, from `layer_types` if given, else
    `usual`."""
    types = c.texts("layer_types") or tuple(usual)
    if len(types) != layers:
        raise ModelError(f"{c.where}: layer_types has {len(types)} entries; expected {layers}")
    for t in types:
        if t not in known:
            raise ModelError(f"{c.where}: layer type {t[:40]!r} is not supported")
    return tuple(known[t] for t in types)


def checked_heads(where: str, hidden: int, heads: int, kv: int, head_dim: int | None) -> int:
    """Returns the elements per head (None: the width divided by the heads), after checking the
    sizes."""
    if head_dim is None:
        if hidden % heads:
            raise ModelError(f"{where}: hidden_size {hidden} is not a multiple of {heads} heads")
        head_dim = hidden // heads
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise ModelError(f"{where}: head_dim is {head_dim}; expected even, <= {MAX_HEAD_DIM}")
    if heads % kv:
        raise ModelError(f"{where}: {heads} heads are not a multiple of {kv} key/value heads")
    return head_dim


def base(c: Fields, family: str, **more: Any) -> DecoderConfig:
    """Reads the fields that all Llama-like configs share."""
    hidden = c.integer("hidden_size", 1, MAX_HIDDEN)
    heads = c.integer("num_attention_heads", 1, MAX_HEADS)
    kv = c.integer("num_key_value_heads", 1, MAX_HEADS, heads)
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


def layers_of(c: Fields, made: DecoderConfig, windows: tuple[int, ...]) -> tuple[Layer, ...]:
    """Returns Gemma 4's layers. Full ones have their own size and number of heads, perhaps with
    keys used as values. The last ones attend to the keys and values of the last earlier layer of
    their kind."""
    same = c.flag("attention_k_eq_v", False)
    count = c.data.get("num_global_key_value_heads") if same else None
    full = {"head_dim": c.data.get("global_head_dim") or 512, "num_key_value_heads": count}
    given = c.section("per_layer_config")
    first = made.layers - c.integer("num_kv_shared_layers", 0, made.layers - 1, 0)
    wide = made.ffn * (2 if c.flag("use_double_wide_mlp", False) else 1)
    out = []
    for i, window in enumerate(windows):
        usual = Fields({} if window or given is not None else full, c.where)
        own = (given.section(str(i)) if given is not None else None) or usual
        size = own.integer("head_dim", 2, MAX_HEAD_DIM, made.head_dim)
        kv = own.integer("num_key_value_heads", 1, MAX_HEADS, made.kv_heads)
        checked_heads(c.where, made.hidden, made.heads, kv, size)
        ffn = own.integer("intermediate_size", 1, MAX_FFN, made.ffn if i < first else wide)
        keys_only = own.flag("attention_k_eq_v", same) and not window
        out.append(Layer(size, kv, ffn, "qk" if keys_only else "qkv"))
    return sharing(c.where, out, windows, first)


def sharing(
    where: str, layers: Sequence[Layer], windows: tuple[int, ...], first: int
) -> tuple[Layer, ...]:
    """Returns the layers; those from `first` on share the keys and values of the last earlier layer
    with the same window. Layers with one window must have equal heads, since they have one rope."""
    out, known = [], dict[int, int]()
    for i, (layer, window) in enumerate(zip(layers, windows)):
        other = known.get(window)
        if other is not None and layers[other][:2] != layer[:2]:
            raise ModelError(f"{where}: layer {i} has other heads than layer {other}, its like")
        if i >= first and other is None:
            raise ModelError(f"{where}: no layer before {first} has what layer {i} shares")
        if i < first:
            known[window] = i
        out.append(layer if i < first else layer._replace(projects="q", kv_of=other))
    return tuple(out)


def experts_of(
    c: Fields, width: str = "moe_intermediate_size", used: str = "num_experts_per_tok",
    names: tuple[str, str] = ("num_local_experts", "num_experts"),
) -> dict[str, Any]:  # fmt: skip
    """Returns the config fields for experts: their number (`names`, the first one that is given),
    the number per token (field `used`), their width (field `width`)."""
    first, second = (c.integer(name, 1, MAX_EXPERTS, None) for name in names)
    experts = first or second or c.integer(names[1], 1, MAX_EXPERTS)
    count = c.integer(used, 1, experts)
    ffn = c.integer(width, 1, MAX_FFN)
    return {"experts": experts, "experts_used": count, "expert_ffn": ffn}


def multipliers(c: Fields) -> dict[str, Any]:
    """Returns Granite's config fields: factors on scores, embeddings, what layers add, and
    logits."""
    fields = {
        "scale": "attention_multiplier",
        "embed_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_divisor": "logits_scaling",
    }
    return {ours: c.number(name, 1e-6, 1e6, 1.0) for ours, name in fields.items()}
