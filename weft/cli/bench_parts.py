"""Helpers that the commands of `weft bench` share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from weft.cli import options
from weft.cli.options import Command
from weft.core import text


def note(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def progress(line: str) -> None:
    """The line that says what is measured now; it is overwritten by the next one."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def takes_shape(**sizes: int) -> Callable[[Command], Command]:
    """The options for the size of a model of random weights, with their defaults."""
    known = {
        "layers": (1, "Number of layers."),
        "width": (64, "Width of the model, a multiple of 64."),
        "context": (2, "Length of a sequence in tokens."),
        "batch": (1, "Number of sequences in a batch."),
    }
    return options.together(*(
        click.option(f"--{name}", default=default, show_default=True, help=known[name][1],
                     type=click.IntRange(known[name][0]))
        for name, default in sizes.items()
    ))  # fmt: skip


def at_once(most: int) -> Callable[[click.Context, click.Parameter, str], tuple[int, ...]]:
    """A callback for a comma list of numbers from 1 to `most`."""

    def numbers(context: click.Context, option: click.Parameter, given: str) -> tuple[int, ...]:
        found = [part.strip() for part in given.split(",")]
        if not all(part.isdecimal() and 0 < int(part[:9]) <= most for part in found):
            raise click.BadParameter(f"{given[:40]!r}; expected numbers from 1 to {most}: 1,8")
        return tuple(int(part) for part in found)

    return numbers


def emit(result: dict[str, Any], as_json: bool, header: list[str], rows: list[list[Any]]) -> None:
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(text.table(header, rows, right="bcdefg"))
