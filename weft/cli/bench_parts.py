"""Helpers that the commands of `weft bench` share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
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


LOAD = ("device", "dtype", "quant", "act_dtype", "cache")  # the options of takes_load


def takes_load(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of weft.load for the model that is measured."""
    for option in (
        click.option("--cache", help="Of keys and values: f32, f16, bf16, int8 (default: as the "
                     "weights)."),
        click.option("--act-dtype", help="Of linear inputs (default: as weft run)."),
        click.option("--quant", help="Bring linear layers to int4, int8, ... on the way in."),
        click.option("--dtype", help="float32, float16 or bfloat16 (default: the checkpoint's)."),
        click.option("--device", default="cpu", show_default=True, help="Device to measure."),
    ):  # fmt: skip
        command = option(command)
    return command


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
