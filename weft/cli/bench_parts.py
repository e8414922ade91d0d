"""What the commands of `weft bench` share."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

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


def _use_threads(context: click.Context, option: click.Parameter, count: int | None) -> None:
    if count:
        os.environ["WEFT_NUM_THREADS"] = str(count)


takes_threads = click.option(
    "--threads", type=click.IntRange(1), callback=_use_threads, expose_value=False,
    help="CPU threads (default: all cores).",
)  # fmt: skip


def emit(result: dict[str, Any], as_json: bool, header: list[str], rows: list[list[Any]]) -> None:
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(text.table(header, rows, right="bcdefg"))
