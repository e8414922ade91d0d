"""Typed access to a GGUF file's metadata, and readers of ropes, windows and sizes that
architectures share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.importers.gguf import Gguf
from weft.importers.gguf_blocks import dequantize
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig, Rope
from weft.models.arch.family_parts import (
    MAX_FFN,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    checked_heads,
)

MORE_TOKENS = "nextn_predict_layers"  # the number of last layers that predict further tokens
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")


class Source:
    """Typed, bounded access to a file's metadata under its architecture's name."""

    def __init__(self, gguf: Gguf, arch: str) -> None:
        self.gguf = gguf
        self.where = str(gguf.path)
        self._arch = arch
        self.asked: set[str] = set()  # keys that a reader has looked at
        own = {k: v for k, v in gguf.metadata.items() if k.startswith(f"{arch}.")}
        listed = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in own.items()}
        self._fields = Fields(listed, self.where)

    def unread(self) -> dict[str, Any]:
        """Returns the architecture's metadata that no reader has looked at."""
        found = {k.removeprefix(f"{self._arch}."): v for k, v in self._fields.data.items()}
        return {k: v for k, v in found.items() if k not in self.asked}

    def value(self, key: str) -> Any:
        self.asked.add(key)
        return self._fields.data.get(f"{self._arch}.{key}")

    def integer(self, key: str, lo: int, hi: int, *default: Any) -> Any:
        self.asked.add(key)
        return self._fields.integer(f"{self._arch}.{key}", lo, hi, *default)

    def number(self, key: str, lo: float, hi: float, *default: Any) -> Any:
        """Returns a float32 as the shortest decimal that rounds to it: 1e-05, not 9.9999997e-06."""
        self.asked.add(key)
        found = self._fields.number(f"{self._arch}.{key}", lo, hi, *default)
        return found if found is None else float(str(np.float32(found)))

    def each(self, key: str, hi: int, layers: int) -> tuple[int, ...]:
        """Returns a positive integer for every layer, given once or per layer."""
        self.asked.add(key)
        given = self._fields.integers(f"{self._arch}.{key}", 1, hi)
        if len(given) not in (1, layers):
            raise self.refuse(key, f"expected {layers} numbers, or one")
        return given * layers if len(given) == 1 else given

    def uniform(self, key: str, hi: int, *default: int, none: bool = False) -> int:
        """Returns a positive integer, given once or per layer. It must be the same for all layers,
        except layers with 0 if `none` is allowed."""
        self.asked.add(key)
        given = self._fields.integers(f"{self._arch}.{key}", 0 if none else 1, hi)
        found = {n for n in given if n} or set(default)
        if not found:
            return int(self.integer(key, 1, hi))  # reports it as missing
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


def _vocab(c: Source) -> int:
    """Returns the rows of the embedding. There may be fewer tokens than the metadata's vocab_size,
    never more."""
    tokens = c.gguf.metadata.get("tokenizer.ggml.tokens")
    known = [len(tokens)] if isinstance(tokens, list) and tokens else []
    return int(c.integer("vocab_size", 1, MAX_VOCAB, *known))


def rope_of(c: Source, head_dim: int, partial: bool = False) -> Rope:
    """Returns the rope of all layers, or of the full layers if sliding layers have their own."""
    turned = c.integer("rope.dimension_count", 2, MAX_HIDDEN, head_dim)
    if turned > head_dim or turned % 2 or (turned != head_dim and not partial):
        raise c.refuse("rope.dimension_count", f"rotating a part of {head_dim} is not supported")
    theta = c.number("rope.freq_base", 1.0, 1e12, 10000.0)
    divisors = divisors_of(c, ROPE_DIVISORS, turned // 2)
    rope = Rope(theta, divisors=divisors, rotary=0 if turned == head_dim else turned)
    kind = c.value("rope.scaling.type") or "linear"  # llama.cpp's default
    # scale_linear is an older form of the factor; 0 means that it is not set.
    old = c.number("rope.scale_linear", 0.0, 1e6, 0.0) or 1.0
    factor = c.number("rope.scaling.factor", 0.0, 1e6, old) or 1.0
    if kind in ("linear", "none"):
        scaled = kind == "linear" and factor != 1.0
        return replace(rope, scaling="linear", factor=factor) if scaled else rope
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
        original=original_of(c),
        magnitude=(grown + 1) / (grown * under + 1),
    )


def original_of(c: Source) -> int:
    return int(c.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS))


def divisors_of(c: Source, name: str, pairs: int) -> tuple[float, ...]:
    """Returns the divisor of each pair's frequency, () if the file has none: precomputed for Llama
    3.1's long context, or LongRoPE's factors."""
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


def windows_of(c: Source, layers: int, every: int, default: int = 0) -> tuple[int, ...]:
    """Returns the window of each layer. If the metadata do not name the sliding layers, all but
    every `every`-th one slide (0: all, 1: none)."""
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


def base(
    c: Source, family: str, hybrid: bool = False, mixed: bool = False, **more: Any
) -> DecoderConfig:
    """Reads the fields that all families share. Layers of a `hybrid` model may lack attention. The
    sizes of a `mixed` one are those of its last layer."""
    hidden = c.integer("embedding_length", 1, MAX_HIDDEN)
    layers = c.integer("block_count", 1, MAX_LAYERS)
    heads = c.uniform("attention.head_count", MAX_HEADS)
    if mixed:
        kv = c.each("attention.head_count_kv", MAX_HEADS, layers)[-1]
        ffn = c.each("feed_forward_length", MAX_FFN, layers)[-1]
    else:
        kv = c.uniform("attention.head_count_kv", MAX_HEADS, heads, none=hybrid)
        usual = [1] if c.value("expert_count") else []
        ffn = c.uniform("feed_forward_length", MAX_FFN, *usual)
    size = c.integer("attention.key_length", 2, MAX_HIDDEN, None)
    head_dim = checked_heads(c.where, hidden, heads, kv, size)
    if c.integer("attention.value_length", 1, MAX_HIDDEN, head_dim) != head_dim:
        raise c.refuse("attention.value_length", f"not that of keys, which is {head_dim}")
    made = DecoderConfig(
        family=family,
        vocab=_vocab(c),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=c.integer("context_length", 1, MAX_POSITIONS),
        qkv_bias=c.has("blk.0.attn_q.bias"),
        out_bias=c.has("blk.0.attn_output.bias"),
        mlp_bias=c.has("blk.0.ffn_up.bias"),
        scale=c.number("attention.scale", 1e-6, 1e6, None) or head_dim**-0.5,
        tied=not c.has("output.weight"),
    )
    return replace(made, **more)


def eps_of(c: Source) -> float:
    return float(c.number("attention.layer_norm_rms_epsilon", 0.0, 1.0))


def rms(c: Source, family: str, every: int, **more: Any) -> DecoderConfig:
    """Reads the fields that families with RMS norms and ropes share."""
    made = base(c, family, norm_eps=eps_of(c), **more)
    windows = windows_of(c, made.layers, every)
    return replace(made, ropes=(rope_of(c, made.head_dim),), windows=windows)
