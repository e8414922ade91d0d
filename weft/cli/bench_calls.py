"""`weft bench eager` and `weft bench layers`: calls in turn with those of NumPy and PyTorch."""

from __future__ import annotations

import os
from typing import Any

import click

from weft.cli import options
from weft.cli.bench_parts import emit, note
from weft.core.errors import UsageError


def _run(cases: Any, only: str, repeats: int, seconds: float, scale: float, unit: str) -> Any:
    from weft.bench import calls

    chosen = calls.chosen(cases, [part for part in only.split(",") if part])
    if not chosen:
        raise UsageError(f"no case matches --only {only!r}; there are {', '.join(cases)}")
    return calls.run(chosen, repeats, seconds, scale, unit, note)


def _emit(results: Any, as_json: bool) -> None:
    columns = list(dict.fromkeys(name for row in results.values() for name in row))
    header = ["case", *(name.replace("_", " ") for name in columns)]
    rows = [[case, *(row.get(name, "-") for name in columns)] for case, row in results.items()]
    emit({"results": results}, as_json, header, rows)


@click.command(epilog="Example:  weft bench eager --only sum,row --json")
@click.option("--only", default="", help="Comma list: cases whose name contains one of these.")
@options.repeats(9)
@options.as_json
def eager(only: str, repeats: int, as_json: bool) -> None:
    """Time eager calls on 8 or 4 x 4 numbers, in microseconds, of weft, weft.torch, NumPy and,
    where it is installed, PyTorch, in turns. Each figure is a median."""
    from weft.bench import calls

    _emit(_run(calls.eager_cases(), only, repeats, 2e-3, 1e6, "us"), as_json)


@click.command(epilog="Example:  weft bench layers --only lstm,gru --threads 2")
@click.option("--only", default="", help="Comma list: cases whose name contains one of these.")
@options.threads
@options.repeats(7)
@options.as_json
def layers(only: str, repeats: int, as_json: bool) -> None:
    """Time compiled layers on the CPU in float32: LSTM, GRU, transposed, depthwise and grouped
    convolutions, bilinear interpolation, group norm and scatters. Figures are medians in
    milliseconds, forward and with gradients. Where PyTorch is installed, its eager layers run in
    turn on as many threads."""
    from weft.bench import calls

    threads = int(os.environ.get("WEFT_NUM_THREADS", 0)) or os.cpu_count() or 1
    _emit(_run(calls.layer_cases(threads), only, repeats, 0.03, 1e3, "ms"), as_json)
