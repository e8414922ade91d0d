"""Rotary position tables, computed on the host once (Su et al., arXiv:2104.09864; the scalings as
transformers computes them, so that tables agree to the last bit where the platform allows)."""

from __future__ import annotations

import math

import numpy as np

from weft.models.config import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """float32 [head_dim / 2]: radians per position of each pair of dimensions."""
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inv = (np.float32(1.0) / np.power(np.float32(rope.theta), exponent)).astype(np.float32)
    if rope.scaling == "linear":
        return inv / np.float32(rope.factor)
    if rope.scaling == "llama3":
        return _llama3(rope, inv)
    return inv


def _llama3(rope: Rope, inv: np.ndarray) -> np.ndarray:
    """Llama 3.1's scaling: long wavelengths slow down by `factor`, short ones stay."""
    wavelength = np.float32(2 * math.pi) / inv
    low = rope.original / rope.low_factor
    high = rope.original / rope.high_factor
    scaled = inv / np.float32(rope.factor)
    smooth = (rope.original / wavelength - np.float32(rope.low_factor)) / np.float32(
        rope.high_factor - rope.low_factor
    )
    between = (1 - smooth) * scaled + smooth * inv
    out = np.where(wavelength > low, scaled, inv)
    return np.where((wavelength <= low) & (wavelength >= high), between, out).astype(np.float32)


def rope_tables(rope: Rope, head_dim: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, float32 [length, head_dim / 2], of position x inverse frequency."""
    angle = np.arange(length, dtype=np.float32)[:, None] * inverse_frequencies(rope, head_dim)
    return np.cos(angle), np.sin(angle)
