"""Writes docs/cli.md, the reference of the `weft` command, from the commands themselves.

python scripts/cli_page.py          # writes the page
python scripts/cli_page.py --check  # exit status 1 if the page differs
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the commands of this clone, whichever weft is installed

from weft.cli.main import COMMANDS, OLD, cli  # noqa: E402
from weft.cli.options import OLD_DTYPES, REMOVED, Option  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"
HEAD = """# The weft command

[scripts/cli_page.py](../scripts/cli_page.py) generates this page from the commands; a test holds
it to them. `weft COMMAND --help` shows the same text. Environment variables have [a page of their
own](environment.md).

A command ends with status 0 if it succeeded, 1 after an error, 2 after wrong usage, and 130 if it
was interrupted. An error is one or two lines on stderr. With `--json`, stdout has one JSON object
and nothing else. MODEL is a Hugging Face folder, a GGUF file, a file of `weft compile`, `box` or
`box-chat`, or a name of the hub: `ORG/NAME`, `ORG/NAME@REVISION`, `ORG/NAME:FILE.gguf` or
`ORG/NAME:Q4_K_M`.
"""


def commands(group: click.Group = cli, before: str = "weft") -> Iterator[tuple[str, click.Command]]:
    """Yields each command and group below `group`, with its words."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield f"{before} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{before} {name}")


def page() -> str:
    """Returns the text of docs/cli.md."""
    rows = [f"| [`weft {name}`](#weft-{name}) | {line} |" for name, (_, line) in COMMANDS.items()]
    parts = [HEAD, "| command | what it does |\n| --- | --- |\n" + "\n".join(rows) + "\n"]
    parts += [_section(words, command) for words, command in commands()]
    return "\n".join([*parts, _old()])


def _section(words: str, command: click.Command) -> str:
    level = "#" * min(len(words.split()), 3)
    context = click.Context(command, info_name=words)
    usage = " ".join([words, *command.collect_usage_pieces(context)])
    text = [f"{level} {words}\n", f"```\n{usage}\n```\n", _prose(command.help or "")]
    rows = [
        _row(p, context) for p in command.params if isinstance(p, click.Option) and not p.hidden
    ]
    if rows:
        text.append("| option | what it does |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    if command.epilog:
        text.append(f"```sh\n{_example(command.epilog)}\n```\n")
    return "\n".join(text)


def _row(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or ("", "")
    return f"| `{_cell(names)}` | {_cell(_prose(text).strip())} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """Returns a help text as Markdown, one line per paragraph."""
    paragraphs = inspect.cleandoc(text).replace("\b", "").split("\n\n")
    plain = (" ".join(p.split()) for p in paragraphs)
    return "\n\n".join(re.sub(r"([<>*_])", r"\\\1", p) for p in plain) + "\n"


def _example(text: str) -> str:
    lines = inspect.cleandoc(text.replace("\b", "")).strip("\n").splitlines()
    lines = [re.sub(r"^Example:  ", " " * 10, line) for line in lines]
    return inspect.cleandoc("\n".join(lines))


def _old() -> str:
    rows = [(f"weft {old}", f"weft {new}") for old, new in OLD.items()]
    for words, command in commands():
        for p in command.params:
            if isinstance(p, Option):
                rows += [(f"{words} {old}", p.opts[-1]) for old in p.old]
    rows += [(f"the dtype {old}", new) for old, new in OLD_DTYPES.items()]
    table = "\n".join(f"| `{_cell(old)}` | `{_cell(new)}` |" for old, new in rows)
    return (
        f"## Old spellings\n\nThese work until weft {REMOVED}, and print a note on stderr.\n\n"
        f"| old | now |\n| --- | --- |\n{table}\n"
    )


def main() -> int:
    made = page()
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
