"""`weft run`, and what it shares with `weft chat`."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from weft.cli import functions
from weft.cli.hub import model_path, takes_model
from weft.cli.machines import divides, on_ranks
from weft.core.errors import FileFormatError, UsageError
from weft.core.hints import command


def generation_options(tokens: int | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that every generating command takes. tokens: the default limit of new tokens
    (None: until the model ends its answer)."""
    until: dict[str, Any] = (
        {} if tokens else {"help": "(default: until the model ends, or the context)"}
    )
    options = [
        click.option("--device", default="auto", show_default=True,
                     help="cpu, vulkan, metal, dx12, webgpu, gpu[:index] or auto."),
        click.option("--dtype", help="float32, float16 or bfloat16 (default: the checkpoint's)."),
        click.option("--quant", help="Bring a folder's linear layers to int4, int8, ... on the way "
                     "in (docs/quantizing.md); kept for the next time."),
        click.option("--act-dtype", help="Of linear inputs where they meet weights of that dtype: "
                     "bfloat16 or float32 (default: bfloat16 for a model in bfloat16); int8 "
                     "quantises what meets packed weights."),
        click.option("--context", type=click.IntRange(1), help="Positions of the KV cache."),
        click.option("--cache", help="What keys and values are kept in: f32, f16, bf16 or int8 "
                     "(default: as the weights)."),
        click.option("--max-new-tokens", default=tokens, show_default=True, type=click.IntRange(1),
                     **until),
        click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0),
                     help="0 picks the likeliest token."),
        click.option("--top-k", default=0, show_default=True, type=click.IntRange(0)),
        click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1)),
        click.option("--repetition-penalty", default=1.0, show_default=True,
                     type=click.FloatRange(0, min_open=True)),
        click.option("--seed", type=int, help="Of what a temperature above 0 draws (default: a "
                     "new one, which is printed)."),
        click.option("--stop", multiple=True, help="Stop before this text; repeat for several."),
        click.option("--drafts", is_flag=True, help="Propose tokens from what was written before: "
                     "quicker where a text repeats itself, and the same text."),
        click.option("--draft-model", metavar="MODEL", help="A smaller model with the same "
                     "tokenizer, which proposes tokens; the text stays the same."),
    ]  # fmt: skip

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return takes_model(command)

    return add


def drawn(options: dict[str, Any]) -> int:
    """The seed of an answer: the one that was given, or a new one where something is drawn."""
    if options["seed"] is not None:
        return int(options["seed"])
    return secrets.randbits(32) if options["temperature"] > 0 else 0


def load_options(options: dict[str, Any]) -> dict[str, Any]:
    """Takes out of `options` those that `weft.load` wants; the rest are generate's."""
    return {
        name: options.pop(name)
        for name in ("device", "dtype", "quant", "act_dtype", "context", "cache")
    }


def load_decoder(path: str, options: dict[str, Any], load: Callable[..., Any] | None = None) -> Any:
    """The model that `path` names, which must be one that generates text; `load` is weft.load
    unless given."""
    import weft
    from weft.models.run.embedder import Encoder

    if os.path.isfile(path) and functions.is_function(path):
        raise UsageError(
            f"{path} is a function; it does not write: "
            f"{command('run', path, '--input', 'NAME=FILE.npy')}"
        )
    yes = options.pop("yes")
    small, texts = options.pop("draft_model"), options.pop("drafts")
    where = {name: options[name] for name in ("device", "context")}
    model = (load or weft.load)(model_path(path, yes), **load_options(options))
    options["draft"] = texts
    if small is not None:
        options["draft"] = weft.load(model_path(small, yes), **where)
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
                f"standard input is not UTF-8 text (byte {error.start}); convert it"
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
        raise click.UsageError(f"there is no file {only}; a prompt of one word may not end so")
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
          weft run net.onnx --input images=photo.npy --output results
"""
)
@click.argument("path", metavar="[MODEL]", required=False)
@click.argument("prompt", metavar="PROMPT", required=False)
@generation_options(64)
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy",
              help="Of a function's file: an input; others get random numbers.")  # fmt: skip
@click.option("--size", "sizes", multiple=True, metavar="NAME=N",
              help="Of a function's file: a size that it leaves open, by its name.")  # fmt: skip
@click.option("--output", type=click.Path(file_okay=False),
              help="Of a function's file: a folder for NAME.npy of results.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@divides
@click.pass_context
def run(
    ctx: click.Context, path: str | None, prompt: str | None, inputs: tuple[str, ...],
    sizes: tuple[str, ...], output: str | None, as_json: bool, parallel: str, split: str | None,
    **options: Any,
) -> int:  # fmt: skip
    """Generate text from PROMPT ('-': standard input) with MODEL, a Hugging Face folder, a GGUF
    file or a name of the hub (ORG/NAME, ORG/NAME:FILE.gguf), or with the small model of Python
    code that comes with weft (which repeats itself without a penalty: its default is 1.1). The
    text goes to stdout as it is made, the speed to stderr.

    Without a PROMPT, MODEL may be the file of a function: an ONNX model, a .pt2 file of
    torch.export, what `weft compile` or Compiled.save made of one. It is called once."""
    if path is None:
        raise click.UsageError(f"give a PROMPT: {command('run', 'def fibonacci(n):')}")
    if prompt is None and os.path.isfile(path) and functions.is_function(path):
        click.echo(functions.run(path, inputs, sizes, options["device"], output, as_json))
        return 0
    if inputs or sizes or output:
        raise click.UsageError("--input, --size and --output are for the file of a function")
    alone = prompt is None
    if prompt is None:
        path, prompt = _boxed(path)
        given = ctx.get_parameter_source("repetition_penalty")
        if given is click.core.ParameterSource.DEFAULT:
            options["repetition_penalty"] = 1.1
    given_path, given_prompt = path, prompt

    def work(load: Callable[..., Any] | None) -> int:
        text = read_prompt(given_prompt)
        _note_on_prompt(given_prompt, alone)
        _run(given_path, text, as_json, options, load)
        return 0

    where = lambda: model_path(given_path, options["yes"])  # noqa: E731
    return on_ranks(where, options["device"], parallel, split, work)


def _run(
    path: str, text: str, as_json: bool, options: dict[str, Any], load: Callable[..., Any] | None
) -> None:  # fmt: skip
    start = time.perf_counter()
    options["seed"] = drawn(options)
    model = load_decoder(path, options, load)
    loaded = time.perf_counter()
    where = model.device.info.id if model.device else "oracle"
    seed = {"seed": options["seed"]} if options["temperature"] > 0 else {}
    if as_json:
        watch = Watch()
        result = model.generate(text, **options)
        click.echo(json.dumps({
            "text": result.text, "ids": list(result.ids), "finish_reason": result.finish_reason,
            "device": where, "precision": model.precision, "load_s": round(loaded - start, 3),
            **seed, **watch.as_json(len(result.ids)),
        }))  # fmt: skip
        return
    first: list[tuple[float, Watch]] = []
    count = 0

    def timed() -> Any:
        nonlocal count
        for piece in model.generate(text, stream=True, **options):
            if not first:
                first.append((time.perf_counter(), Watch()))
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


class Watch:
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
