"""`weft transcribe`."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from weft.cli.main import cli


def call(*args: object) -> tuple[int, str]:
    found = CliRunner().invoke(cli, ["transcribe", *map(str, args)])
    return found.exit_code, found.output


def test_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "models"))
    from speech_zoo import whisper

    whisper(tmp_path / "model")
    sound = tmp_path / "talk.wav"
    with wave.open(str(sound), "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        x = np.random.default_rng(0).normal(0, 3000, 12000)
        out.writeframes(x.astype("<i2").tobytes())
    given = (tmp_path / "model", sound, "--device", "cpu")
    status, text = call(*given, "--format", "json", "--words", "--language", "de", "--translate")
    assert status == 0, text
    found = json.loads(text[text.index("{") :])
    assert (found["language"], found["task"], found["duration"]) == ("de", "translate", 1.5)
    for form, begins in (("srt", ""), ("vtt", "WEBVTT"), ("text", "")):
        status, text = call(*given, "--format", form)
        assert status == 0 and begins in text
    found = CliRunner().invoke(cli, ["transcribe", str(tmp_path / "model"), "none.wav"])
    assert found.exit_code and "cannot be read" in str(found.exception)
    status, text = call("weft/box", sound, "--device", "cpu")
    assert status != 0
