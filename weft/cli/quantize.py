"""`weft quantize`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from weft.cli import options
from weft.cli.loading import Loading, loads
from weft.core import text


@click.command(
    epilog="""\b
Example:  weft quantize MODEL -o MODEL-int4 --text notes.txt
          weft quantize MODEL -o MODEL-int8.gguf --scheme int8 --method search
"""
)
@click.argument("model", type=click.Path())
@options.output("The folder to write, or a file that ends in .gguf.", old=["--out"], required=True)
@click.option("--scheme", default="int4", show_default=True,
              help="Scheme of linear layers: int4, int8 (with -g64, -g128, -channel; -zero) or "
              "fp8; for GGUF also q4_k, q5_k, q6_k.")  # fmt: skip
@click.option("--head", help="Scheme of a separate output matrix, or none (default: int8; q6_k "
              "with a K type).")  # fmt: skip
@click.option(
    "--embed",
    help="Scheme of the embeddings, or none (default: none; for GGUF the default of --head).",
)
@click.option("--bits", type=click.FloatRange(1, 16), help="Average bits per weight of linear "
              "layers. Layers that lose most get more bits.")  # fmt: skip
@click.option("--method", type=click.Choice(["gptq", "search"]), default="gptq", show_default=True,
              help="search: search for scales. gptq: GPTQ on top of that search.")  # fmt: skip
@options.text("UTF-8 text for calibration (default: text that the model generates).")
@options.text_tokens(old=["--tokens"])
@loads("device")
@options.as_json
def quantize(
    model: str, output: str, scheme: str, head: str | None, embed: str | None, bits: float | None,
    method: str, source: str | None, text_tokens: int | None, loading: Loading, as_json: bool,
) -> None:  # fmt: skip
    """Write the decoder MODEL, a folder or ORG/NAME, with its linear layers in fewer bits: a folder
    in the compressed-tensors format, or a GGUF file. Works layer by layer; run an interrupted
    command again to continue it."""
    from weft.evaluate.windows import digest, windows_of
    from weft.host.progress import bar
    from weft.quantize.job import QuantizeOptions, check, quantize as run
    from weft.quantize.schemes import K_TYPES, Scheme
    from weft.quantize.source import check_target, is_gguf

    usual = "q6_k" if scheme in K_TYPES else "int8"
    head, embed = head or usual, embed or (usual if is_gguf(Path(output)) else "none")
    for name in (scheme, head, embed):
        if name == scheme or name != "none":
            Scheme(name)
    check_target(Path(output))
    model = loading.path(model)
    wanted = QuantizeOptions(scheme, head, embed, bits or 0.0, method)
    check(Path(model), Path(output), wanted)  # before a text is written
    ids = None
    if source is not None or method == "gptq":
        loaded = loading.load(model, max_batch=1)
        ids = windows_of(loaded, None if source is None else Path(source), text_tokens)
        del loaded
    wanted = replace(wanted, text=digest(ids))
    with bar() as report:
        found = run(Path(model), Path(output), wanted, ids, loading.device, report)
    if as_json:
        given = 0 if ids is None else ids.size
        click.echo(json.dumps({
            "out": output, "scheme": scheme, "head": head, "method": method, "tokens": given,
            "bytes_before": found.before, "bytes": found.after, "bits_per_weight": found.bits,
            "seconds": found.seconds,
        }))  # fmt: skip
        return
    click.echo(
        f"{output}: {text.size(found.after)} of {text.size(found.before)}, {found.bits:.2f} bits "
        f"per packed weight, in {found.seconds:.0f} s"
    )
