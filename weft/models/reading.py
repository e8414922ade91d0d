"""The weights in a Hugging Face folder, be they floats or packed."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from weft.importers.hf_config import Fields
from weft.importers.safetensors import open_checkpoint
from weft.models.config import Layout
from weft.models.hub.names import name_of
from weft.models.matrices import Chosen
from weft.models.names import bind_weights

if TYPE_CHECKING:
    import numpy as np

    from weft.core.dtypes import DType
    from weft.core.packed import Packed

PACKED_KEYS = ("quantization_config", "quantization")  # of config.json; the second is MLX's
_OLD = "quantize_config.json"
_SENSES = re.compile(r"(?:^|\.)(?:vision|visual|audio|embed_vision|embed_audio)\w*\.")


def says_packed(raw: Fields) -> bool:
    """Whether a config.json says that weights are packed."""
    return any(raw.data.get(key) for key in PACKED_KEYS)


def is_packed(folder: Path, raw: Fields) -> bool:
    """Whether a folder, whose config.json is `raw`, says so anywhere."""
    return says_packed(raw) or (folder / _OLD).exists()


@functools.cache
def _say(line: str) -> None:
    """One line on stderr, once per process."""
    print(f"weft: {line}", file=sys.stderr)


def read_weights(
    folder: Path, raw: Fields, layout: Layout, dtype: DType | None = None,
    wants: Callable[[str], bool] = lambda role: True,
) -> Mapping[str, np.ndarray | Packed]:  # fmt: skip
    """Role -> weight, for the roles that are wanted: floats as they are; packed ones as such, or
    in `dtype` where one is given. Raises ModelError, FileFormatError."""
    checkpoint = open_checkpoint(folder)
    if any(map(_SENSES.search, checkpoint)):
        _say(f"{name_of(folder)}: weft takes its text model alone, no images and no sound")
    if not is_packed(folder, raw):
        return bind_weights(layout, checkpoint, wants)
    from weft.importers.packed.checkpoint import PackedCheckpoint, method_of
    from weft.models.widening import PackedWeights

    packed = PackedCheckpoint(checkpoint, method_of(raw, folder))
    return Chosen(PackedWeights(layout, packed, dtype), wants)
