"""Drafts of a Decoder: the same tokens and text, whoever proposes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from model_zoo import write_model
from present import opened
from rows import few

import weft
from weft.cli.main import invoke
from weft.conform.models import CONFIGS
from weft.core.errors import UsageError
from weft.hub.box import box_folder
from weft.models import random_folder

SIZE = {**CONFIGS["llama"], "max_position_embeddings": 256}
PROMPTS = [[5, 6, 7, 8] * 6, [1, 2, 3]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and one of its first layer alone, which is often of one mind with it."""
    large, small = (tmp_path_factory.mktemp(name) for name in ("large", "small"))
    random_folder(large, SIZE, scale=0.05)
    random_folder(small, {**SIZE, "num_hidden_layers": 1}, scale=0.05)
    return large, small


SAMPLED = {"temperature": 0.9, "top_k": 8, "seed": 5}
PLAYS: list[tuple[str, dict[str, Any]]] = [
    (device, options) for device in ("cpu", "vulkan") for options in ({}, SAMPLED)
]


@pytest.mark.parametrize("device,options", few(PLAYS, PLAYS[1]))
def test_the_same_tokens(pair: tuple[Path, Path], device: str, options: dict[str, Any]) -> None:
    """From texts, by a small model, by one that is always right; one sequence and several."""
    opened(device)
    large, small = pair
    count = 60 if device == "cpu" else 20
    model = weft.load(large, device=device, context=128)
    want = model.generate(PROMPTS, count, **options)
    for draft in (True, weft.load(small, device=device, context=128),
                  weft.load(large, device=device, context=128)):  # fmt: skip
        assert model.generate(PROMPTS, count, draft=draft, **options) == want
        assert model.generate(PROMPTS[1], count, draft=draft, **options).ids == (
            model.generate(PROMPTS[1], count, **options).ids
        )
    stats = model.engine(2, draft).stats
    assert stats.drafted >= stats.accepted > -bool(options)  # where it samples, perhaps none


def test_what_cannot_draft_is_refused_by_name(pair: tuple[Path, Path], tmp_path: Path) -> None:
    large, _ = pair
    model = weft.load(large, device="cpu", context=64)
    other = random_folder(tmp_path / "vocab", {**SIZE, "vocab_size": 80})
    state = tmp_path / "state"
    write_model("qwen3_5", state)
    refused = [
        (weft.load(other, device="cpu"), "has other tokens"),
        (weft.load(state, device="cpu"), "running state"),
        (model, "the model itself"),
        ("small", "got a str"),
    ]
    for draft, said in refused:
        with pytest.raises(UsageError, match=said):
            model.generate([1, 2], 4, draft=draft)


def test_other_tokens_by_the_same_ids_are_refused(tmp_path: Path) -> None:
    box, other = weft.load(box_folder(), device="cpu"), tmp_path / "other"
    shutil.copytree(box_folder(), other)
    assert box.tokenizer is not None
    file = other / "tokenizer.json"
    data = json.loads(file.read_text())
    vocab = data["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="take one of the same family"):
        box.generate("x", 4, draft=weft.load(other, device="cpu"))


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    box, texts = str(box_folder()), []
    for more in ([], ["--drafts"], ["--draft-model", box]):
        args = ["run", box, "def f(a, b):", "--max-new-tokens", "30", *more]
        assert invoke(args) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
