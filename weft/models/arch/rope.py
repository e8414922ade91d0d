"""Rotary position tables, computed on the host once (Su et al., arXiv:2104.09864). Scalings follow
transformers, so that tables agree to the last bit where the platform allows."""

from __future__ import annotations

import math

import numpy as np

from weft.models.arch.config import DecoderConfig, Rope


def inverse_frequencies(rope: Rope, head_dim: int, length: int = 0) -> np.ndarray:
    """Returns float32 [R / 2]: radians per position for each pair of the R turning dimensions, in a
    context of `length` positions."""
    head_dim = rope.rotary or head_dim
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inv: np.ndarray = (np.float32(1.0) / np.power(np.float32(rope.theta), exponent)).astype(
        np.float32
    )
    long = rope.long_divisors and length > rope.original
    if divisors := rope.long_divisors if long else rope.divisors:
        inv = inv / np.array(divisors, np.float32)
    if rope.scaling == "linear":
        return inv / np.float32(rope.factor)
    if rope.scaling == "llama3":
        return _llama3(rope, inv)
    if rope.scaling == "yarn":
        return _yarn(rope, inv, head_dim)
    return inv


def _llama3(rope: Rope, inv: np.ndarray) -> np.ndarray:
    """Returns frequencies with Llama 3.1's scaling: long wavelengths slow down by `factor`, short
    ones stay."""
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
    """Returns YaRN's blend, linear in the pair's index (Peng et al., arXiv:2309.00071, section
    3.2)."""

    def pair(turns: float) -> float:
        """Returns the index of the pair that turns `turns` times in the original context."""
        wavelength = rope.original / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    ends = pair(rope.high_factor), pair(rope.low_factor)
    if rope.truncate:
        ends = math.floor(ends[0]), math.ceil(ends[1])
    first, last = max(ends[0], 0), min(ends[1], head_dim - 1)
    span = last - first if last != first else 0.001
    number = np.arange(head_dim // 2, dtype=np.float32)
    kept = 1 - np.clip((number - np.float32(first)) / np.float32(span), 0, 1)
    slowed = inv / np.float32(rope.factor)
    mixed: np.ndarray = (slowed * (1 - kept) + inv * kept).astype(np.float32)
    return mixed


def rope_tables(rope: Rope, head_dim: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns cos and sin, float32 [length, R / 2], of position x inverse frequency, each times the
    rope's magnitude; R of the head's dimensions turn."""
    inverse = inverse_frequencies(rope, head_dim, length)
    angle = np.arange(length, dtype=np.float32)[:, None] * inverse
    if rope.magnitude == 1.0:
        return np.cos(angle), np.sin(angle)
    return np.cos(angle) * np.float32(rope.magnitude), np.sin(angle) * np.float32(rope.magnitude)


def query_growth(c: DecoderConfig, length: int) -> np.ndarray:
    """Returns float32 [length]: the factor on queries at each position, so that attention stays
    sharp far beyond the rope's original context (Llama 4's temperature)."""
    span = np.float32(c.growth_span or c.ropes[0].original)
    turn = np.floor((np.arange(length, dtype=np.float32) + np.float32(c.growth_ahead)) / span)
    factor: np.ndarray = (1 + np.float32(c.query_growth) * np.log(1 + turn)).astype(np.float32)
    return factor
