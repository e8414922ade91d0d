"""`weft classify` and `weft rerank` print what the model gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.cli.main import invoke
from weft.models import load

sys.path.append(str(Path(__file__).parents[1] / "models"))
from test_judges import TAGS, TEXTS, written


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert invoke([*words, "--device", "cpu"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_classify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written("bert", tmp_path, id2label={0: "warp", 1: "weft", 2: "loom"})
    model = load(tmp_path, device="cpu")
    out = json.loads(printed(capsys, "classify", ".", *TEXTS[:2], "--json"))
    want = model.classify(TEXTS[:2])
    assert out == {"labels": [[x._asdict() for x in row] for row in want]}
    Path("texts.txt").write_text("\n".join(TEXTS[:2]))
    lines = printed(capsys, "classify", ".", "--text", "texts.txt", "--top", "1").splitlines()
    assert [line.split()[-2] for line in lines[1:]] == [row[0].label for row in want]
    out = json.loads(printed(capsys, "classify", ".", "a", "--pair", "b", "--json"))
    assert out["labels"][0] == [x._asdict() for x in model.classify([("a", "b")])[0]]
    assert invoke(["classify", ".", "x" * 200, "--no-truncate", "--device", "cpu"]) == 1
    assert "has 202 tokens; the model takes 100" in capsys.readouterr().err
    assert invoke(["rerank", ".", "a", "b", "--device", "cpu"]) == 2
    assert "has 3 labels; a reranker has one" in capsys.readouterr().err


def test_entities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written("bert", tmp_path, "TokenClassification", 5, id2label=dict(enumerate(TAGS)))
    want = load(tmp_path, device="cpu").entities(TEXTS[:2])
    out = json.loads(printed(capsys, "classify", ".", *TEXTS[:2], "--json"))
    assert out == {"entities": [[x._asdict() for x in row] for row in want]}
    lines = printed(capsys, "classify", ".", *TEXTS[:2]).splitlines()
    assert len(lines) == 1 + sum(map(len, want))


def test_rerank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written("roberta", tmp_path, labels=1)
    want = load(tmp_path, device="cpu").rerank("a fox", TEXTS[:3], top=2)
    out = json.loads(printed(capsys, "rerank", ".", "a fox", *TEXTS[:3], "--top", "2", "--json"))
    assert [hit["index"] for hit in out["hits"]] == [x.index for x in want]
    np.testing.assert_array_equal([h["score"] for h in out["hits"]], [x.score for x in want])
    assert [hit["text"] for hit in out["hits"]] == [TEXTS[x.index] for x in want]
    lines = printed(capsys, "rerank", ".", "a fox", *TEXTS[:3]).splitlines()
    assert len(lines) == 4 and TEXTS[want[0].index] in lines[1]
    assert invoke(["rerank", ".", "a fox", "--device", "cpu"]) == 2
    assert "give at least one document" in capsys.readouterr().err
    said = ["rerank", ".", "a", "b", "--instruction", "x", "--device", "cpu"]
    assert invoke(said) == 2 and "leave it out" in capsys.readouterr().err
