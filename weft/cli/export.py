"""`weft export` and `weft serve-page`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weft.cli.hub import model_path, takes_model
from weft.core.errors import UsageError
from weft.core.hints import command


@click.group()
def export() -> None:
    """Write a model in a form that runs without weft."""


@export.command(
    epilog="""\b
Example:  weft export web MODEL -o site && weft serve-page site
          weft export web ORG/NAME -o site --quant int4 --context 1024
          weft export web MODEL -o site --train scratch --train lora
          weft export web -o site --search sentence-transformers/all-MiniLM-L6-v2
"""
)
@click.argument("model", type=click.Path(), required=False)
@click.option("-o", "--out", required=True, type=click.Path(), help="The folder to write.")
@click.option("--dtype", help="float32, float16 or bfloat16 (default: the checkpoint's).")
@click.option("--quant", help="Bring linear layers to int4, int8, ... (docs/quantizing.md).")
@click.option("--act-dtype", help="Of linear inputs where they meet weights of that dtype: "
              "bfloat16 or float32; int8 quantises what meets packed weights.")  # fmt: skip
@click.option("--context", type=click.IntRange(1), help="Positions of the KV cache.")
@click.option("--cache", help="What keys and values are kept in: f32, f16, bf16 or int8.")
@click.option(
    "--train",
    multiple=True,
    type=click.Choice(["scratch", "lora"]),
    help="What the page can train: a new small model, an adapter of MODEL. May be repeated.",
)
@click.option("--search", help="An encoder; the page has a tab to search notes with it.")
@click.option("--search-quant", help="Bring the encoder's linear layers to int8, int4, ...")
@takes_model
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def web(
    model: str | None, out: str, dtype: str | None, quant: str | None, act_dtype: str | None,
    context: int | None, cache: str | None, train: tuple[str, ...], search: str | None,
    search_quant: str | None, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write MODEL (default: the one in the box) as a static folder that runs in a visitor's
    browser: Programs for WebGPU and WebAssembly, weights, tokenizer, player and page. Any web
    server will do; nothing is fetched from elsewhere."""
    import weft
    from weft.hub.box import box_folder
    from weft.web.export import export_web, sizes

    if search_quant and not search:
        raise UsageError(f"--search-quant {search_quant} is for the encoder that --search names")
    path = box_folder() if model is None else Path(model_path(model, yes))
    loaded = weft.load(
        path, device="cpu", dtype=dtype, context=context, max_batch=1, cache=cache, quant=quant,
        act_dtype=act_dtype,
    )  # fmt: skip
    finder = None
    if search:
        numbers = {"quant": search_quant} if search_quant else {"dtype": dtype}
        finder = weft.load(model_path(search, yes), device="cpu", **numbers)
    manifest = export_web(loaded, Path(out), train, finder)
    if as_json:
        click.echo(json.dumps(manifest))
        return
    click.echo(f"{'':22}{'bytes':>12}{'gzip':>12}")
    for what, nbytes, packed in sizes(Path(out), manifest):
        click.echo(f"{what:22}{nbytes:12,}{packed:12,}")
    click.echo(f"look at it: {command('serve-page', out)}")


@click.command("serve-page", epilog="Example:  weft serve-page site --port 8000")
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 (the default): any free.")
def serve_page(folder: str, port: int) -> None:
    """Show FOLDER, which `weft export web` wrote, on this machine (localhost only)."""
    from weft.web.server import serve

    serve(Path(folder), port, lambda address: click.echo(f"{address}  (Ctrl+C ends it)"))
