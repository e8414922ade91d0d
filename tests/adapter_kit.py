"""Random LoRA adapters of a model, as folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.models.weights import adapters


def adapter(
    folder: Path, base: Path, targets: Sequence[str], rank: int, seed: int, **given: Any
) -> Path:
    """One of normal numbers, large enough that every text changes."""
    config = weft.load(base, device="oracle").config
    rng = np.random.default_rng(seed)
    made = adapters.fresh(config, adapters.target_roles(config, targets), rank, seed)
    weights = {k: rng.standard_normal(v.shape).astype(np.float32) / 4 for k, v in made.items()}
    folder.mkdir()
    adapters.write(folder, config, adapters.Adapter(rank, 6.0, 0.0, str(base), weights, **given))
    return folder
