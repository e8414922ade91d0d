"""Writes a quantised decoder as a GGUF file: the metadata, names and values that llama.cpp expects.

This is the reverse of models/gguf and is checked against it: `read_config` must turn the metadata
back into the same config. Rows of queries and keys go into interleaved rope order where the
architecture uses it, and Gemma's norms get 1 added.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import UsageError
from weft.core.packed import Form, Packed
from weft.importers.gguf import open_gguf
from weft.importers.gguf_write import Tensor, write_gguf
from weft.importers.packed.gguf_out import KINDS, blocks_of
from weft.models.arch.config import DecoderConfig, Kind, Rope
from weft.models.arch.rope import inverse_frequencies
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.gguf import tensor_name
from weft.models.weights.gguf_config import TURNED, read_config
from weft.models.weights.gguf_source import ROPE_DIVISORS, ROPE_FACTORS

_ARCH = {  # families that weft writes, with llama.cpp's names for them
    "gpt2": "gpt2", "llama": "llama", "mistral": "llama", "ministral3": "mistral3",
    "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "lfm2": "lfm2", "phi3": "phi3", "smollm3": "smollm3", "granite": "granite",
    "olmo2": "olmo2", "olmo3": "olmo2",
}  # fmt: skip
_PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_OTHERWISE = ("family", "transposed", "windows", "layer_rope", "ropes", "mixers", "feed_forwards")


def architecture(c: DecoderConfig) -> str:
    """Returns llama.cpp's name for the family. Raises UsageError for a family that weft does not
    write."""
    if c.family not in _ARCH:
        raise UsageError(f"weft writes no GGUF of {c.family}; it writes {', '.join(_ARCH)}")
    return _ARCH[c.family]


def kind_of(form: Form) -> str:
    """Returns the GGUF block type for a form of weights with float16 scales. Raises UsageError."""
    if form not in KINDS:
        known = "int8, int5 and int4 by groups of 32, q6_k, q5_k and q4_k"
        raise UsageError(f"weft writes GGUF in {known}; no block there holds {form.text()}")
    return KINDS[form]


def check_said(c: DecoderConfig) -> None:
    """Raises UsageError if a GGUF file cannot express the config. Writes and reads back a header
    with tensors of one number each."""
    one = Tensor("F32", (1,), partial(np.zeros, 1, np.float32))
    names = (tensor_name(role, architecture(c)) for role in decoder_layout(c).weights)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        write_gguf(path, metadata(c, ""), _extra(c) | dict.fromkeys(names, one))
        found = read_config(open_gguf(path))
    for field in fields(c):
        given, read = (getattr(x, field.name) for x in (c, found))
        same = math.isclose(given, read, rel_tol=1e-6) if isinstance(given, float) else (
            given == read
        )  # fmt: skip
        if not same and field.name not in _OTHERWISE:
            raise _unsaid(c, field.name, given, read)
    for i in range(c.layers):
        for name in ("window", "mixer", "feed_forward"):
            given, read = (getattr(x, name)(i) for x in (c, found))
            if given != read:
                raise _unsaid(c, f"the {name} of layer {i}", given, read)
        ropes = [None if (r := x.rope(i)) is None else x.ropes[r] for x in (c, found)]
        if not _same_rope(ropes[0], ropes[1], c.head_dim):
            raise _unsaid(c, f"the rope of layer {i}", *ropes)


def _same_rope(a: Rope | None, b: Rope | None, size: int) -> bool:
    if a is None or b is None:
        return a is b
    same = math.isclose(a.magnitude, b.magnitude, rel_tol=1e-5)
    for length in (0, 1 << 24):  # a long context may have its own divisors
        one, other = (inverse_frequencies(r, size, length) for r in (a, b))
        same = same and one.shape == other.shape and bool(np.allclose(one, other, 1e-5, 0))
    return same


def _unsaid(c: DecoderConfig, what: str, given: Any, read: Any) -> UsageError:
    return UsageError(
        f"GGUF does not hold this model of {c.family}: {what} is {str(given)[:60]}, a reader of "
        f"the file would take {str(read)[:60]}; write a folder"
    )


# -- metadata -------------------------------------------------------------------------------------


def metadata(c: DecoderConfig, name: str) -> dict[str, Any]:
    """Returns the metadata of a decoder, without its tokenizer's."""
    arch = architecture(c)
    sizes = {
        "context_length": c.max_positions, "embedding_length": c.hidden, "block_count": c.layers,
        "feed_forward_length": c.ffn, "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads, "vocab_size": c.vocab,
    }  # fmt: skip
    numbers: dict[str, float] = {}
    if c.norm == "layer":
        numbers["attention.layer_norm_epsilon"] = c.norm_eps
    else:
        numbers["attention.layer_norm_rms_epsilon"] = c.norm_eps
    if c.ropes:
        sizes |= dict.fromkeys(("attention.key_length", "attention.value_length"), c.head_dim)
        sizes["rope.dimension_count"] = c.ropes[0].rotary or c.head_dim
        numbers["rope.freq_base"] = c.ropes[0].theta
    if c.scale != c.head_dim**-0.5 or arch == "granite":
        numbers["attention.scale"] = c.scale
    if arch == "granite":
        numbers |= {"embedding_scale": c.embed_scale, "residual_scale": c.residual_scale}
        numbers["logit_scale"] = c.logit_divisor
    if c.query_growth:
        numbers["attention.temperature_scale"] = c.query_growth
        sizes["rope.scaling.original_context_length"] = c.ropes[0].original
    if c.conv_taps:
        sizes["shortconv.l_cache"] = c.conv_taps
    found: dict[str, Any] = {"general.architecture": arch, "general.name": name}
    found["general.quantization_version"] = np.uint32(2)
    own: dict[str, Any] = {k: np.uint32(v) for k, v in sizes.items()}
    own |= {k: np.float32(v) for k, v in numbers.items()}
    if c.conv_taps:  # layers without attention have no key heads
        of = [c.kv_heads * (c.mixer(i) == "attention") for i in range(c.layers)]
        own["attention.head_count_kv"] = np.array(of, np.uint32)
    own |= _rope(c) | _windows(c)
    if c.attn_softcap:
        own["attn_logit_softcapping"] = np.float32(c.attn_softcap)
    if c.logit_softcap:
        own["final_logit_softcapping"] = np.float32(c.logit_softcap)
    return {**found, **{f"{arch}.{k}": v for k, v in own.items()}}


def _rope(c: DecoderConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(c.ropes) > 1:
        found["rope.freq_base_swa"] = np.float32(c.ropes[1].theta)
    rope = c.ropes[0] if c.ropes else Rope()
    if rope.scaling in ("linear", "yarn"):
        found["rope.scaling.type"] = str(rope.scaling)
        found["rope.scaling.factor"] = np.float32(rope.factor)
    if rope.scaling == "yarn":
        found["rope.scaling.original_context_length"] = np.uint32(rope.original)
        found["rope.scaling.yarn_beta_slow"] = np.float32(rope.low_factor)
        found["rope.scaling.yarn_beta_fast"] = np.float32(rope.high_factor)
        grown = 0.1 * math.log(rope.factor) if rope.factor > 1 else 0.0
        under = ((grown + 1) / rope.magnitude - 1) / grown if grown else 0.0
        if under > 1e-6:
            found["rope.scaling.yarn_log_multiplier"] = np.float32(under)
    if rope.scaling == "longrope":
        found["rope.scaling.original_context_length"] = np.uint32(rope.original)
        found["rope.scaling.attn_factor"] = np.float32(rope.magnitude)
    return found


def _windows(c: DecoderConfig) -> dict[str, Any]:
    if not any(c.windows):
        return {}
    found: dict[str, Any] = {"attention.sliding_window": np.uint32(max(c.windows))}
    if not all(c.windows):
        found["attention.sliding_window_pattern"] = np.array([w > 0 for w in c.windows])
    return found


# -- tensors --------------------------------------------------------------------------------------


def tensors(c: DecoderConfig, weights: Mapping[str, np.ndarray | Packed]) -> dict[str, Tensor]:
    """Returns the tensors of a file by llama.cpp's names."""
    arch, layout = architecture(c), decoder_layout(c).weights
    made = {tensor_name(r, arch): _tensor(c, r, layout[r].kind, v) for r, v in weights.items()}
    return _extra(c) | made


def _extra(c: DecoderConfig) -> dict[str, Tensor]:
    """Returns the tensors of rope factors: one divisor per pair of dimensions."""
    rope = c.ropes[0] if c.ropes else Rope()
    made: dict[str, np.ndarray] = {}
    if rope.scaling == "longrope":
        both = (rope.divisors, rope.long_divisors)
        made = {name: np.array(v, np.float32) for name, v in zip(ROPE_FACTORS, both)}
    elif rope.scaling == "llama3" or rope.divisors:
        plain = inverse_frequencies(Rope(rope.theta, rotary=rope.rotary), c.head_dim)
        made[ROPE_DIVISORS] = plain / inverse_frequencies(rope, c.head_dim)
    return {name: Tensor("F32", v.shape, partial(v.astype, np.float32)) for name, v in made.items()}


def _tensor(c: DecoderConfig, role: str, kind: Kind, value: np.ndarray | Packed) -> Tensor:
    part = role.split(".")[1] if "." in role else ""
    heads = {"q": c.heads, "k": c.kv_heads}.get(part, 0) if architecture(c) in TURNED else 0
    if isinstance(value, Packed):
        return Tensor(kind_of(value.form), value.shape, partial(_blocks, value, heads))
    if value.ndim == 3:  # taps of a depthwise convolution: one channel each
        value = value[:, 0].astype(np.float32)
    if value.ndim == 1:  # norms and biases are float32, as in llama.cpp
        offset = np.float32(c.norm_offset if kind == "norm" else 0)
        return Tensor("F32", value.shape, lambda: _turned(value.astype(np.float32) + offset, heads))
    matrix = value.T if c.transposed and kind == "matrix" else value
    return Tensor(_PLAIN[as_dtype(value.dtype).name], matrix.shape, lambda: _turned(matrix, heads))


def _turned(value: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of each head from two halves to adjacent pairs; does nothing with 0
    heads."""
    if not heads:
        return value
    halves = value.reshape(heads, 2, -1, *value.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)


def _blocks(value: Packed, heads: int) -> np.ndarray:
    turned = {part: _turned(v, heads) for part, v in value.parts.items()}
    return blocks_of(value._replace(parts=turned))
