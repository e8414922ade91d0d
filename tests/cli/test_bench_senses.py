"""`weft bench speech` and `weft bench pictures`, on tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rows import few

from weft.cli.main import cli
from weft.core.errors import UsageError


@pytest.fixture(autouse=True)
def zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "models"))


def call(*args: object) -> Any:
    options = ("--device", "cpu", "--repeats", "1", "--json")
    found = CliRunner().invoke(cli, ["bench", *map(str, args), *options])
    if found.exception is not None:
        raise found.exception
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", few(("moonshine", "parakeet", "whisper"), "moonshine"))
def test_speech(name: str, tmp_path: Path) -> None:
    import speech_zoo

    getattr(speech_zoo, name)(tmp_path)
    made = call("speech", tmp_path, "--seconds", 2, "--max-new-tokens", 3, "--batch", 2,
                "--peers", "transformers")  # fmt: skip
    assert set(made["results"]) == {"weft", "weft, batch 2", "transformers"}
    assert made["features_share"] > 0 and made["results"]["weft"]["real_time_factor"] > 0
    with pytest.raises(UsageError, match="expected a list of transformers, faster-whisper"):
        call("speech", tmp_path, "--peers", "siri")
    with pytest.raises(UsageError, match="does not hear"):
        call("speech", "box")


@pytest.mark.slow
def test_pictures(tmp_path: Path) -> None:
    from picture_zoo import write_pictured
    from vector_zoo import write_vectors

    write_vectors("clip", tmp_path / "clip")
    made = call("pictures", tmp_path / "clip", "--peers", "transformers", "--pixels", "40x50")
    assert made["results"]["transformers"]["pictures_s"] > 0 and made["preparing_share"] > 0
    write_pictured("qwen2_5_vl", tmp_path / "seer")
    made = call("pictures", tmp_path / "seer", "--peers", "transformers", "--pixels", "56x84")
    assert made["same_token"] is True and made["picture_tokens"] > 0
    for bad in ("40", "0x40", "axb"):
        with pytest.raises(UsageError, match="expected HEIGHTxWIDTH"):
            call("pictures", tmp_path / "clip", "--pixels", bad)
