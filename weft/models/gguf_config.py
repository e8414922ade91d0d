"""Decoder families as llama.cpp writes them: a GGUF file's metadata in, one DecoderConfig out.

What the metadata leave out is told by which tensors there are: biases, a head of its own. What
neither tells (an activation, the layers that slide) is fixed for the family, as in llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.importers.gguf import Gguf
from weft.importers.gguf_blocks import dequantize
from weft.importers.hf_config import Fields
from weft.models.config import DecoderConfig, Rope
from weft.models.family_parts import (
    MAX_EXPERTS,
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    checked_heads,
)

ROPE_DIVISORS = "rope_freqs.weight"
ROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")
# Architectures whose rows of queries and keys stand in the order of their rope.
TURNED = ("llama", "smollm3", "mistral3", "granite")
# Keys whose other values change what is computed, and the value that means "not used".
_PLAIN: dict[str, Any] = {
    "expert_count": 0, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0,
    "attention.causal": True, "attention.shared_kv_layers": 0, "use_parallel_residual": False,
    "logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 1.0,
    "rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0,
}  # fmt: skip
# Of these, what a family reads.
_READ = {
    "granite": ("logit_scale", "residual_scale", "embedding_scale"),
    "mistral3": ("rope.scaling.yarn_log_multiplier",),
    "phi3": ("rope.scaling.attn_factor",),
    "qwen3moe": ("expert_count",),
}


class Source:
    """Typed, bounded access to a file's metadata under its architecture's name."""

    def __init__(self, gguf: Gguf, arch: str) -> None:
        self.gguf = gguf
        self.where = str(gguf.path)
        self._arch = arch
        own = {k: v for k, v in gguf.metadata.items() if k.startswith(f"{arch}.")}
        listed = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in own.items()}
        self._fields = Fields(listed, self.where)

    def value(self, key: str) -> Any:
        return self._fields.data.get(f"{self._arch}.{key}")

    def integer(self, key: str, lo: int, hi: int, *default: Any) -> Any:
        return self._fields.integer(f"{self._arch}.{key}", lo, hi, *default)

    def number(self, key: str, lo: float, hi: float, *default: Any) -> Any:
        """A float32, as the shortest decimal that it was rounded from: 1e-05, not 9.9999997e-06."""
        found = self._fields.number(f"{self._arch}.{key}", lo, hi, *default)
        return found if found is None else float(str(np.float32(found)))

    def uniform(self, key: str, hi: int, *default: int) -> int:
        """A positive integer, given once or for every layer; it must be the same for all."""
        found = set(self._fields.integers(f"{self._arch}.{key}", 1, hi)) or set(default)
        if not found:
            return int(self.integer(key, 1, hi))  # which says that it is missing
        if len(found) > 1:
            raise ModelError(
                f"{self.where}: {self._arch}.{key} differs from layer to layer "
                f"({min(found)} to {max(found)}), which is not supported"
            )
        return int(found.pop())

    def has(self, tensor: str) -> bool:
        return tensor in self.gguf.tensors

    def refuse(self, key: str, said: str) -> ModelError:
        shown = f"{self.value(key)!r:.60}"
        return ModelError(f"{self.where}: {self._arch}.{key} is {shown}: {said}")


def read_config(gguf: Gguf) -> DecoderConfig:
    """The decoder that a file holds. Raises ModelError for an architecture that is not supported,
    by name, and for metadata that are missing or make no sense."""
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ModelError(
            f"{gguf.path}: architecture {arch!r:.60} is not supported; supported in GGUF: {known}"
        )
    c = Source(gguf, arch)
    for key, plain in _PLAIN.items():
        if c.value(key) not in (None, plain) and key not in _READ.get(arch, ()):
            raise c.refuse(key, f"other than {plain!r} is not supported")
    return FAMILIES[arch](c)


# -- shared parts ---------------------------------------------------------------------------------


def _vocab(c: Source) -> int:
    """Rows of the embedding. Tokens may be fewer than the metadata's vocab_size, never more."""
    tokens = c.gguf.metadata.get("tokenizer.ggml.tokens")
    known = [len(tokens)] if isinstance(tokens, list) and tokens else []
    return int(c.integer("vocab_size", 1, MAX_VOCAB, *known))


def _rope(c: Source, head_dim: int, partial: bool = False) -> Rope:
    """The rope of all layers (of those that do not slide, where the others have their own)."""
    turned = c.integer("rope.dimension_count", 2, MAX_HIDDEN, head_dim)
    if turned > head_dim or turned % 2 or (turned != head_dim and not partial):
        raise c.refuse("rope.dimension_count", f"rotating a part of {head_dim} is not supported")
    theta = c.number("rope.freq_base", 1.0, 1e12, 10000.0)
    divisors = _divisors(c, ROPE_DIVISORS, turned // 2)
    rope = Rope(theta, divisors=divisors, rotary=0 if turned == head_dim else turned)
    kind = c.value("rope.scaling.type") or "none"
    # Before there was a type, scale_linear alone said how much slower.
    old = c.number("rope.scale_linear", 1e-6, 1e6, 1.0)
    factor = c.number("rope.scaling.factor", 1e-6, 1e6, old)
    if kind == "none" and old == 1.0:
        return rope
    if kind in ("linear", "none"):
        return rope if factor == 1.0 else replace(rope, scaling="linear", factor=factor)
    if kind != "yarn":
        raise c.refuse("rope.scaling.type", "supported are none, linear, yarn")
    if theta <= 1:
        raise c.refuse("rope.freq_base", "YaRN needs more than 1")
    under = c.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0)
    grown = 0.1 * math.log(factor) if factor > 1 else 0.0
    return replace(
        rope,
        scaling="yarn",
        factor=factor,
        low_factor=c.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0),
        high_factor=c.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0),
        original=_original(c),
        magnitude=(grown + 1) / (grown * under + 1),
    )


def _original(c: Source) -> int:
    return int(c.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS))


def _divisors(c: Source, name: str, pairs: int) -> tuple[float, ...]:
    """What each pair's frequency is divided by, () where the file does not say: Llama 3.1's long
    context, worked out, or LongRoPE's factors."""
    if not c.has(name):
        return ()
    tensor = c.gguf.tensors[name]
    if tensor.shape != (pairs,):
        raise ModelError(
            f"{c.where}: tensor {name!r} has shape {list(tensor.shape)}; expected {[pairs]}"
        )
    values = dequantize(tensor.kind, tensor.data, tensor.shape)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ModelError(f"{c.where}: tensor {name!r} holds what is not above 0")
    return tuple(values.tolist())


def _windows(c: Source, layers: int, every: int, default: int = 0) -> tuple[int, ...]:
    """The window of each layer. Where the metadata do not say which layers slide, all but each
    `every`-th one do (0: all, 1: none)."""
    window = c.integer("attention.sliding_window", 0, MAX_POSITIONS, default)
    pattern = c.value("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(isinstance(p, bool) for p in pattern):
            raise c.refuse("attention.sliding_window_pattern", f"expected {layers} truth values")
        slides = pattern
    else:
        every = c.integer("attention.sliding_window_pattern", 0, MAX_LAYERS, every)
        slides = [not every or (i + 1) % every != 0 for i in range(layers)]
    return tuple(window if s else 0 for s in slides) if window and any(slides) else ()


def _base(c: Source, family: str, **more: Any) -> DecoderConfig:
    """What all families share."""
    hidden = c.integer("embedding_length", 1, MAX_HIDDEN)
    heads = c.uniform("attention.head_count", MAX_HEADS)
    kv = c.uniform("attention.head_count_kv", MAX_HEADS, heads)
    size = c.integer("attention.key_length", 2, MAX_HIDDEN, None)
    head_dim = checked_heads(c.where, hidden, heads, kv, size)
    if c.integer("attention.value_length", 1, MAX_HIDDEN, head_dim) != head_dim:
        raise c.refuse("attention.value_length", f"not that of keys, which is {head_dim}")
    made = DecoderConfig(
        family=family,
        vocab=_vocab(c),
        hidden=hidden,
        layers=c.integer("block_count", 1, MAX_LAYERS),
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim,
        ffn=c.uniform("feed_forward_length", MAX_FFN),
        max_positions=c.integer("context_length", 1, MAX_POSITIONS),
        qkv_bias=c.has("blk.0.attn_q.bias"),
        out_bias=c.has("blk.0.attn_output.bias"),
        mlp_bias=c.has("blk.0.ffn_up.bias"),
        scale=c.number("attention.scale", 1e-6, 1e6, None) or head_dim**-0.5,
        tied=not c.has("output.weight"),
    )
    return replace(made, **more)


def _eps(c: Source) -> float:
    return float(c.number("attention.layer_norm_rms_epsilon", 0.0, 1.0))


def _rms(c: Source, family: str, every: int, **more: Any) -> DecoderConfig:
    """What the families with RMS norms and ropes share."""
    made = _base(c, family, norm_eps=_eps(c), **more)
    windows = _windows(c, made.layers, every)
    return replace(made, ropes=(_rope(c, made.head_dim),), windows=windows)


# -- families -------------------------------------------------------------------------------------


def _gpt2(c: Source) -> DecoderConfig:
    eps = c.number("attention.layer_norm_epsilon", 0.0, 1.0)
    made = _base(c, "gpt2", norm="layer", norm_eps=eps, ropes=(), act="gelu_tanh")
    made = replace(made, gated=False, fused_qkv=True, qkv_bias=True, out_bias=True, mlp_bias=True)
    return made


def _gemma(c: Source, family: str, every: int, large: int) -> DecoderConfig:
    """`large`: how many layers the 27B model has, which scales its scores in a way of its own."""
    made = _rms(c, family, every, act="gelu_tanh", norm_offset=1.0, post_norms=True)
    given = c.value("attention.scale") is not None
    scale = (made.hidden // made.heads) ** -0.5 if made.layers == large else made.head_dim**-0.5
    return replace(
        made,
        embed_scale=made.hidden**0.5,
        embed_scale_rounded=True,
        scale=made.scale if given else scale,
    )


def _gemma2(c: Source) -> DecoderConfig:
    made = _gemma(c, "gemma2", 2, 46)
    return replace(
        made,
        windows=_windows(c, made.layers, 2, 4096),
        attn_softcap=c.number("attn_logit_softcapping", 0.0, 1e6, 50.0),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 30.0),
    )


def _gemma3(c: Source) -> DecoderConfig:
    made = _gemma(c, "gemma3_text", 6, 62)
    local = Rope(c.number("rope.freq_base_swa", 1.0, 1e12, 10000.0))
    return replace(
        made,
        qk_norm="head",
        ropes=(*made.ropes, local),
        layer_rope=tuple(1 if made.window(i) else 0 for i in range(made.layers)),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def _qwen3moe(c: Source) -> DecoderConfig:
    made = _rms(c, "qwen3_moe", 1, qk_norm="head", expert_norm=True)
    experts = c.integer("expert_count", 1, MAX_EXPERTS)
    return replace(
        made,
        experts=experts,
        experts_used=c.integer("expert_used_count", 1, experts),
        expert_ffn=c.integer("expert_feed_forward_length", 1, MAX_FFN),
        feed_forwards=("experts",) * made.layers,
    )


def _phi3(c: Source) -> DecoderConfig:
    """Its fused gate and up projection is called ffn_up."""
    made = _base(c, "phi3", norm_eps=_eps(c), fused_qkv=True, fused_gate=True)
    rope = _rope(c, made.head_dim, partial=True)
    pairs = (rope.rotary or made.head_dim) // 2
    short, long = (_divisors(c, name, pairs) for name in ROPE_FACTORS)
    if bool(short) != bool(long):
        raise ModelError(f"{c.where}: one of {', '.join(ROPE_FACTORS)} is missing")
    if long:
        magnitude = c.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
        rope = replace(rope, scaling="longrope", divisors=short, long_divisors=long)
        rope = replace(rope, original=_original(c), magnitude=magnitude)
    return replace(made, ropes=(rope,), windows=_windows(c, made.layers, 0))


def _smollm3(c: Source) -> DecoderConfig:
    made = _rms(c, "smollm3", 1)
    return replace(made, layer_rope=tuple(0 if (i + 1) % 4 else None for i in range(made.layers)))


def _mistral3(c: Source) -> DecoderConfig:
    made = _rms(c, "ministral3", 0)
    beta = c.number("attention.temperature_scale", 0.0, 1e3, 0.0)
    if beta and made.ropes[0].scaling is None:
        made = replace(made, ropes=(replace(made.ropes[0], original=_original(c)),))
    return replace(made, query_growth=beta)


def _granite(c: Source) -> DecoderConfig:
    return replace(
        _rms(c, "granite", 1),
        scale=c.number("attention.scale", 1e-6, 1e6, 1.0),
        embed_scale=c.number("embedding_scale", 1e-6, 1e6, 1.0),
        residual_scale=c.number("residual_scale", 1e-6, 1e6, 1.0),
        logit_divisor=c.number("logit_scale", 1e-6, 1e6, 1.0),
    )


def _olmo2(c: Source) -> DecoderConfig:
    """OLMo 2, and OLMo 3 where layers slide: those are turned without the rope's scaling."""
    made = _rms(c, "olmo2", 4, pre_norms=False, post_norms=True, qk_norm="whole")
    if not any(made.windows):
        return made
    layer_rope = tuple(1 if w else 0 for w in made.windows)
    theta = c.number("rope.freq_base_swa", 1.0, 1e12, made.ropes[0].theta)
    ropes = (*made.ropes, Rope(theta))
    return replace(made, family="olmo3", ropes=ropes, layer_rope=layer_rope)


FAMILIES: Mapping[str, Callable[[Source], DecoderConfig]] = {
    "gpt2": _gpt2,
    "llama": lambda c: _rms(c, "llama", 0),  # Mistral's models too: all their layers slide
    "qwen2": lambda c: _rms(c, "qwen2", 1),
    "qwen3": lambda c: _rms(c, "qwen3", 1, qk_norm="head"),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "qwen3moe": _qwen3moe,
    "phi3": _phi3,
    "smollm3": _smollm3,
    "mistral3": _mistral3,
    "granite": _granite,
    "olmo2": _olmo2,
}
