"""Sound from a file or an array, as one channel at one rate, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.audio import wav
from weft.audio.resample import resampled
from weft.core.errors import FileFormatError, UsageError
from weft.core.install import how

BLOCK = 1 << 18  # frames that are read at once
RATES = (4000, 192_000)  # Hz


class Sound:
    """A source of samples. `blocks` yields them from the start, float32 [n, channels]; `rate` is
    in Hz, `where` names the source in messages."""

    def __init__(self, where: str, rate: int, blocks: Callable[[], Iterator[np.ndarray]]) -> None:
        least, most = RATES
        if not least <= rate <= most:
            raise UsageError(f"{where}: {rate} samples per second; expected {least} to {most}")
        self.where, self.rate, self.blocks = where, rate, blocks

    def mono(self, rate: int) -> Iterator[np.ndarray]:
        """Yields the mean of the channels at `rate` Hz, float32 [n]. Raises FileFormatError for a
        sample that is no number, and for a sound without samples."""
        return resampled(self._checked(), self.rate, rate)

    def _checked(self) -> Iterator[np.ndarray]:
        at = 0
        for block in self.blocks():
            one = block[:, 0] if block.shape[1] == 1 else block.mean(1, dtype=np.float32)
            if not np.isfinite(one).all():
                first = (at + int(np.argmin(np.isfinite(one)))) / self.rate
                raise FileFormatError(f"{self.where}: NaN or infinity at {first:.3f} seconds")
            at += len(one)
            yield one
        if not at:
            raise FileFormatError(f"{self.where}: no samples; expected sound")


def open_sound(source: Any, sample_rate: int | None = None) -> Sound:
    """Returns the sound of a file (a path), or of an array [n] or [n, channels] of floats in
    -1 .. 1 with its `sample_rate` in Hz (default 16000). A Sound is returned as it is. WAV files
    need nothing; other formats need the package soundfile. Raises FileFormatError, UsageError."""
    if isinstance(source, Sound):
        return source
    if isinstance(source, str | os.PathLike):
        if sample_rate is not None:
            raise UsageError("sample_rate is for arrays; a file says its own")
        return _file(Path(source))
    rate = 16000 if sample_rate is None else sample_rate
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise UsageError(f"sample_rate is {rate!r:.60}; expected an integer in Hz")
    array = np.asarray(source)
    if array.dtype.kind != "f" or array.ndim not in (1, 2):
        raise UsageError(
            f"sound is an array of {array.dtype} with shape {list(array.shape)}; expected floats "
            "[n] or [n, channels] in -1 .. 1, or a path"
        )
    if not len(array):
        raise FileFormatError("the array: no samples; expected sound")
    wide = array[:, None] if array.ndim == 1 else array
    if not wide.shape[1]:
        raise UsageError(f"sound has shape {list(array.shape)}: no channel")

    def blocks() -> Iterator[np.ndarray]:
        for at in range(0, len(wide), BLOCK):
            yield wide[at : at + BLOCK].astype(np.float32)

    return Sound("the array", int(rate), blocks)


def _file(path: Path) -> Sound:
    try:
        size = path.stat().st_size
        return sound_in(lambda: open(path, "rb"), str(path), size)
    except OSError as e:
        raise FileFormatError(f"{path}: cannot be read: {e.strerror or e}") from None


def sound_of(file: BinaryIO, where: str) -> Sound:
    """Returns the sound in an open file, which messages call `where`. Raises as `open_sound`."""
    size = file.seek(0, os.SEEK_END)

    def opened() -> AbstractContextManager[BinaryIO]:
        file.seek(0)
        return nullcontext(file)

    return sound_in(opened, where, size)


def sound_in(
    opened: Callable[[], AbstractContextManager[BinaryIO]], where: str, size: int
) -> Sound:
    """Returns the sound in the file of `size` bytes that `opened` opens. Raises as `open_sound`."""
    with opened() as file:
        head = file.read(12)
        if not head:
            raise FileFormatError(f"{where}: the file is empty; expected sound")
        if not wav.is_wav(head):
            return _decoded(opened, where)
        form = wav.read_format(file, where, size)

    def blocks() -> Iterator[np.ndarray]:
        with opened() as file:
            yield from wav.blocks(file, form, BLOCK)

    return Sound(where, form.rate, blocks)


class _Seekable:
    """An open file as soundfile reads it. A hostile file may send a decoder before its start; the
    start is there then, since an error in a callback would be lost."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.read, self.tell = file, file.read, file.tell

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._file.tell()
        elif whence == os.SEEK_END:
            offset += self._file.seek(0, os.SEEK_END)
        return self._file.seek(max(0, offset))


def _decoded(opened: Callable[[], AbstractContextManager[BinaryIO]], where: str) -> Sound:
    """Returns the sound of a file that soundfile decodes: MP3, FLAC, OGG and others."""
    try:
        import soundfile
    except ImportError:
        raise FileFormatError(
            f"{where}: not a WAV file; for MP3, FLAC and OGG: {how('audio')}"
        ) from None
    try:
        with opened() as data, soundfile.SoundFile(_Seekable(data)) as file:
            rate = int(file.samplerate)
    except (soundfile.SoundFileError, OSError, TypeError) as e:
        said = getattr(e, "error_string", e)
        raise FileFormatError(f"{where}: not a sound that soundfile decodes: {said}") from None

    def blocks() -> Iterator[np.ndarray]:
        try:
            with opened() as data, soundfile.SoundFile(_Seekable(data)) as file:
                yield from file.blocks(BLOCK, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as e:
            said = getattr(e, "error_string", e)
            raise FileFormatError(f"{where}: decoding stopped: {said}") from None

    return Sound(where, rate, blocks)
