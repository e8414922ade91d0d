"""python -m weft_npu MODEL PROMPT: text that the simulated NPU writes, and what it cost."""

from __future__ import annotations

from pathlib import Path

import click

import weft
from weft.hub.box import box_folder
from weft_npu.device import NpuDevice
from weft_npu.report import draw, table


@click.command()
@click.argument("prompt")
@click.option("--model", type=click.Path(exists=True), help="A folder (default: the box).")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of weights and inputs.")
@click.option("--max-new-tokens", default=4, show_default=True, type=click.IntRange(1))
@click.option("--each", is_flag=True, help="A line for each layer, though others be like it.")
@click.option("--out", type=click.Path(dir_okay=False), help="The roofline: a .png or .svg file.")
def main(
    prompt: str, model: str | None, dtype: str, max_new_tokens: int, each: bool, out: str | None
) -> None:
    """Continue PROMPT on the simulated NPU; print its cycles, bytes and utilisation by layer."""
    device = NpuDevice()
    decoder = weft.load(model or str(box_folder()), device=device, dtype=dtype)
    click.echo(decoder.generate(prompt, max_new_tokens=max_new_tokens).text)
    click.echo(table(device, each=each))
    if out:
        draw(device, Path(out))
        click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
