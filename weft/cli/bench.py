"""`weft bench ops`, `model`, `nets`, `train` and `drafts`, and the group of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options
from weft.cli.bench_calls import eager, layers
from weft.cli.bench_gate import gate
from weft.cli.bench_parts import at_once, emit, note, progress, say, takes_shape
from weft.cli.bench_ranks import divided, ranks
from weft.cli.bench_senses import pictures, speech
from weft.cli.bench_serve import serve
from weft.cli.loading import Loading, loads
from weft.core import text
from weft.core.errors import DeviceError, UsageError
from weft.core.hints import command

if TYPE_CHECKING:
    from weft.bench.roofline import Roofline


@click.group(epilog="Example:  weft bench ops --only softmax")
def bench() -> None:
    """Time operations, models, training steps or servers. Results of operations and models also
    give their share of the roofline, the hardware's limit."""


for command_ in (serve, ranks, divided, gate, eager, layers, pictures, speech):
    bench.add_command(command_)


@bench.command(epilog="Example:  weft bench ops --sizes 128..1024 --plot speed.png")
@options.device_option("Devices to measure, comma list (default: see above).", default=None)
@click.option("--only", default="", help="Comma list: cases whose name contains one of these.")
@click.option(
    "--sizes",
    help="Sizes to measure on the CPU and on GPUs: 128..1024 (powers of two) or a comma list.",
)
@options.threads
@options.repeats(30, 5)
@click.option("--budget", type=click.FloatRange(0, min_open=True),
              help="Seconds for each case (default: 2; with --sizes 0.3).")  # fmt: skip
@options.plot("With --sizes: plot the results to this PNG file.")
@options.as_json
def ops(
    device: str | None,
    only: str,
    sizes: str | None,
    repeats: int,
    budget: float | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Time compiled float32 operations. Without --sizes: a fixed list of cases on one device (the
    fastest, or --device). With --sizes: matmul, softmax, layer norm, gelu and an elementwise chain
    at each size, on the CPU and every GPU (or --device), with the error against the CPU."""
    names = [s for s in only.split(",") if s]
    if sizes is not None:
        _side_by_side(device, sizes, names, repeats, budget, plot, as_json)
        return
    if plot:
        raise click.UsageError("--plot needs --sizes, for example --sizes 128..1024")

    from weft.backends import registry
    from weft.bench import ops as bench_ops, roofline

    found = registry.get(device or "auto")
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
@loads("device", "dtype", "quant", "act_dtype", "cache")
@options.prompt_tokens(
    show_default=False,
    help="Length of the prompt in tokens (default: 512, or the context if that is less).",
)
@options.max_new_tokens(show_default=False, old=["--gen"],
                        help="Number of tokens to generate (default: 128, or what fits into the "
                        "context).")  # fmt: skip
@options.repeats(5, old=["--reps"])
@options.threads
@options.profile()
@options.as_json
def model(
    path: str, loading: Loading, prompt_tokens: int | None, max_new_tokens: int | None,
    repeats: int, profile: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Time prefill (ppN), decode at an empty context (tgN) and after a prompt (tgN@dN)."""
    from weft.backends import registry
    from weft.bench import model as bench_model, profile as steps, roofline

    options = bench_model.ModelBenchOptions(
        loading.path(path), prompt=prompt_tokens, gen=max_new_tokens, reps=repeats,
        **loading.options(),
    )  # fmt: skip
    result = bench_model.run(options, lambda: roofline.measure(registry.get(loading.device)), note)
    result["model"] = path
    if profile is not None:
        trace = Path(profile) if profile else None
        result["profile"] = bench_model.profile(options, _roof(result), trace)
    rows = [
        [n, r["median_tok_s"], r["min_tok_s"], r["max_tok_s"], roofline.shown(r["roofline"])]
        for n, r in result["results"].items()
    ]
    if not as_json:
        click.echo(f"{path} on {result['device']}: {result['precision']}")
    emit(result, as_json, ["case", "median tok/s", "min", "max", "roofline"], rows)
    if profile is not None and not as_json:
        rows = bench_model.profile_rows(result["profile"])
        click.echo("\n" + text.table(steps.HEADER, rows, "bcdefg"))
        if profile:
            click.echo(f"Chrome trace: {profile}")


@bench.command(epilog="Example:  weft bench nets --only resnet50 --peers ort,eager,compile")
@options.device
@click.option("--only", default="", help="Comma list: cases whose name contains one of these.")
@options.option("--peers", default="", old=["--beside"],
                help="Also time other runtimes, in turn: a comma list of ort (ONNX Runtime), "
                "eager, compile (PyTorch).")  # fmt: skip
@click.option(
    "--model",
    default="",
    type=click.Path(),
    help="Also time this ONNX file, which must have one input.",
)
@options.threads
@options.repeats(20, 5)
@click.option("--budget", default=5.0, show_default=True,
              type=click.FloatRange(0, min_open=True), help="Seconds for each "
              "runtime.")  # fmt: skip
@options.as_json
def nets(
    device: str, only: str, peers: str, model: str, repeats: int, budget: float, as_json: bool
) -> None:
    """Time neural networks in float32 with random weights: ResNet-50, MobileNetV3-Large, a detector
    like YOLOv8n, ViT-B/16, and BERT-base at 128 tokens. With --peers, also time PyTorch (eager,
    torch.compile) and ONNX Runtime with as many threads, each in its own process."""
    from weft.backends import registry
    from weft.bench import nets as bench_nets, roofline

    found = registry.get(device)
    others = [s for s in peers.split(",") if s]
    o = bench_nets.NetsBenchOptions(
        found.info.id, found.caps.cores, others, repeats, budget=budget, model=model
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
         *(f"{r.get('peers', {}).get(p, {}).get('times_ratio', '')}" for p in others)]
        for n, r in result["results"].items()
    ]  # fmt: skip
    emit(result, as_json, [*header, *(f"{p}, times weft's" for p in others)], rows)


@bench.command(epilog="Example:  weft bench train --dtype bfloat16 --steps 50 --json")
@options.device
@options.option("--dtype", default="float32", show_default=True,
                type=options.Dtype(["float32", "bfloat16"]),
                help="Dtype of matrix products.")  # fmt: skip
@options.option("--steps", default=20, show_default=True, type=click.IntRange(1),
                help="Steps to time.")  # fmt: skip
@options.threads
@takes_shape(layers=6, width=384, context=256, batch=8)
@click.option(
    "--checkpoint", is_flag=True, help="Recompute each block in the backward pass, to save memory."
)
@click.option(
    "--startup/--no-startup",
    default=True,
    help="Also time the first step, with and without cached kernels.",
)
@options.profile(old=["--trace"])
@options.as_json
def train(
    device: str, dtype: str, steps: int, checkpoint: bool, startup: bool, profile: str | None,
    as_json: bool, **sizes: int,
) -> None:  # fmt: skip
    """Time a training step of a small GPT (forward, backward, AdamW as one Program)."""
    width = sizes["width"]
    if width % 64:
        raise click.UsageError(f"--width takes a multiple of 64 (a head's width), not {width}")
    from weft.backends import registry
    from weft.bench import profile as kernels, roofline, train as bench_train
    from weft.conform.gpt import GptSizes

    found = registry.get(device)
    shape = GptSizes(heads=width // 64, **sizes)
    options = bench_train.TrainBenchOptions(
        found.info.id, dtype, steps, startup=startup, checkpoint=checkpoint, shape=shape
    )
    result = bench_train.run(options, lambda: roofline.measure(found), note)
    result["threads"] = found.caps.cores
    if profile is not None:
        trace = Path(profile) if profile else None
        result["profile"] = bench_train.profile(options, _roof(result), trace)
    r = result["results"]["step"]
    rows = [
        ["step", r["median_ms"], r["min_ms"], r["tok_s"], r["gflops"], f"{r['peak_share']:.2f}"]
    ]
    header = ["case", "median ms", "min ms", "tok/s", "GFLOP/s", "of FMA peak"]
    emit(result, as_json, header, rows)
    if not as_json:
        click.echo("\n" + text.table(["figure", "value"], _train_facts(result), right="b"))
    if profile is not None and not as_json:
        click.echo("\n" + text.table(kernels.HEADER, kernels.rows(result["profile"]), "bcdefg"))


_DRAFTS = ["case", "off tok/s", "on tok/s", "times", "proposed", "right"]


@bench.command(epilog="Example:  weft bench drafts MODEL --quant int8 --draft-model SMALL")
@click.argument("model", metavar="MODEL")
@options.draft_model
@options.prompt_tokens(16, default=256)
@options.max_new_tokens(2, default=128, old=["--gen"])
@click.option("--at-once", default="1,8", show_default=True, callback=at_once(64),
              help="Numbers of concurrent answers, a comma list.")  # fmt: skip
@options.repeats(5, old=["--rounds"])
@loads("device", "dtype", "quant", "act_dtype", "cache")
@options.threads
@options.as_json
def drafts(
    model: str, draft_model: str | None, prompt_tokens: int, max_new_tokens: int,
    at_once: tuple[int, ...], repeats: int, loading: Loading, as_json: bool,
) -> None:  # fmt: skip
    """Time decoding with and without drafts, in turn. The cases: `edit`, answers that repeat their
    prompt with some tokens changed; `new`, answers of random tokens; `own`, answers that the model
    generates."""
    from weft.bench import drafts as bench_drafts

    o = bench_drafts.DraftsBenchOptions(
        loading.path(model), loading.options(),
        None if draft_model is None else loading.path(draft_model),
        prompt_tokens, max_new_tokens, at_once, repeats,
    )  # fmt: skip
    result = bench_drafts.run(o, note)
    rows = [[name, *figures.values()] for name, figures in result["results"].items()]
    emit(result, as_json, _DRAFTS, rows)


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
