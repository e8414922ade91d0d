"""The options that several commands share. Each has one name, one default and one help text."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

Command = Callable[..., Any]
REMOVED = "0.3"  # the version of weft without the old spellings
OLD_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Option(click.Option):
    """An option that also answers to its `old` names. Help does not list them, and using one
    prints a note with the new name on stderr."""

    def __init__(self, *names: Any, old: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.old = tuple(old)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for name in self.old:
            twin = copy.copy(self)
            twin.name, twin.opts, twin.secondary_opts, twin.old = name, [name], [], ()
            twin.add_to_parser(parser, ctx)

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        for name in [name for name in self.old if name in opts]:
            note_renamed(ctx, name, self.opts[-1])
            more = opts.get(self.name, ()) if self.multiple else ()
            opts = {**opts, self.name: [*opts[name], *more] if self.multiple else opts[name]}
        return super().consume_value(ctx, opts)


class Dtype(click.Choice[str]):
    """A choice of dtypes by name; the short spellings f32, f16 and bf16 are old."""

    name = "dtype"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        new = OLD_DTYPES.get(value, value)
        if new != value and new in self.choices:
            option = "" if param is None else f"{param.opts[-1]} "
            note_renamed(ctx, f"{option}{value}", f"{option}{new}")
        return super().convert(new, param, ctx)


def note_renamed(ctx: click.Context | None, old: str, new: str) -> None:
    """Prints once per run that a spelling is deprecated."""
    said = set() if ctx is None else ctx.meta.setdefault("weft.renamed", set())
    if old in said or (ctx is not None and ctx.resilient_parsing):
        return
    said.add(old)
    click.echo(f"weft: {old} is deprecated, use {new}; weft {REMOVED} removes {old}", err=True)


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Returns a decorator that adds an Option to a command."""
    return click.option(*names, cls=Option, **settings)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns a decorator that adds several options, listed in the order given."""

    def add(command: Command) -> Command:
        for one in reversed(options):
            command = one(command)
        return command

    return add


# -- how a model is loaded ------------------------------------------------------------------------


DEVICES = (
    "The device to run on: auto (the fastest), cpu, cuda, hip, vulkan, metal, dx12, webgpu or "
    "gpu; with :INDEX to choose one of several, like vulkan:1."
)


def device_option(text: str = DEVICES, **settings: Any) -> Callable[[Command], Command]:
    return option("--device", **{"default": "auto", "show_default": True, "help": text, **settings})


device = device_option()
dtype = option(
    "--dtype", type=Dtype(["float32", "float16", "bfloat16"]),
    help="Convert the weights to this dtype (default: as in the checkpoint).",
)  # fmt: skip
quant = option("--quant", help="Quantise the weights of linear layers while loading: int8, int4, "
               "int4-g64, ... (docs/quantizing.md). weft keeps the result.")  # fmt: skip
act_dtype = option(
    "--act-dtype", type=Dtype(["float32", "bfloat16", "int8"]),
    help="Precision of the inputs of linear layers (default: bfloat16 for a bfloat16 model, "
    "integers of 8 or 15 bits for quantised weights, else float32). int8 gives weights of 6 bits "
    "8-bit inputs.",
)  # fmt: skip
context = option(
    "--context",
    type=click.IntRange(1),
    help="Maximum length in tokens of prompt and answer together.",
)
cache = option(
    "--cache", type=Dtype(["float32", "float16", "bfloat16", "int8", "none"]),
    help="Dtype of the KV cache (default: that of the weights). none: compute the whole text again "
    "for each token (docs/families.md).",
)  # fmt: skip
adapters = option(
    "--adapter", "adapters", multiple=True, metavar="[NAME=]PATH",
    help="Load a LoRA adapter. NAME is how to refer to it (default: the last part of PATH).",
)  # fmt: skip
generation_config = option(
    "--generation-config", type=click.Choice(["auto", "off"]), default="auto", show_default=True,
    help="auto: sample as the model's author advises (generation_config.json, or a GGUF file's "
    "general.sampling keys) where nothing else is asked for. off: never.",
)  # fmt: skip
draft_model = option(
    "--draft-model", metavar="MODEL",
    help="Speculative decoding with this smaller model, which needs the same tokenizer. The text "
    "stays the same.",
)  # fmt: skip
yes = option("--yes", "-y", is_flag=True, help="Download a model without asking.")

# -- what goes in and comes out -------------------------------------------------------------------

as_json = option("--json", "as_json", is_flag=True, help="Print one JSON object.")
inputs = option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy",
                help="Value of one input when MODEL is a function. Inputs without a value get "
                "random numbers.")  # fmt: skip
sizes = option("--size", "sizes", multiple=True, metavar="NAME=N",
               help="Value of a size that the file leaves open, like batch=8.")  # fmt: skip


def output(text: str, **settings: Any) -> Callable[[Command], Command]:
    """The option for the file or folder that a command writes."""
    return option("-o", "--output", help=text, **settings)


def text(text: str, **settings: Any) -> Callable[[Command], Command]:
    """The option for a file of text that a command reads."""
    return option("--text", "source", metavar="FILE", help=text, **settings)


def plot(text: str, **settings: Any) -> Callable[[Command], Command]:
    """The option for a picture that a command draws."""
    return option("--plot", type=click.Path(), help=text, **settings)


# -- counts of tokens, sequences and repetitions ---------------------------------------------------


def max_new_tokens(least: int = 1, **settings: Any) -> Callable[[Command], Command]:
    settings = {"show_default": True, "help": "Maximum number of tokens to generate.", **settings}
    return option("--max-new-tokens", type=click.IntRange(least), **settings)


def prompt_tokens(least: int = 1, **settings: Any) -> Callable[[Command], Command]:
    settings = {"show_default": True, "help": "Length of each prompt in tokens.",
                "old": ["--prompt"], **settings}  # fmt: skip
    return option("--prompt-tokens", type=click.IntRange(least), **settings)


def text_tokens(**settings: Any) -> Callable[[Command], Command]:
    return option(
        "--text-tokens",
        type=click.IntRange(1),
        help="Use only this many tokens of --text.",
        **settings,
    )


def max_batch(
    default: int, text: str = "Maximum number of sequences that generate at once.", **settings: Any
) -> Callable[[Command], Command]:
    return option(
        "--max-batch", default=default, show_default=True, type=click.IntRange(1, 1024), help=text,
        **settings,
    )  # fmt: skip


def top(text: str) -> Callable[[Command], Command]:
    return option("--top", default=5, show_default=True, type=click.IntRange(1), help=text)


def repeats(default: int, least: int = 1, **settings: Any) -> Callable[[Command], Command]:
    return option("--repeats", default=default, show_default=True, type=click.IntRange(least),
                  help="Number of measurements of each case.", **settings)  # fmt: skip


def _use_threads(context: click.Context, option: click.Parameter, count: int | None) -> None:
    if count:
        os.environ["WEFT_NUM_THREADS"] = str(count)


threads = option(
    "--threads", type=click.IntRange(1), callback=_use_threads, expose_value=False,
    help="Number of CPU threads (default: all cores).",
)  # fmt: skip

ranks = option("--ranks", default=2, show_default=True, type=click.IntRange(2, 64),
               help="Number of processes.")  # fmt: skip


def profile(**settings: Any) -> Callable[[Command], Command]:
    """The option that times each kernel: None, "" without a file, or the file's path."""
    return option(
        "--profile", is_flag=False, flag_value="", metavar="[FILE]",
        help="Also time each kernel; with FILE, write a Chrome trace there.", **settings,
    )  # fmt: skip
