"""`weft bench ops`, `model`, `nets`, `train`, `ranks`, `serve` and `drafts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.bench_drafts import drafts
from weft.cli.bench_parts import emit, note, progress, say, takes_load, takes_threads
from weft.cli.bench_serve import serve
from weft.cli.hub import model_path, takes_model
from weft.core import text
from weft.core.errors import DeviceError, UsageError
from weft.core.hints import command

if TYPE_CHECKING:
    from weft.bench.roofline import Roofline


@click.group(epilog="Example:  weft bench ops --only softmax")
def bench() -> None:
    """Measure operations or a whole model; every figure stands beside its share of the roofline."""


bench.add_command(serve)
bench.add_command(drafts)


@bench.command(epilog="Example:  weft bench ops --sizes 128..1024 --plot speed.png")
@click.option("--device", help="Device(s) to measure, comma list (default: see below).")
@click.option("--only", default="", help="Comma list: cases whose name contains one of these.")
@click.option("--sizes", help="128..1024 (powers of two) or a comma list: CPU beside GPUs.")
@takes_threads
@click.option("--repeats", default=30, show_default=True, type=click.IntRange(5))
@click.option("--budget", type=float, help="Seconds per case (2; with --sizes 0.3).")
@click.option("--plot", type=click.Path(), help="With --sizes: write a picture (PNG) here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ops(
    device: str | None,
    only: str,
    sizes: str | None,
    repeats: int,
    budget: float | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Time operations (f32), compiled. With --sizes: matmul, softmax, layer norm, gelu and an
    elementwise chain at each size, the CPU beside every GPU that is present (or --device), with
    the error against the CPU. Without: the fixed cases on one device (the CPU, or --device),
    beside its roofline."""
    names = [s for s in only.split(",") if s]
    if sizes is not None:
        _side_by_side(device, sizes, names, repeats, budget, plot, as_json)
        return
    if plot:
        raise click.UsageError("--plot needs --sizes, for example --sizes 128..1024")

    from weft.backends import registry
    from weft.bench import ops as bench_ops, roofline

    found = registry.get(device or "cpu")
    roof = roofline.measure(found)
    result = bench_ops.run(
        found.info.id, roof, names, (128, 256, 512, 1024), repeats, budget or 2.0,
        lambda n, r: note(f"{n}: {r}"),
    )  # fmt: skip
    if not result["results"]:
        known = ", ".join(case.name for case in bench_ops.cases())
        raise UsageError(f"no case matches --only {only!r}; there are {known}")
    result["threads"] = found.caps.cores
    rows = [
        [n, r["median_ms"], r["min_ms"], r.get("gflops", r.get("gflops_full", "")),
         r.get("gbs", ""), roofline.shown(r["roofline"])]
        for n, r in result["results"].items()
    ]  # fmt: skip
    emit(result, as_json, ["case", "median ms", "min ms", "GFLOP/s", "GB/s", "roofline"], rows)


def _side_by_side(
    device: str | None,
    sizes: str,
    only: list[str],
    repeats: int,
    budget: float | None,
    plot: str | None,
    as_json: bool,
) -> None:
    from weft.bench import side_by_side

    numbers = side_by_side.parse_sizes(sizes)
    if plot:
        side_by_side.new_figure()  # says what is missing before the work, not after
    others = side_by_side.present() if device is None else device.split(",")
    devices = ["cpu:0", *(d for d in others if d not in ("cpu", "cpu:0"))]
    if len(devices) == 1:
        say(f"no GPU device is present, only the CPU is measured; to see why: {command('devices')}")
    result = side_by_side.run(
        devices, numbers, only=only, repeats=repeats, budget=budget or 0.3, note=progress
    )
    progress("")
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(text.table(side_by_side.HEADER, side_by_side.table_rows(result), "bdeghi"))
    if plot:
        side_by_side.draw(result, Path(plot))
        say(f"picture: {plot}")
    wrong = [f"{r['op']} {r['size']} on {r['device']}" for r in result["results"]
             if not r.get("ok", True)]  # fmt: skip
    if wrong:
        raise DeviceError(f"results differ by more than the tolerance: {', '.join(wrong)}")


@bench.command(epilog="Example:  weft bench model MODEL --dtype float16 --profile trace.json")
@click.argument("path", metavar="MODEL", type=click.Path())
@takes_load
@click.option("--prompt", type=click.IntRange(1), help="Tokens (default: 512, or what fits).")
@click.option("--gen", type=click.IntRange(1), help="Tokens (default: 128, or what fits).")
@click.option("--reps", default=5, show_default=True, type=click.IntRange(1))
@takes_threads
@click.option("--profile", type=click.Path(), help="Write a Chrome trace here; print per kernel.")
@takes_model
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def model(
    path: str,
    device: str,
    dtype: str | None,
    quant: str | None,
    act_dtype: str | None,
    cache: str | None,
    prompt: int | None,
    gen: int | None,
    reps: int,
    profile: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Time prefill (ppN), decode at an empty context (tgN) and after a prompt (tgN@dN)."""
    from weft.backends import registry
    from weft.bench import model as bench_model, profile as steps, roofline

    found = model_path(path, yes)
    options = bench_model.Options(found, device, dtype, act_dtype, prompt, gen, reps, cache, quant)
    result = bench_model.run(options, lambda: roofline.measure(registry.get(device)), note)
    result["model"] = path
    if profile:
        roof = _roof(result)
        result["profile"] = bench_model.profile(options, roof, Path(profile))
    rows = [
        [n, r["median_tok_s"], r["min_tok_s"], r["max_tok_s"], roofline.shown(r["roofline"])]
        for n, r in result["results"].items()
    ]
    emit(result, as_json, ["case", "median tok/s", "min", "max", "roofline"], rows)
    if profile and not as_json:
        rows = bench_model.profile_rows(result["profile"])
        click.echo("\n" + text.table(steps.HEADER, rows, "bcdefg"))
        click.echo(f"Chrome trace: {profile}")


@bench.command(epilog="Example:  weft bench nets --only resnet50 --beside ort,eager,compile")
@click.option("--device", default="cpu", show_default=True, help="Device to measure.")
@click.option("--only", default="", help="Comma list: cases whose name contains one of these.")
@click.option("--beside", default="", help="Comma list of ort, eager, compile: peers, in turn.")
@click.option("--model", default="", type=click.Path(), help="An ONNX file to time as well.")
@takes_threads
@click.option("--repeats", default=20, show_default=True, type=click.IntRange(5))
@click.option("--budget", default=5.0, show_default=True, type=float, help="Seconds per side.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def nets(
    device: str, only: str, beside: str, model: str, repeats: int, budget: float, as_json: bool
) -> None:
    """Time nets (f32, random weights): ResNet-50, MobileNetV3-Large, a detector like YOLOv8n,
    ViT-B/16, BERT-base at 128 tokens; and an ONNX file with one input. --beside times PyTorch
    (eager, torch.compile) and ONNX Runtime on as many threads, each in a process of its own."""
    from weft.backends import registry
    from weft.bench import nets as bench_nets, roofline

    found = registry.get(device)
    peers = [s for s in beside.split(",") if s]
    o = bench_nets.Options(
        found.info.id, found.caps.cores, peers, repeats, budget=budget, model=model
    )
    names = [s for s in only.split(",") if s]
    roof = roofline.measure(found)
    result = bench_nets.run(o, roof, names, lambda n, r: note(f"{n}: {r}"))
    if not result["results"]:
        known = ", ".join(bench_nets.cases(model or ""))
        raise UsageError(f"no case matches --only {only!r}; there are {known}")
    header = ["case", "median ms", "min ms", "GFLOP/s", "of FMA peak", "launches"]
    rows = [
        [n, r["median_ms"], r["min_ms"], r["gflops"], roofline.shown(r["roofline"]), r["launches"],
         *(f"{r.get('peers', {}).get(p, {}).get('times_ratio', '')}" for p in peers)]
        for n, r in result["results"].items()
    ]  # fmt: skip
    emit(result, as_json, [*header, *(f"{p}, times weft's" for p in peers)], rows)


@bench.command(epilog="Example:  weft bench train --dtype bf16 --steps 50 --json")
@click.option("--device", default="cpu", show_default=True, help="Device to measure.")
@click.option("--dtype", default="f32", show_default=True, type=click.Choice(["f32", "bf16"]))
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1))
@takes_threads
@click.option("--layers", default=6, show_default=True, type=click.IntRange(1))
@click.option("--width", default=384, show_default=True, type=click.IntRange(1))
@click.option("--context", default=256, show_default=True, type=click.IntRange(1))
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1))
@click.option("--checkpoint", is_flag=True, help="Compute each block again on the way back.")
@click.option(
    "--startup/--no-startup", default=True, help="Also time first steps, cold and cached."
)
@click.option("--profile", is_flag=True, help="Also time each kernel of the step.")
@click.option("--trace", type=click.Path(), help="With --profile: write a Chrome trace here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def train(
    device: str,
    dtype: str,
    steps: int,
    layers: int,
    width: int,
    context: int,
    batch: int,
    checkpoint: bool,
    startup: bool,
    profile: bool,
    trace: str | None,
    as_json: bool,
) -> None:
    """Time a training step of a small GPT (forward, backward, AdamW as one Program)."""
    if width % 64:
        raise click.UsageError(f"--width takes a multiple of 64 (a head's width), not {width}")
    from weft.backends import registry
    from weft.bench import profile as kernels, roofline, train as bench_train
    from weft.conform.gpt import Shape

    found = registry.get(device)
    shape = Shape(layers, width, width // 64, context, batch)
    options = bench_train.Options(
        found.info.id, dtype, steps, startup=startup, checkpoint=checkpoint, shape=shape
    )
    result = bench_train.run(options, lambda: roofline.measure(found), note)
    result["threads"] = found.caps.cores
    if profile:
        roof = _roof(result)
        path = Path(trace) if trace else None
        result["profile"] = bench_train.profile(options, roof, path)
    r = result["results"]["step"]
    rows = [
        ["step", r["median_ms"], r["min_ms"], r["tok_s"], r["gflops"], f"{r['peak_share']:.2f}"]
    ]
    header = ["case", "median ms", "min ms", "tok/s", "GFLOP/s", "of FMA peak"]
    emit(result, as_json, header, rows)
    if not as_json:
        click.echo("\n" + text.table(["figure", "value"], _train_facts(result), right="b"))
    if profile and not as_json:
        click.echo("\n" + text.table(kernels.HEADER, kernels.rows(result["profile"]), "bcdefg"))


@bench.command(epilog="Example:  weft bench ranks --ranks 2 --json")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(2, 64))
@click.option("--steps", default=6, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--layers", default=4, show_default=True, type=click.IntRange(1))
@click.option("--width", default=256, show_default=True, type=click.IntRange(64))
@click.option("--context", default=128, show_default=True, type=click.IntRange(2))
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1))
@click.option("--accumulate", default=4, show_default=True, type=click.IntRange(2))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ranks(as_json: bool, **sizes: int) -> None:
    """Time training steps of one process and of several ranks on this machine's CPU."""
    if sizes["width"] % 64 or sizes["accumulate"] < sizes["ranks"]:
        raise click.UsageError("--width takes a multiple of 64, --accumulate at least --ranks")
    from weft.bench import ranks as bench_ranks

    result = bench_ranks.run(bench_ranks.Options(**sizes), note)
    lists = ("waiting_share", "sent_mb", "peak_rss_mib", "optimizer_mb")
    rows = [
        [name, r["step_ms"], r["tok_s"], *(", ".join(map(str, r[key])) for key in lists)]
        for name, r in result["results"].items()
    ]
    header = ["case", "step ms", "tok/s", "waiting, share", "sent, MB", "peak MiB", "optimiser MB"]
    emit(result, as_json, header, rows)


@bench.command(epilog="Example:  weft bench divided --ranks 2 --json")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(2, 64))
@click.option("--tokens", default=32, show_default=True, type=click.IntRange(2))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--layers", default=8, show_default=True, type=click.IntRange(2))
@click.option("--width", default=1024, show_default=True, type=click.IntRange(64))
@click.option("--dtype", default="bfloat16", show_default=True,
              type=click.Choice(["float32", "float16", "bfloat16"]))  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def divided(as_json: bool, **sizes: Any) -> None:
    """Time decoding by one process and by several ranks that divide a model's layers, or its
    columns, on this machine's CPU."""
    if sizes["width"] % (64 * sizes["ranks"]) or sizes["layers"] < sizes["ranks"]:
        raise click.UsageError("--width takes a multiple of 64 x --ranks, --layers at least it")
    from weft.bench import divided as bench_divided

    result = bench_divided.run(bench_divided.Options(**sizes), note)
    rows = [
        [name, r["tok_s"], r["step_ms"], r["waiting_share"], r["sent_kb"], r["peak_rss_mib"]]
        for name, r in result["results"].items()
    ]
    header = ["case", "tok/s", "ms a token", "waiting, share", "sent, KB a token", "peak MiB"]
    emit(result, as_json, header, rows)


def _roof(result: dict[str, Any]) -> Roofline:
    """The roofline that a result's figures were held against."""
    from weft.bench.roofline import Roofline

    return Roofline(*(result[key] for key in ("peak_gflops", "read_gbs", "peak_tile_gflops")))


_FACTS = {
    "params_m": "parameters, millions",
    "first_step_s": "first step, s",
    "cached_first_step_s": "first step, code cached, s",
    "loss_first": "first loss",
    "loss_last": "last loss",
    "peak_rss_mib": "peak memory of the process, MiB",
    "arena_mib": "arena of the Program, MiB",
    "arena_kept_mib": "arena without --checkpoint, MiB",
    "peak_gflops": "FMA peak, GFLOP/s",
}


def _train_facts(result: dict[str, Any]) -> list[list[Any]]:
    return [[label, result[key]] for key, label in _FACTS.items() if key in result]
