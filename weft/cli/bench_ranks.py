"""`weft bench ranks` and `divided`: one work on several processes of this machine."""

from __future__ import annotations

import click

from weft.cli import options
from weft.cli.bench_parts import emit, note, takes_shape


@click.command(epilog="Example:  weft bench ranks --ranks 2 --json")
@options.ranks
@click.option("--steps", default=6, show_default=True, type=click.IntRange(1),
              help="Steps to time.")  # fmt: skip
@options.repeats(3, old=["--rounds"])
@takes_shape(layers=4, width=256, context=128, batch=4)
@click.option("--accumulate", default=4, show_default=True, type=click.IntRange(2),
              help="Batches of a step.")  # fmt: skip
@options.as_json
def ranks(as_json: bool, repeats: int, **sizes: int) -> None:
    """Time training steps of one process and of several ranks on this machine's CPU."""
    if sizes["width"] % 64 or sizes["accumulate"] < sizes["ranks"]:
        raise click.UsageError("--width takes a multiple of 64, --accumulate at least --ranks")
    from weft.bench import ranks as bench_ranks

    result = bench_ranks.run(bench_ranks.RanksBenchOptions(rounds=repeats, **sizes), note)
    lists = ("waiting_share", "sent_mb", "peak_rss_mib", "optimizer_mb")
    rows = [
        [name, r["step_ms"], r["tok_s"], *(", ".join(map(str, r[key])) for key in lists)]
        for name, r in result["results"].items()
    ]
    header = ["case", "step ms", "tok/s", "waiting, share", "sent, MB", "peak MiB", "optimiser MB"]
    emit(result, as_json, header, rows)


@click.command(epilog="Example:  weft bench divided --ranks 2 --json")
@options.ranks
@options.max_new_tokens(2, default=32, help="Tokens to generate.", old=["--tokens"])
@options.prompt_tokens(2, default=384, old=[])
@options.repeats(3, old=["--rounds"])
@takes_shape(layers=8, width=1024)
@options.option("--dtype", default="bfloat16", show_default=True, help="Dtype of the weights.",
                type=options.Dtype(["float32", "float16", "bfloat16"]))  # fmt: skip
@options.as_json
def divided(
    as_json: bool, max_new_tokens: int, prompt_tokens: int, repeats: int, dtype: str, **sizes: int
) -> None:  # fmt: skip
    """Time a prompt and decoding with one process and with several ranks, which divide a model's
    layers or its columns, on this machine's CPU."""
    if sizes["width"] % (64 * sizes["ranks"]) or sizes["layers"] < sizes["ranks"]:
        raise click.UsageError(
            "--width takes a multiple of 64 x --ranks, --layers at least --ranks"
        )
    from weft.bench import divided as bench_divided

    result = bench_divided.run(
        bench_divided.DividedBenchOptions(
            tokens=max_new_tokens, prompt=prompt_tokens, rounds=repeats, dtype=dtype, **sizes
        ),
        note,
    )
    names = "prompt_ms", "tok_s", "step_ms", "waiting_share", "sent_kb", "peak_rss_mib"
    rows = [[case, *(r[name] for name in names)] for case, r in result["results"].items()]
    header = ["case", "prompt ms", "tok/s", "ms a token", "waiting, share", "sent, KB a token",
              "peak MiB"]  # fmt: skip
    emit(result, as_json, header, rows)
