"""`weft serve`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from weft.cli.hub import model_path, takes_model
from weft.cli.listening import hosts_of, key_to, listens, play
from weft.cli.machines import divides, on_ranks
from weft.core.errors import UsageError, WeftError
from weft.ranks import launched

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def bytes_of(text: str | None, option: str) -> int | None:
    """ "8GiB", "512M" or a number as bytes (binary units). Raises UsageError."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"{option} is {text[:40]!r}; expected a size like 8GiB or 512MiB")
    return int(float(found[1]) * (1 << _UNITS[found[2].upper()]))


@click.command(
    epilog="Example:  weft serve box --port 8000   then   curl "
    'localhost:8000/v1/completions -d \'{"prompt": "Once", "max_tokens": 20}\''
)
@click.argument("models", nargs=-1)
@listens(8000)
@click.option(
    "--sequences",
    default=32,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Answers that are written at once, at most.",
)
@click.option(
    "--queue",
    default=256,
    show_default=True,
    type=click.IntRange(0),
    help="Answers that may wait; beyond that requests are told to come back.",
)
@click.option(
    "--cache-memory",
    help="For keys and values of each model, like 2GiB (default: what "
    "is free, at most what all sequences can fill).",
)
@click.option(
    "--memory",
    help="For all models together; others are loaded when they are asked "
    "for, and the one not used for the longest time goes.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="cpu, vulkan, metal, dx12, webgpu, gpu[:index] or auto.",
)
@click.option("--dtype", help="float32, float16 or bfloat16 (default: the checkpoint's).")
@click.option("--quant", help="Bring linear layers to int4, int8, ... on the way in.")
@click.option("--act-dtype", help="Of linear inputs: bfloat16, float32, or int8.")
@click.option("--context", type=click.IntRange(1), help="Positions of a sequence.")
@click.option("--cache", help="What keys and values are kept in: f32, f16, bf16 or int8.")
@click.option(
    "--draft-model",
    metavar="MODEL",
    help="A smaller model with the same tokenizer, which proposes tokens; no answer changes.",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=PATH",
    help="A LoRA adapter of MODEL, which requests call NAME; repeat for several.",
)
@click.option(
    "--tool-parser",
    default="auto",
    show_default=True,
    help="How the model writes tool calls: auto, template, hermes, llama, mistral, ...",
)
@divides
@takes_model
def serve(models: tuple[str, ...], parallel: str, split: str | None, **options: Any) -> int:
    """Serve MODELS over HTTP: OpenAI's, Anthropic's and Ollama's protocols.

    A model is a folder, a GGUF file or ORG/NAME, or NAME=one of these; by default it is box-chat,
    the small model that comes with weft, and box is the other one. Answers are functions of
    model, request and seed: no load, cache or batch changes them."""
    from weft.serve.needs import need

    need()
    from weft.hub.box import CHAT
    from weft.serve.shelf import named

    key = key_to(options)
    paths = named(models or (CHAT,))
    if len(paths) > 1 and options["draft_model"]:
        raise UsageError("--draft-model drafts for one model; serve the others by themselves")
    if len(paths) > 1 and launched() > 1:
        raise UsageError("several ranks serve one model; start a server for each")
    if options["adapters"] and max(len(paths), launched()) > 1:
        raise UsageError("--adapter is for one model on one machine; serve others by themselves")

    def found() -> dict[str, str]:
        models = {name: str(model_path(path, options["yes"])) for name, path in paths.items()}
        for name, path in models.items():
            _check(name, Path(path))
        return models

    def work(load: Callable[..., Any] | None) -> int:
        if options["draft_model"]:
            options["draft_model"] = str(model_path(options["draft_model"], options["yes"]))
        models = found()
        options["adapters"] = _adapters(options, Path(next(iter(models.values()))))
        return asyncio.run(_serve(models, key, options, load))

    first = lambda: next(iter(found().values()))  # noqa: E731
    return on_ranks(first, options["device"], parallel, split, work)


def _check(name: str, path: Path) -> None:
    """Raises UsageError where a path cannot be a model's: those after the first are loaded when
    somebody asks, which is too late to say so."""
    from weft.importers.hf_config import read_object
    from weft.models.run.entry import located

    try:
        if located(path).is_dir():
            read_object(path / "config.json")
    except WeftError as e:
        raise UsageError(f"the model {name!r:.100} is not there: {e}") from None


def _adapters(options: dict[str, Any], model: Path) -> dict[str, str]:
    """The adapters by their names; says where one seems to be another model's. Raises
    UsageError."""
    from weft.models.weights.adapter_base import other_base

    found: dict[str, str] = {}
    for given in options["adapters"]:
        name, _, path = given.partition("=")
        if not name or not path or name in found:
            raise UsageError(f"--adapter {given!r:.100}; expected NAME=PATH, each name once")
        found[name] = str(model_path(path, options["yes"]))
        why = other_base(model, Path(found[name])) if model.is_dir() else None
        if why is not None:
            click.echo(f"note: {why}", err=True)
    return found


async def _serve(
    paths: dict[str, str], key: bytes | None, options: dict[str, Any],
    load: Callable[..., Any] | None,
) -> int:  # fmt: skip
    import weft
    from weft.serve.app import make_app
    from weft.serve.logs import quiet_logs
    from weft.serve.metrics import Metrics
    from weft.serve.running import listen
    from weft.serve.settings import Settings
    from weft.serve.shelf import Shelf

    quiet_logs(options["log_level"])
    given = {n: options[n] for n in ("device", "dtype", "quant", "act_dtype", "context", "cache")}
    settings = Settings(
        options["sequences"], options["queue"], bytes_of(options["cache_memory"], "--cache-memory"),
        options["tool_parser"], given, options["draft_model"], options["adapters"],
    )  # fmt: skip
    limit = bytes_of(options["memory"], "--memory")
    shelf = Shelf(paths, settings, Metrics(), limit, load or weft.load)
    listening = listen(options["host"], options["port"])
    app = make_app(shelf, key, hosts_of(options))
    try:
        async with shelf.use(None) as first:
            await asyncio.to_thread(first.warm)
            summary = first.summary()
        return await play(app, listening, f"weft serves {', '.join(paths)}", lambda: summary)
    finally:
        await shelf.close()
        listening.close()
