"""Sound files, resampling and features."""

from __future__ import annotations

import struct
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from weft.audio.align import median_filter, warp
from weft.audio.mel import Features, MelConfig
from weft.audio.resample import resampled
from weft.audio.sound import open_sound
from weft.audio.subtitles import srt, vtt
from weft.audio.voice import passages, speech
from weft.core.errors import FileFormatError, UsageError
from weft.models.run.transcript import Word


def wav(path: Path, data: bytes, rate: int, channels: int, width: int) -> Path:
    with wave.open(str(path), "wb") as out:
        out.setframerate(rate)
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.writeframes(data)
    return path


def chirp(seconds: float, rate: int = 16000, top: float = 3000.0) -> np.ndarray:
    t = np.arange(int(seconds * rate)) / rate
    wave_ = np.sin(2 * np.pi * (80 * t + (top - 80) / (2 * seconds) * t * t))
    return (0.4 * wave_).astype(np.float32)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_of_every_width(tmp_path: Path, width: int) -> None:
    x = chirp(0.5)
    whole = np.round(x.astype(np.float64) * (1 << (8 * width - 1))).astype(np.int64)
    stereo = np.stack([whole, whole], 1)
    if width == 1:
        data = (stereo + 128).astype(np.uint8).tobytes()
    else:
        data = b"".join(int(v).to_bytes(width, "little", signed=True) for v in stereo.reshape(-1))
    path = wav(tmp_path / "a.wav", data, 16000, 2, width)
    found = np.concatenate(list(open_sound(path).mono(16000)))
    assert len(found) == len(x)
    assert abs(found - x).max() < 1.01 / (1 << (8 * width - 1)) + 1e-7


def test_bad_sound_is_named(tmp_path: Path) -> None:
    good = wav(tmp_path / "a.wav", chirp(0.1).astype("<i2").tobytes(), 16000, 1, 2).read_bytes()
    head = (b"RIFF", 44, b"WAVE", b"fmt ", 16, 3, 1, 16000, 64000, 4, 32, b"data", 8)
    floats = struct.pack("<4sI4s4sIHHIIHH4sI", *head) + struct.pack("<ff", 0.5, float("nan"))
    cases = {
        "empty": b"", "truncated": good[:-100], "without samples": good[:36],
        "NaN or infinity at 0.000": floats, "audio.|soundfile": b"ID3" + bytes(64),
        "no samples": wav(tmp_path / "b.wav", b"", 16000, 1, 2).read_bytes(),
        "WAV format 7": good[:20] + b"\x07" + good[21:],
    }  # fmt: skip
    for said, data in cases.items():
        path = tmp_path / "bad.wav"
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match=said):
            list(open_sound(path).mono(16000))
    with pytest.raises(UsageError, match="4000 to 192000"):
        open_sound(np.zeros(9, np.float32), 3999)
    with pytest.raises(UsageError, match="expected floats"):
        open_sound(np.zeros(9, np.int16))
    with pytest.raises(FileFormatError, match="cannot be read"):
        open_sound(tmp_path / "none.wav")


@pytest.mark.parametrize("rate", [4000, 8000, 11025, 15999, 44100, 48000, 192000])
def test_resampling_keeps_a_chirp(rate: int) -> None:
    """Below 0.88 of the lower Nyquist frequency, a chirp at another rate is the same chirp."""
    top = min(rate, 16000) / 2 * 0.88
    x = chirp(1.0, rate, top)
    found = np.concatenate(list(resampled(iter(np.array_split(x, 5)), rate, 16000)))
    true = chirp(1.0, 16000, top)
    assert len(found) == len(true)
    assert abs(found - true)[800:-800].max() < 1e-4


def test_resampling_removes_what_would_fold() -> None:
    t = np.arange(48000) / 48000
    x = np.sin(2 * np.pi * 9000 * t).astype(np.float32)
    found = np.concatenate(list(resampled([x], 48000, 16000)))
    assert abs(found)[800:-800].max() < 1e-4


@pytest.mark.parametrize(("seconds", "mels"), [(3.3, 80), (30.0, 128), (41.21, 80)])
def test_features_equal_transformers(seconds: float, mels: int) -> None:
    from transformers import WhisperFeatureExtractor

    x = chirp(seconds) + np.random.default_rng(0).normal(0, 0.01, int(seconds * 16000))
    x = x.astype(np.float32)
    theirs = WhisperFeatureExtractor(feature_size=mels)
    filled = np.pad(x, (0, max(0, 480_000 - len(x))))
    true = theirs._np_extract_fbank_features([filled], "cpu")[0]
    found = Features(iter(np.array_split(x, 3)), MelConfig(mels))
    rows = np.concatenate([found.window(0), found.window(3000)])[: found.frames]
    assert found.frames == true.shape[1]
    assert abs(rows.T - true).max() < 5e-7
    assert not found.window(found.frames - 10)[10:].any()


def test_warping_equals_transformers() -> None:
    import torch
    from transformers.models.whisper import generation_whisper as theirs

    x = np.random.default_rng(1).random((3, 9, 57))
    true = theirs._median_filter(torch.tensor(x), 7).numpy()
    assert (median_filter(x) == true).all()
    for found, wanted in zip(warp(-x[0]), theirs._dynamic_time_warping(-x[0])):
        assert (found == wanted).all()


def test_subtitles() -> None:
    pieces = [Word(" One --> two", 0.0, 1.25), Word(" three", 3661.5, 3662.0)]
    assert "".join(srt(pieces)) == (
        "1\n00:00:00,000 --> 00:00:01,250\nOne -> two\n\n2\n01:01:01,500 --> 01:01:02,000\nthree\n"
    )
    assert "".join(vtt(pieces)).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nOne -> two\n")


def test_passages() -> None:
    """Speech of a known place is found; cuts are at quiet moments, and nothing is lost."""
    levels = np.full(5000, -70, np.float32)
    for start, end in ((300, 1000), (1030, 1500), (3000, 4900)):
        levels[start:end] = -10
    levels[3800:3840] = -40
    assert speech(levels) == [(280, 1520), (2980, 4920)]
    found = passages(levels, 1000, True)
    assert [found[0][0], found[1][1], found[2][0], found[-1][1]] == [280, 1520, 2980, 4920]
    assert 1000 <= found[0][1] <= 1030 and 3800 <= found[2][1] <= 3840
    for most in (7, 100, 5000, 6000):
        whole = passages(levels, most, False)
        assert whole[0][0] == 0 and whole[-1][1] == 5000
        assert all(a[1] == b[0] for a, b in pairwise(whole))
        assert all(0 < end - start <= most for start, end in whole)
