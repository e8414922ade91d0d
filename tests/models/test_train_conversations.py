"""Training on conversations: what counts in the loss, rows, epochs, a PyTorch loop beside it."""

# ruff: noqa: F811 (a fixture of another file)

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation_kit import _BASES, PLAIN, _keep, base, lines, says, user  # noqa: F401
from hypothesis import given, settings, strategies as st

from weft.core.errors import FileFormatError, UsageError, WeftError
from weft.models.text.tokenizer import Tokenizer
from weft.training.conversations import read_conversations
from weft.training.packing import PackedRowsFile, RowBatches, write_rows
from weft.training.turns import ConversationEncoder

# Writes what was thought only in the last answer, as templates of reasoning models do.
FORGETS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.thought and loop.last %}({{ m.thought }}){% endif %}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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


def _shared_base() -> Path:
    return _BASES[0]


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
