"""Checks the source and the target of a quantisation before any work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from weft.core.errors import ModelError, UsageError
from weft.core.text import shown
from weft.importers.hf_config import Fields
from weft.importers.safetensors import open_checkpoint
from weft.models.arch.config import DecoderConfig
from weft.models.arch.families import DECODERS
from weft.models.arch.latent_weights import absorbed, in_latents, joined
from weft.models.arch.weights import Weight
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.names import bind_weights
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


def read_decoder(
    source: Path, raw: Fields, gguf: bool
) -> tuple[DecoderConfig, Mapping[str, Weight]]:
    """Returns the config and the weights, by role, of a decoder that can be written. Raises
    ModelError, UsageError."""
    if raw.text("model_type", "") not in DECODERS:
        return _traced(source, raw, gguf)
    config = _config(source, raw, gguf)
    stored = joined(config)
    bound = bind_weights(decoder_layout(stored), open_checkpoint(source))
    return config, absorbed(stored, bound)[1] if gguf else bound


def _traced(source: Path, raw: Fields, gguf: bool) -> tuple[DecoderConfig, Mapping[str, Weight]]:
    from weft.models.zoo.stored import check_experts, stored_decoder

    _check_floats(raw)
    if gguf:
        kind = shown(raw.text("model_type", ""))
        raise ModelError(f"{raw.where}: weft writes no GGUF of {kind}; name a folder")
    config, weights = stored_decoder(source, raw)
    check_experts(config, raw.where)
    return config, weights


def _check_floats(raw: Fields) -> None:
    if raw.data.get("quantization_config") or raw.data.get("quantization"):
        raise ModelError(f"{raw.where}: the weights are quantised already")


def _config(source: Path, raw: Fields, gguf: bool) -> DecoderConfig:
    kind = raw.text("model_type", "")
    _check_floats(raw)
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


def uncalibrated(config: DecoderConfig) -> str:
    """Returns why no text calibrates a decoder; "" if one does."""
    if config.traced is not None:
        return "which is traced from transformers' code"
    more = config.shares or config.layer_input
    return "whose layers take more than what the one before gives" if more else ""
