"""Each command that a message suggests is executed, where the message was provoked."""

from __future__ import annotations

import re
import shlex

import click
import hint_cases as hint_cases  # which fills CASES
import install_cases as install_cases  # and so does this
import pytest
from hint_kit import CASES, Case, Here, command_in
from hint_scan import Hint, helps, hints, mentions, options

from weft.cli.main import COMMANDS, cli

# Names of commands in prose, which nobody is asked to type.
MENTIONS = {
    "weft eval --json prints",
    "weft new-backend` as a copy",
    "weft bench ranks",
    "weft quantize did not make",
    "weft train does not write",
    "weft train writes",
    "weft train: everything a config can say",
    "weft check --device D`: cases passed",
    "weft tune's files",
    "weft compile --max-batch makes another",
    "weft serve",
}
PLAYED = [(hint, case) for hint, cases in CASES.items() for case in cases]


def test_every_hint_has_a_case() -> None:
    found = hints()
    assert not found - CASES.keys(), "write a case in hint_cases.py or install_cases.py"
    assert not CASES.keys() - found, "no message suggests these any more"


def test_commands_in_messages_are_built_by_one_function() -> None:
    """Then their words are quoted, and the test above finds them."""
    other = {
        m for m in mentions()
        if not m.words.startswith(tuple(MENTIONS))
    }  # fmt: skip
    assert not other, "use weft.core.hints.command, or say above that it is prose"


@pytest.mark.parametrize(("hint", "case"), PLAYED, ids=[f"{h.file}:{h.words}" for h, _ in PLAYED])
def test_what_a_message_suggests_works(hint: Hint, case: Case, here: Here) -> None:
    message = case(here)
    command = command_in(message, hint.words)
    here.execute(command)


@pytest.mark.parametrize("line", sorted(helps()))
def test_examples_of_help_are_understood(line: str, here: Here) -> None:
    """Their options exist and take what is given; files that must be there are made."""
    for part in re.split(r" && |\s+then\s+", line.partition(": ")[2]):
        words = shlex.split(part.partition(" < ")[0])
        if words[0] != "weft":
            continue
        for word in words[1:]:
            if re.fullmatch(r"[\w./-]+\.(toml|txt|npy|onnx|py|gguf)", word):
                (here.folder / word).parent.mkdir(exist_ok=True)
                (here.folder / word).touch()
        (here.folder / "site").mkdir(exist_ok=True)
        (here.folder / "run/adapter").mkdir(parents=True, exist_ok=True)
        command: click.Command = cli
        given, context = words[1:], None
        while isinstance(command, click.Group):
            context = click.Context(command, context)
            command = command.get_command(context, given.pop(0)) or pytest.fail(part)
        command.make_context("weft", given, context)


def test_options_that_messages_name_exist() -> None:
    def of(command: click.Command) -> set[str]:
        found = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                found |= of(inner) if inner else set()
        return found

    known = of(cli) | {"--help"}
    assert not {o for o in options() if o.words not in known}


def test_words_of_help_name_commands() -> None:
    """`see weft run` and the like: what they name exists."""
    with click.Context(cli) as context:
        for name in COMMANDS:
            command = cli.get_command(context, name)
            assert command is not None
            texts = [command.help or "", *(getattr(p, "help", "") or "" for p in command.params)]
            for found in re.findall(r"(?:see|as|of|`)\s*weft\s([a-z][a-z-]+)", " ".join(texts)):
                assert found in COMMANDS, (name, found)
