"""The config of a GGUF file's decoder: its metadata become the fields of config.json by the table
`family_gguf`, then the family's own function reads these.

Facts missing from the metadata follow from the tensors: biases, a separate head, divisors of ropes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.core.errors import ModelError
from weft.core.notices import say_unknown
from weft.core.text import listed
from weft.importers.gguf import Gguf
from weft.importers.gguf_values import Texts
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.families import DECODERS
from weft.models.arch.family_fields import DECODER_FIELDS
from weft.models.arch.family_gguf import (
    GGUF,
    architectures,
    families_of,
    keys_of,
)
from weft.models.arch.family_parts import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
)
from weft.models.arch.latent_weights import in_latents
from weft.models.weights.gguf_families import OWN, fill
from weft.models.weights.gguf_metadata import ROPE_DIVISORS, ROPE_FACTORS, Metadata

# Keys that can change the computation, and the value that means "not used"; a family may read them.
_PLAIN: Mapping[str, Any] = {
    "expert_count": 0, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0,
    "attention.causal": True, "attention.shared_kv_layers": 0, "use_parallel_residual": False,
    "logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 1.0,
    "rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0,
}  # fmt: skip
# Keys that llama.cpp's graph of these architectures does not use, and sizes known from tensors.
_INERT = (
    "rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.dimension_sections",
    "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "attention.key_length", "attention.value_length", "attention.head_count_kv", "vocab_size",
    "tensor_data_layout", "feed_forward_length", "expert_used_count", "rope.freq_base",
    "expert_feed_forward_length", "attention.sliding_window", "interleave_moe_layer_step",
    "pooling_type", "classifier.output_labels",  # read with a decoder that gives vectors
)  # fmt: skip
_ORIGINAL = "rope.scaling.original_context_length"
_YARN = ("truncate", "mscale")  # fields that a family may fix
_PATTERN = "attention.sliding_window_pattern"


def read_config(gguf: Gguf) -> DecoderConfig:
    """Returns the config of the decoder in a file. Raises ModelError for an unsupported
    architecture, and for metadata that are missing or invalid."""
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in architectures():
        known = listed(architectures())
        raise ModelError(
            f"{gguf.path}: architecture {arch!r:.60} is not supported; supported in GGUF: {known}"
        )
    c = Metadata(gguf, arch)
    windows = any("sliding_window" in DECODER_FIELDS[kind] for kind in families_of(arch))
    slides = _slides(c) if windows else None
    kind = _kind(c, slides)
    keys = {key.name: key.field for key in keys_of(kind)}
    for key, plain in _PLAIN.items():
        if c.value(key) not in (None, plain) and key not in keys:
            raise c.refuse(key, f"other than {plain!r} is not supported")
    called = {field: f"{arch}.{name}" for name, field in keys.items() if field}
    made = DECODERS[kind](Fields(_fields(c, kind, slides), c.where, called))
    pattern = (_PATTERN,) if windows else ()
    say_unknown(f"{gguf.path}: {arch}", c.values, keys, _PLAIN, _INERT, pattern)
    return _with_tensors(c, made, keys)


def _slides(c: Metadata) -> list[bool] | None:
    """Returns which layers slide; None if the metadata leave it to the family."""
    layers, pattern = c.integer("block_count", 1, MAX_LAYERS), c.value(_PATTERN)
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(isinstance(p, bool) for p in pattern):
            raise c.refuse(_PATTERN, f"expected {layers} truth values")
        return pattern
    every = c.integer(_PATTERN, 0, MAX_LAYERS, None)
    return None if every is None else [not every or (i + 1) % every != 0 for i in range(layers)]


def _kind(c: Metadata, slides: list[bool] | None) -> str:
    """Returns the `model_type` of a file's family."""
    rows = families_of(c.arch)
    window = c.integer("attention.sliding_window", 0, MAX_POSITIONS, 0) if len(rows) > 1 else 0
    sliding = bool(window) and (slides is None or any(slides))
    flagged = (k for k, row in rows.items() if row.flag and c.value(row.flag) == row.flagged)
    if kind := next((k for k in flagged if c.value(rows[k].lacks) is None), ""):
        return kind
    if any(row.sparse for row in rows.values()) and c.integer("expert_count", 0, MAX_EXPERTS, 0):
        return next(kind for kind, row in rows.items() if row.sparse)
    return next((kind for kind, row in rows.items() if row.slides == sliding), next(iter(rows)))


# -- fields of config.json ------------------------------------------------------------------------


def _fields(c: Metadata, kind: str, slides: list[bool] | None) -> dict[str, Any]:
    """Returns the fields that a file's metadata give, by their names in config.json."""
    row, keys = GGUF[kind], keys_of(kind)
    data = copy.deepcopy(dict(row.fixed))
    for key in keys:
        none = bool(row.other) and key.name in ("attention.head_count_kv", "feed_forward_length")
        value = c.uniform(key.name, none) if key.field else None
        if value is None and key.needed:
            raise ModelError(f"{c.where}: {c.arch}.{key.name} is missing; every {c.arch} needs it")
        if key.field:
            section, name = _at(data, key.field)
            if value is not None or name not in section:
                section[name] = value
    fields = {key.name: key.field for key in keys}
    head_dim = _head_dim(c) if fields.get("attention.head_count") else 0
    tokens = c.gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Texts) and tokens:
        fill(data, "vocab_size", len(tokens))
    if fields.get("feed_forward_length") and c.value("expert_count"):
        fill(data, "intermediate_size", 1)  # no layer uses it
    if "attention.sliding_window" in fields:
        _add_windows(c, kind, data, slides)
    if "rope.freq_base" in fields:
        _add_rope(c, kind, data, head_dim)
    if kind in OWN:
        OWN[kind](c, data, head_dim)
    if row.other and not {"layers_block_type", "attn_layer_indices"} & data.keys():
        _add_mixers(c, data, row.other)
    return data


def _head_dim(c: Metadata) -> int:
    """Returns the elements of a head, after checking the sizes that give it."""
    if c.value("attention.kv_lora_rank") is not None:  # only the part that turns is a rope's head
        return int(c.integer("rope.dimension_count", 2, MAX_HEAD_DIM))
    hidden = c.integer("embedding_length", 1, MAX_HIDDEN)
    heads = c.integer("attention.head_count", 1, MAX_HEADS)
    given = c.integer("attention.key_length", 2, MAX_HEAD_DIM, None)
    if given is None and hidden % heads:
        raise c.refuse("embedding_length", f"not a multiple of {heads} heads")
    head_dim = given or hidden // heads
    if head_dim % 2:
        name = "attention.key_length" if given else "attention.head_count"
        raise c.refuse(name, f"{head_dim} elements per head; expected an even number")
    if c.integer("attention.value_length", 1, MAX_HIDDEN, head_dim) != head_dim:
        raise c.refuse("attention.value_length", f"not that of keys, which is {head_dim}")
    return int(head_dim)


def _at(data: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Returns the section of a field, which is made if it is missing, and the field's name."""
    *sections, name = path.split(".")
    for section in sections:
        data = data.setdefault(section, {})
    return data, name


def _add_windows(c: Metadata, kind: str, data: dict[str, Any], slides: list[bool] | None) -> None:
    window = c.integer("attention.sliding_window", 0, MAX_POSITIONS, None)
    if window == 0 or (slides is not None and not any(slides)):
        data["sliding_window"] = None
    if slides is None:
        return
    types = ["sliding_attention" if s else "full_attention" for s in slides]
    table = DECODER_FIELDS[kind]
    if "use_sliding_window" in table:
        data["use_sliding_window"] = any(slides)
    if "layer_types" in table:
        data["layer_types"] = types
    elif data["sliding_window"] and not all(slides):
        raise c.refuse(_PATTERN, f"all layers of {c.arch} slide, or none")


def _add_rope(c: Metadata, kind: str, data: dict[str, Any], head_dim: int) -> None:
    """Adds the share of a head that turns, and how a longer context is scaled."""
    keys = {key.name: key.field for key in keys_of(kind)}
    rope, _ = _at(data, keys["rope.freq_base"])
    partial = bool(keys.get("rope.dimension_count"))
    turned = c.integer("rope.dimension_count", 2, MAX_HIDDEN, head_dim)
    if turned > head_dim or turned % 2 or (turned != head_dim and not partial):
        raise c.refuse("rope.dimension_count", f"rotating a part of {head_dim} is not supported")
    if partial:  # rounded up: the family multiplies, and rounds down
        rope["partial_rotary_factor"] = min(1.0, math.nextafter(turned / head_dim, 2))
    scaling = rope["rope_type"] or "linear"  # llama.cpp's default
    if scaling not in ("none", "linear", "yarn"):
        raise c.refuse("rope.scaling.type", "supported are none, linear, yarn")
    old = c.number("rope.scale_linear", 0.0, 1e6, 0.0) or 1.0  # 0 means that it is not set
    factor = c.number("rope.scaling.factor", 0.0, 1e6, old) or 1.0
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        scaling = "default"
    if "rope.scaling.attn_factor" in keys:
        scaling = _add_factors(c, rope, turned // 2) or scaling
    if scaling in ("yarn", "longrope"):
        c.integer(_ORIGINAL, 1, MAX_POSITIONS)
    elif not rope.get("llama_4_scaling_beta"):  # nothing uses it
        section, name = _at(data, keys[_ORIGINAL])
        section[name] = None
    if scaling != "yarn":
        rope |= dict.fromkeys(_YARN)
    rope["rope_type"], rope["factor"] = scaling, None if scaling == "default" else factor


def _add_factors(c: Metadata, rope: dict[str, Any], pairs: int) -> str:
    """Adds the factors of LongRoPE, if the file has any, and returns its name."""
    both = [c.divisors(name, pairs) for name in ROPE_FACTORS]
    if bool(both[0]) != bool(both[1]):
        raise ModelError(f"{c.where}: one of {', '.join(ROPE_FACTORS)} is missing")
    if not both[0]:
        return ""
    rope["short_factor"], rope["long_factor"] = (list(divisors) for divisors in both)
    fill(rope, "attention_factor", 1.0)
    return "longrope"


def _add_mixers(c: Metadata, data: dict[str, Any], other: str) -> None:
    heads = c.value("attention.head_count_kv")
    if not isinstance(heads, list):
        return
    layers = c.integer("block_count", 1, MAX_LAYERS)
    if len(heads) != layers:
        raise c.refuse("attention.head_count_kv", f"expected {layers} numbers")
    if not all(heads):
        types = ["full_attention" if n else other for n in heads]
        data["layer_types"] = types[: data["num_hidden_layers"]]


# -- facts that follow from the tensors -----------------------------------------------------------


def _with_tensors(c: Metadata, made: DecoderConfig, keys: Mapping[str, str]) -> DecoderConfig:
    """Returns the config with what the tensors of a file show, or the converter changes."""
    if made.family == "phi":  # older files join q, k and v
        made = replace(made, fused_qkv=c.has("blk.0.attn_qkv.weight"))
    if not made.fused_qkv:
        biased, out = (c.has(f"blk.0.attn_{part}.bias") for part in ("q", "output"))
        made = replace(made, qkv_bias=biased, out_bias=out)
    if made.latent is not None and c.has("blk.0.attn_k_b.weight"):
        made = in_latents(made)
    if made.delta is not None:
        fused = made.delta.fused_qkvz and c.has("blk.0.ssm_in.weight")
        tiled = GGUF[made.family].tiled
        made = replace(made, delta=replace(made.delta, fused_qkvz=fused, tiled=tiled))
    if made.space is not None:
        biased = any(name.endswith(".ssm_conv1d.bias") for name in c.gguf.tensors)
        made = replace(made, conv_bias=biased)
    if made.ropes:
        pairs = (made.ropes[0].rotary or made.head_dim) // 2
        divisors = c.divisors(ROPE_DIVISORS, pairs) or made.ropes[0].divisors
        made = replace(made, ropes=(replace(made.ropes[0], divisors=divisors), *made.ropes[1:]))
    if keys.get("attention.scale") == "":
        made = replace(made, scale=c.number("attention.scale", 1e-6, 1e6, made.scale))
    both = any(name.endswith(".ffn_gate_up_exps.weight") for name in c.gguf.tensors)
    return replace(
        made,
        tied=not c.has("output.weight"),
        transposed=False,
        fused_by_head=False,
        mlp_bias=made.mlp_bias or c.has("blk.0.ffn_up.bias"),
        layer_scale=made.layer_scale and c.has("blk.0.layer_output_scale.weight"),
        fused_experts="halves" if made.fused_experts and both else "",
        fused_gate=made.fused_gate and made.family != "granitemoehybrid",
    )
