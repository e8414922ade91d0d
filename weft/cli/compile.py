"""`weft compile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options
from weft.cli.loading import Loading, loads
from weft.core.errors import UsageError
from weft.core.hints import command

if TYPE_CHECKING:
    from weft.program.bundle import Bundle

GRAPHS = (".pt2", ".onnx")  # files of other frameworks


@click.command(
    epilog="""\b
Example:  weft compile MODEL -o model.weft
          weft compile MODEL -o model.weft --device sm_90 --quant int4
          weft run model.weft 'Once upon a time'
          weft compile net.onnx -o net.weft --size batch=8
"""
)
@click.argument("model", type=click.Path(), required=False)
@options.output("The file to write.", old=["--out"], required=True,
                type=click.Path(dir_okay=False))  # fmt: skip
@loads("device", "dtype", "quant", "act_dtype", "context", "cache",
       device=options.device_option(
           "A device of this machine, or a target that this machine need not have: cpu-avx2, "
           "cpu-avx512, cpu-neon, webgpu, cuda, hip-wave32, hip-wave64, sm_90, gfx942, "
           "..."))  # fmt: skip
@options.max_batch(1)
@click.option(
    "--weights",
    type=click.Choice(["inside", "beside"]),
    default="inside",
    show_default=True,
    help="inside: in the output file. beside: in a separate file next to it, named by its hash.",
)
@options.sizes
@options.as_json
def compile_model(
    model: str | None, output: str, loading: Loading, max_batch: int, weights: str,
    sizes: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Compile MODEL (default: box, the small model that comes with weft) to one file. It has the
    kernels for the device, the weights in the order they are read, and the tokenizer. Every command
    that takes a model takes this file, and starts without compiling graphs.

    MODEL may also be an ONNX file or a .pt2 file of torch.export, with --size and --quant.
    weft.load turns the result into a Python function. For a graph as JSON, weft writes only its
    Program."""
    from weft.backends.presets import caps_of, settled
    from weft.hub.box import box_folder
    from weft.models.run import saved

    device = settled(loading.device)
    caps = caps_of(device)
    given = {**loading.options(), "max_batch": max_batch}
    del given["device"]
    suffix = "" if model is None else Path(model).suffix
    if suffix in GRAPHS or (suffix == ".json" and Path(str(model)).is_file()):
        only = {"quant"} if suffix in GRAPHS else set()
        _want_fitting(str(model), {n: v for n, v in given.items() if n not in only})
        if suffix == ".json":
            made = _compile_graph(Path(str(model)), Path(output), caps)
        else:
            beside, quant = weights == "beside", loading.quant
            made = _compile_imported(str(model), sizes, Path(output), device, caps, beside, quant)
        then = f"call it: {command('run', output, '--input', 'NAME=F.npy')}"
        _say(output, device, ["Program"], made, as_json, then)
        return
    path = str(box_folder()) if model is None else model
    loaded = loading.load(path, device="cpu", max_batch=max_batch)
    bundle = saved.save(loaded, Path(output), device, caps, given, weights == "beside")
    _prepare(device, bundle)
    size = sum(array.nbytes for array in bundle.tensors.values())
    then = _next(bundle, output)
    _say(output, device, list(bundle.programs), size, as_json, then)


def _next(bundle: Bundle, output: str) -> str:
    """Returns what to do with a compiled model."""
    kind, judging = bundle.head["kind"], bundle.head.get("judging", {})
    if kind == "encoder":
        return f"embed with it: {command('embed', output, 'TEXT')}"
    if kind == "judge" and len(judging["labels"]) == 1:
        return f"rank with it: {command('rerank', output, 'QUERY', 'DOCUMENT')}"
    if kind == "judge":
        return f"classify with it: {command('classify', output, 'TEXT')}"
    return f"run it: {command('run', output, 'PROMPT')}"


def _say(
    out: str, device: str, programs: list[str], weights: int, as_json: bool, then: str
) -> None:
    """Prints what was written, and a command that uses it."""
    size = Path(out).stat().st_size
    if as_json:
        about = {"out": out, "device": device, "programs": programs, "weights": weights}
        click.echo(json.dumps(about | {"bytes": size}))
        return
    click.echo(f"{out}: {', '.join(programs)} for {device}; {size:,} bytes")
    click.echo(then)


def _want_fitting(model: str, given: dict[str, Any]) -> None:
    """Raises UsageError for options that mean nothing to a graph."""
    wrong = [f"--{n.replace('_', '-')}" for n, v in given.items() if (n, v) != ("max_batch", 1)]
    if wrong:
        raise UsageError(f"{model} is a graph; {', '.join(wrong)} goes with a decoder's checkpoint")


def _compile_imported(
    model: str, sizes: tuple[str, ...], out: Path, device: str, caps: Any, beside: bool,
    quant: str | None,
) -> int:  # fmt: skip
    """Writes a foreign graph's Program; the bytes of its weights."""
    from weft.cli.functions import sizes_of
    from weft.cli.graphs import traced
    from weft.tensor.storing import save_graph

    made = traced(model, sizes_of(sizes), quant)
    flags: dict[str, Any] = {"sizes": list(sizes)} if sizes else {}
    flags |= {"quant": quant} if quant else {}
    bundle = save_graph(made.graph, made.captured, out, device, caps, flags, beside)
    _prepare(device, bundle)
    return sum(array.nbytes for array in bundle.tensors.values())


def _prepare(device: str, made: Bundle) -> None:
    """Compiles the kernels if the device is here, so that the first run of the file finds them."""
    from weft.backends.presets import prepare
    from weft.tensor.program_cache import program_from

    prepare(device, map(program_from, made.programs.values()))


def _compile_graph(path: Path, out: Path, caps: Any) -> int:
    from weft.cli.explained import read_graph
    from weft.compile.passes import compile_graph

    graph = read_graph(path)
    compile_graph(graph, caps, name=graph.name).save(out)
    return 0
