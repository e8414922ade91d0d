"""Training on conversations: what counts in the loss, rows, epochs, a PyTorch loop beside it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from rows import few
from train_kit import LINE, tiny

from weft.core.errors import FileFormatError, ModelError, UsageError, WeftError
from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.names import checkpoint_names
from weft.models.weights.writing import write_model
from weft.training import loop
from weft.training.conversations import read_conversations
from weft.training.model import config_of, folder_weights, fresh_weights
from weft.training.packing import PackedRowsFile, RowBatches, write_rows
from weft.training.prepare import new_config, prepare_data
from weft.training.report import read_log
from weft.training.settings import ModelSettings, settings_from
from weft.training.tokens import train_tokenizer
from weft.training.turns import ConversationEncoder

MARKS = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Writes what was thought only in the last answer, as templates of reasoning models do.
FORGETS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.thought and loop.last %}({{ m.thought }}){% endif %}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def lines(path: Path, *talks: Any) -> Path:
    path.write_text("".join(json.dumps({"messages": list(t)}) + "\n" for t in talks))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with marks as tokens and a chat template."""
    folder = tmp_path_factory.mktemp("base")
    train_tokenizer([LINE], 300, folder, MARKS)
    tokenizer = Tokenizer(folder, 1 << 30)
    end = tokenizer.encode("<|end|>", special=False)[0]
    raw = new_config(ModelSettings(hidden=16, layers=1, heads=2), tokenizer.size, 64, end)
    from weft.importers.hf_config import Fields

    config = config_of(Fields(raw, "base"))
    write_model(folder, config, raw, folder, fresh_weights(config, 0))
    (folder / "chat_template.jinja").write_text(PLAIN)
    return folder


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


def turns_of(base: Path) -> ConversationEncoder:
    tokenizer = Tokenizer(base, 1 << 30)
    return ConversationEncoder(tokenizer, tokenizer.encode("<|end|>", special=False))


def encode(base: Path, tmp_path: Path, *messages: dict[str, Any]) -> list[tuple[str, str]]:
    """Of each row, the whole text and the text that counts."""
    file = lines(tmp_path / "one.jsonl", messages)
    found = read_conversations([str(file)], [], [], 0.0, Path()).train[0]
    tokenizer = Tokenizer(base, 1 << 30)
    out = []
    for row in turns_of(base).encode(found):
        ids = np.where(row < 0, ~row, row)
        out.append((tokenizer.decode(ids, False), tokenizer.decode(row[row >= 0], False)))
    return out


# -- what counts


def test_only_what_the_model_says_counts(base: Path, tmp_path: Path) -> None:
    messages = (
        {"role": "system", "content": "weave"}, user("a warp"), says("and a weft"), user("loom?"),
        says("holds them"),
    )  # fmt: skip
    ((text, said),) = encode(base, tmp_path, *messages)
    assert said == "and a weft<|end|>holds them<|end|>"
    assert text.startswith("<|system|>weave<|end|>\n<|user|>a warp<|end|>\n<|assistant|>and a weft")
    assert text.endswith("holds them<|end|>")  # what the template writes after it teaches nothing


def test_a_message_of_weight_0_is_read_and_not_said(base: Path, tmp_path: Path) -> None:
    messages = (user("a"), says("wrong", weight=0), user("b"), says("right", weight=1))
    ((text, said),) = encode(base, tmp_path, *messages)
    assert "wrong" in text and said == "right<|end|>"


def test_a_template_that_rewrites_earlier_turns_gives_a_row_per_answer(
    base: Path, tmp_path: Path
) -> None:
    other = tmp_path / "base"
    other.mkdir()
    for file in base.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "chat_template.jinja").write_text(FORGETS)
    rows = encode(other, tmp_path, user("a"), says("b", thought="x"), user("c"),
                  says("d", thought="y"))  # fmt: skip
    assert [said for _, said in rows] == ["(x)b<|end|>", "(y)d<|end|>"]
    assert (
        rows[1][0]
        == "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>(y)d<|end|>"
    )


WORDS = st.text(st.sampled_from("ab wx\n.<|>é☃"), min_size=0, max_size=12)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_the_ids_are_those_of_the_chat(talk: list[tuple[str, str]]) -> None:
    """What stands before an answer is the prompt that the model gets for it, and what counts is the
    answer with its end; held to transformers' own mask."""
    base = _shared_base()
    messages = [m for q, a in talk for m in (user(q), says(a))]
    file = lines(base / "h.jsonl", messages)
    one = read_conversations([str(file)], [], [], 0.0, Path()).train[0]
    tokenizer = Tokenizer(base, 1 << 30)
    (row,) = turns_of(base).encode(one)
    ids, said = np.where(row < 0, ~row, row).tolist(), (row >= 0)
    theirs = _transformers(base)
    marked = PLAIN.replace(
        "<|{{ m.role }}|>{{ m.content }}<|end|>\n",
        "<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{{ '\n' }}",
    )
    want = theirs.apply_chat_template(
        messages, chat_template=marked, tokenize=True, return_dict=True,
        return_assistant_tokens_mask=True,
    )  # fmt: skip
    mask = np.array(want["assistant_masks"], np.bool_)
    assert ids == list(want["input_ids"])[: len(ids)]
    assert said.tolist() == mask[: len(ids)].tolist() and not mask[len(ids) :].any()
    first = tokenizer.encode(tokenizer.chat(messages[:1]), special=False)
    assert ids[: len(first)] == first and not said[: len(first)].any()


_BASES: list[Path] = []


def _shared_base() -> Path:
    return _BASES[0]


@pytest.fixture(scope="module", autouse=True)
def _keep(base: Path) -> None:
    _BASES[:] = [base]


def _transformers(base: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(base / "tokenizer.json"))


@pytest.mark.parametrize(
    "line, words",
    [
        ("{", ["line 1", "JSON"]),
        ("[]", ["line 1", "list", "messages"]),
        ('{"conversations": []}', ["conversations", '"messages"']),
        ('{"messages": []}', ["empty"]),
        ('{"messages": null}', ["null"]),
        ('{"messages": ["hello"]}', ["message 1", "str"]),
        ('{"messages": [{"content": "a"}]}', ["message 1", "lacks a role"]),
        ('{"messages": [{"role": "gpt", "content": "a"}]}', ["'gpt'", "assistant"]),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', ["role", "user"]),
        ('{"messages": [{"role": "user"}]}', ["content is missing"]),
        ('{"messages": [{"role": "user", "content": 3}]}', ["content is int"]),
        ('{"messages": [{"role": "user", "content": "a"}]}', ["nothing to learn"]),
        ('{"messages": [{"role": "assistant", "content": "a", "weight": 2}]}', ["weight is 2"]),
        ('{"messages": [{"role": "user", "content": "a", "weight": 0}]}', ["weight"]),
        ('{"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}',
         ["last message", "user"]),
        ('{"messages": [{"role": "assistant", "content": "a"}], "tools": 1}', ["tools is int"]),
    ],
)  # fmt: skip
def test_a_line_that_is_not_a_conversation_is_named(
    line: str, words: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(FileFormatError) as error:
        read_conversations([str(file)], [], [], 0.0, Path())
    assert all(word in str(error.value) for word in words), str(error.value)


def test_files_without_conversations_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n \n")
    for path, kind in (("empty.jsonl", FileFormatError), ("none.jsonl", UsageError)):
        with pytest.raises(kind, match=path):
            read_conversations([path], [], [], 0.0, tmp_path)
    with pytest.raises(UsageError, match=r"no file ending in \.jsonl"):
        read_conversations([str(tmp_path)], [], ["*.jsonl"], 0.0, Path())


def test_equal_conversations_are_held_out_together(tmp_path: Path) -> None:
    talks = [[user(f"q{i % 10}"), says("a")] for i in range(40)]
    file = lines(tmp_path / "t.jsonl", *talks)
    found = read_conversations([str(file)], [], [], 0.2, Path())
    parts = [{one.digest() for one in part} for part in (found.train, found.held_out)]
    assert len(parts[0]) == 8 and len(parts[1]) == 2 and not parts[0] & parts[1]
    assert len(found.train) == 32


# -- rows


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=20), st.integers(1, 3), st.booleans(),
    st.integers(0, 3),
)  # fmt: skip
def test_each_conversation_comes_once_an_epoch(
    lengths: list[int], batch: int, pack: bool, seed: int
) -> None:
    path = _shared_base() / "rows.npy"
    talks = [np.array([~1] + [i + 2] * (n - 1), np.int32) for i, n in enumerate(lengths)]
    write_rows(talks, path)
    rows = PackedRowsFile(path, 300, 9)
    made = RowBatches(rows, batch, 8, seed, pack)
    count = made.batches(3)
    seen: Counter[int] = Counter()
    for number in range(count):
        ids, targets = made.at(number)
        assert ids.shape == targets.shape == (batch, 8)
        for row in targets:
            seen.update(int(t) - 2 for t in row if t != -100)
    whole = count * batch
    assert made.epoch(count) >= 3 and made.epoch(0) == 0
    for i, n in enumerate(lengths):
        times = seen[i] / (n - 1)
        assert times == int(times) and times >= 3  # never cut
        assert times <= 3 + whole / len(lengths)
    again = RowBatches(rows, batch, 8, seed, pack)
    for number in reversed(range(count)):
        np.testing.assert_array_equal(again.at(number)[1], made.at(number)[1])


def test_packed_rows_hold_more(tmp_path: Path) -> None:
    write_rows([np.array([~1, 2, 3], np.int32)] * 12, tmp_path / "rows.npy")
    rows = PackedRowsFile(tmp_path / "rows.npy", 300, 9)
    assert RowBatches(rows, 1, 8, 0, True).batches(1) == 4
    assert RowBatches(rows, 1, 8, 0, False).batches(1) == 12


@pytest.mark.parametrize("damage", ["id", "length", "type"])
def test_a_damaged_file_of_rows_is_refused(damage: str, tmp_path: Path) -> None:
    flat = np.array([3, ~1, 2, 3, 2, ~5, 9], np.int32)
    flat[{"id": 2, "length": 4, "type": 0}[damage]] = {"id": 400, "length": 7, "type": 3}[damage]
    np.save(tmp_path / "rows.npy", flat.astype(np.int64) if damage == "type" else flat)
    with pytest.raises(WeftError, match=r"rows\.npy"):
        PackedRowsFile(tmp_path / "rows.npy", 300, 9)


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
