"""Notices on stderr: once, none once they are hushed, and no failure where stderr fails."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from weft.core import notices


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(notices, "_hushed", False)
    notices.say.cache_clear()
    yield
    notices.say.cache_clear()


def test_a_notice_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        notices.say("one")
        notices.say_unknown("config.json", {"odd": 1}, ())
    want = "weft: one\nweft: config.json: weft does not know odd, which changes nothing here\n"
    assert capsys.readouterr().err == want


def test_hushed_gives_none(capsys: pytest.CaptureFixture[str]) -> None:
    notices.hush()
    notices.say("one")
    notices.say_unread("model.onnx", ["w"])
    assert capsys.readouterr().err == ""


class _Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", _Full())
    notices.say("one")


def test_no_stderr_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a process has none (pythonw), a line does not go to stdout in its place."""
    monkeypatch.setattr("sys.stderr", None)
    notices.tell("a line")
    assert capsys.readouterr().out == ""
