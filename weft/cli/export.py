"""`weft export` and `weft serve-page`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weft.cli import functions, options
from weft.cli.loading import Loading, loads
from weft.cli.pictures import export_net
from weft.core.errors import UsageError
from weft.core.hints import command


@click.group()
def export() -> None:
    """Export a model in a form that runs without weft."""


@export.command(
    epilog="""\b
Example:  weft export web MODEL -o site && weft serve-page site
          weft export web ORG/NAME -o site --quant int4 --context 1024
          weft export web MODEL -o site --train scratch --train lora
          weft export web -o site --search sentence-transformers/all-MiniLM-L6-v2
          weft export web detector.onnx -o site
          weft export web ORG/SMALL ORG/LARGE -o site
"""
)
@click.argument("models", metavar="[MODEL]...", type=click.Path(), nargs=-1)
@options.output("The folder to write.", old=["--out"], required=True)
@loads("dtype", "quant", "act_dtype", "context", "cache")
@click.option(
    "--train",
    multiple=True,
    type=click.Choice(["scratch", "lora"]),
    help="Let the page train: scratch, a new small model; lora, an adapter of MODEL. May be "
    "repeated.",
)
@click.option("--search", help="Add a tab to search notes, with this encoder model.")
@click.option("--search-quant", help="Quantise the encoder's linear layers: int8, int4, ...")
@options.sizes
@click.option(
    "--stretch",
    is_flag=True,
    help="Resize pictures to a net's own size, whatever their proportion.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def web(
    models: tuple[str, ...], output: str, loading: Loading, train: tuple[str, ...],
    search: str | None, search_quant: str | None, sizes: tuple[str, ...], stretch: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Export MODEL (default: box, the small model included with weft) as a static web page. The
    page runs the model in the visitor's browser, with WebGPU or WebAssembly. Any web server can
    host the folder; the page loads nothing from elsewhere. With several models that generate text,
    the visitor chooses one.

    MODEL may be a net that sees, an ONNX file or a .pt2 file of torch.export: the page shows the
    visitor's pictures and camera to it. A page of CLIP or SigLIP searches the visitor's own
    photographs, one of a language model that sees answers questions about their pictures
    (docs/pictures.md), one of Whisper writes down what is said (docs/speech.md)."""
    from weft.hub.box import box_folder
    from weft.web.export import export_web

    model = models[0] if models else None
    if len(models) > 1:
        if train or search or sizes or stretch:
            raise UsageError(
                "several models on a page take no --train, --search, --size, --stretch"
            )
        _say_several(models, output, loading, as_json)
        return
    if search_quant and not search:
        raise UsageError(f"--search-quant {search_quant} is for the encoder that --search names")
    if model is not None and model.endswith(functions.GRAPHS):
        if train or search:
            raise UsageError(f"{model} is a net; --train and --search are for models of text")
        _say(export_net(model, output, sizes, stretch, loading.quant), output, as_json)
        return
    if sizes or stretch:
        raise UsageError("--size and --stretch are for the file of a net")
    path = str(box_folder()) if model is None else model
    loaded = loading.load(path, device="cpu", max_batch=1)
    finder = None
    if search:
        dtype = None if search_quant else loading.dtype
        encoder = Loading("cpu", dtype, search_quant, yes=loading.yes)
        finder = encoder.load(search)
    _say(export_web(loaded, Path(output), train, finder), output, as_json)


def _say_several(models: tuple[str, ...], output: str, loading: Loading, as_json: bool) -> None:
    """Writes a page for several models, and prints what was written."""
    from weft.web.several import export_several

    loaded = [loading.load(model, device="cpu", max_batch=1) for model in models]
    made = export_several(loaded, Path(output))
    if as_json:
        click.echo(json.dumps(made))
        return
    for name, manifest in made.items():
        click.echo(f"{name:22}{sum(nbytes for _, nbytes, _ in manifest['shards']):12,} bytes")
    click.echo(f"look at it: {command('serve-page', output)}")


def _say(manifest: dict[str, Any], output: str, as_json: bool) -> None:
    """Prints what was written."""
    from weft.web.export import sizes

    if as_json:
        click.echo(json.dumps(manifest))
        return
    click.echo(f"{'':22}{'bytes':>12}{'gzip':>12}")
    for what, nbytes, packed in sizes(Path(output), manifest):
        click.echo(f"{what:22}{nbytes:12,}{packed:12,}")
    click.echo(f"look at it: {command('serve-page', output)}")


@click.command("serve-page", epilog="Example:  weft serve-page site --port 8000")
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port to listen on; 0 (the default) picks a free port.",
)
def serve_page(folder: str, port: int) -> None:
    """Serve FOLDER, written by `weft export web`, on localhost."""
    from weft.web.server import serve

    serve(Path(folder), port, lambda address: click.echo(f"{address}  (Ctrl+C ends it)"))
