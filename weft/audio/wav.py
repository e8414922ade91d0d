"""WAV files as streams of blocks, by the standard library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from weft.core.errors import FileFormatError

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
ENDLESS = (0xFFFFFFFF, 0xFFFFFFFF - 36)  # sizes that writers to a pipe leave


class Format(NamedTuple):
    """The `fmt` chunk, and where the samples are: bytes `start` .. `start` + `size`."""

    tag: int
    channels: int
    rate: int
    bits: int
    start: int
    size: int

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.channels * (self.bits // 8)


def is_wav(head: bytes) -> bool:
    """Returns True for the first 12 bytes of a WAV file."""
    return head[:4] == b"RIFF" and head[8:12] == b"WAVE"


def read_format(file: BinaryIO, where: str, length: int) -> Format:
    """Returns the format of an open WAV file of `length` bytes. Raises FileFormatError."""
    at, found = 12, None
    while at + 8 <= length:
        file.seek(at)
        name, size = struct.unpack("<4sI", file.read(8))
        if name == b"fmt ":
            found = _format(file.read(min(size, 40)), where)
        if name == b"data":
            if found is None:
                raise FileFormatError(f"{where}: the data chunk comes before the fmt chunk")
            left = length - at - 8
            if size > left and size not in ENDLESS:
                raise FileFormatError(
                    f"{where}: truncated: the header promises {size} bytes of samples, the file "
                    f"has {left}"
                )
            return found._replace(start=at + 8, size=min(size, left))
        at += 8 + size + size % 2
    raise FileFormatError(f"{where}: a WAV file without {'samples' if found else 'a format'}")


def _format(data: bytes, where: str) -> Format:
    if len(data) < 16:
        raise FileFormatError(f"{where}: the fmt chunk has {len(data)} bytes; expected 16 or more")
    tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", data[:16])
    if tag == EXTENSIBLE and len(data) >= 26:
        (tag,) = struct.unpack("<H", data[24:26])
    if (tag, bits) not in DECODERS or not 1 <= channels <= 64:
        raise FileFormatError(
            f"{where}: WAV format {tag} with {bits} bits and {channels} channels; expected PCM of "
            "8, 16, 24 or 32 bits or floats of 32 or 64, and 1 to 64 channels"
        )
    return Format(tag, channels, rate, bits, 0, 0)


def blocks(file: BinaryIO, form: Format, frames: int) -> Iterator[np.ndarray]:
    """Yields samples float32 [<= frames, channels] in -1 .. 1."""
    file.seek(form.start)
    left = form.size // form.frame
    while left > 0:
        data = file.read(min(left, frames) * form.frame)
        count = len(data) // form.frame
        if not count:
            return
        left -= count
        flat = DECODERS[form.tag, form.bits](data[: count * form.frame])
        yield flat.reshape(count, form.channels)


def _pcm8(data: bytes) -> np.ndarray:
    return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(1 << 7)


def _pcm16(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(1 << 15)


def _pcm24(data: bytes) -> np.ndarray:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0].astype(np.float32) / np.float32(1 << 31)


def _pcm32(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i4").astype(np.float32) / np.float32(1 << 31)


def _float32(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4").astype(np.float32)


def _float64(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f8").astype(np.float32)


DECODERS = {
    (PCM, 8): _pcm8, (PCM, 16): _pcm16, (PCM, 24): _pcm24, (PCM, 32): _pcm32,
    (FLOAT, 32): _float32, (FLOAT, 64): _float64,
}  # fmt: skip
