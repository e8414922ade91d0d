"""Sounds that soundfile decodes: MP3, FLAC, OGG."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest

from weft.audio.sound import open_sound, sound_of
from weft.core.errors import WeftError

soundfile = pytest.importorskip("soundfile")
RATE = 48000
X = 0.5 * np.sin(np.arange(2 * RATE)[:, None] * (0.05, 0.11))
FORMS = [("FLAC", "PCM_16", 1e-4), ("OGG", "VORBIS", 0.03), ("OGG", "OPUS", 0.03),
         ("MP3", "MPEG_LAYER_III", 0.03), ("AIFF", "PCM_24", 1e-6)]  # fmt: skip


def encoded(form: str, kind: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, X, RATE, format=form, subtype=kind)
    return out.getvalue()


@pytest.mark.parametrize(("form", "kind", "most"), FORMS)
def test_decoding(form: str, kind: str, most: float, tmp_path: Path) -> None:
    """From a path and from an upload, twice."""
    data, path = encoded(form, kind), tmp_path / "talk"
    path.write_bytes(data)
    with tempfile.SpooledTemporaryFile(1000) as file:
        file.write(data)
        for sound in (open_sound(path), sound_of(file, "an upload")):
            for _ in range(2):
                found = np.concatenate(list(sound.blocks()))
                assert sound.rate == RATE and found.dtype == np.float32
                inner = slice(2000, -2000)  # codecs smear a tone's ends
                assert found.shape == X.shape and abs(found - X)[inner].max() < most


@pytest.mark.parametrize(("form", "kind", "most"), FORMS)
def test_hostile_bytes(
    form: str, kind: str, most: float, capfd: pytest.CaptureFixture[str]
) -> None:
    """Cut and changed files give samples or a named error, and no traceback of a callback."""
    data, rng = encoded(form, kind), np.random.default_rng(0)
    cases = [data[:n] for n in (13, 30, 200, len(data) // 2, len(data) - 1)]
    for _ in range(12):
        wild = bytearray(data)
        for at in rng.integers(0, min(len(data), 400), 6):
            wild[at] = rng.integers(256)
        cases.append(bytes(wild))
    for case in cases:
        try:
            for block in sound_of(io.BytesIO(case), "a test").mono(16000):
                assert np.isfinite(block).all()
        except WeftError as error:
            assert str(error) and len(str(error)) < 300
    assert "Traceback" not in capfd.readouterr().err
