"""`weft run`, and what it shares with `weft chat`."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from weft.cli import functions, options, pictures
from weft.cli.loading import Loading, loads
from weft.cli.machines import divides, on_ranks
from weft.core.errors import FileFormatError, UsageError
from weft.core.hints import command

_ADVISED = "default: the model's own, else "


def generates(tokens: int | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of commands that generate text. `tokens`: the default limit of new tokens
    (None: until the model ends its answer)."""
    until = str(tokens or "until the model ends its answer or the context is full")
    return options.together(
        loads(
            "device", "dtype", "quant", "act_dtype", "context", "cache", "adapters",
            "generation_config",
        ),
        options.max_new_tokens(help=f"Maximum number of tokens to generate ({_ADVISED}{until})."),
        click.option("--temperature", type=click.FloatRange(0), help="Sampling temperature; 0 "
                     f"always picks the most likely token ({_ADVISED}0)."),
        click.option("--top-k", type=click.IntRange(0), help="Sample from this many most likely "
                     f"tokens; 0: all ({_ADVISED}0)."),
        click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Sample from the "
                     f"most likely tokens whose probabilities add up to this ({_ADVISED}1)."),
        click.option("--min-p", type=click.FloatRange(0, 1), help="Leave out tokens less likely "
                     f"than this times the most likely one ({_ADVISED}0)."),
        click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True),
                     help="Values above 1 make tokens of the text so far less likely "
                     f"({_ADVISED}1)."),
        click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Seed for sampling "
                     "(default: a random one, which is printed)."),
        click.option("--stop", multiple=True, help="Stop before this text. May be repeated."),
        click.option("--drafts", is_flag=True, help="Speculative decoding with tokens from "
                     "earlier text: faster if the text repeats itself. The text stays the same."),
        options.draft_model,
    )  # fmt: skip


def drawn(model: Any, given: dict[str, Any]) -> dict[str, int]:
    """The seed of an answer, {"seed": seed}: the one that was given, or a new one; {} where nothing
    is drawn."""
    asked = {name: given[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    if not model.defaults.sampling(asked).temperature:
        return {}
    return {"seed": int.from_bytes(os.urandom(4)) if given["seed"] is None else int(given["seed"])}


def load_decoder(
    path: str, loading: Loading, given: dict[str, Any], load: Callable[..., Any] | None = None
) -> Any:
    """The model that `path` names, which must be one that generates text; `load` is weft.load
    unless given. `given` are the options of `generates`; those that are left are generate's."""
    import weft
    from weft.models.run.embedder import Encoder
    from weft.models.run.judge import Judge

    if os.path.isfile(path) and functions.is_function(path):
        raise UsageError(
            f"{path} is a function; it does not write: "
            f"{command('run', path, '--input', 'NAME=FILE.npy')}"
        )
    if len(loading.adapters) > 1:
        raise UsageError("--adapter: a text takes one adapter; weft serve takes several")
    small, texts = given.pop("draft_model"), given.pop("drafts")
    home = loading.path(path)
    adapters = loading.adapted(Path(home))
    model = (load or weft.load)(home, adapters=adapters or None, **loading.options())
    given["stop"] = given["stop"] or None
    given |= {"draft": texts, "adapter": next(iter(adapters), "")}
    if small is not None:
        where = Loading(loading.device, context=loading.context, yes=loading.yes)
        given["draft"] = where.load(small)
    if isinstance(model, Judge):
        raise UsageError(
            f"{path} judges texts; it does not write: {command('classify', path, 'TEXT')}"
        )
    if isinstance(model, Encoder):
        raise UsageError(
            f"{path} is an encoder; it does not write: {command('embed', path, 'TEXT')}"
        )
    return model


def read_prompt(prompt: str) -> str:
    """The prompt; "-" reads it from standard input. UTF-8 only."""
    if prompt == "-":
        try:
            return sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"standard input is not UTF-8 text (byte {error.start}); convert it with iconv -t "
                f"UTF-8"
            ) from None
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError("the prompt is not valid UTF-8; check the terminal's encoding") from None
    return prompt


def _boxed(only: str) -> tuple[str, str]:
    """(model, prompt) where one argument was given: the model in the box, and that argument."""
    from weft.hub.box import CODE, NAMES
    from weft.hub.names import parse

    name = parse(only)
    named = name is not None and (only.endswith(".gguf") or name.store.is_dir())
    named = named or only in NAMES
    file = only.endswith((".gguf", ".weft")) and os.path.isfile(only)
    if os.path.isdir(only) or file or named:
        raise click.UsageError(f"{only} is a model; give it a PROMPT")
    if re.fullmatch(r"\S+\.(gguf|weft|onnx|pt2)", only):
        raise click.UsageError(
            f"{only} not found; to use it as a prompt, name a MODEL first: MODEL {only}"
        )
    return CODE, only


def _note_on_prompt(prompt: str, alone: bool) -> None:
    """Adds a note if a prompt used as text looks like a file or a folder. A whole line of Python or
    prose does not."""
    from weft.hub.names import parse

    path = prompt.removeprefix("@")
    if os.path.isfile(path):  # unlike pathlib's, False for what is too long for a name
        note = f"{path} is a file; its name is the prompt. Its text: {command('run', '-')} < "
        note += shlex.quote(path)
    elif alone and re.fullmatch(r"(\w:)?[\w.~-]*([/\\][\w.~-]*)+", prompt):
        note = f"no such folder {prompt}: taken as a prompt for the model in the box"
        if parse(prompt):
            note += f"\nas a model's name it takes a PROMPT too: {command('run', prompt, 'PROMPT')}"
    else:
        return
    print(f"weft: {note}", file=sys.stderr)


def stream(pieces: Any) -> str:
    """Prints pieces as they come; returns the whole text."""
    text = []
    for piece in pieces:
        text.append(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()
    return "".join(text)


@click.command(
    epilog="""\b
Example:  weft run 'def fibonacci(n):' --max-new-tokens 40
          weft run MODEL - < prompt.txt
          weft run ORG/NAME:Q4_K_M 'Once upon a time'
          weft run MODEL 'What is this?' --image cat.jpg
          weft run net.onnx --input images=photo.npy --output results
          weft run detector.onnx --image street.jpg --output results
"""
)
@click.argument("path", metavar="[MODEL]", required=False)
@click.argument("prompt", metavar="PROMPT", required=False)
@generates(64)
@click.option(
    "--image",
    "images",
    multiple=True,
    type=click.Path(dir_okay=False),
    help="A picture for PROMPT to be about, or for a net to look at (PNG, JPEG, WebP, GIF, BMP, "
    "TIFF). May be repeated.",
)
@pictures.watches
@pictures.sees
@options.inputs
@options.sizes
@options.output(
    "A folder for a function's results, NAME.npy, or for pictures with the answers.",
    type=click.Path(file_okay=False),
)
@options.as_json
@divides
def run(
    path: str | None, prompt: str | None, images: tuple[str, ...], inputs: tuple[str, ...],
    sizes: tuple[str, ...], output: str | None, as_json: bool, parallel: str, split: str | None,
    task: str | None, threshold: float, stretch: bool, videos: tuple[str, ...],
    fps: float | None, frames: int | None, loading: Loading, **given: Any,
) -> int:  # fmt: skip
    """Generate text from PROMPT ('-': standard input). MODEL is a Hugging Face folder, a GGUF file
    or a hub name (ORG/NAME, ORG/NAME:FILE.gguf). The default is box, a small model of Python code
    that comes with weft; its default repetition penalty is 1.1. weft prints the text to stdout
    while it is generated, and the speed to stderr.

    Without a PROMPT, MODEL may be a function: an ONNX file, a .pt2 file of torch.export, or a file
    that `weft compile` or Compiled.save wrote. It is called once; with --image it looks at pictures
    and says what it sees (docs/pictures.md)."""
    if path is None:
        raise click.UsageError(f"give a PROMPT: {command('run', 'def fibonacci(n):')}")
    shown = [*images, *pictures.videos_of(videos, fps, frames)]
    if prompt is None and os.path.isfile(path) and functions.is_function(path):
        if videos:
            raise click.UsageError("--video is for a PROMPT; a net looks at pictures: --image")
        if images:
            if inputs or sizes:
                raise click.UsageError("--image is the input; leave --input and --size out")
            click.echo(pictures.see(path, images, loading.device, output, as_json, task, threshold,
                                    stretch))  # fmt: skip
            return 0
        click.echo(functions.run(path, inputs, sizes, loading.device, output, as_json))
        return 0
    if inputs or sizes or output or task or stretch:
        raise click.UsageError(
            "--input, --size, --output, --task and --stretch are for the file of a function"
        )
    alone = prompt is None
    if prompt is None:
        path, prompt = _boxed(path)
        if given["repetition_penalty"] is None:
            given["repetition_penalty"] = 1.1
    given_path, given_prompt = path, prompt

    def work(load: Callable[..., Any] | None) -> int:
        text = read_prompt(given_prompt)
        _note_on_prompt(given_prompt, alone)
        _run(given_path, text, shown, as_json, loading, given, load)
        return 0

    return on_ranks(lambda: loading.path(given_path), loading.device, parallel, split, work)


def _run(
    path: str, said: str, shown: Sequence[Any], as_json: bool, loading: Loading,
    given: dict[str, Any], load: Callable[..., Any] | None,
) -> None:  # fmt: skip
    start = time.perf_counter()
    model = load_decoder(path, loading, given, load)
    seed = drawn(model, given)
    given["seed"] = seed.get("seed", 0)
    text = model.look(said, shown) if shown else said
    loaded = time.perf_counter()
    where = model.device.info.id if model.device else "oracle"
    if as_json:
        watch = SpeedMeter()
        result = model.generate(text, **given)
        click.echo(json.dumps({
            "text": result.text, "ids": list(result.ids), "finish_reason": result.finish_reason,
            "device": where, "precision": model.precision, "load_s": round(loaded - start, 3),
            **seed, **watch.as_json(len(result.ids)),
        }))  # fmt: skip
        return
    first: list[tuple[float, SpeedMeter]] = []
    count = 0

    def timed() -> Any:
        nonlocal count
        for piece in model.generate(text, stream=True, **given):
            if not first:
                first.append((time.perf_counter(), SpeedMeter()))
            count += len(piece.ids)
            yield piece

    if not stream(timed()).endswith("\n"):
        click.echo()
    begun = first[0][0] if first else time.perf_counter()
    rate = f", {first[0][1].rate(count - 1)}" if count > 1 else ""
    print(
        f"{where}, {model.precision}: loaded in {loaded - start:.2f} s, "
        f"first text after {begun - loaded:.2f} s{rate}"
        + "".join(f", seed {n}" for n in seed.values()),
        file=sys.stderr,
    )


class SpeedMeter:
    """The speed from here on, with and without the time that goes into compiling: the first run on
    a machine compiles, later ones find it done."""

    def __init__(self) -> None:
        from weft.host.clock import compiling

        self._compiling = compiling
        self._start, self._compiled = time.perf_counter(), compiling.total

    def _seconds(self) -> tuple[float, float]:
        """(all, of it compiling)."""
        passed = max(time.perf_counter() - self._start, 1e-9)
        return passed, min(self._compiling.total - self._compiled, passed)

    def rate(self, tokens: int) -> str:
        """Both speeds, or the one where compiling took less than a hundredth."""
        passed, compiled = self._seconds()
        speed = f"{tokens / max(passed - compiled, 1e-9):.1f} tok/s"
        if compiled < passed / 100:
            return speed
        return f"{speed}\n({tokens / passed:.1f} with {compiled:.2f} s of compiling)"

    def as_json(self, tokens: int) -> dict[str, float]:
        """Seconds of generating, and how many of them compiling took; tokens per second of the
        rest."""
        passed, compiled = self._seconds()
        speed = tokens / max(passed - compiled, 1e-9)
        return {
            "generate_s": round(passed, 3), "compile_s": round(compiled, 3),
            "tok_s": round(speed, 1),
        }  # fmt: skip
