"""`weft train` and `weft merge`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.cli import options
from weft.cli.loading import Loading, loads, model_path
from weft.core.errors import UsageError
from weft.core.hints import command

if TYPE_CHECKING:
    from weft.ranks import Ranks
    from weft.training.settings import TrainingSettings


@click.command(
    epilog="""\b
Example config.toml:
    [data]
    paths = ["notes"]            # text files or folders; "stdlib": Python's own source
    [model]
    hidden = 192                 # or: from = "FOLDER" or "ORG/NAME", to fine-tune a model
    layers = 5
    [train]
    steps = 1000
    [output]
    folder = "run"
\b
Example:  weft train config.toml
          weft run run/model "Once"
"""
)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--init", is_flag=True, help="Write an example CONFIG with every setting, and stop.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue from the last checkpoint, with the same bits as an uninterrupted run.",
)
@click.option("--until", type=click.IntRange(1), help="Save a checkpoint and stop after this step.")
@options.device_option("The device (default: the setting device in [train]).", default=None)
@options.yes
def train(
    config: Path, init: bool, resume: bool, until: int | None, device: str | None, yes: bool
) -> int:
    """Train or fine-tune a decoder on text. CONFIG is a TOML file with the settings; the result is
    a Hugging Face folder. Ctrl-C saves a checkpoint and stops; --resume continues from it."""
    from weft.host.files import write_text
    from weft.training.settings import example, read_settings

    if init:
        if config.exists():
            raise UsageError(f"{config} is there already; name a new file")
        write_text(config, example())
        click.echo(f"wrote {config}; edit it, then: {command('train', config)}")
        return 0
    from weft.ranks import join
    from weft.training.shared import follow, leading

    def settings() -> TrainingSettings:
        made = _with_paths(read_settings(config), yes)
        if device is None:
            return made
        return replace(made, train=replace(made.train, device=device))

    ranks = join()
    with ranks.leaving():
        if ranks.rank:
            return follow(settings, ranks)
        with leading(ranks):
            return _run(settings(), config, resume, until, device, ranks)


def _run(
    settings: TrainingSettings, config: Path, resume: bool, until: int | None, device: str | None,
    ranks: Ranks,
) -> int:  # fmt: skip
    from weft.training.checkpoints import found
    from weft.training.loop import train as run

    there = [] if device is None else ["--device", device]
    again = f"Go on with: {command('train', config, '--resume', *there)}"
    try:
        result = run(settings, resume, until, ranks)
    except KeyboardInterrupt:  # the second, while the first was being answered
        saved = found(Path(settings.output.folder))
        if not saved:
            raise
        _note(f"interrupted; {saved[-1]} is the last checkpoint. {again}")
        return 130
    if result.interrupted:
        _note(f"interrupted after step {result.step}; saved in {result.folder}. {again}")
        return 130
    steps = result.steps
    if result.early:
        _note(f"stopped early after step {result.step}: the held-out loss fell no more")
    elif result.step < steps:
        _note(f"stopped after step {result.step} of {steps}. {again}")
    elif not result.losses:
        _note(f"finished: {steps} of {steps} steps were done before")
    click.echo(str(result.folder))
    return 0


def _with_paths(settings: TrainingSettings, yes: bool) -> TrainingSettings:
    """The settings with the models that they name as paths, fetched where they are not here."""
    model, tokenizer = settings.model, settings.tokenizer
    if model.base:
        model = replace(model, base=model_path(model.base, yes))
    if tokenizer.base:
        tokenizer = replace(tokenizer, base=model_path(tokenizer.base, yes))
    return replace(settings, model=model, tokenizer=tokenizer)


def _note(text: str) -> None:
    print(f"weft: {text}", file=sys.stderr)


@click.command(epilog="Example:  weft merge BASE run/adapter -o merged")
@click.argument("base", type=click.Path())
@click.argument("adapter", type=click.Path())
@options.output("The folder to write.", required=True, type=click.Path(path_type=Path))
@loads("dtype")
def merge(base: str, adapter: str, output: Path, loading: Loading) -> None:
    """Add the LoRA ADAPTER (PEFT layout) to the weights of BASE: a model folder of its own. Either
    is a folder or ORG/NAME. Packed weights become floats."""
    from weft.core.dtypes import as_dtype
    from weft.models.weights.adapter_base import other_base
    from weft.training.merge import merge_folders

    model, added = (Path(loading.path(path)) for path in (base, adapter))
    dtype = None if loading.dtype is None else as_dtype(loading.dtype)
    wide = merge_folders(model, added, output, dtype)
    if wide is not None:
        _note(f"{base} holds packed weights; {output} holds them in {wide}, with the adapter added")
    why = other_base(model, added)
    if why is not None:
        _note(f"{why}; unless they are the same model, {output} is of no use")
    click.echo(str(output))
