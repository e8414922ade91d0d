"""Whisper's features: the log of a mel spectrogram, as transformers' WhisperFeatureExtractor."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

from weft.core.errors import FileFormatError
from weft.core.records import dataclass

FRAMES = 2048  # transformed at once
FLOOR = 1e-10  # least power, before the log
RANGE = 8.0  # decades below the loudest that are kept


@dataclass(frozen=True)
class MelConfig:
    """Sizes of the features: `size` mels, windows of `fft` samples each `hop` at `rate` Hz;
    `frames` are what a model hears at once."""

    size: int = 80
    rate: int = 16000
    fft: int = 400
    hop: int = 160
    frames: int = 3000


def hz_to_mel(hz: np.ndarray) -> np.ndarray:
    """Slaney's scale: linear below 1000 Hz, then logarithmic."""
    return np.where(hz < 1000, 3 * hz / 200, 15 + np.log(np.maximum(hz, 1) / 1000) * _PER_LOG)


def mel_to_hz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp((mel - 15) / _PER_LOG))


_PER_LOG = 27 / np.log(6.4)


def filters(c: MelConfig) -> np.ndarray:
    """Returns triangles of equal area, float64 [fft / 2 + 1, mels], from 0 to 8000 Hz."""
    top = hz_to_mel(np.array([0.0, 8000.0]))
    edges = mel_to_hz(np.linspace(top[0], top[1], c.size + 2))
    bins = np.linspace(0, c.rate // 2, c.fft // 2 + 1)
    slopes = edges[None, :] - bins[:, None]
    widths = np.diff(edges)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    found = np.maximum(0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))
    return np.asarray(found)


def log_mel(blocks: Iterable[np.ndarray], c: MelConfig) -> Iterator[np.ndarray]:
    """Yields log10 of the mel powers, float32 [n, mels], of samples at c.rate Hz; frame i is about
    sample i * hop. There are n // hop frames of n samples; the ends are mirrored."""
    half, bank = c.fft // 2, filters(c)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(c.fft) / c.fft)
    held, begun, given, made = np.zeros(0, np.float32), False, 0, 0
    for block in blocks:
        given += len(block)
        held = np.concatenate((held, block))
        if not begun and len(held) > half:
            held, begun = np.concatenate((held[half:0:-1], held)), True
        while begun and (ready := (len(held) - c.fft) // c.hop + 1) > FRAMES:
            # The last frames wait: the end of the sound is mirrored, and one frame left out.
            count = min(FRAMES, ready - 1)
            yield _frames(held, count, c, window, bank)
            made, held = made + count, held[count * c.hop :]
    if not begun:
        if given:
            held = np.pad(held, (half, half), "reflect" if len(held) > 1 else "edge")
    else:
        held = np.concatenate((held, held[-2 : -half - 2 : -1]))
    while made < given // c.hop:
        count = min(FRAMES, given // c.hop - made)
        yield _frames(held, count, c, window, bank)
        made, held = made + count, held[count * c.hop :]


def _frames(
    held: np.ndarray, count: int, c: MelConfig, window: np.ndarray, bank: np.ndarray
) -> np.ndarray:
    step = held.strides[0]
    shape, strides = (count, c.fft), (c.hop * step, step)
    rows = np.lib.stride_tricks.as_strided(held, shape, strides, writeable=False)
    spectrum = np.fft.rfft(rows * window)
    power = spectrum.real**2 + spectrum.imag**2
    found: np.ndarray = np.log10(np.maximum(FLOOR, power @ bank)).astype(np.float32)
    return found


class Features:
    """The features of a whole sound, kept in a temporary file, so that hours take little memory.
    A sound shorter than a window of the model is filled with silence."""

    def __init__(self, blocks: Iterable[np.ndarray], c: MelConfig) -> None:
        self.config = c
        self.samples = 0
        self._file = tempfile.TemporaryFile(prefix="weft-mel-")  # noqa: SIM115 - closed by close
        self.top = -np.inf
        self.frames = 0
        levels = []
        for rows in log_mel(self._filled(blocks), c):
            self.top = max(self.top, float(rows.max()))
            self.frames += len(rows)
            levels.append(rows.max(1) * 10)
            self._file.write(rows.tobytes())
        heard = -(-self.samples // c.hop)  # the silence that fills a window is no sound
        self.levels = np.concatenate(levels)[:heard]  # decibels of the loudest mel, float32

    def _filled(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for block in blocks:
            self.samples += len(block)
            yield block
        if not self.samples:
            raise FileFormatError("the sound has no samples")
        yield np.zeros(max(0, self.config.frames * self.config.hop - self.samples), np.float32)

    @property
    def duration(self) -> float:
        """Seconds of sound."""
        return self.samples / self.config.rate

    def window(self, start: int, most: int | None = None) -> np.ndarray:
        """Returns a window's features, float32 [frames, mels], from frame `start` on; zeros after
        the end, and after `most` frames."""
        c = self.config
        count = max(0, min(c.frames if most is None else most, self.frames - start))
        self._file.seek(start * c.size * 4)
        data = self._file.read(count * c.size * 4)
        rows = np.frombuffer(data, np.float32).reshape(count, c.size)
        out = np.zeros((c.frames, c.size), np.float32)
        out[:count] = (np.maximum(rows, np.float32(self.top - RANGE)) + 4) / 4
        return out

    def close(self) -> None:
        self._file.close()
