"""`weft chat --json`: one object per turn, and turns that read only what is new."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from model_zoo import write_model, write_tokenizer

import weft
from weft.cli.main import invoke
from weft.core.errors import LimitError, UsageError
from weft.models.run.model import Decoder
from weft.models.run.talk import Talk

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model("llama2", tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def test_turns_as_json(folder: Path) -> None:
    options = ["--device", "cpu", "--json", "--max-new-tokens", "5", "--system", "Be brief."]
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", "chat", str(folder)]
    done = subprocess.run(
        [*command, *options], input=b"the fox\nand a weft\n\n", capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stderr.decode()
    first, second = map(json.loads, done.stdout.decode().splitlines())
    assert first["reused_tokens"] == 0 and first["device"].startswith("cpu")
    assert len(first["ids"]) == 5 and first["finish_reason"] == "length" and first["text"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + 5
    assert second["reused_tokens"] >= first["prompt_tokens"] - 2  # the last ones may merge
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the fox"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "and a weft"},
    ]
    fresh = weft.load(folder, device="cpu")
    assert second["ids"] == list(fresh.generate(fresh.chat_ids(messages), max_new_tokens=5).ids)


def test_without_a_template_it_is_one_line(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", "chat", str(folder)]
    done = subprocess.run([*command, "--json"], input=b"hi\n", capture_output=True, timeout=240)
    assert done.returncode in (1, 2) and done.stdout == b""
    assert b"Traceback" not in done.stderr and b"template" in done.stderr


@dataclass
class Done:
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command in this process, on the CPU, to which lines are said."""

    def call(*words: str | Path, said: str = "") -> Done:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        status = invoke([*map(str, words), "--device", "cpu"])
        return Done(status, *capsys.readouterr())

    return call


def test_a_full_context_ends_no_conversation(folder: Path, command: Command) -> None:
    """The oldest turns leave it, which is said once, and the system message stays."""
    said = "".join(f"the fox number {n} and a weft\n" for n in range(10))
    words = ["--context", "96", "--json", "--max-new-tokens", "6", "--system", "Be brief."]
    done = command("chat", folder, *words, said=said)
    assert done.returncode == 0, done.stderr
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(turns) == 10 and max(t["prompt_tokens"] for t in turns) <= 96 - 6
    assert done.stderr.count("the oldest turns are no longer read") == 1
    model = weft.load(folder, device="cpu", context=96)
    assert isinstance(model, Decoder)
    messages = [{"role": "system", "content": "Be brief."}]
    for line, turn in zip(said.splitlines(), turns):
        messages.append({"role": "user", "content": line})
        while len(model.chat_ids(messages)) > 90:
            del messages[1:3]
        assert turn["ids"] == list(model.generate(model.chat_ids(messages), 6).ids)
        messages.append({"role": "assistant", "content": turn["text"]})


def test_a_message_that_alone_is_too_long(folder: Path, command: Command) -> None:
    said = "the fox\n" + "and a weft " * 60 + "\nthe fox\n"
    done = command("chat", folder, "--context", "64", "--json", "--max-new-tokens", "4", said=said)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert "the context holds 64: say it in fewer words" in done.stderr
    assert second["prompt_tokens"] > first["prompt_tokens"]  # the first turn is still there


def test_an_answer_goes_on_until_it_ends(folder: Path, command: Command) -> None:
    """Or until the context does, which is said: there is no other limit unless one is given."""
    done = command("chat", folder, "--context", "128", "--json", said="the fox\nand a weft\n")
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(turns) == 2 and done.returncode == 0
    for turn in turns:
        cut = turn["prompt_tokens"] + len(turn["ids"]) == 129
        assert cut == (turn["finish_reason"] == "length")
    cuts = done.stderr.count("the answer was cut off: the context is full")
    assert cuts == sum(turn["finish_reason"] == "length" for turn in turns)


def test_clear_and_save(folder: Path, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "talk one.jsonl"
    said = f"/save {file}\nthe fox\n/save {file}\n/clear\nthe fox\n/save {file}\n/nothing\n"
    said += f"/save {tmp_path}/none/x\n/Clear all of it\n/Save\n"
    words = ("--json", "--max-new-tokens", "5", "--system", "Be brief.")
    done = command("chat", folder, *words, said=said)
    assert done.returncode == 0, done.stderr
    first, again = map(json.loads, done.stdout.splitlines())
    assert first["ids"] == again["ids"] and first["prompt_tokens"] == again["prompt_tokens"]
    assert json.loads(file.read_text()) == {"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the fox"},
        {"role": "assistant", "content": first["text"]},
    ]}  # fmt: skip
    told = done.stderr
    parts = ("nothing was said yet", f"saved in {file}", "a new conversation", "is there already",
             "there is no /nothing", "No such file")  # fmt: skip
    assert told.count("a new conversation") == 2 and told.count("nothing was said yet") == 2
    assert sorted(parts, key=told.index) == list(parts)


@pytest.mark.parametrize("name", ["run", "chat"])
def test_a_seed_is_drawn_and_said(folder: Path, command: Command, name: str) -> None:
    """At a temperature above 0, unless it is given; the same one gives the same again."""
    prompt = ["the fox"] if name == "run" else []

    def ask(*words: str) -> tuple[str, str]:
        done = command(name, folder, *prompt, "--max-new-tokens", "8", *words, said="the fox\n")
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    seeds = []
    for _ in range(2):
        text, told = ask("--temperature", "1.5")
        seeds.append(re.findall(r"seed (\d+)", told)[0])
        assert ask("--temperature", "1.5", "--seed", seeds[-1])[0] == text
    assert seeds[0] != seeds[1]
    made = json.loads(ask("--temperature", "1.5", "--json")[0])
    again = json.loads(ask("--temperature", "1.5", "--json", "--seed", str(made["seed"]))[0])
    assert made["ids"] == again["ids"]
    assert "seed" not in ask()[1]


class Words:
    """A model whose tokens are words."""

    def __init__(self, context: int) -> None:
        self.context = context

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        return [len(word) for m in messages for word in ["<", *m["content"].split()]]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(4, 60),
    st.sampled_from([None, "a b", "a b c d e f"]),
    st.sampled_from([None, 1, 9, 100]),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=12),
)
def test_what_a_conversation_keeps(
    context: int, system: str | None, limit: int | None, turns: list[tuple[int, int]]
) -> None:
    talk = Talk(Words(context), system)  # type: ignore[arg-type]
    for said, answered in turns:
        before, start = list(talk.messages), talk.start
        try:
            ids = talk.ask("w " * said, limit)
        except LimitError:
            assert talk.messages == before and talk.start == start
            assert said + 1 + (len(system.split()) + 1 if system else 0) > context
            continue
        told = [*talk.whole[: len(talk.whole) - len(talk.messages)], *talk.messages[talk.start :]]
        assert ids == talk.model.chat_ids(told) and len(ids) <= context
        assert talk.messages[talk.start]["role"] == "user" and talk.start >= start
        assert 0 < talk.room(ids, limit) <= context - len(ids) + 1
        alone = talk.start == len(talk.messages) - 1
        assert alone or len(ids) + min(context // 4, limit or context) <= context
        talk.answer("w " * min(answered, talk.room(ids, limit)))
    talk.clear()
    assert talk.whole == ([{"role": "system", "content": system}] if system else [])


def test_chat_is_generate_through_the_template(folder: Path) -> None:
    model = weft.load(folder, device="cpu")
    assert isinstance(model, Decoder)
    talk = [{"role": "user", "content": "the fox"}]
    expected = model.generate(model.chat_ids(talk), 6, temperature=0)
    for messages in (talk, "the fox", tuple(talk)):
        assert model.chat(messages, max_new_tokens=6, temperature=0).ids == expected.ids
    pieces = model.chat(talk, max_new_tokens=6, temperature=0, stream=True)
    assert "".join(map(str, pieces)) == expected.text
    for wrong in (5, [5], ["the fox"]):
        with pytest.raises(UsageError, match="role and content"):
            model.chat(wrong)  # type: ignore[arg-type]
