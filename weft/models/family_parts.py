"""What the decoder families' readers of config.json share: limits, ropes, windows, sizes.

Field names and defaults follow transformers (`configuration_*.py`, 4.x and 5.x spellings).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.importers.hf_config import Fields
from weft.models.config import Activation, DecoderConfig, Layer, Rope

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
}


def activation(c: Fields, name: str, default: str) -> Activation:
    """The activation that field `name` gives; ModelError lists the known ones."""
    return _ACTIVATIONS[c.text(name, default, choices=tuple(_ACTIVATIONS))]


def refuse(c: Fields, name: str, value: object, why: str) -> None:
    """ModelError when field `name` is set to something other than `value`."""
    given = c.data.get(name)
    if given is not None and given != value:
        raise ModelError(f"{c.where}: {name} is {str(given)[:60]!r}: {why} is not supported")


def rope_of(
    c: Fields, old: Fields | None, theta: float, head_dim: int, partial: bool = False
) -> Rope:
    """A Rope from a `rope_parameters` object (5.x) or a `rope_scaling` one beside rope_theta. Where
    the family's code is `partial`, it may turn a part of the head alone."""
    if old is not None and old.text("rope_type", "") == "proportional":
        return _proportional(old, theta, head_dim)
    at = c if old is None or "partial_rotary_factor" not in old.data else old
    if not partial:
        refuse(at, "partial_rotary_factor", 1.0, "partial rotary embedding")
    size = int(head_dim * at.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    if size < 2 or size % 2:
        raise ModelError(f"{at.where}: partial_rotary_factor turns {size} of {head_dim} elements")
    rotary = 0 if size == head_dim else size
    if old is None:
        return Rope(theta, rotary=rotary)
    kind = old.text("rope_type", None) or old.text("type", None) or "default"
    if kind not in ROPES:
        raise ModelError(
            f"{old.where}: rope type {kind[:40]!r} is not supported; supported: {', '.join(ROPES)}"
        )
    made = ROPES[kind](c, old, old.number("rope_theta", 1.0, 1e12, theta))
    return replace(checked_divisors(old.where, made, size // 2), rotary=rotary)


def _proportional(old: Fields, theta: float, head_dim: int) -> Rope:
    """One whose slower pairs stand still."""
    share = old.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    turning = int(share * head_dim // 2)
    factor = old.number("factor", 1e-6, 1e6, 1.0)
    still = (math.inf,) * (head_dim // 2 - turning)
    theta = old.number("rope_theta", 1.0, 1e12, theta)
    return Rope(theta, divisors=(*(factor,) * turning, *still))


def _linear(c: Fields, old: Fields, theta: float) -> Rope:
    return Rope(theta, "linear", old.number("factor", 1.0, 1e6))


def _llama3(c: Fields, old: Fields, theta: float) -> Rope:
    factor = old.number("factor", 1.0, 1e6)
    low = old.number("low_freq_factor", 1e-3, 1e6)
    high = old.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise ModelError(f"{old.where}: high_freq_factor {high} must exceed low_freq_factor {low}")
    return Rope(theta, "llama3", factor, low, high, _original(old))


def _original(c: Fields, default: Any = None) -> int:
    name = "original_max_position_embeddings"
    given = (default,) if default else ()
    return int(c.integer(name, 1, MAX_POSITIONS, *given))


def _yarn(c: Fields, old: Fields, theta: float) -> Rope:
    """YaRN (Peng et al., arXiv:2309.00071); its magnitude may be that of another depth (DeepSeek's
    mscale)."""
    if theta <= 1:
        raise ModelError(f"{old.where}: YaRN needs a rope_theta above 1, got {theta:g}")
    factor = old.number("factor", 1.0, 1e6)
    fast = old.number("beta_fast", 1e-3, 1e6, None) or 32.0
    slow = old.number("beta_slow", 1e-3, 1e6, None) or 1.0
    depths = [old.number(name, 0.0, 1e3, 0.0) for name in ("mscale", "mscale_all_dim")]
    over, under = (0.1 * d * math.log(factor) + 1 for d in (depths if all(depths) else (1.0, 0.0)))
    magnitude = old.number("attention_factor", 1e-6, 1e6, None) or over / under
    truncate = old.flag("truncate", True)
    return Rope(theta, "yarn", factor, slow, fast, _original(old), magnitude, truncate=truncate)


def _longrope(c: Fields, old: Fields, theta: float) -> Rope:
    """LongRoPE (Ding et al., arXiv:2402.13753): a divisor for each pair, one list for contexts up
    to the original and one beyond."""
    longest = c.integer("max_position_embeddings", 1, MAX_POSITIONS, 2048)
    original = _original(old, _original(c, longest))
    factor = old.number("factor", 1e-3, 1e6, longest / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    magnitude = old.number("attention_factor", 1e-6, 1e6, None) or usual
    short, long = (old.numbers(f"{k}_factor", 1e-3, 1e6) for k in ("short", "long"))
    return Rope(
        theta, "longrope", factor, original=original, magnitude=magnitude, divisors=short,
        long_divisors=long,
    )  # fmt: skip


ROPES: dict[str, Callable[[Fields, Fields, float], Rope]] = {
    "default": lambda c, old, theta: Rope(theta),
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def checked_divisors(where: str, rope: Rope, pairs: int) -> Rope:
    """The rope; ModelError where its divisors are not one for each pair that turns."""
    for given in (rope.divisors, rope.long_divisors):
        if (given or rope.scaling == "longrope") and len(given) != pairs:
            raise ModelError(f"{where}: the rope has {len(given)} factors; expected {pairs}")
    return rope


def single_rope(c: Fields, head_dim: int, theta: float = 1e4, partial: bool = False) -> Rope:
    """The rope of all layers; `theta` is the family's own, see `rope_of`."""
    theta = c.number("rope_theta", 1.0, 1e12, theta)
    old = c.section("rope_parameters") or c.section("rope_scaling")
    return rope_of(c, old, theta, head_dim, partial)


def two_ropes(
    c: Fields, windows: tuple[int, ...], thetas: tuple[float, float], sizes: tuple[int, int]
) -> dict[str, Any]:
    """Fields of a config whose layers with a window have a rope of their own. Of full and of
    sliding layers `thetas` are the wavelengths where nothing else is said, `sizes` those of the
    heads."""
    both = c.section("rope_parameters")
    kinds = "full_attention", "sliding_attention"
    if both is not None and any(kind in both.data for kind in kinds):
        given = zip(kinds, thetas, sizes)
        ropes = [rope_of(both, both.section(kind), theta, size) for kind, theta, size in given]
    else:
        ropes = [single_rope(c, sizes[0], thetas[0]), Rope(thetas[1])]
    if sizes[0] != sizes[1]:
        ropes = [replace(rope, rotary=rope.rotary or size) for rope, size in zip(ropes, sizes)]
    layer_rope = tuple(1 if w else 0 for w in windows)
    return {"ropes": tuple(ropes), "layer_rope": layer_rope, "windows": windows}


def windows_of(c: Fields, layers: int, window: int, sliding: Callable[[int], bool]) -> Any:
    """The window of each layer: by `layer_types` where given, else by the family's own rule."""
    known = {"full_attention": 0, "sliding_attention": window}
    usual = ["sliding_attention" if sliding(i) else "full_attention" for i in range(layers)]
    return kinds_of(c, known, layers, usual)


def kinds_of(c: Fields, known: dict[str, Any], layers: int, usual: list[str]) -> tuple[Any, ...]:
    """What `known` says of each layer's kind: that in `layer_types` where given, else the usual."""
    types = c.texts("layer_types") or tuple(usual)
    if len(types) != layers:
        raise ModelError(f"{c.where}: layer_types has {len(types)} entries; expected {layers}")
    for t in types:
        if t not in known:
            raise ModelError(f"{c.where}: layer type {t[:40]!r} is not supported")
    return tuple(known[t] for t in types)


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


def base(c: Fields, family: str, kv_default: int | None = None, **more: Any) -> DecoderConfig:
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


def layers_of(c: Fields, made: DecoderConfig, windows: tuple[int, ...]) -> tuple[Layer, ...]:
    """Gemma 4's layers: full ones have heads of a size and number of their own, perhaps with keys
    for values; the last ones attend to what the last of their kind before them keeps."""
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
        ffn = made.ffn if i < first else wide
        out.append(Layer(size, kv, ffn, "qk" if same and not window else "qkv"))
    return sharing(c.where, out, windows, first)


def sharing(
    where: str, layers: Sequence[Layer], windows: tuple[int, ...], first: int
) -> tuple[Layer, ...]:
    """The layers, those from `first` on with the keys and values of the last one before that has
    their window. Layers of one window must have heads alike, since they have one rope."""
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
    c: Fields, width: str = "moe_intermediate_size", used: str = "num_experts_per_tok"
) -> dict[str, Any]:
    """Fields of a config with experts: how many, how many for each token (what `used` says), how
    wide (what `width` says)."""
    name = "num_experts" if c.data.get("num_experts") is not None else "num_local_experts"
    experts = c.integer(name, 1, MAX_EXPERTS)
    count = c.integer(used, 1, experts)
    ffn = c.integer(width, 1, MAX_FFN)
    return {"experts": experts, "experts_used": count, "expert_ffn": ffn}
