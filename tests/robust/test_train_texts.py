"""Texts of every shape: trained on whole, or refused in a line that says what is needed."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from rows import few
from train_kit import LINE, text_file, tiny

from weft.core.errors import UsageError
from weft.training import loop
from weft.training.corpus import read_corpus

TEXTS = {
    "one line": LINE.strip() * 100,
    "one line, ended": LINE.strip() * 100 + "\n",
    "one word": "".join(np.random.default_rng(0).choice(list("abcdefghijklm"), 3000)),
    "no final newline": (LINE * 100).strip(),
    "CRLF": LINE.replace("\n", "\r\n") * 100,
    "CR": LINE.replace("\n", "\r") * 100,
    "CRLF, no end": (LINE.replace("\n", "\r\n") * 100).strip(),
    "blank lines": "\n" * 50 + LINE * 100 + "\n" * 50,
    "other scripts": "織物を織る。" * 500,
    "byte order mark": "\ufeff" + LINE * 100,
    "separators": "\u2028".join([LINE.strip()] * 100),
    "two lines": "a" * 50 + "\n" + LINE.strip() * 80,
}


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.05, 0.5])
@pytest.mark.parametrize("name", TEXTS)
def test_no_character_is_lost(name: str, share: float, tmp_path: Path) -> None:
    """None is in both parts, and the shares are about right."""
    path = text_file(tmp_path, TEXTS[name])
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    corpus = read_corpus([str(tmp_path)], [".txt"], [], share, Path())
    train, held = ("".join(t for _, t in p) for p in (corpus.train, corpus.held_out))
    whole = path.read_bytes().decode().replace("\r\n", "\n")
    assert train + held == whole and train.strip()
    most = max(len(whole) * share, 60)  # of one file a line at least
    assert len(held) <= most if share else not held
    if share >= 0.05:
        assert len(held) >= len(whole) * share / 4


@pytest.mark.parametrize(
    "name,share",
    few(itertools.product(TEXTS, (0.0, 0.05)), ("blank lines", 0.05),
        ("other scripts", 0.0)),
)  # fmt: skip
def test_texts_of_every_shape_are_trained_on(name: str, share: float, tmp_path: Path) -> None:
    path = text_file(tmp_path, TEXTS[name])
    settings = tiny(path, tmp_path / "run", data={"holdout": share}, output={"eval_every": 1},
                    train={"steps": 2})  # fmt: skip
    assert loop.train(settings).step == 2


@pytest.mark.parametrize("text", ["x", "x\n", "\n\nx", "one two", LINE])
@pytest.mark.parametrize("share", [0.0, 0.05])
def test_texts_that_are_too_short_say_what_is_needed(
    text: str, share: float, tmp_path: Path
) -> None:
    path = text_file(tmp_path, text)
    with pytest.raises(UsageError, match=r"windows of 64 need at least 128: give more text"):
        loop.train(tiny(path, tmp_path / "run", data={"holdout": share}, train={"context": 64}))


def test_two_folders_of_one_name_are_both_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "notes").mkdir(parents=True)
        (tmp_path / name / "notes" / "x.txt").write_text(name * 9)
    paths = [str(tmp_path / n / "notes") for n in ("a", "b", "a")]
    corpus = read_corpus(paths, [".txt"], [], 0.0, Path())
    assert sorted(text for _, text in corpus.train) == ["a" * 9, "b" * 9]


def test_names_and_patterns_that_are_odd(tmp_path: Path) -> None:
    odd = tmp_path / "caf\udce9.txt"
    try:
        odd.write_text(LINE)
    except (OSError, UnicodeError):
        pytest.skip("the file system takes no such name")
    (tmp_path / "z.txt").write_text(LINE)
    assert len(read_corpus([str(tmp_path)], [".txt"], [], 0.3, Path()).held_out) == 1
    for path in ("~nosuchuser/x", "**a**", "[", "no/**/such*"):
        with pytest.raises(UsageError, match="data path"):
            read_corpus([path], [".txt"], [], 0.0, tmp_path)
