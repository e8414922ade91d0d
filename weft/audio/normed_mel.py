"""Parakeet's features: the log of mel powers of emphasised samples, each mel with mean 0 and
deviation 1 over a passage, as transformers' ParakeetFeatureExtractor."""

from __future__ import annotations

import numpy as np

from weft.audio.mel import MelConfig, filters

WINDOW = 400  # samples of a window, in the middle of those transformed
FLOOR, EPS = 2.0**-24, 1e-5
LEAST = 1600  # samples of a passage; a shorter one is filled with silence


def normed_mel(x: np.ndarray, c: MelConfig, emphasis: float) -> np.ndarray:
    """Returns float32 [n // hop, mels] of samples x[n]; frame i is about sample i * hop."""
    x = np.concatenate((x, np.zeros(max(0, LEAST - len(x)), np.float32)))
    rows = _windows(np.concatenate((x[:1], x[1:] - np.float32(emphasis) * x[:-1])), c)
    spectrum = np.fft.rfft(rows)
    power = spectrum.real**2 + spectrum.imag**2
    found = np.log(power @ filters(c) + FLOOR)
    return np.asarray((found - found.mean(0)) / (found.std(0, ddof=1) + EPS), np.float32)


def _windows(x: np.ndarray, c: MelConfig) -> np.ndarray:
    """Returns the weighted windows of x, with silence around it, [n // hop, fft]."""
    side = (c.fft - WINDOW) // 2
    window = np.pad(np.hanning(WINDOW), (side, c.fft - WINDOW - side))
    count = len(x) // c.hop
    around = np.pad(x, (c.fft // 2, c.fft // 2))
    rows = np.lib.stride_tricks.sliding_window_view(around, c.fft)[:: c.hop][:count]
    return np.asarray(rows * window)
