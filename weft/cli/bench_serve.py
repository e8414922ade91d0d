"""`weft bench serve`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from weft.cli import options
from weft.cli.bench_parts import at_once, emit, note
from weft.cli.loading import Loading, loads
from weft.core.errors import UsageError

_CASES = ("steps", "cold", "load", "at_once", "turn", "idle")


@click.command(
    epilog="Example:  weft bench serve ./my-model --rate 2 --beside "
    "'llama=llama-server -m my-model.gguf --port {port}'"
)
@click.argument("model", required=False, type=click.Path())
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="NAME=URL",
    help="Also measure the running server at URL. May be repeated.",
)
@click.option(
    "--beside",
    multiple=True,
    metavar="NAME=COMMAND",
    help="Also start and measure this server; {port} in its command becomes a free port. May be "
    "repeated.",
)
@click.option("--only", default="", help=f"Comma list of cases: {', '.join(_CASES)}.")
@click.option(
    "--rate",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Requests per second; 0 sends all at once.",
)
@click.option("--requests", default=32, show_default=True, type=click.IntRange(1),
              help="Number of requests in the case load.")  # fmt: skip
@options.prompt_tokens(default=128)
@options.max_new_tokens(4, default=64, old=["--answer"])
@click.option(
    "--shared",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Fraction of each prompt that all requests of the load share.",
)
@click.option("--temperature", default=1.0, show_default=True, type=click.FloatRange(0, 2),
              help="Sampling temperature; 0 always picks the most likely token.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0),
              help="Seed for prompts and for the times of requests.")  # fmt: skip
@click.option(
    "--at-once",
    default="1,8,32",
    show_default=True,
    callback=at_once(1024),
    help="Numbers of concurrent answers, a comma list.",
)
@options.option("--turn-tokens", default=2000, show_default=True, type=click.IntRange(1),
                help="Number of tokens that the two turns share.", old=["--turn"])  # fmt: skip
@click.option("--idle", default=1000, show_default=True, type=click.IntRange(1, 10_000),
              help="Number of open connections in the case idle.")  # fmt: skip
@click.option(
    "--vocab",
    type=click.IntRange(8),
    help="Vocabulary size: token ids of prompts are below this (default: the model's; 1000 "
    "without MODEL).",
)
@options.repeats(3, old=["--rounds"])
@loads("device", "dtype", "quant", "act_dtype", "cache")
@options.threads
@options.as_json
def serve(model: str | None, loading: Loading, as_json: bool, **given: Any) -> None:
    """Compare servers: weft's, started for MODEL, and others with OpenAI's protocol.

    Cases: `steps`, the cost of the engine beyond the model's own steps. `cold`, the time from
    starting a server to its first answer. `load`, requests at random times (a Poisson process).
    `at_once`, concurrent answers. `turn`, a second turn after a long first one. `idle`, memory for
    open connections."""
    commands, urls = _named(given["beside"], "--beside"), _named(given["urls"], "--url")
    only = [name for name in given["only"].split(",") if name]
    wrong = [name for name in only if name not in _CASES]
    if wrong:
        raise UsageError(f"no case is called {wrong[0]!r:.40}; there are {', '.join(_CASES)}")
    if model is None and not (commands or urls):
        raise click.UsageError("name a MODEL, or servers by --url or --beside")
    result: dict[str, Any] = {"results": {}}
    vocab = given["vocab"] or 1000
    if model is not None:
        path, load = loading.path(model), loading.options()
        vocab = given["vocab"] or _vocab(path)
        commands = {"weft": command_of(path, load), **commands}
        if not only or "steps" in only:
            result = _steps(path, load, given)
    cases = [name for name in only or _CASES if name != "steps"]
    if cases:
        made = _servers(cases, commands, urls, vocab, given)
        made["results"] = result.pop("results") | made["results"]
        result |= made
    _emit(result, as_json)


def _named(given: Sequence[str], option: str) -> dict[str, str]:
    made = {}
    for one in given:
        name, equals, rest = one.partition("=")
        if not equals or not name or not rest or name in made:
            raise click.UsageError(f"{option} takes NAME=..., each name once; not {one[:60]!r}")
        made[name] = rest
    return made


def _vocab(path: str) -> int:
    import weft
    from weft.models.run.model import Decoder
    from weft.models.weights.placement import ORACLE

    model = weft.load(path, device=ORACLE)  # only maps the file
    if not isinstance(model, Decoder):
        raise UsageError(f"{path} is not a decoder; bench serve measures those")
    return model.config.vocab


def command_of(path: str, load: dict[str, Any]) -> str:
    """The command line that serves the model as it is loaded here."""
    line = [sys.executable, "-m", "weft", "serve", f"model={path}", "--port", "{port}"]
    for name, value in load.items():
        line += [f"--{name.replace('_', '-')}", value]
    return shlex.join(line)


def _steps(path: str, load: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    from weft.backends import registry
    from weft.bench import roofline, steps as bench_steps

    sizes = (given[name] for name in ("prompt_tokens", "max_new_tokens", "repeats", "temperature"))
    o = bench_steps.StepsBenchOptions(path, load, given["at_once"], *sizes)
    return bench_steps.run(o, lambda: roofline.measure(registry.get(load["device"])), note)


def _servers(
    cases: Sequence[str], commands: dict[str, str], urls: dict[str, str], vocab: int,
    given: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    from weft.bench import serve as bench_serve
    from weft.bench.load import RequestLoad

    _open_files(given["idle"] + 256)
    load = RequestLoad(
        prompt=given["prompt_tokens"], answer=given["max_new_tokens"], vocab=vocab,
        **{name: given[name] for name in ("requests", "rate", "shared", "seed", "temperature")},
    )  # fmt: skip
    o = bench_serve.ServeBenchOptions(
        commands, urls, cases, load, given["at_once"], given["turn_tokens"], given["idle"],
        given["repeats"],
    )  # fmt: skip
    return bench_serve.run(o, note)


def _open_files(count: int) -> None:
    """Raises the limit of open files of this process and its children to `count`, as far as the
    system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _emit(result: dict[str, Any], as_json: bool) -> None:
    rows = []
    for case, by in result["results"].items():
        for who, figures in by.items():
            if isinstance(figures, dict):
                rows += [[case, who, k, v] for k, v in figures.items() if k != "range"]
            else:
                rows.append([case, "", who, figures])
    rows += [["peak", who, "rss_mib", v] for who, v in result.get("peak_rss_mib", {}).items()]
    emit(result, as_json, ["case", "server", "figure", "median"], rows)
