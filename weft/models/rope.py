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
    if rope.divisors:
        inv = inv / np.array(rope.divisors, np.float32)
    if rope.scaling == "linear":
        return inv / np.float32(rope.factor)
    if rope.scaling == "llama3":
        return _llama3(rope, inv)
    if rope.scaling == "yarn":
        return _yarn(rope, inv, head_dim)
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


def _yarn(rope: Rope, inv: np.ndarray, head_dim: int) -> np.ndarray:
    """YaRN's blend, a straight line over the number of the pair (Peng et al., arXiv:2309.00071,
    section 3.2)."""

    def pair(turns: float) -> float:
        """The pair that turns so often in the original context."""
        wavelength = rope.original / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    first = max(math.floor(pair(rope.high_factor)), 0)
    last = min(math.ceil(pair(rope.low_factor)), head_dim - 1)
    span = last - first if last != first else 0.001
    number = np.arange(head_dim // 2, dtype=np.float32)
    kept = 1 - np.clip((number - np.float32(first)) / np.float32(span), 0, 1)
    slowed = inv / np.float32(rope.factor)
    return (slowed * (1 - kept) + inv * kept).astype(np.float32)


def rope_tables(rope: Rope, head_dim: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, float32 [length, head_dim / 2], of position x inverse frequency, each times
    the rope's magnitude."""
    angle = np.arange(length, dtype=np.float32)[:, None] * inverse_frequencies(rope, head_dim)
    if rope.magnitude == 1.0:
        return np.cos(angle), np.sin(angle)
    return np.cos(angle) * np.float32(rope.magnitude), np.sin(angle) * np.float32(rope.magnitude)
