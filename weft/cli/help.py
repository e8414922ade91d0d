"""Help texts on terminals of any width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

import click

_LEAST = 34  # columns that the description of an option needs to be read


class Formatter(click.HelpFormatter):
    """Puts descriptions below their options if the terminal is narrow, and folds examples as a
    shell reads them."""

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        room = self.width - self.current_indent - col_spacing - _LEAST
        super().write_dl(rows, min(col_max, max(room, 8)), col_spacing)

    def write_text(self, text: str) -> None:
        if "\b" in text or text.startswith("Example:"):
            text = "\b\n" + "\n".join(self._folded(text.replace("\b", "").strip("\n")))
        super().write_text(text)

    def _folded(self, text: str) -> list[str]:
        """The lines of an example, none longer than the terminal."""
        room = self.width - self.current_indent
        if max(map(len, text.splitlines())) <= room:
            return text.splitlines()
        first, _, rest = text.partition("\n")
        head, _, begun = first.partition(":")
        lines = textwrap.dedent("\n".join([" " * 10 + begun.strip(), rest])).splitlines()
        return [f"{head}:", *(part for line in lines for part in _fold(line, room - 2))]


def _fold(line: str, room: int) -> list[str]:
    """A line of a shell or of TOML, indented by two."""
    if len(line) <= room:
        return [f"  {line}"] if line.strip() else []
    code, _, note = line.partition("  # ")
    indent = " " * (len(line) - len(line.lstrip()))
    if note:
        noted = textwrap.wrap(note.strip(), room - len(indent) - 2)
        return [*(f"  {indent}# {part}" for part in noted), *_fold(code.rstrip(), room)]
    words = re.findall(r"\s*(?:'[^']*'|[^\s'])+", line)
    parts, current = [], ""
    for word in words:
        if current and len(current) + len(word) > room - 2:
            parts.append(current)
            current = f"{indent}    {word.strip()}"
        else:
            current += word
    return [*(f"  {part} \\" for part in parts), f"  {current}"]


class Context(click.Context):
    formatter_class = Formatter


def with_help(command: click.Command) -> click.Command:
    """Gives a command, and those below it, help that fits the terminal."""
    command.context_class = Context
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_help(inner)
    return command
