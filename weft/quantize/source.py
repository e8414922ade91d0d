"""Checks the source and the target of a quantisation before any work."""

from __future__ import annotations

import os
from pathlib import Path

from weft.core.errors import ModelError, UsageError
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.models.arch.config import DecoderConfig
from weft.models.arch.families import DECODERS
from weft.models.arch.latent_weights import in_latents
from weft.models.weights.reading import as_stored
from weft.quantize.gguf import check_said


def is_gguf(out: Path) -> bool:
    """Returns True if a result with this name is a GGUF file."""
    return out.name.lower().endswith(".gguf")


def check_target(out: Path) -> None:
    """Raises UsageError if something exists at the target (a broken link too)."""
    if os.path.lexists(out):
        raise UsageError(f"{out} exists already; name another folder, or remove the existing one")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"{parent} is not a folder; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{parent} cannot be written to; name a place that can")


def decoder_config(source: Path, raw: Fields, gguf: bool) -> DecoderConfig:
    """Returns the config of a decoder that can be written. Raises ModelError, UsageError."""
    kind = raw.text("model_type", "")
    if kind not in DECODERS:
        raise ModelError(
            f"{raw.where}: weft writes quantised decoders of its own families, not {shown(kind)}; "
            'one traced from transformers is quantised while loading: load it with quant="int8"'
        )
    if raw.data.get("quantization_config") or raw.data.get("quantization"):
        raise ModelError(f"{raw.where}: the weights are quantised already")
    config = as_stored(source, raw, DECODERS[kind](raw))
    if config.experts and (config.fused_experts or (config.shared_ffn and not gguf)):
        form = "to GGUF" if gguf else "to a folder"
        raise ModelError(
            f"{raw.where}: weft does not quantise the experts of {kind} {form}; load it with quant="
        )
    if gguf:  # which has the matrix of latent attention in two
        config = in_latents(config) if config.latent is not None else config
        check_said(config)
    elif config.transposed:
        raise ModelError(
            f"{raw.where}: compressed-tensors does not hold the layers of {kind}; name a .gguf file"
        )
    return config
