"""`weft bench drafts`."""

from __future__ import annotations

import click

from weft.cli import options
from weft.cli.bench_parts import at_once, emit, note
from weft.cli.loading import Loading, loads

_HEADER = ["case", "off tok/s", "on tok/s", "times", "proposed", "right"]


@click.command(epilog="Example:  weft bench drafts MODEL --quant int8 --draft-model SMALL")
@click.argument("model", metavar="MODEL")
@options.draft_model
@options.prompt_tokens(16, default=256)
@options.max_new_tokens(2, default=128, old=["--gen"])
@click.option("--at-once", default="1,8", show_default=True, callback=at_once(64),
              help="Answers side by side.")  # fmt: skip
@options.repeats(5, old=["--rounds"])
@loads("device", "dtype", "quant", "act_dtype", "cache")
@options.threads
@options.as_json
def drafts(
    model: str, draft_model: str | None, prompt_tokens: int, max_new_tokens: int,
    at_once: tuple[int, ...], repeats: int, loading: Loading, as_json: bool,
) -> None:  # fmt: skip
    """Time decoding with drafts and without, in turn: `edit`, answers that repeat their prompts
    with some tokens changed; `new`, answers of random tokens; `own`, what the model says itself."""
    from weft.bench import drafts as bench_drafts

    o = bench_drafts.Options(
        loading.path(model), loading.options(),
        None if draft_model is None else loading.path(draft_model),
        prompt_tokens, max_new_tokens, at_once, repeats,
    )  # fmt: skip
    result = bench_drafts.run(o, note)
    rows = [[name, *figures.values()] for name, figures in result["results"].items()]
    emit(result, as_json, _HEADER, rows)
