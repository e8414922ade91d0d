"""Turns token vectors into one vector per text, on the host."""

from __future__ import annotations

import numpy as np

from weft.models.arch.config import Pooling


def pool(
    how: Pooling, hidden: np.ndarray, lengths: np.ndarray, skip: np.ndarray | None = None
) -> np.ndarray:
    """Returns one vector per row, float32 [B, dim], from token vectors [B, T, hidden], without the
    first `skip` tokens of each row.

    The modes' results are concatenated; with `normalize` each row has length 1.
    """
    skip = np.zeros_like(lengths) if skip is None else np.minimum(skip, lengths - 1)
    at = np.arange(hidden.shape[1])[None, :, None]
    inside = (at < lengths[:, None, None]) & (at >= skip[:, None, None])
    parts = []
    for mode in how.modes:
        if mode == "cls":
            parts.append(hidden[np.arange(len(hidden)), skip])
        elif mode == "max":
            parts.append(np.where(inside, hidden, -np.inf).max(axis=1))
        else:
            total = np.where(inside, hidden, 0).sum(axis=1, dtype=np.float32)
            parts.append(total / np.maximum(lengths - skip, 1)[:, None].astype(np.float32))
    out = np.concatenate(parts, axis=1).astype(np.float32)
    if how.normalize:
        norm = np.linalg.norm(out, axis=1, keepdims=True)
        out = out / np.maximum(norm, np.float32(1e-12))
    return out[:, : how.dim]
