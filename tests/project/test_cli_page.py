"""docs/cli.md is what the commands say, and every `weft ...` line in the pages, the scripts and the
messages uses commands, options and values of today."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import cli_page  # noqa: E402

COMMANDS = dict(cli_page.commands())
TEXTS = [
    ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "scripts" / "demo",
    *sorted((ROOT / "examples").glob("*.*")), *sorted((ROOT / "weft").rglob("*.py")),
    *sorted((ROOT / "weft").rglob("*.js")), *sorted((ROOT / "deploy").rglob("*.*")),
]  # fmt: skip
HISTORY = ("decisions.md", "prose.txt", "cli.md")  # what was once, or never changes; tested below
CALL = re.compile(r"(?<![\w./-])weft ((?:bench|export) \w+|[a-z][a-z-]+)((?: +[^`\n|;&#]+)?)")
OPTION = re.compile(r"(?<=\s)(--?[a-z][a-z-]*)(?:[= ]([^\s`'\",)\]]+))?")


def uses() -> Iterator[tuple[str, str, str, str]]:
    """(place, command, option, the word after it) for each option in a text."""
    for path in TEXTS:
        if path.name in HISTORY or not path.is_file() or path.suffix == ".safetensors":
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
        for name, rest in CALL.findall(text):
            words = f"weft {name}"
            if words == "weft launch" and (inner := re.search(r" (train|run|serve) ", f"{rest} ")):
                words, rest = f"weft {inner[1]}", rest[inner.end() - 1 :]
            command = COMMANDS.get(words)
            if command is None or isinstance(command, click.Group):
                continue
            rest = re.sub("'[^']*'", "WORDS", rest.split(" weft ")[0])
            for option, value in OPTION.findall(rest):
                yield str(path.relative_to(ROOT)), words, option, value


USES = sorted(set(uses()))


def test_the_page_is_generated() -> None:
    made = cli_page.PAGE.read_text(encoding="utf-8")
    assert made == cli_page.page(), "run: python scripts/cli_page.py"


def test_the_page_has_every_command_and_option() -> None:
    made = cli_page.PAGE.read_text(encoding="utf-8")
    for words, command in COMMANDS.items():
        assert f"# {words}\n" in made
        for p in command.params:
            if isinstance(p, click.Option):
                assert p.hidden or all(f"{name}" in made for name in p.opts)


def test_enough_is_found() -> None:
    assert len(USES) > 120 and len({words for _, words, *_ in USES}) > 15


@pytest.mark.parametrize("words", sorted({words for _, words, *_ in USES}))
def test_lines_use_names_and_values_of_today(words: str) -> None:
    options = {
        name: p for p in COMMANDS[words].params if isinstance(p, click.Option)
        for name in (*p.opts, *p.secondary_opts)
    }  # fmt: skip
    for place, _, option, value in (u for u in USES if u[1] == words):
        if option in ("--help", "-h"):
            continue
        assert option in options, f"{place}: {words} {option}"
        kind = options[option].type
        if isinstance(kind, click.Choice) and re.fullmatch(r"[a-z][a-z0-9]*", value):
            assert value in kind.choices, f"{place}: {words} {option} {value}"
