"""`weft run-onnx`, and what `weft explain` says of an ONNX file."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from weft.cli import functions


@click.command("run-onnx", epilog="Example:  weft run-onnx yolo.onnx --input images=photo.npy")
@click.argument("path", metavar="FILE", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy",
              help="An input; those without one get random numbers.")  # fmt: skip
@click.option("--size", "sizes", multiple=True, metavar="NAME=N",
              help="A size that the file leaves open (1 otherwise), by its name.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Where to run.")
@click.option(
    "--output", type=click.Path(file_okay=False), help="A folder for NAME.npy of results."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run_onnx(
    path: str, inputs: Sequence[str], sizes: Sequence[str], device: str, output: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run an ONNX model once, and show its inputs, its outputs and what ran where (`weft run`
    does so, too, and takes other files of functions)."""
    click.echo(functions.run(path, inputs, sizes, device, output, as_json))


def explain_onnx(path: str, device: str, as_json: bool) -> str:
    """The output of `weft explain` for an ONNX file: it runs once with random inputs, open sizes
    1."""
    done = functions.played(path, (), (), device)
    found, report = functions.facts(done), done.function.report()
    if as_json:
        return json.dumps(found | {"report": report})
    return f"{functions.shown(found)}\n\n{report}"
