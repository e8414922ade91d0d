"""`weft bench speech` and `weft bench pictures`."""

from __future__ import annotations

import os
from typing import Any

import click

from weft.cli import options
from weft.cli.bench_parts import at_once, emit, note
from weft.cli.loading import Loading, loads
from weft.core.errors import UsageError


def _threads() -> int:
    return int(os.environ.get("WEFT_NUM_THREADS", 0)) or os.cpu_count() or 1


def _peers(given: str, known: tuple[str, ...]) -> list[str]:
    """Returns the peers of a comma list. Raises UsageError for another one."""
    found = [part.strip() for part in given.split(",") if part.strip()]
    if unknown := [name for name in found if name not in known]:
        raise UsageError(f"--peers has {unknown[0]!r:.40}; expected a list of {', '.join(known)}")
    return found


def _emit(result: dict[str, Any], as_json: bool) -> None:
    rows: dict[str, dict[str, float]] = result["results"]
    columns = list(next(iter(rows.values())))
    header = ["side", *(name.replace("_", " ") for name in columns)]
    emit(result, as_json, header, [[name, *row.values()] for name, row in rows.items()])
    for name, value in result.items() if not as_json else ():
        if name != "results" and value is not None:
            click.echo(f"{name.replace('_', ' ')}: {value}")


@click.command(epilog="Example:  weft bench speech MODEL --batch 8 --peers faster-whisper")
@click.argument("path", metavar="MODEL", type=click.Path())
@loads("device", "dtype", "quant")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(1, 3600),
              help="Length of the sound, which is noise.")  # fmt: skip
@options.max_new_tokens(default=64, show_default=True, help="Most tokens of a window.")
@click.option("--batch", default="8", show_default=True, callback=at_once(64),
              help="Comma list: also with this many passages at once.")  # fmt: skip
@click.option("--peers", default="", help="Comma list: also with transformers, faster-whisper, "
              "if they are installed.")  # fmt: skip
@options.threads
@options.repeats(3)
@options.as_json
def speech(
    path: str, loading: Loading, seconds: float, max_new_tokens: int, batch: tuple[int, ...],
    peers: str, repeats: int, as_json: bool,
) -> None:  # fmt: skip
    """Time MODEL, which hears, from samples to text: its real-time factor and the features' share
    of the time. Sides take turns."""
    from weft.bench import speech as bench

    others = _peers(peers, bench.PEERS)
    model = loading.load(path)
    _emit(bench.run(model, seconds, max_new_tokens, batch, repeats, _threads(), others, note),
          as_json)  # fmt: skip


@click.command(epilog="Example:  weft bench pictures MODEL --peers transformers,onnxruntime")
@click.argument("path", metavar="MODEL", type=click.Path())
@loads("device", "dtype", "quant", "context")
@click.option("--pixels", default="480x640", show_default=True,
              help="Height and width of the pictures in pixels.")  # fmt: skip
@click.option("--peers", default="", help="Comma list: also with transformers, onnxruntime, if "
              "they are installed.")  # fmt: skip
@options.threads
@options.repeats(3)
@options.as_json
def pictures(
    path: str, loading: Loading, pixels: str, peers: str, repeats: int, as_json: bool
) -> None:
    """Time MODEL, which sees. For one that gives vectors: pictures per second, and the share of
    preparing them. For one that writes: the time to the first token about a picture. Sides take
    turns."""
    from weft.bench import pictures as bench

    parts = pixels.lower().split("x")
    if len(parts) != 2 or not all(p.isdecimal() and 16 <= int(p[:6]) <= 8192 for p in parts):
        raise UsageError(f"--pixels is {pixels!r:.40}; expected HEIGHTxWIDTH, like 480x640")
    others = _peers(peers, bench.PEERS)
    model = loading.load(path)
    _emit(bench.run(model, (int(parts[0]), int(parts[1])), repeats, _threads(), others, note),
          as_json)  # fmt: skip
