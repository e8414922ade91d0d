"""Writes a quantised decoder as a GGUF file: the metadata, names and values that llama.cpp expects.

This is the reverse of `models.weights.gguf` by the same table (`family_gguf`), and is checked
against it: `read_config` must turn the metadata back into the same config. Rows of queries and keys
go into interleaved rope order where the architecture uses it, and norms times 1 + w get 1 added.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.dtypes import as_dtype
from weft.core.errors import UsageError
from weft.core.packed import Form, Packed
from weft.host.mapped import release
from weft.importers.gguf import open_gguf
from weft.importers.gguf_write import TensorToWrite, write_gguf
from weft.importers.packed.gguf_out import KINDS, blocks_of
from weft.models.arch.config import DecoderConfig, Kind, Rope
from weft.models.arch.family_gguf import GGUF, SCALING, SIGMOID, SOFTMAX, keys_of
from weft.models.arch.gguf_row import GgufFamily
from weft.models.arch.rope import inverse_frequencies
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.gguf import tensor_name
from weft.models.weights.gguf_config import read_config
from weft.models.weights.gguf_metadata import ROPE_DIVISORS, ROPE_FACTORS

_PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_OTHERWISE = (
    "family",
    "transposed",
    "fused_by_head",
    "windows",
    "layer_rope",
    "ropes",
    "mixers",
    "feed_forwards",
    "further_layers",
)


def architecture(c: DecoderConfig) -> str:
    """Returns llama.cpp's name for the family. Raises UsageError for a family that weft does not
    write."""
    written = {kind: row.arch for kind, row in GGUF.items() if row.written}
    if c.family not in written:
        raise UsageError(f"weft writes no GGUF of {c.family}; it writes {', '.join(written)}")
    return written[c.family]


def kind_of(form: Form) -> str:
    """Returns the GGUF block type for a form of weights with float16 scales. Raises UsageError."""
    if form not in KINDS:
        known = "int8, int5 and int4 by groups of 32, q6_k, q5_k and q4_k"
        raise UsageError(f"weft writes GGUF in {known}; no block there holds {form.text()}")
    return KINDS[form]


def check_said(c: DecoderConfig) -> None:
    """Raises UsageError if a GGUF file cannot express the config. Writes and reads back a header
    with tensors of one number each."""
    one = TensorToWrite("F32", (1,), partial(np.zeros, 1, np.float32))
    names = (tensor_name(role, c.family) for role in decoder_layout(c).weights)
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
    arch, row = architecture(c), GGUF[c.family]
    rope = c.ropes[0] if c.ropes else Rope()
    others = {key for keys in SCALING.values() for key in keys} - {*SCALING[rope.scaling]}
    values = {key.name: _value(c, key.config) for key in keys_of(c.family) if key.config}
    values = {name: value for name, value in values.items() if value and name not in others}
    if c.ropes:
        values["attention.value_length"] = c.head_dim
        values["rope.dimension_count"] = rope.rotary or c.head_dim
    if c.latent is not None:
        values |= _latent(c)
    elif c.scale != c.head_dim**-0.5:
        values["attention.scale"] = c.scale
    if c.experts:
        values |= _routed(c, row)
    if c.family == "gpt_neox":
        values["use_parallel_residual"] = bool(c.parallel)
    if c.query_growth:
        values["rope.scaling.original_context_length"] = rope.original
    if rope.scaling == "yarn" and rope.factor > 1 and c.latent is None:
        grown = 0.1 * math.log(rope.factor)
        under = ((grown + 1) / rope.magnitude - 1) / grown
        if under > 1e-6:
            values["rope.scaling.yarn_log_multiplier"] = under
    if row.other:
        of = [c.kv_heads * (c.mixer(i) == "attention") for i in range(c.layers)]
        values["attention.head_count_kv"] = np.array(of, np.uint32)
    found: dict[str, Any] = {"general.architecture": arch, "general.name": name}
    found["general.quantization_version"] = np.uint32(2)
    typed: dict[type, Any] = {int: np.uint32, float: np.float32}
    own = {k: typed.get(type(v), lambda v: v)(v) for k, v in (values | _windows(c)).items()}
    return {**found, **{f"{arch}.{k}": v for k, v in own.items()}}


def _latent(c: DecoderConfig) -> dict[str, Any]:
    """Returns the sizes of latent attention, whose cache has one head, and YaRN's multiplier of
    scores, of which llama.cpp's files hold a tenth. They name a rank of queries without one too."""
    d, rope = c.latent, c.ropes[0]
    assert d is not None
    sizes: dict[str, Any] = {
        "attention.key_length": d.rank + d.turned, "attention.value_length": d.rank,
        "attention.key_length_mla": d.key, "attention.value_length_mla": d.value,
        "attention.head_count_kv": 1, "attention.q_lora_rank": d.query_rank,
    }  # fmt: skip
    if rope.scaling == "yarn" and rope.factor > 1:
        sharper = math.sqrt(c.scale * d.key**0.5)
        sizes["rope.scaling.yarn_log_multiplier"] = (sharper - 1) / math.log(rope.factor)
    return sizes


def _routed(c: DecoderConfig, row: GgufFamily) -> dict[str, Any]:
    """Returns what the experts' layers are, for those architectures that ask for it."""
    found = {
        "leading_dense_block_count": sum(kind == "dense" for kind in c.feed_forwards),
        "expert_shared_count": c.shared_ffn // c.expert_ffn,
        "expert_gating_func": SIGMOID if c.router == "sigmoid" else SOFTMAX,
    }
    asked = {key.name for key in row.keys}
    return {name: value for name, value in found.items() if name in asked}


def _value(c: Any, path: str) -> Any:
    for part in path.split("."):
        c = c[int(part)] if part.isdigit() else getattr(c, part)
    return c


def _windows(c: DecoderConfig) -> dict[str, Any]:
    if not any(c.windows):
        return {}
    found: dict[str, Any] = {"attention.sliding_window": max(c.windows)}
    if not all(c.windows):
        found["attention.sliding_window_pattern"] = np.array([w > 0 for w in c.windows])
    return found


# -- tensors --------------------------------------------------------------------------------------


def tensors(
    c: DecoderConfig, weights: Mapping[str, np.ndarray | Packed]
) -> dict[str, TensorToWrite]:
    """Returns the tensors of a file by llama.cpp's names."""
    layout = decoder_layout(c).weights
    made = {tensor_name(r, c.family): _tensor(c, r, layout[r].kind, v) for r, v in weights.items()}
    return _extra(c) | made


def _extra(c: DecoderConfig) -> dict[str, TensorToWrite]:
    """Returns the tensors of rope factors: one divisor per pair of dimensions."""
    rope = c.ropes[0] if c.ropes else Rope()
    made: dict[str, np.ndarray] = {}
    if rope.scaling == "longrope":
        both = (rope.divisors, rope.long_divisors)
        made = {name: np.array(v, np.float32) for name, v in zip(ROPE_FACTORS, both)}
    elif rope.scaling == "llama3" or rope.divisors:
        plain = inverse_frequencies(Rope(rope.theta, rotary=rope.rotary), c.head_dim)
        made[ROPE_DIVISORS] = plain / inverse_frequencies(rope, c.head_dim)
    return {
        name: TensorToWrite("F32", v.shape, partial(v.astype, np.float32))
        for name, v in made.items()
    }


def _tensor(c: DecoderConfig, role: str, kind: Kind, value: np.ndarray | Packed) -> TensorToWrite:
    order = _order(c, role.split(".")[1] if "." in role else "")
    stack = {"k_b": c.heads, "v_b": c.heads}.get(role.split(".")[-2], 0) if "." in role else 0
    stack = c.experts if kind == "experts" else stack
    if isinstance(value, Packed):
        shape = _stacked(value.shape, stack)
        return TensorToWrite(kind_of(value.form), shape, partial(_blocks, value, order))
    if stack:
        shape, plain = _stacked(value.shape, stack), _PLAIN[as_dtype(value.dtype).name]
        return TensorToWrite(plain, shape, partial(value.reshape, shape))
    if kind in ("router", "gate") and value.ndim == 2:
        return TensorToWrite("F32", value.shape, partial(value.astype, np.float32))
    if value.ndim == 3:  # taps of a depthwise convolution: one channel each
        value = value[:, 0].astype(np.float32)
    if value.ndim == 1 or kind == "norm":  # norms and biases are float32, as in llama.cpp
        offset = np.float32(c.norm_offset if kind == "norm" else 0)
        return TensorToWrite("F32", value.shape, lambda: order(value.astype(np.float32) + offset))
    matrix = value.T if c.transposed and kind == "matrix" else value
    return TensorToWrite(_PLAIN[as_dtype(value.dtype).name], matrix.shape, lambda: order(matrix))


def _stacked(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the shape of a weight of `count` matrices, stacked or not; unchanged if 0."""
    return (count, math.prod(shape[:-1]) // count, shape[-1]) if count else shape


Order = Callable[[np.ndarray], np.ndarray]


def _order(c: DecoderConfig, part: str) -> Order:
    """Returns what llama.cpp does with the rows of a weight."""
    heads = {"q": c.heads, "k": c.kv_heads}.get(part, 0)
    if heads and GGUF[c.family].turned:  # each head's from two halves to adjacent pairs
        return partial(_swapped, shape=(heads, 2, -1), axes=(1, 2))
    if part == "qkv" and c.fused_by_head:  # all queries, all keys, all values
        return partial(_swapped, shape=(c.heads, 3, -1), axes=(0, 1))
    return lambda value: value


def _swapped(value: np.ndarray, shape: tuple[int, ...], axes: tuple[int, int]) -> np.ndarray:
    """Returns the rows in another order: as `shape`, with two axes swapped."""
    rows = value.reshape(*shape, *value.shape[1:]).swapaxes(*axes)
    return np.ascontiguousarray(rows).reshape(value.shape)


def _blocks(value: Packed, order: Order) -> np.ndarray:
    turned = {part: order(v) for part, v in value.parts.items()}
    made: np.ndarray = blocks_of(value._replace(parts=turned))
    for part in value.parts.values():
        release(part)
    return made
