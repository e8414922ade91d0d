"""Reads a LoRA adapter in a GGUF file, as llama.cpp's converter writes it: "<tensor>.lora_a"
[rank, in] and "<tensor>.lora_b" [out, rank] under the names of the model's tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import ModelError
from weft.core.notices import listed
from weft.importers.gguf import Gguf, GgufTensor, open_gguf
from weft.importers.gguf_blocks import dequantize
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.family_gguf import GGUF
from weft.models.weights.adapter_reader import MAX_ALPHA, MAX_RANK, AdapterReader
from weft.models.weights.adapters import TABLES, Adapter, modules
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.gguf import halves, tensor_name
from weft.models.weights.gguf_metadata import plain
from weft.models.weights.names import checkpoint_names

KIND, ADAPTER = "general.type", "adapter"
_HALF = re.compile(r"(.+)\.lora_([ab])")


def is_gguf_adapter(gguf: Gguf) -> bool:
    """Returns True if a file says that it holds an adapter."""
    return bool(gguf.metadata.get(KIND) == ADAPTER)


def read(path: Path, config: DecoderConfig) -> Adapter:
    """Reads the adapter in a file and checks it against the model. Raises ModelError,
    FileFormatError."""
    gguf = open_gguf(path)
    alpha = _alpha(gguf, config)
    roles = {tensor_name(role, config.family): role for role in decoder_layout(config).weights}
    found = {}
    for name, tensor in gguf.tensors.items():
        half = _HALF.fullmatch(name)
        role = roles.get(half[1] if half else name)
        if role is None or ".delta_" in role:
            what = "has an order of its own in llama.cpp" if role else "belongs to no layer"
            raise ModelError(f"{path}: tensor {name!r:.200} {what} of the model")
        found[name] = role, "" if half is None else half[2].upper(), tensor
    named = modules(config) | {
        role: name.removesuffix(".weight") for role, name in checkpoint_names(config).items()
        if role in TABLES
    }  # fmt: skip
    ranks = {
        named[role.removesuffix(".w")]: tensor.shape[-1]
        for role, half, tensor in found.values() if half == "B" and role.removesuffix(".w") in named
    }  # fmt: skip
    stacks = {t.shape[-1] for role, half, t in found.values() if half == "B" and "_exps" in role}
    if not all(0 < rank <= MAX_RANK for rank in (*ranks.values(), *stacks)) or len(stacks) > 1:
        raise ModelError(f"{path}: ranks are {listed(map(str, {*ranks.values(), *stacks}))}")
    rank = max(stacks or ranks.values(), default=1)
    fields: dict[str, Any] = {"r": rank, "lora_alpha": alpha or float(rank), "rank_pattern": ranks}
    if not alpha:  # llama.cpp's scale is 1 then
        fields["alpha_pattern"] = {name: float(one) for name, one in ranks.items()}
    reader = AdapterReader(Fields(fields, str(path)), path, config)
    for name, (role, which, tensor) in found.items():
        _add(reader, config, named, name, role, which, tensor)
    return reader.adapter()


def _add(
    reader: AdapterReader, config: DecoderConfig, named: dict[str, str], name: str, role: str,
    half: str, tensor: GgufTensor,
) -> None:  # fmt: skip
    tensor.file.check()
    value = dequantize(tensor.kind, tensor.data, tensor.shape)
    kind = decoder_layout(config).weights[role].kind
    if not half:
        if kind == "norm":
            value = np.asarray(value, np.float32) - np.float32(config.norm_offset)
        elif kind not in ("bias", *TABLES):
            raise reader.fail(name, "replaces a matrix, which weft does not read from GGUF")
        return reader.add(name, value, checkpoint_names(config)[role])
    if kind == "experts":
        return reader.add_experts(name, role, half, value)
    module = named.get(role.removesuffix(".w"))
    if module is None:
        raise reader.fail(name, "belongs to no layer of the model")
    if role == "embed":  # A is transposed in the file, as llama.cpp looks rows up in it
        peft = f"{module}.lora_embedding_{half}"
        return reader.add(name, value.T if half == "A" else value, peft)
    heads = {"q": config.heads, "k": config.kv_heads}.get(role.split(".")[-2], 0)
    if half == "B" and heads and GGUF[config.family].turned:
        if value.shape[0] % (2 * heads):
            raise reader.fail(name, f"has {value.shape[0]} rows for {heads} heads")
        value = halves(np.ascontiguousarray(value), heads)
    reader.add(name, value, f"{module}.lora_{half}.weight")


def _alpha(gguf: Gguf, config: DecoderConfig) -> float:
    """Returns lora_alpha (0: none), after checking what the file says of itself."""
    data = {k: plain(v) for k, v in gguf.metadata.items() if k.startswith(("general.", "adapter."))}
    c = Fields(data, str(gguf.path))
    c.text(KIND, choices=(ADAPTER,))
    c.text("adapter.type", choices=("lora",))
    own = GGUF.get(config.family)
    if own is None:
        raise ModelError(f"{c.where}: weft knows no names in GGUF for {config.family}")
    if c.text("general.architecture") != own.arch:
        raise ModelError(
            f"{c.where}: it is for architecture {data['general.architecture']!r:.60}; the model's "
            f"is {own.arch}"
        )
    others = [k for k in data if k.startswith("adapter.") and k not in
              ("adapter.type", "adapter.lora.alpha", "adapter.lora.task_name")]  # fmt: skip
    if others:
        raise ModelError(f"{c.where}: {listed(others)}: weft does not support that")
    return float(c.number("adapter.lora.alpha", 0.0, MAX_ALPHA, 0.0))
