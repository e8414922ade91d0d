"""Reads an adapter in any format: PEFT's folder, mlx-lm's folder, or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from weft.models.arch.config import DecoderConfig
from weft.models.weights.adapters import Adapter


def read(path: Path, config: DecoderConfig) -> Adapter:
    """Reads an adapter and checks it against the model. Raises ModelError, FileFormatError."""
    from weft.models.weights import mlx_adapters, peft_files

    if path.is_file():
        from weft.models.weights import gguf_adapters

        return gguf_adapters.read(path, config)
    if mlx_adapters.is_mlx(path):
        return mlx_adapters.read(path, config)
    return peft_files.read(path, config)
