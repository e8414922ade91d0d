"""A quantised decoder as a GGUF file: the metadata, names and values that llama.cpp expects.

The reverse of models/gguf: rows of queries and keys in the order of an interleaved rope where the
architecture has one, 1 added to Gemma's norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import UsageError
from weft.core.packed import Form, Packed, codes_of
from weft.importers.gguf_write import Tensor
from weft.models.config import DecoderConfig, Rope
from weft.models.gguf import tensor_name
from weft.models.gguf_config import TURNED
from weft.models.gguf_source import ROPE_DIVISORS
from weft.models.rope import inverse_frequencies

_ARCH = {"mistral": "llama", "gemma3_text": "gemma3"}
_WRITTEN = ("gpt2", "llama", "qwen2", "qwen3", "gemma2", "gemma3")
_KINDS = {
    Form(8, 32, offset=128): "Q8_0",
    Form(5, 32, offset=16): "Q5_0",
    Form(4, 32, offset=8): "Q4_0",
    Form(4, 32, "iq4_nl"): "IQ4_NL",
}
_PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def architecture(c: DecoderConfig) -> str:
    """What llama.cpp calls the family. Raises UsageError for one that weft does not write."""
    arch = _ARCH.get(c.family, c.family)
    if arch not in _WRITTEN:
        raise UsageError(f"weft writes no GGUF of {c.family}; it writes {', '.join(_WRITTEN)}")
    return arch


def kind_of(form: Form) -> str:
    """GGUF's block type that holds a form of weights with float16 scales. Raises UsageError."""
    if form not in _KINDS:
        known = "int8, int5 and int4 by groups of 32"
        raise UsageError(f"weft writes GGUF in {known}; {form} has no block type there")
    return _KINDS[form]


# -- metadata -------------------------------------------------------------------------------------


def metadata(c: DecoderConfig, name: str) -> dict[str, Any]:
    """The metadata of a decoder, but for its tokenizer's."""
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
        sizes["rope.dimension_count"] = c.head_dim
        numbers["rope.freq_base"] = c.ropes[0].theta
    if c.scale != c.head_dim**-0.5:
        numbers["attention.scale"] = c.scale
    found: dict[str, Any] = {"general.architecture": arch, "general.name": name}
    found["general.quantization_version"] = np.uint32(2)
    own: dict[str, Any] = {k: np.uint32(v) for k, v in sizes.items()}
    own |= {k: np.float32(v) for k, v in numbers.items()}
    own |= _rope(c) | _windows(c, arch)
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
    return found


def _windows(c: DecoderConfig, arch: str) -> dict[str, Any]:
    if not any(c.windows):
        return {}
    found: dict[str, Any] = {"attention.sliding_window": np.uint32(max(c.windows))}
    if arch != "llama":
        found["attention.sliding_window_pattern"] = np.array([w > 0 for w in c.windows])
    return found


# -- tensors --------------------------------------------------------------------------------------


def tensors(c: DecoderConfig, weights: Mapping[str, np.ndarray | Packed]) -> dict[str, Tensor]:
    """The tensors of a file by llama.cpp's names."""
    found = {tensor_name(role): _tensor(c, role, value) for role, value in weights.items()}
    rope = c.ropes[0] if c.ropes else Rope()
    if rope.scaling == "llama3" or rope.divisors:
        plain = inverse_frequencies(Rope(rope.theta), c.head_dim)
        divisors = (plain / inverse_frequencies(rope, c.head_dim)).astype(np.float32)
        found[ROPE_DIVISORS] = Tensor("F32", divisors.shape, lambda: divisors)
    return found


def _tensor(c: DecoderConfig, role: str, value: np.ndarray | Packed) -> Tensor:
    part = role.split(".")[1] if "." in role else ""
    heads = {"q": c.heads, "k": c.kv_heads}.get(part, 0) if architecture(c) in TURNED else 0
    if isinstance(value, Packed):
        return Tensor(kind_of(value.form), value.shape, partial(_blocks, value, heads))
    if value.ndim == 1:  # norms and biases, in float32 as llama.cpp has them
        offset = np.float32(c.norm_offset if role.endswith("norm.w") or "_post" in role else 0)
        return Tensor("F32", value.shape, lambda: _turned(value.astype(np.float32) + offset, heads))
    matrix = value.T if c.transposed and part in ("qkv", "o", "up", "down") else value
    kind = _PLAIN[as_dtype(value.dtype).name]
    return Tensor(kind, matrix.shape, lambda: _turned(matrix, heads))


def _turned(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to pairs side by side, where there are `heads`."""
    if not heads:
        return value
    halves = value.reshape(heads, 2, -1, *value.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)


def _blocks(value: Packed, heads: int) -> np.ndarray:
    """The bytes of a packed matrix: of each group of 32 its scale, then its codes; nibbles hold
    the first half of a group below the second."""
    form, parts = value
    codes, scales = _turned(codes_of(form, parts), heads), _turned(parts["scales"], heads)
    groups = codes.reshape(*scales.shape, form.group)
    columns: list[np.ndarray] = [
        np.ascontiguousarray(scales.astype("<f2"))[..., None].view(np.uint8)
    ]
    if form.bits == 8:
        columns.append(groups ^ 0x80)  # from an offset of 128 to two's complement
    else:
        if form.bits == 5:  # the fifth bits, the first in the lowest
            columns.append(np.packbits(groups >> 4, axis=-1, bitorder="little"))
        low = groups & 15
        columns.append(low[..., :16] | low[..., 16:] << 4)
    return np.concatenate(columns, axis=-1)
