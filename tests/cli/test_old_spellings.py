"""Each old spelling of a command, an option or a value works for one version, is not in help, and
says once on stderr what to type instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from weft import __version__
from weft.cli.main import OLD, cli, invoke
from weft.cli.options import OLD_DTYPES, REMOVED, Dtype, Option

# what version 0.1 took: command, words of it, the parameter and its value now
TABLE = [
    ("quantize", "M --out q", "output", "q"),
    ("quantize", "M -o q --tokens 7", "text_tokens", 7),
    ("compile", "M --out m.weft", "output", "m.weft"),
    ("export web", "M --out page", "output", "page"),
    ("new-backend", "chip --out f", "output", "f"),
    ("tune", "--out t.json", "output", "t.json"),
    ("eval", "M --text t --limit 9", "text_tokens", 9),
    ("eval", "M --text t --picture p.svg", "plot", "p.svg"),
    ("embed", "M --file f.txt", "source", "f.txt"),
    ("serve", "M --sequences 3", "max_batch", 3),
    ("bench model", "M --gen 5", "max_new_tokens", 5),
    ("bench model", "M --prompt 5", "prompt_tokens", 5),
    ("bench model", "M --reps 2", "repeats", 2),
    ("bench drafts", "M --gen 5", "max_new_tokens", 5),
    ("bench drafts", "M --prompt 50", "prompt_tokens", 50),
    ("bench drafts", "M --rounds 2", "repeats", 2),
    ("bench serve", "M --answer 5", "max_new_tokens", 5),
    ("bench serve", "M --prompt 5", "prompt_tokens", 5),
    ("bench serve", "M --rounds 2", "repeats", 2),
    ("bench serve", "M --turn 6", "turn_tokens", 6),
    ("bench nets", "--beside ort", "peers", "ort"),
    ("bench divided", "--tokens 5", "max_new_tokens", 5),
    ("bench divided", "--rounds 2", "repeats", 2),
    ("bench ranks", "--rounds 2", "repeats", 2),
    ("bench train", "--profile --trace t.json", "profile", "t.json"),
    ("bench train", "--dtype f32", "dtype", "float32"),
    ("bench train", "--dtype bf16", "dtype", "bfloat16"),
]
SAME = [  # spellings that stay
    ("run", "M x --output d", "output", "d"),
    ("merge", "M A --output d", "output", "d"),
    ("bench model", "M --profile t.json", "profile", "t.json"),
    ("bench train", "--profile", "profile", ""),
    ("launch", "-n 2 devices", "count", 2),
]


def commands(group: click.Group = cli, before: str = "") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        words = f"{before} {name}".strip()
        found |= commands(command, words) if isinstance(command, click.Group) else {words: command}
    return found


ALL = commands()


def parsed(name: str, words: str) -> dict[str, Any]:
    with ALL[name].make_context(name, words.split()) as context:
        return dict(context.params)


def check(
    name: str, words: str, parameter: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> str:
    found = parsed(name, words)[parameter]
    assert (str(found) if isinstance(found, Path) else found) == value
    return capsys.readouterr().err


@pytest.mark.parametrize(("name", "words", "parameter", "value"), TABLE)
def test_it_works_and_says_so_once(
    name: str, words: str, parameter: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    said = check(name, words, parameter, value, capsys)
    assert said.count("deprecated") == 1 and said.count("\n") == 1
    new = said.split("use ")[1].split(";")[0].split()
    assert new[0] in [o for p in ALL[name].params for o in p.opts], "the note names what works"
    assert check(name, words.replace(said.split()[1], new[0]), parameter, value, capsys) in (
        "",
        said,
    )


def test_the_table_has_every_old_option() -> None:
    options = {
        (name, old) for name, command in ALL.items() for p in command.params
        if isinstance(p, Option) for old in p.old
    }  # fmt: skip
    tested = {(name, word) for name, words, *_ in TABLE for word in words.split()}
    assert options and options <= tested


@pytest.mark.parametrize(("name", "words", "parameter", "value"), SAME)
def test_what_stays_says_nothing(
    name: str, words: str, parameter: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(name, words, parameter, value, capsys) == ""


DTYPES = [
    (name, p.opts[-1], p.name, old, new)
    for name, command in ALL.items() for p in command.params if isinstance(p.type, Dtype)
    for old, new in OLD_DTYPES.items() if new in p.type.choices
]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "parameter", "old", "new"), DTYPES)
def test_dtypes_have_one_spelling(
    name: str, option: str, parameter: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = {"eval": "--text t", "compile": "M -o m", "export web": "M -o p", "merge": "M A -o m"}
    first = needed.get(name, "" if name.startswith(("bench train", "bench divided")) else "M")
    first += " x" if name in ("run", "rerank", "transcribe") else ""
    said = check(name, f"{first} {option} {old}", parameter, new, capsys)
    assert said.count(f"{option} {old} is deprecated, use {option} {new}") == 1
    assert check(name, f"{first} {option} {new}", parameter, new, capsys) == ""


@pytest.mark.parametrize("name", [*ALL])
def test_help_has_new_spellings_only(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*name.split(), "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    assert not {o for p in ALL[name].params if isinstance(p, Option) for o in p.old} & {*words}


@pytest.mark.parametrize("old", OLD)
def test_old_commands(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([old, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and f"use weft {OLD[old]}" in shown.err
    assert invoke(["--help"]) == 0
    assert old not in capsys.readouterr().out


def test_an_old_name_may_be_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("embed", "M --query --file")["query"] == "--file"
    assert parsed("new-backend", "chip -o --out")["output"] == "--out"
    assert parsed("run", "M -- --out")["prompt"] == "--out"
    assert capsys.readouterr().err == ""


def test_the_spellings_go_with_the_next_version() -> None:
    """Delete `old=` and `OLD` in weft/cli, and this table, once this fails."""
    assert tuple(map(int, __version__.split(".")[:2])) < tuple(map(int, REMOVED.split(".")))


# -- one name, one default and one help text for one thing -----------------------------------------


def test_options_of_one_name_agree() -> None:
    """The same option has the same default and values in every command, and is spelt alike."""
    defaults: dict[str, set[Any]] = {}
    for command in ALL.values():
        for p in command.params:
            if isinstance(p, click.Option):
                default = p.default if p.default or p.default in (0, False, "") else None
                defaults.setdefault(p.opts[-1], set()).add(str(default))
    varied = {name for name, found in defaults.items() if len(found) > 1}
    sizes = {  # depend on what is measured
        "--max-new-tokens", "--prompt-tokens", "--repeats", "--layers", "--width", "--context",
        "--batch", "--steps", "--at-once", "--budget", "--max-batch", "--port", "--dtype",
        "--only", "--sizes", "--seed", "--temperature", "--device", "--ranks",
    }  # fmt: skip
    assert varied <= sizes
    devices = {str(p.default) for c in ALL.values() for p in c.params if p.name == "device"}
    assert devices <= {"auto", "('auto',)", "None", "Sentinel.UNSET"}


def test_every_option_has_help() -> None:
    bare = [
        f"{name} {p.opts[0]}" for name, command in ALL.items() for p in command.params
        if isinstance(p, click.Option) and not (p.help or "").strip()
    ]  # fmt: skip
    assert not bare
