"""Changes of the sampling rate: a sinc under a Kaiser window, for any two whole rates.

The filter passes 0 .. 0.9 of the lower rate's Nyquist frequency and is 100 dB down at 1.0. A period
of L outputs takes M inputs (L / M = the reduced ratio). Each group of outputs of a period is one
matrix product with windows of the input, so all periods of a block are computed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

ZEROS = 64  # zero crossings of the sinc on each side, at the lower rate
BETA = 10.06  # of the Kaiser window: 100 dB
CUTOFF = 0.95  # of the lower Nyquist frequency: the middle of the transition
GROUP = 160  # outputs of one product


class _Part(NamedTuple):
    """Outputs `first` .. of a period: taps [span, outputs], for inputs from `start` on."""

    first: int
    start: int
    taps: np.ndarray


@lru_cache(maxsize=8)
def _filters(up: int, down: int) -> tuple[int, tuple[_Part, ...]]:
    """Returns the filter's reach to each side in inputs, and the parts of a period."""
    low = min(1.0, up / down)  # the lower rate in units of the input's
    reach = int(np.ceil(ZEROS / low))
    parts = []
    for first in range(0, up, GROUP):
        n = np.arange(first, min(first + GROUP, up))
        at = n * down / up  # the outputs' times, in inputs
        start = int(at[0])
        span = int(at[-1]) - start + 2 * reach + 1
        t = (np.arange(span)[:, None] + (start - reach)) - at
        window = np.i0(BETA * np.sqrt(np.maximum(0.0, 1 - (t / reach) ** 2))) / np.i0(BETA)
        taps = np.where(abs(t) <= reach, window, 0.0) * np.sinc(t * low * CUTOFF) * low * CUTOFF
        taps /= taps.sum(0)  # a constant keeps its level
        parts.append(_Part(first, start, taps.astype(np.float32)))
    return reach, tuple(parts)


def resampled(blocks: Iterable[np.ndarray], rate: int, wanted: int) -> Iterator[np.ndarray]:
    """Yields float32 samples at `wanted` Hz of blocks at `rate` Hz: ceil(n wanted / rate) of n."""
    if rate == wanted:
        yield from blocks
        return
    common = gcd(rate, wanted)
    times = max(1, GROUP * common // wanted)  # short periods at once: products of some width
    up, down = wanted // common * times, rate // common * times
    reach, parts = _filters(up, down)
    held, given, made = np.zeros(reach, np.float32), 0, 0
    for block in blocks:
        given += len(block)
        held = np.concatenate((held, block))
        periods = max(0, len(held) - 2 * reach) // down
        if periods:
            yield _products(held, periods, up, down, parts)
            made += periods * up
            held = held[periods * down :]
    left = -(-given * up // down) - made
    if left > 0:
        periods = -(-left // up)
        short = periods * down + 2 * reach + 1 - len(held)
        held = np.concatenate((held, np.zeros(max(0, short), np.float32)))
        yield _products(held, periods, up, down, parts)[:left]


def _products(
    held: np.ndarray, periods: int, up: int, down: int, parts: Iterable[_Part]
) -> np.ndarray:
    out = np.empty((periods, up), np.float32)
    step = held.strides[0]
    for first, start, taps in parts:
        span, count = taps.shape
        shape, strides = (periods, span), (down * step, step)
        windows = np.lib.stride_tricks.as_strided(held[start:], shape, strides, writeable=False)
        out[:, first : first + count] = windows @ taps
    return out.reshape(-1)
