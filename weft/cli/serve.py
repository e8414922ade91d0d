"""`weft serve`."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options
from weft.cli.listening import (
    defer_reloads,
    hosts_of,
    keys_to,
    listens,
    need,
    origins_of,
    play,
    tls_of,
)
from weft.cli.loading import Loading, loads
from weft.cli.machines import divides, on_ranks
from weft.core.errors import UsageError
from weft.ranks import launched

if TYPE_CHECKING:
    from weft.cli.reloading import Apply
    from weft.serve.keys import ApiKeys
    from weft.serve.metrics import ServerMetrics
    from weft.serve.settings import ServeSettings
    from weft.serve.shelf import ModelShelf
    from weft.serve.tls import Certificate

_log = logging.getLogger(__name__)
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
@options.max_batch(32, "Maximum number of answers generated at once.", old=["--sequences"])
@click.option(
    "--queue",
    default=256,
    show_default=True,
    type=click.IntRange(0),
    help="Maximum number of answers waiting; further requests get status 429.",
)
@click.option(
    "--cache-memory",
    help="Memory for each model's KV cache, like 2GiB (default: the free memory, up to what all "
    "sequences can fill).",
)
@click.option(
    "--memory",
    help="Memory for all models together, like 16GiB. weft loads a model when a request names it, "
    "and unloads the least recently used.",
)
@click.option(
    "--model-folder", type=click.Path(exists=True, file_okay=False),
    help="Also serve each model in this folder, by the name of its folder or file. They are loaded "
    "when a request names them.",
)  # fmt: skip
@click.option(
    "--load-timeout", default=300.0, show_default=True, type=click.FloatRange(0, 86400),
    help="Seconds that a request may wait until its model is loaded.",
)  # fmt: skip
@click.option(
    "--keep-alive", metavar="DURATION",
    help="Unload a model that nobody has used for this long, like 5m. By default it stays until "
    "another needs its memory.",
)  # fmt: skip
@click.option(
    "--keys-file", help="TOML file with several API keys: a table per name with key and, if "
    "wanted, requests_per_minute, tokens_per_minute, tokens_per_day, running.",
)  # fmt: skip
@click.option(
    "--batch-folder", metavar="DIR",
    help="Keep batch files in this folder and answer them when there is time (/v1/files, "
    "/v1/batches). Prompts and answers lie there until they are deleted.",
)  # fmt: skip
@click.option(
    "--slot-save-path", metavar="DIR",
    help="Let requests keep the cache of a conversation in this folder and read it again, also "
    "after a restart (POST /slots/ID?action=save).",
)  # fmt: skip
@click.option(
    "--traces", is_flag=True,
    help="Send OpenTelemetry spans of requests to a collector on this machine "
    "(http://127.0.0.1:4318/v1/traces). Needs the extra otel.",
)  # fmt: skip
@click.option(
    "--traces-endpoint", metavar="URL",
    help="Send them to this collector (OTLP over HTTP), which may be another machine.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Check the options, files and models, and exit.")
@loads(
    "device", "dtype", "quant", "act_dtype", "context", "cache", "adapters", "generation_config"
)  # fmt: skip
@click.option(
    "--adapter-folder", type=click.Path(exists=True, file_okay=False),
    help="Let requests load and unload the LoRA adapters in this folder while the server runs "
    "(POST /v1/load_lora_adapter).",
)  # fmt: skip
@click.option(
    "--adapter-slots", default=4, show_default=True, type=click.IntRange(1, 64),
    help="With --adapter-folder: number of adapters that fit besides those of --adapter.",
)  # fmt: skip
@click.option(
    "--adapter-rank", default=64, show_default=True, type=click.IntRange(1, 4096),
    help="With --adapter-folder: largest rank of an adapter.",
)  # fmt: skip
@click.option(
    "--picture-folder", type=click.Path(exists=True, file_okay=False),
    help="Let requests name pictures in this folder, as file:///...; otherwise they send them.",
)  # fmt: skip
@options.draft_model
@click.option(
    "--tool-parser",
    default="auto",
    show_default=True,
    help="Format of the model's tool calls: auto, template, hermes, llama, mistral, ...",
)
@divides
def serve(
    models: tuple[str, ...], parallel: str, split: str | None, loading: Loading, **given: Any
) -> int:  # fmt: skip
    """Serve MODELS over HTTP: OpenAI, Anthropic, Ollama and llama-server protocols.

    A model is a folder, a GGUF file or ORG/NAME. Write NAME=MODEL to choose the name that clients
    use. The default is box-chat, a small chat model that comes with weft; box completes Python
    code. The same model, request and seed always give the same answer, whatever the load."""
    need()
    from weft.serve.metrics import ServerMetrics
    from weft.serve.model_paths import check_model
    from weft.serve.settings import ServeSettings

    keys, certificate = keys_to(given), tls_of(given)
    paths, eager, wrong = paths_of(models, given["model_folder"])
    if len(paths) > 1 and given["draft_model"]:
        raise UsageError("--draft-model drafts for one model; serve the others by themselves")
    if len(paths) > 1 and launched() > 1:
        raise UsageError("several ranks serve one model; start a server for each")
    if (loading.adapters or given["adapter_folder"]) and max(len(paths), launched()) > 1:
        raise UsageError("--adapter is for one model on one machine; serve others by themselves")

    def found(paths: Mapping[str, str] = paths) -> dict[str, str]:
        models = {name: loading.path(path) for name, path in paths.items()}
        for name, path in models.items():
            check_model(name, Path(path))
        return models

    ctx = click.get_current_context()

    def change(shelf: ModelShelf, options: Mapping[str, Any]) -> Apply:
        """The function that gives a running shelf these options."""
        listed, _, wrong = paths_of(options["models"], options["model_folder"])
        new = found(listed)
        alone = any(given[name] for name in ("draft_model", "adapter_folder")) or loading.adapters
        if new != shelf.models and (alone or launched() > 1):
            raise UsageError("models with adapters, a draft model or ranks cannot change while "
                             "they are served; start it again")  # fmt: skip
        limit, keep = bytes_of(options["memory"], "--memory"), keep_alive_of(options["keep_alive"])

        def apply() -> None:
            _leave_out(shelf, wrong)
            shelf.change(new, limit, keep, options["load_timeout"])

        return apply

    metrics = ServerMetrics()
    if given["traces"] or given["traces_endpoint"]:
        from weft.serve import tracing

        tracing.need()
        metrics.traces = tracing.Traces(
            tracing.endpoint_of(given["traces_endpoint"] or tracing.LOCAL)
        )

    if given["check"]:
        for name, path in found().items():
            click.echo(f"{name}: {path}")
        if wrong:
            raise UsageError("; ".join(wrong.values()))
        click.echo("these options and models can be served")
        return 0

    def work(load: Callable[..., Any] | None) -> int:
        if given["draft_model"]:
            given["draft_model"] = loading.path(given["draft_model"])
        models = found()
        adapters = loading.adapted(Path(next(iter(models.values()))))
        slots = {name: given[name] for name in ("adapter_slots", "adapter_rank")}
        loads = loading.options() | (slots if given["adapter_folder"] else {})
        settings = ServeSettings(
            given["max_batch"], given["queue"], bytes_of(given["cache_memory"], "--cache-memory"),
            given["tool_parser"], loads, given["draft_model"], adapters, given["adapter_folder"],
            given["load_timeout"], keep_alive_of(given["keep_alive"]), given["picture_folder"],
            given["model_folder"], given["slot_save_path"],
        )  # fmt: skip
        reload = Reload(ctx, change)
        return asyncio.run(
            _serve(models, keys, settings, metrics, given, load, eager, certificate, reload, wrong)
        )

    first = lambda: next(iter(found().values()))  # noqa: E731
    return on_ranks(first, loading.device, parallel, split, work)


def paths_of(
    models: Sequence[str], folder: str | None
) -> tuple[dict[str, str], bool, dict[str, str]]:
    """The models by name, whether the first one is loaded at the start, and those of the folder
    that are left out, with the reasons. Raises UsageError."""
    from weft.hub.box import CHAT
    from weft.serve.model_paths import models_in, named

    paths = named(models or (() if folder else (CHAT,)))
    wrong: dict[str, str] = {}
    if folder:  # given names come first, and win
        try:
            there, wrong = models_in(Path(folder))
        except OSError as e:
            raise UsageError(f"--model-folder {folder}: {e.strerror}") from None
        paths = {**paths, **there, **paths}
    if not paths:  # a folder for models that requests make may be empty beside a named one
        why = "".join(f"\n{reason}" for reason in wrong.values())
        raise UsageError(
            f"{folder} lacks models: folders with a config.json, or .gguf files; or name one: "
            f"weft serve MODEL --model-folder {folder}{why}"
        )
    return paths, bool(models) or not folder, wrong


def _leave_out(shelf: ModelShelf, wrong: Mapping[str, str]) -> None:
    """Tells a shelf, and the log, which models of the folder are not served."""
    shelf.wrong = wrong
    for name, why in wrong.items():
        _log.warning("the model %r is left out: %s", name, why)


@dataclass(frozen=True)
class Reload:
    """The parts that a running server needs to read its options again."""

    ctx: click.Context
    change: Callable[[ModelShelf, Mapping[str, Any]], Apply]


MODELS = frozenset(("models", "model_folder", "memory", "keep_alive", "load_timeout"))
"""Options of `weft serve` alone that may change while it runs."""


def keep_alive_of(text: str | None) -> float | None:
    """Seconds, from a duration like 5m. Raises UsageError."""
    from weft.serve.fields import seconds_of
    from weft.serve.wire import HttpError

    try:
        return seconds_of(text, "--keep-alive")
    except HttpError as e:
        raise UsageError(e.message) from None


async def _first(shelf: ModelShelf) -> list[str]:
    """Loads the first model; its summary. Raises WeftError."""
    from weft.serve.wire import HttpError

    try:
        async with shelf.use(None) as first:
            return first.summary()
    except HttpError as e:  # the person at the terminal may know all of it
        raise e.__cause__ or UsageError(e.message) from None


async def _serve(
    paths: dict[str, str], keys: ApiKeys | None, settings: ServeSettings, metrics: ServerMetrics,
    given: dict[str, Any], load: Callable[..., Any] | None, eager: bool,
    certificate: Certificate | None, reload: Reload, wrong: Mapping[str, str],
) -> int:  # fmt: skip
    import weft
    from weft.cli.reloading import Reloading
    from weft.serve.app import make_app
    from weft.serve.batches.routes import open_folder
    from weft.serve.logs import quiet_logs
    from weft.serve.running import listen
    from weft.serve.shelf import ModelShelf

    defer_reloads()
    quiet_logs(given["log_level"], given["log_json"])
    batches = open_folder(Path(given["batch_folder"])) if given["batch_folder"] else None
    limit = bytes_of(given["memory"], "--memory")
    shelf = ModelShelf(paths, settings, metrics, limit, load or weft.load)
    _leave_out(shelf, wrong)
    listening = listen(given["host"], given["port"])
    app = make_app(shelf, keys, hosts_of(given), origins_of(given), batches)
    try:
        summary = ["models are loaded when requests name them"]
        if eager:
            summary = await _first(shelf)
        again = Reloading(reload.ctx, app, keys, certificate, MODELS, partial(reload.change, shelf))
        what = f"weft serves {', '.join(paths)}"
        return await play(app, listening, what, lambda: summary, certificate, again)
    finally:
        await shelf.close()
        listening.close()
        if batches is not None:
            batches.close()
