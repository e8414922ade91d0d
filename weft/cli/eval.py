"""`weft eval`."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options
from weft.cli.loading import Loading, loads
from weft.core import text
from weft.core.errors import FileFormatError, UsageError

if TYPE_CHECKING:
    from weft.evaluate.model import Evaluation
    from weft.models.run.base import Model

PICTURES = (".svg", ".png")


@click.command(
    name="eval",
    epilog="""\b
Example:  weft eval MODEL.gguf MODEL_FOLDER --text notes.txt --text-tokens 20000
          weft eval --text some.py
""",
)
@click.argument("path", metavar="[MODEL]", required=False)
@click.argument("reference", metavar="[MODEL2]", required=False)
@options.text("UTF-8 text to measure on ('-': standard input).", required=True)
@options.text_tokens(old=["--limit"])
@click.option("--stride", type=click.IntRange(1), help="Distance between windows in tokens "
              "(default: half a window).")  # fmt: skip
@loads("device", "dtype", "quant", "act_dtype", "context", "cache",
       context=options.option("--context", type=click.IntRange(2), help="Tokens in a window "
                              "(default: 512, or the model's context if less)."))  # fmt: skip
@click.option(
    "--name", help="Name of this run in tables and pictures (default: MODEL's file name)."
)
@click.option("--add", multiple=True, type=click.Path(), help="Also show the runs in this file, "
              "saved from an earlier --json. May be repeated.")  # fmt: skip
@options.plot("Plot size against loss of the runs to this file (.svg, .png).", old=["--picture"])
@options.as_json
def evaluate(
    path: str | None, reference: str | None, source: str, text_tokens: int | None,
    stride: int | None, loading: Loading, name: str | None, add: tuple[str, ...],
    plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure how well MODEL predicts a text: perplexity and bits per byte, each with its standard
    error. MODEL is a folder, a GGUF file or ORG/NAME (default: box, the small model that comes with
    weft). With a reference MODEL2, also measure the Kullback-Leibler divergence from it, and how
    often both predict the same token. The dtype options apply to MODEL only; MODEL2 runs with its
    stored weights, float32 inputs and a float32 cache."""
    from weft.evaluate.model import evaluate as run
    from weft.host.progress import bar

    if plot is not None:
        _check_picture(plot)  # before the work, not after
    before = [r for file in add for r in _read_runs(file)]
    if path is None:
        from weft.hub.box import box_folder

        path = str(box_folder())
    model = loading.load(path, max_batch=1)
    other = None
    if reference is not None:
        whole = Loading(
            loading.device, act_dtype="float32", context=loading.context, cache="float32",
            yes=loading.yes,
        )  # fmt: skip
        other = whole.load(reference, max_batch=1)
    given = sys.stdin.buffer if source == "-" else Path(source)
    with bar() as report:
        found = run(
            model, given, other, loading.context, stride, text_tokens,
            lambda done, of: report(f"token {done:,}/{of:,}", done, of),
        )  # fmt: skip
    made = _run_data(name or Path(path).name, model, found)
    runs = [*before, made]
    if as_json:
        click.echo(json.dumps({"text": source, "reference": reference, "runs": runs}))
    else:
        click.echo(_summary(found) + "\n")
        rows = [_row(r) for r in runs]
        shown = [i for i in range(len(HEADER)) if any(row[i] for row in rows)]
        picked = [[line[i] for i in shown] for line in (HEADER, *rows)]
        click.echo(text.table(picked[0], picked[1:], "cdefghij"))
    # The picture comes last: if it fails, the measurements are already shown.
    if plot is not None:
        from weft.bench.size_picture import draw

        draw(runs, Path(plot))


def _run_data(name: str, model: Model, found: Evaluation) -> dict[str, Any]:
    """A run as --json prints it; what is not finite is null, as JSON knows no infinity."""
    from weft.models.arch.config import DecoderConfig
    from weft.models.arch.inputs import position_bytes

    figures = found.data()
    for key, value in figures.items():
        if isinstance(value, float) and not math.isfinite(value):
            figures[key] = None
    where = model.device.info.id if model.device else "oracle"
    size = sum(w.nbytes for w in model.weights.outlines.values())
    assert isinstance(model.config, DecoderConfig)
    return {
        "name": name, "precision": model.precision, "device": where, "weight_bytes": size,
        "cache": model.config.kv_dtype.name, "cache_bytes": position_bytes(model.config),
        **figures,
    }  # fmt: skip


HEADER = ["model", "weights", "size", "perplexity", "bits/byte", "loss above", "KL", "KL 99%",
          "KL max", "same top"]  # fmt: skip


def _row(run: dict[str, Any]) -> list[str]:
    """The line of a run; what it did not measure stays empty."""

    def mean(key: str, form: str = ".4f", factor: float = 1.0) -> str:
        if run.get(key) is None:
            return ""
        value, error = (format(run[k] * factor, form) for k in (key, f"{key}_error"))
        return f"{value} ± {error}"

    def plain(key: str) -> str:
        return "" if run.get(key) is None else f"{run[key]:.2e}"

    return [
        run["name"], run["precision"], text.size(run["weight_bytes"]), mean("perplexity", ".3f"),
        mean("bits_per_byte"), mean("excess_loss", ".1e"), mean("kl", ".1e"),
        plain("kl_p99"), plain("kl_max"), mean("same_top", ".2f", 100) and
        mean("same_top", ".2f", 100) + " %",
    ]  # fmt: skip


def _summary(found: Evaluation) -> str:
    nbytes = f" ({found.nbytes:,} bytes)" if found.nbytes else ""
    return (
        f"{found.tokens:,} tokens{nbytes} in windows of {found.context} at every {found.stride}; "
        "loss and KL in nats per token, ± one standard error"
    )


def _read_runs(file: str) -> list[dict[str, Any]]:
    """The runs of an earlier --json. Raises FileFormatError for anything else."""
    from weft.importers.hf_config import read_object

    runs = read_object(Path(file)).get("runs")
    if not isinstance(runs, list) or not runs or not all(_is_run(run) for run in runs):
        raise FileFormatError(f"{file}: not what weft eval --json prints; make it again")
    return runs


_WORDS = ("name", "precision", "device", "cache")


def _is_run(run: object) -> bool:
    if not isinstance(run, dict) or any(type(run.get(k)) is not str for k in _WORDS):
        return False
    numbers = [v for k, v in run.items() if k not in _WORDS]
    whole = all(type(run.get(k)) in (int, float) for k in ("weight_bytes", "loss"))
    return whole and all(type(v) in (int, float, type(None)) for v in numbers)


def _check_picture(path: str) -> None:
    from weft.bench.size_picture import figure

    if Path(path).suffix not in PICTURES:
        raise UsageError(f"--plot {path}: expected a name that ends in {' or '.join(PICTURES)}")
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise UsageError(f"--plot {path}: there is no such folder")
    figure()
