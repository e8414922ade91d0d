"""`weft tune`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options
from weft.cli.loading import Loading, loads
from weft.core import text
from weft.core.errors import FileFormatError, UsageError

if TYPE_CHECKING:
    from weft.bench.tune import TunedConfig
    from weft.bench.tune_cases import TuneCase
    from weft.compile import tuned
    from weft.program.device import Device


@click.command(epilog="Example:  weft tune --device cpu --kinds matmul --sizes 512..2048")
@click.argument("model", metavar="[MODEL]", required=False, type=click.Path())
@click.option(
    "--kinds", default="matmul,matvec", show_default=True, help="Comma list of templates to tune."
)
@click.option("--sizes", default="512..4096", show_default=True,
              help="Products to measure, as a comma list of N, N..M (powers of two) or "
              "ROWSxCOLUMNSxTERMS. Ignored with MODEL, whose own shapes are measured.")  # fmt: skip
@click.option("--dtype", "dtypes", default="float32,bfloat16", show_default=True,
              help="Dtypes of the products; with MODEL, the dtype to load it in.")  # fmt: skip
@click.option("--budget", default=1.0, show_default=True, type=click.FloatRange(0),
              help="Seconds to measure each shape.")  # fmt: skip
@options.output("Write the table here (use it with WEFT_TUNING=FILE) instead of weft's cache "
                "directory.", old=["--out"], type=click.Path(dir_okay=False))  # fmt: skip
@loads("device")
@options.as_json
@click.pass_context
def tune(
    context: click.Context, model: str | None, kinds: str, sizes: str, dtypes: str, budget: float,
    output: str | None, loading: Loading, as_json: bool,
) -> None:  # fmt: skip
    """Time the possible kernel configurations for products of given sizes, or for the groups of a
    MODEL, and keep the fastest for each class of shapes. Compiling for the same device then uses
    this table. weft measures nothing at any other time."""
    from weft.backends import registry
    from weft.bench import roofline, tune as tuning, tune_cases
    from weft.compile import tuned

    chosen = _kinds(kinds)
    found = registry.get(loading.device)
    path = Path(output) if output is not None else tuned.default_path(found.caps)
    if path is None:
        raise UsageError("no cache directory (WEFT_CACHE is off): say --output FILE")
    start = _kept(path, found)
    given = context.get_parameter_source("dtypes") is not click.core.ParameterSource.DEFAULT
    if model is not None:
        cases = _of_model(loading.path(model), found, chosen, dtypes if given else None)
    else:
        names = _dtypes(dtypes)
        wanted = tune_cases.parse_sizes(sizes)
        cases = tune_cases.product_cases(chosen, wanted, names, found.caps)
    if not cases:
        raise UsageError(f"nothing to tune: no group of kind {kinds} in what was asked for")
    choices = []
    for choice in _measure(found, cases, roofline.measure(found), budget):
        choices.append(choice)  # a run that is cut off keeps what it has chosen
        tuned.write(path, tuning.into(start, choices))
    if as_json:
        click.echo(json.dumps(_result(found, path, choices)))
        return
    click.echo(text.table(tuning.HEADER, tuning.table_rows(choices), right="efg"))
    better = sum(bool(c.config) for c in choices)
    click.echo(f"\n{better} of {len(choices)} classes gain by another configuration; table: {path}")


def _kinds(given: str) -> list[str]:
    from weft.templates import registry

    known = registry.tunable()
    names = [k.strip() for k in given.split(",") if k.strip()]
    unknown = [k for k in names if k not in known]
    if unknown or not names:
        raise UsageError(f"--kinds takes {', '.join(known)}, not {given!r}")
    return names


def _dtypes(given: str) -> list[Any]:
    from weft.core import dtypes as dt

    known = {d.name: d for d in dt.DEVICE if d.is_float}
    names = [d.strip() for d in given.split(",") if d.strip()]
    if not names or any(d not in known for d in names):
        raise UsageError(f"--dtype takes {', '.join(known)}, not {given!r}")
    return [known[d] for d in names]


def _kept(path: Path, device: Device) -> tuned.TunedTable:
    """The table's present entries for this device, to which new ones are added; else an empty
    table."""
    from weft.compile import tuned

    fresh = tuned.new(device.info.name, device.caps)
    try:
        old = tuned.read(path)
    except (OSError, FileFormatError):
        return fresh
    return old if (old.caps, old.code) == (fresh.caps, fresh.code) else fresh


def _of_model(path: str, device: Device, kinds: Sequence[str], dtype: str | None) -> list[TuneCase]:
    import weft
    from weft.bench.tune_cases import model_cases

    model = weft.load(path, device=device, dtype=dtype)
    return model_cases(model.graphs(), kinds, device.caps)


def _measure(
    device: Device, cases: Sequence[TuneCase], roof: Any, budget: float
) -> Iterator[TunedConfig]:
    """The classes as they are chosen, with a bar of what is done on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from weft.bench import tune as tuning

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=len(cases), completed=-1)

        def note(line: str) -> None:
            progress.update(task, advance=1, description=line)

        yield from tuning.run(device, cases, roof, budget, note)


def _result(device: Device, path: Path, choices: Sequence[TunedConfig]) -> dict[str, Any]:
    """The JSON object; dropped configurations lack a time."""
    found = []
    for c in choices:
        cases = {
            label: [asdict(m) | {"ms": m.ms if m.ms < float("inf") else None} for m in rows]
            for label, rows in c.cases.items()
        }
        found.append({"kind": c.kind, "class": c.shapes, "config": dict(c.config), "ms": c.ms,
                      "default_ms": c.default_ms, "cases": cases})  # fmt: skip
    return {"device": device.info.id, "name": device.info.name, "table": str(path),
            "classes": found}  # fmt: skip
