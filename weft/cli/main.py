"""`weft`: the command line. Commands load on use, so that each starts quickly.

Exit status 0 on success, 2 on wrong usage, 1 on failure with one or two lines on stderr that say
what to do, 130 when interrupted. With --json, stdout carries one JSON object and nothing else.
"""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

import weft
from weft.cli.help import Context, with_help
from weft.core.errors import UsageError, WeftError
from weft.core.text import visible

# command -> (module of weft.cli, one line for the overview)
COMMANDS = {
    "devices": ("devices", "List the devices of this machine, and what each missing one needs."),
    "run": ("run", "Generate text from a prompt, or call a function in a file."),
    "chat": ("chat", "Talk with a model, turn by turn."),
    "eval": ("eval", "Measure a model's perplexity on a text, or compare two models."),
    "pull": ("hub", "Download a model from the Hugging Face hub."),
    "list": ("hub", "List the models on this machine that weft can load by name."),
    "rm": ("hub", "Remove downloaded models, or quantised weights that weft keeps."),
    "embed": ("embed", "Embed texts, or search them."),
    "rerank": ("judge", "Rank documents by how well they match a query."),
    "classify": ("judge", "Label texts, or parts of them."),
    "transcribe": ("transcribe", "Write what is said in a sound file."),
    "train": ("train", "Train or fine-tune a model on text."),
    "launch": ("launch", "Start a command as several ranks, on one machine or many."),
    "merge": ("train", "Add a LoRA adapter to its model."),
    "quantize": ("quantize", "Write a model with weights of fewer bits."),
    "compile": ("compile", "Compile a model to one file, also for a device this machine lacks."),
    "serve": ("serve", "Serve models over HTTP: OpenAI, Anthropic, Ollama, llama-server."),
    "route": ("route", "Balance requests over several servers; a conversation keeps its server."),
    "export": ("export", "Export a model as a static web page."),
    "serve-page": ("export", "Show an exported web page on localhost."),
    "check": ("check", "Test a device against the NumPy reference."),
    "new-backend": ("new_backend", "Write a starter package that adds a device."),
    "explain": ("explain", "Show what a model compiles to: graph, kernels, source."),
    "bench": ("bench", "Time operations, models, training steps or servers."),
    "port": ("port", "Say which names of PyTorch in a script weft.torch has."),
    "tune": ("tune", "Find the fastest kernel configurations for a device."),
}
FUNCTIONS = {
    "compile": "compile_model",
    "eval": "evaluate",
    "list": "list_models",
    "serve-page": "serve_page",
    "new-backend": "new_backend",
}  # commands whose names Python reserves or cannot spell
OLD = {"run-onnx": "run"}  # commands by names that still work, and their new names


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in OLD:
            from weft.cli.options import note_renamed

            note_renamed(ctx, f"weft {cmd_name}", f"weft {OLD[cmd_name]}")
            cmd_name = OLD[cmd_name]
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"weft.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, FUNCTIONS.get(cmd_name, cmd_name))
        return with_help(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  weft run MODEL_FOLDER 'def fibonacci(n):' --max-new-tokens 40",
)
@click.version_option(weft.__version__, prog_name="weft")
def cli() -> None:
    """Run, train and serve models on the CPU, on NVIDIA GPUs (CUDA), on AMD GPUs (HIP), or on GPUs
    through Vulkan, Metal, DX12 or WebGPU."""


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `weft` command."""
    sys.exit(invoke(argv))


def invoke(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status; no error of weft's shows a traceback."""
    _prepare_streams()
    try:
        # Not cli.main(): it would print a line of its own about an interrupt.
        with cli.make_context("weft", list(sys.argv[1:] if argv is None else argv)) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # The reader of our output has gone, so nothing is left to say.
        _let_go()
        return 1
    except UsageError as error:
        return _fail(str(error), 2)
    except WeftError as error:
        return _fail(str(error), 1)
    except OSError as error:
        _let_go()
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{where}{error.strerror or error}", 1)
    except MemoryError as error:
        what = f" ({error})" if str(error) else ""
        return _fail(f"out of memory{what}; try a smaller model, context or batch", 1)
    except Exception as error:
        if os.environ.get("WEFT_TRACEBACK"):
            raise
        first = (str(error).strip().splitlines() or ["no more is known"])[0][:200]
        return _fail(
            f"{type(error).__name__}: {first}\nThis is a mistake of weft's, not yours. With "
            "WEFT_TRACEBACK=1 the same command shows where it happened",
            1,
        )


def _let_go() -> None:
    """Output that cannot be written goes nowhere: the interpreter would try again as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    print(f"weft: {visible(message)}", file=sys.stderr)
    return status


def _prepare_streams() -> None:
    """A character that the terminal's encoding lacks prints as "?" instead of ending the run; a
    closed stream reads as empty and swallows what is written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open until the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
