"""A whole sound as samples, for models that hear it passage by passage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import numpy as np

from weft.core.errors import FileFormatError

HOP = 160  # samples of a frame
FLOOR = 1e-10  # least power, before the log


class Samples:
    """Samples of one channel at `rate` Hz, kept in a temporary file, so that hours take little
    memory. `levels` are decibels of the power of each frame of HOP samples, float32 [frames]."""

    def __init__(self, blocks: Iterable[np.ndarray], rate: int = 16000) -> None:
        self.rate, self.samples = rate, 0
        self._file = tempfile.TemporaryFile(prefix="weft-sound-")  # noqa: SIM115 - closed by close
        levels, rest = [], np.zeros(0, np.float32)
        for block in blocks:
            self._file.write(np.ascontiguousarray(block, np.float32).tobytes())
            self.samples += len(block)
            rest = np.concatenate((rest, block))
            whole = len(rest) // HOP * HOP
            levels.append(_decibels(rest[:whole].reshape(-1, HOP)))
            rest = rest[whole:]
        if not self.samples:
            raise FileFormatError("the sound has no samples")
        if len(rest):
            levels.append(_decibels(rest[None]))
        self.levels = np.concatenate(levels)
        self.frames = len(self.levels)

    @property
    def duration(self) -> float:
        """Seconds of sound."""
        return self.samples / self.rate

    def window(self, start: int, end: int) -> np.ndarray:
        """Returns the samples of the frames from `start` up to `end`, float32 [n]."""
        self._file.seek(start * HOP * 4)
        return np.frombuffer(self._file.read((end - start) * HOP * 4), np.float32)

    def close(self) -> None:
        """Lets the file go."""
        self._file.close()


def _decibels(frames: np.ndarray) -> np.ndarray:
    power = np.mean(np.square(frames, dtype=np.float64), 1)
    return np.asarray(10 * np.log10(np.maximum(power, FLOOR)), np.float32)
