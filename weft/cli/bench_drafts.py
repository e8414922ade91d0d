"""`weft bench drafts`."""

from __future__ import annotations

from typing import Any

import click

from weft.cli.bench_parts import LOAD, at_once, emit, note, takes_load, takes_threads
from weft.cli.hub import model_path, takes_model

_HEADER = ["case", "off tok/s", "on tok/s", "times", "proposed", "right"]


@click.command(epilog="Example:  weft bench drafts MODEL --quant int8 --draft-model SMALL")
@click.argument("model", metavar="MODEL")
@click.option("--draft-model", metavar="MODEL", help="A smaller model that proposes tokens too.")
@click.option("--prompt", default=256, show_default=True, type=click.IntRange(16))
@click.option("--gen", default=128, show_default=True, type=click.IntRange(2))
@click.option("--at-once", default="1,8", show_default=True, callback=at_once(64),
              help="Answers side by side.")  # fmt: skip
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@takes_load
@takes_threads
@takes_model
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def drafts(model: str, as_json: bool, **given: Any) -> None:
    """Time decoding with drafts and without, in turn: `edit`, answers that repeat their prompts
    with some tokens changed; `new`, answers of random tokens; `own`, what the model says itself."""
    from weft.bench import drafts as bench_drafts

    small, yes = given["draft_model"], given["yes"]
    o = bench_drafts.Options(
        str(model_path(model, yes)), {name: given[name] for name in LOAD},
        None if small is None else str(model_path(small, yes)),
        given["prompt"], given["gen"], given["at_once"], given["rounds"],
    )  # fmt: skip
    result = bench_drafts.run(o, note)
    rows = [[name, *figures.values()] for name, figures in result["results"].items()]
    emit(result, as_json, _HEADER, rows)
