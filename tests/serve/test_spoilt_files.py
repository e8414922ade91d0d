"""The file of a served model that is cut, written over, touched or replaced while it is mapped."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from serve_kit import Running, serving

from weft.serve import watched

TEXT = "/v1/completions"
ASKED = {"prompt": "def f(", "max_tokens": 8, "seed": 1, "ignore_eos": True}
LONG = {**ASKED, "max_tokens": 300}


@pytest.fixture
def copied(chatty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(watched, "LOOK_SECONDS", 0.0)
    return Path(shutil.copytree(chatty, tmp_path / "box"))


def weights_of(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: path.stat().st_size)


def text(server: Running) -> tuple[int, str]:
    status, made, _ = server.ask("POST", TEXT, ASKED)
    return status, made["choices"][0]["text"] if status == 200 else made["error"]["message"]


def cut(path: Path) -> None:
    os.truncate(path, 4096)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4)
        file.write(bytes(path.stat().st_size // 2))


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    shutil.copy(path, other)
    overwrite(other)
    os.replace(other, path)


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


@pytest.mark.parametrize("change", [cut, overwrite, replace, touch, os.remove])
def test_between_answers(copied: Path, change: Callable[[Path], None]) -> None:
    """A file that was spoilt is read again, and gives an error or its own answers; never those of
    bytes that changed under a loaded model."""
    with serving({"box": str(copied)}) as server:
        before = text(server)
        model = server.shelf.decoders()[0]
        change(weights_of(copied))
        status, after = text(server)
        if change is cut:
            assert status == 500 and "cannot be loaded" in after
        elif change is overwrite:
            assert status == 200 and server.shelf.decoders()[0] is not model
            assert server.shelf.decoders()[0].print != model.print
        else:
            assert (status, after) == before and server.shelf.decoders()[0] is model
        assert server.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize("change", [cut, overwrite])
def test_in_the_middle_of_an_answer(
    copied: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It ends with an error; the log names the file."""
    caplog.set_level(logging.INFO, "weft")
    with serving({"box": str(copied)}) as server:
        assert text(server)[0] == 200
        player, looks = server.shelf.decoders()[0].player, []
        weights = weights_of(copied)
        check = player._check

        def changed() -> None:
            looks.append(1)
            if len(looks) == 4:
                change(weights)
            check()

        player._check = changed
        assert server.ask("POST", TEXT, LONG)[0] == 503 and len(looks) == 4
        assert str(weights) in caplog.text
        assert text(server)[0] == (500 if change is cut else 200)
