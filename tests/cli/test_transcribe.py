"""`weft transcribe`."""

from __future__ import annotations

import json
import re
import wave
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import cli


def call(*args: object) -> tuple[int, str]:
    found = CliRunner().invoke(cli, ["transcribe", *map(str, args)])
    return found.exit_code, found.output


def written(path: Path) -> Path:
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        x = np.random.default_rng(0).normal(0, 3000, 12000)
        out.writeframes(x.astype("<i2").tobytes())
    return path


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and Python of docs/speech.md, about sound."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "models"))
    from speech_zoo import whisper

    whisper(tmp_path / "MODEL")
    written(tmp_path / "talk.wav")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_DEVICE", "cpu")
    page = (Path(__file__).parents[2] / "docs/speech.md").read_text()
    lines = re.findall(r"^weft transcribe (.*)$", page, re.M)
    assert len(lines) >= 4
    for line in lines:
        status, text = call(*line.split())
        assert status == 0 and len(text) > 10, (line, text)
    (code,) = re.findall(r"```python\n(model = .*?transcribe.*?)```", page, re.S)
    exec(code, {"weft": weft, "folder": tmp_path / "MODEL"})


def test_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "models"))
    from speech_zoo import whisper

    whisper(tmp_path / "model")
    sound = written(tmp_path / "talk.wav")
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
