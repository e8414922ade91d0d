"""Runs of weft train on conversations: against PyTorch, resumed, with templates and long rows."""

# ruff: noqa: F811 (a fixture of another file)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversation_kit import MARKS, PLAIN, _keep, base, lines, says, user  # noqa: F401
from rows import few
from train_kit import tiny

from weft.core.errors import ModelError, UsageError
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.names import checkpoint_names
from weft.training import loop
from weft.training.model import folder_weights
from weft.training.packing import PackedRowsFile, RowBatches, write_rows
from weft.training.prepare import prepare_data
from weft.training.report import read_log
from weft.training.settings import settings_from


def given_settings(base: Path, run: Path, talks: Path, **sections: dict[str, Any]) -> Any:
    data: dict[str, dict[str, Any]] = {
        "model": {"from": str(base)},
        "data": {"conversations": [str(talks)], "holdout": 0.0},
        "train": {"steps": 4, "batch": 2, "context": 32, "device": "cpu"},
        "optimizer": {"lr": 1e-2, "warmup": 0},
        "output": {"folder": str(run), "eval_every": 0, "sample_every": 0},
    }
    for name, more in sections.items():
        data[name] = {**data.get(name, {}), **more}
    return settings_from(data, "config")


# -- runs


TALKS = [[user(f"a warp {i}"), says("and a weft " * (1 + i % 3))] for i in range(8)]


@pytest.mark.parametrize("pack, accumulate", few([(False, 1), (True, 1), (False, 3)], (False, 3)))
def test_a_run_follows_pytorch(base: Path, tmp_path: Path, pack: bool, accumulate: int) -> None:
    """The loss is the mean over all tokens that the model says in a step, however it is divided;
    PyTorch's AdamW from the same weights over the same rows gives the same parameters."""
    from transformers import AutoModelForCausalLM

    talks = lines(tmp_path / "talks.jsonl", *TALKS)
    given = given_settings(
        base, tmp_path / "run", talks, data={"pack": pack}, train={"accumulate": accumulate},
        optimizer={"schedule": "constant", "weight_decay": 0.0, "lr": 1e-3},
    )  # fmt: skip
    result = loop.train(given)
    data = prepare_data(given, tmp_path / "run")[0]
    assert isinstance(data.train, PackedRowsFile)
    batches = RowBatches(data.train, 2, 32, 0, pack)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    opt = torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.95), 1e-8, weight_decay=0.0)
    losses = []
    for step in range(4):
        made = [batches.at(step * accumulate + i) for i in range(accumulate)]
        ids, targets = (torch.tensor(np.concatenate(part)).long() for part in zip(*made))
        opt.zero_grad()
        first = ids < 0  # of a later conversation in its row
        ids = torch.where(first, ~ids, ids)
        number, row = first.long().cumsum(1), torch.arange(ids.shape[1])
        start = torch.where(first, row, 0).cummax(1).values
        seen = (number[:, :, None] == number[:, None, :]) & (row[:, None] >= row[None, :])
        logits = model(ids, attention_mask=seen[:, None], position_ids=row - start).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-100
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    np.testing.assert_allclose(result.losses, losses, rtol=1e-5)
    config, got = folder_weights(result.folder)
    want = {n: p.detach().numpy() for n, p in model.named_parameters()}
    for role, name in checkpoint_names(config).items():
        np.testing.assert_allclose(got[role], want[name], atol=2e-5)


def test_epochs_evaluation_and_an_early_end(base: Path, tmp_path: Path) -> None:
    talks = lines(tmp_path / "talks.jsonl", *TALKS)
    held = lines(tmp_path / "held.jsonl", [user("what?"), says("not this")])
    result = loop.train(given_settings(base, tmp_path / "run", talks,
                                       data={}, train={"steps": 1000, "epochs": 2}))  # fmt: skip
    assert result.step == 8 and not result.early  # 8 conversations, 2 a step, twice
    run = tmp_path / "early"
    given = given_settings(
        base, run, talks, data={"held_out": [str(held)], "holdout": 0.05},
        train={"steps": 400, "patience": 2}, output={"eval_every": 5, "checkpoint_every": 5},
    )  # fmt: skip
    result = loop.train(given)
    assert result.early and result.step < 400 and result.folder == run / "model"
    found = [(r["step"], r["eval_loss"]) for r in read_log(run / "log.jsonl") if "eval_loss" in r]
    best = min(found, key=lambda r: r[1])
    assert found[-1][0] == result.step and found[-3][0] == best[0]
    # The model that stays is that of the best evaluation: its held-out loss shows it.
    again = loop.train(given_settings(
        run / "model", tmp_path / "look", talks, data={"held_out": [str(held)], "holdout": 0.05},
        train={"steps": 1}, output={"eval_every": 5},
    ))  # fmt: skip
    first = next(r for r in read_log(again.folder.parent / "log.jsonl") if "eval_loss" in r)
    assert first["eval_loss"] == pytest.approx(best[1], rel=1e-6)
    resumed = loop.train(given, resume=True)
    assert resumed.early and resumed.step == result.step and not resumed.losses


def test_resuming_is_bit_identical(base: Path, tmp_path: Path) -> None:
    talks = lines(tmp_path / "talks.jsonl", *TALKS)
    sections: dict[str, Any] = {
        "data": {"pack": True}, "train": {"steps": 1000, "epochs": 3},
        "output": {"checkpoint_every": 1},
    }  # fmt: skip
    whole = loop.train(given_settings(base, tmp_path / "whole", talks, **sections))
    parts = given_settings(base, tmp_path / "parts", talks, **sections)
    loop.train(parts, until=2)
    assert loop.train(parts, resume=True).losses == whole.losses[2:]


def test_a_new_model_takes_a_template_from_the_config(tmp_path: Path) -> None:
    talks = lines(tmp_path / "talks.jsonl", *TALKS)
    template = tmp_path / "own.jinja"
    template.write_text(PLAIN.replace("<|end|>\n", "<|endoftext|>"))
    data: dict[str, Any] = {"template": str(template)}
    given = given_settings(
        Path(), tmp_path / "run", talks, data=data,
        model={"from": "", "hidden": 16, "layers": 1, "heads": 2},
        tokenizer={"vocab": 300, "special": MARKS[:3]},
        output={"sample_every": 4, "sample_prompt": "a warp"},
    )  # fmt: skip
    folder = loop.train(given).folder
    assert (folder / "chat_template.jinja").read_text() == template.read_text()
    tokenizer = Tokenizer(folder, 1 << 30)
    assert len(tokenizer.encode("<|user|>", special=False)) == 1
    assert tokenizer.chat([user("a")]) == "<|user|>a<|endoftext|><|assistant|>"


@pytest.mark.parametrize(
    "sections, words",
    [
        ({"data": {"template": "none.jinja"}}, ["none.jinja", "not a file"]),
        ({"data": {"paths": ["stdlib"]}}, ["paths and conversations"]),
        ({"data": {"suffixes": [".json"]}}, ["suffixes"]),
        ({"data": {"held_out": ["x"], "holdout": 0.3}}, ["held_out and holdout"]),
        ({"data": {"conversations": [], "paths": ["stdlib"], "pack": True}}, ["pack"]),
        ({"train": {"epochs": 2, "steps": 7}}, ["steps 7", "epochs"]),
        ({"train": {"patience": 2}}, ["patience", "eval_every"]),
        ({"output": {"best": True}}, ["best", "held-out"]),
        ({"optimizer": {"warmup": 5}}, ["warmup 5", "4 steps"]),
        ({"optimizer": {"schedule": "constant", "min_lr": 1e-3}}, ["min_lr", "constant"]),
        ({"data": {"template": "x"}, "lora": {"rank": 2}}, ["template", "[lora]"]),
        ({"train": {"steps": 1000, "epochs": 1}, "optimizer": {"warmup": 5}}, ["warmup 5"]),
    ],
)
def test_settings_that_contradict_one_another(
    base: Path, tmp_path: Path, sections: dict[str, Any], words: list[str]
) -> None:
    talks = lines(tmp_path / "talks.jsonl", *TALKS)
    with pytest.raises(UsageError) as error:
        loop.train(given_settings(base, tmp_path / "run", talks, **sections))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_default_warmup_longer_than_the_run_is_said(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    talks = lines(tmp_path / "talks.jsonl", *TALKS)
    loop.train(given_settings(base, tmp_path / "run", talks, optimizer={"warmup": 100}))
    assert "warmup, by default 100, is longer than the run" in capfd.readouterr().err


def test_templates_that_cannot_be_trained_with(base: Path, tmp_path: Path) -> None:
    talks = lines(tmp_path / "talks.jsonl", *TALKS)
    for name, text, kind, words in (
        ("endless", PLAIN.replace("<|end|>", ""), ModelError, "learn to stop"),
        ("opens", PLAIN.replace("%}<|assistant|>{%", "%}<|assistant|>(think){%"), ModelError,
         "go on from its own prompt"),
        ("refuses", "{{ raise_exception('no users here') }}", UsageError, "no users here"),
        ("broken", "{% for %}", ModelError, "does not compile"),
    ):  # fmt: skip
        file = tmp_path / f"{name}.jinja"
        file.write_text(text)
        given = given_settings(base, tmp_path / name, talks, data={"template": str(file)})
        with pytest.raises(kind, match=words):
            loop.train(given)
    bare = tmp_path / "bare"
    bare.mkdir()
    for each in base.glob("*.json*"):
        (bare / each.name).write_bytes(each.read_bytes())
    (bare / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    with pytest.raises(UsageError, match=r"no chat template; give one: \[data\] template"):
        loop.train(given_settings(bare, tmp_path / "no", talks))


def test_long_conversations_are_left_out_and_counted(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    talks = lines(tmp_path / "t.jsonl", *TALKS, [user("a"), says("and a weft " * 40)])
    loop.train(given_settings(base, tmp_path / "run", talks))
    assert "1 of 9 conversations" in capfd.readouterr().err
    all_long = lines(tmp_path / "l.jsonl", [user("a"), says("and a weft " * 40)])
    with pytest.raises(UsageError, match="no conversation to train on"):
        loop.train(given_settings(base, tmp_path / "none", all_long))


def test_keys_that_nothing_reads_are_named(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps({"messages": TALKS[0], "id": 1, "score": 0.5}) + "\n")
    loop.train(given_settings(base, tmp_path / "run", file))
    said = capfd.readouterr().err
    assert "not used: score" in said


def test_conversations_given_as_text_are_noticed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    talks = lines(tmp_path / "t.jsonl", *TALKS)
    loop.train(tiny(talks, tmp_path / "run"))
    assert "t.jsonl holds conversations; [data] conversations" in capfd.readouterr().err


def test_rows_mask_what_is_not_said(tmp_path: Path) -> None:
    write_rows([np.array([~4, 5, ~6, 7], np.int32), np.array([8, 9], np.int32)], tmp_path / "r.npy")
    ids, targets = PackedRowsFile(tmp_path / "r.npy", 300, 8).row([0, 1], 8)
    assert ids.tolist() == [4, 5, 6, 7, ~8, 9, 0]
    assert targets.tolist() == [5, -100, 7, -100, 9, -100, -100]
