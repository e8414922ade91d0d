"""The text that a run reads: how it is divided, and when it is read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.training import corpus as corpus_module, loop, prepare as prepare_module
from weft.training.corpus import Corpus, read_corpus, skipped_line
from weft.training.prepare import Data, prepare_data
from weft.training.settings import settings_from

LINE = "a warp and a weft and a loom to hold them\n"


def read(folder: Path, holdout: float = 0.05) -> Corpus:
    return read_corpus([str(folder)], [".txt"], [], holdout, Path())


def share(corpus: Corpus) -> float:
    """The part of the characters that is held out."""
    held, train = (sum(len(t) for _, t in part) for part in (corpus.held_out, corpus.train))
    return held / (held + train)


def files(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


def settings(text: Path, run: Path, **more: Any) -> Any:
    """A tiny run of three steps."""
    return settings_from({
        "model": {"hidden": 16, "layers": 1, "heads": 2},
        "data": {"paths": [str(text)]},
        "tokenizer": {"vocab": more.pop("vocab", 300)},
        "train": {"steps": 3, "batch": 2, "context": 16, "device": "cpu"},
        "output": {"folder": str(run), "eval_every": 0, "sample_every": 0},
    }, "config")  # fmt: skip


# -- what is held out


def test_many_even_files_are_held_out_whole(tmp_path: Path) -> None:
    corpus = read(files(tmp_path, **{f"n{i}": LINE * 10 for i in range(40)}))
    assert len(corpus.held_out) == 2 and len(corpus.train) == 38
    names = {n for n, _ in corpus.train} | {n for n, _ in corpus.held_out}
    assert len(names) == 40  # none is in both


@pytest.mark.parametrize("big", ["a", "b", "c"])
def test_a_few_uneven_files_do_not_swallow_the_data(tmp_path: Path, big: str) -> None:
    texts = {"a": LINE * 100, "b": LINE * 90, "c": LINE * 80}
    corpus = read(files(tmp_path, **{**texts, big: LINE * 2000}))
    assert 0.03 < share(corpus) <= 0.05
    for _, text in (*corpus.train, *corpus.held_out):  # whole lines
        assert text.startswith("a warp") and text.endswith("them\n")
    assert read(tmp_path).digest == corpus.digest


def test_one_file_gives_its_last_lines(tmp_path: Path) -> None:
    corpus = read(files(tmp_path, a="first\n" * 60 + "last\n"), 0.01)
    assert corpus.held_out[0][1] == "last\n" and "last" not in corpus.train[0][1]


def test_files_of_one_line_are_held_out_whole(tmp_path: Path) -> None:
    corpus = read(files(tmp_path, a=LINE, b=LINE, c=LINE))
    assert len(corpus.held_out) == 1 and len(corpus.train) == 2


# -- what is left out


def test_skipped_files_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = files(tmp_path / "text", a=LINE * 50)
    (text / "latin.txt").write_bytes("Käse\n".encode("latin-1"))
    (text / "noise.txt").write_bytes(b"\0\1")
    loop.train(settings(text, tmp_path / "run"))
    err = capfd.readouterr().err
    assert "2 files skipped, not UTF-8 text: text/latin.txt, text/noise.txt\n" in err
    assert skipped_line(["a"]) == "1 file skipped, not UTF-8 text: a"
    assert skipped_line(list("abcdefg")).endswith(": a, b, c, d, e and 2 more")


def test_too_little_for_an_evaluation_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = settings(files(tmp_path / "text", a=LINE * 20), tmp_path / "run")
    loop.train(replace(given, output=replace(given.output, eval_every=2)))
    assert "no evaluation: held out is less than a batch, 2 x 16\n" in capfd.readouterr().err


def test_a_model_one_level_deeper_is_named(tmp_path: Path) -> None:
    text, base = files(tmp_path / "text", a=LINE * 200), tmp_path / "base"
    loop.train(settings(text, base))
    given = settings(text, tmp_path / "tuned")
    with pytest.raises(ModelError, match=r"did you mean .*base.model"):
        loop.train(replace(given, model=replace(given.model, base=str(base))))


def test_a_path_that_is_not_there_is_shown_whole(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="data path nope: no such file or folder") as error:
        read_corpus(["nope"], [".txt"], [], 0.05, Path())
    assert str(tmp_path / "nope") in str(error.value)


def test_data_is_looked_at_before_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: Any) -> None:
        raise AssertionError("the device was opened")

    monkeypatch.setattr(loop.registry, "get", opened)
    with pytest.raises(UsageError, match="nowhere"):
        loop.train(settings(tmp_path / "nowhere", tmp_path / "run"))
    with pytest.raises(UsageError, match="give more text"):
        loop.train(settings(files(tmp_path / "text", a="tiny\n"), tmp_path / "run"))


def test_long_waits_say_what_they_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def progress(text: str) -> Iterator[None]:
        said.append(text)
        yield

    monkeypatch.setattr(corpus_module, "progress", progress)
    monkeypatch.setattr(prepare_module, "progress", progress)
    text = files(tmp_path / "text", **{f"n{i}": LINE for i in range(1500)})
    prepared(settings(text, tmp_path / "run"), tmp_path / "run")
    assert said == [
        "reading 1,500 files", "preparing the tokenizer", "turning the text into tokens"
    ]  # fmt: skip


# -- when it is read again


def prepared(given: Any, run: Path) -> Data:
    return prepare_data(given, run)[0]


def test_text_that_changed_is_read_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, run = files(tmp_path / "text", a="tiny\n"), tmp_path / "run"
    with pytest.raises(UsageError, match="give more text"):
        loop.train(settings(text, run))
    files(text, b=LINE * 200)
    loop.train(settings(text, run))
    err = capfd.readouterr().err
    assert f"{run / 'data'} was made of other text or settings; making it anew" in err


def test_other_settings_make_other_tokens(tmp_path: Path) -> None:
    text, run = files(tmp_path / "text", a=LINE * 200, b="x = 1\n" * 99), tmp_path / "run"
    first = prepared(settings(text, run), run)
    again = prepared(settings(text, run), run)
    assert again.facts == first.facts
    fewer = prepared(settings(text, run, vocab=260), run)
    assert len(fewer.train) > len(first.train) and fewer.digest == first.digest
    other = prepared(settings(text / "b.txt", run), run)
    assert other.digest != first.digest


def test_what_is_there_is_not_made_twice(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, run = files(tmp_path / "text", a=LINE * 200), tmp_path / "run"
    prepared(settings(text, run), run)
    before = (run / "data" / "train.npy").stat().st_mtime_ns
    prepared(settings(text, run), run)
    assert (run / "data" / "train.npy").stat().st_mtime_ns == before
    assert "anew" not in capfd.readouterr().err


@pytest.mark.parametrize("gone", [False, True])
def test_a_resumed_run_keeps_its_tokens_and_says_so(
    tmp_path: Path, gone: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    text, run = files(tmp_path / "text", a=LINE * 200), tmp_path / "run"
    loop.train(settings(text, run), until=2)
    (text / "a.txt").unlink() if gone else files(text, b=LINE)
    assert loop.train(settings(text, run), resume=True).step == 3
    err = capfd.readouterr().err
    what = "cannot be read any more" if gone else "has changed since"
    assert f"the text {what}; going on with the tokens in {run / 'data'}" in err


def test_nothing_but_binary_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\0\1")
    with pytest.raises(FileFormatError, match="none of the 1 files holds UTF-8 text"):
        read(tmp_path)
