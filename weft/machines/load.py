"""A model over the ranks that a launcher started: rank 0 loads and runs it, the others follow."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.backends import registry
from weft.core import notices
from weft.core.errors import OutOfMemoryError, RankError, UsageError, WeftError
from weft.core.hints import command
from weft.host.samples import files_digest
from weft.machines import columns, pipeline
from weft.machines.columns import ColumnRunner, Divided, own_runner
from weft.machines.link import END, FIT, MEASURE, MEET, STEP, Lead, next_command, read
from weft.machines.pipeline import Piped
from weft.machines.placement import Measure, measure, place, sizes
from weft.models.arch.config import DecoderConfig, LayerRange
from weft.models.arch.shares import check_columns
from weft.models.arch.stages import check_parts, check_split, runs_of
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.entry import AUTO, check_batch, is_advised, located, naming
from weft.models.run.loader import load_uncompiled
from weft.models.run.model import Decoder
from weft.models.run.runner import Runner
from weft.models.weights.placement import ORACLE, Placement
from weft.program.bundle import is_bundle
from weft.program.device import Device
from weft.ranks import Ranks, meeting

Load = Callable[..., Decoder]  # with the signature of weft.load


class Way(NamedTuple):
    """The division of models: by `columns` of their matrices, or else by layers, with `split`
    layers per rank (empty: by memory and speed)."""

    columns: bool = False
    split: Sequence[int] = ()


LAYERS = Way()


@contextmanager
def leading(ranks: Ranks, way: Way = LAYERS) -> Iterator[Load]:
    """Wraps rank 0's work, which loads models with the yielded function. At the end it tells the
    other ranks. After an error in a collective operation (`ranks.torn`) this process can only
    exit."""
    lead, status = Lead(ranks), 1
    ranks.watch()
    try:
        yield partial(_load, lead, way)
        status = 0
    except UsageError:
        status = 2
        raise
    finally:
        if not ranks.torn:
            with lead.command(END, status):
                ranks.finish()


def _load(
    lead: Lead, way: Way, path: str | os.PathLike[str], device: Any = "auto",
    dtype: Any = None, context: int | None = None, max_batch: int = 8, fallback: str | None = None,
    act_dtype: Any = None, cache: Any = None, quant: str | None = None, adapters: Any = None,
    generation_config: str = AUTO,
) -> Decoder:  # fmt: skip
    """Does weft.load, divided among the ranks. Raises UsageError also for models that cannot be
    divided, and if another rank cannot take part."""
    ranks, folder = lead.ranks, located(path)
    check_batch(max_batch)
    advised = is_advised(generation_config)
    if is_bundle(folder):
        raise UsageError(f"{folder} is a file of compiled Programs: it runs on one machine")
    if adapters:
        merged = command("merge", folder, "ADAPTER", "-o", "MERGED")
        raise UsageError(f"adapters are for one machine; merge one: {merged}")
    if device == ORACLE:
        raise UsageError("the oracle runs on one machine")
    target, chosen = registry.get(device, fallback), list(way.split)

    def part(c: DecoderConfig) -> DecoderConfig:
        if way.columns:
            check_columns(c, ranks.size, str(folder))
            return _run(c, 0, ranks.size, None)
        check_parts(c, ranks.size, str(folder))
        if not chosen:
            chosen[:] = place(sizes(c, folder), _measured(lead, target))
        check_split(c, chosen, ranks.size)
        return _run(c, 0, ranks.size, chosen)

    asked = Placement(
        target, None, dtype, act_dtype, quant, cache, context, max_batch, part, advised=advised
    )
    with naming(folder):
        model = load_uncompiled(folder, asked)
        files = files_digest(folder)
    assert isinstance(model, Decoder) and model.device is not None
    said = meeting.facts(model.device) | {
        "files": files, "split": chosen or None, "context": model.context, "max_batch": max_batch,
        "dtype": None if dtype is None else str(dtype), "act_dtype": model.config.act_dtype.name,
        "act_by_form": model.config.act_by_form,
        "cache": model.config.kv_dtype.name,
    }  # fmt: skip
    number = lead.enlist(model)
    with lead.command(MEET, number):
        meeting.tell(ranks, said)
        trouble = meeting.troubles(ranks, "")
    if trouble:
        raise UsageError(trouble)

    def made(slots: int, pages: int) -> Runner:
        kind = Divided if way.columns else Piped
        return kind(lead, number, model, slots, pages)

    model.divide(made, partial(_fitting, lead, number, model))
    return model


def _run(
    c: DecoderConfig, rank: int, ranks: int, split: Sequence[int] | None
) -> DecoderConfig:  # fmt: skip
    """Returns the config of a rank's part; without a split, its columns of every layer."""
    own = (
        LayerRange(0, c.layers, rank == 0, True, rank, ranks)
        if split is None
        else runs_of(split)[rank]
    )
    return replace(c, run=own)


def _measured(lead: Lead, device: Device) -> list[Measure]:
    """Returns the memory and speed of each rank."""
    with lead.command(MEASURE):
        return _measures(lead.ranks, device)


def _measures(ranks: Ranks, device: Device) -> list[Measure]:
    """Returns the memory and speed of each rank. All ranks call it."""
    mine = np.array(measure(device, ranks.beside), np.float64)
    told = ranks.gather(mine, [len(mine)] * ranks.size).reshape(ranks.size, -1)
    return [Measure(*(float(v) for v in line)) for line in told]


def _fitting(lead: Lead, number: int, model: Decoder, slots: int) -> int:
    """Returns the number of pages that fit on every rank."""
    with lead.command(FIT, number, slots):
        found = _fits(lead.ranks, model, slots)
    worst = found.index(min(found))
    if not found[worst]:
        raise OutOfMemoryError(
            f"{lead.ranks.name(worst)} lacks the memory for one page of the KV cache"
        )
    return found[worst]


def _fits(ranks: Ranks, model: Decoder, slots: int) -> list[int]:
    """Returns the number of pages that fit on each rank. All ranks call it."""
    try:
        mine = model.own_pages(slots, 0.9 / ranks.beside)
    except OutOfMemoryError:
        mine = 0
    return [int(n) for n in ranks.gather(np.array([mine], np.int64), [1] * ranks.size)]


# -- the others ------------------------------------------------------------------------------------


def follow(ranks: Ranks, path: Callable[[], str], device: Any = "auto") -> int:
    """Runs every rank except 0, with the model at path(); returns the exit status. Raises
    RankError, and errors that keep this rank from computing its share."""
    ranks.watch()
    notices.hush()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets it too, and tells the others
    models: dict[int, Decoder] = {}
    runners: dict[int, CompiledRunner] = {}
    while True:
        command = next_command(ranks)
        if command[0] == END:
            ranks.finish()
            return int(command[1])
        if command[0] == MEASURE:
            _measures(ranks, registry.get(device))
        elif command[0] == MEET:
            if (model := _met(ranks, path, device)) is not None:
                models[int(command[1])] = model
        elif command[0] == FIT and int(command[1]) in models:
            _fits(ranks, models[int(command[1])], int(command[2]))
        elif command[0] == STEP and models:
            _step(ranks, models, runners, command)
        else:
            raise RankError(
                f"{ranks.name(0)} says {command[:8].tolist()}, which is not a command now"
            )


def _met(ranks: Ranks, path: Callable[[], str], device: Any) -> Decoder | None:
    """Returns this rank's part of the model; None if any rank failed to load."""
    said, model = meeting.hear(ranks), None
    try:
        model = _part(ranks, said, Path(path()), device)
        trouble = ""
    except (KeyError, TypeError):
        trouble = "another weft: install the same version everywhere"
    except WeftError as error:
        trouble = f"a problem: {error}"
    trouble = meeting.troubles(ranks, trouble)
    return None if trouble else model


def _part(ranks: Ranks, said: dict[str, Any], path: Path, device: Any) -> Decoder:
    folder = located(path)
    names, split = ("dtype", "act_dtype", "cache", "context", "max_batch"), said["split"]
    asked: dict[str, Any] = {name: said[name] for name in names}

    with naming(folder):
        target = registry.get(device)
        if trouble := meeting.differs(meeting.facts(target), said):
            raise UsageError(trouble)
        if files_digest(folder) != said["files"]:
            raise UsageError(f"other files in {folder}: copy them from rank 0's machine")

        def part(c: DecoderConfig) -> DecoderConfig:
            c = replace(c, act_by_form=said["act_by_form"])
            return _run(c, ranks.rank, ranks.size, split)

        model = load_uncompiled(folder, Placement(target, part=part, advised=False, **asked))
    assert isinstance(model, Decoder)
    if split is None:
        model.divide(partial(own_runner, ranks, model), lambda slots: 0)
    return model


def _step(
    ranks: Ranks, models: dict[int, Decoder], runners: dict[int, CompiledRunner], command: Any
) -> None:  # fmt: skip
    try:
        step = read(command)
    except (ValueError, IndexError):
        raise RankError(f"{ranks.name(0)} sent a damaged step: {command[:8].tolist()}") from None
    for held in (models, runners):
        for number in held.keys() - step.live:
            del held[number]
    if step.runner not in runners:
        made = models[step.model].new_runner(step.slots, step.pages)
        assert isinstance(made, CompiledRunner)
        runners[step.runner] = made
    runner = runners[step.runner]
    if isinstance(runner, ColumnRunner):
        columns.follow_step(ranks, runner, step)
    else:
        pipeline.follow_step(ranks, runner, step)
