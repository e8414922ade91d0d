"""Computes the records of the cases that were asked for, in one process or in several."""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from fingerprints.sources import Source
from fingerprints.stages import Fingerprints, Record, Texts, said
from fingerprints.targets import CAPS, EMULATED, chosen
from weft.core.errors import UsageError, WeftError
from weft.graph.ir import Graph

TESTS = Path(__file__).resolve().parent.parent.parent / "tests"
# The folders of the tests' tables.
FOLDERS = ("", "models", "importers", "backends", "nn", "program")


@dataclass(frozen=True)
class Wanted:
    """A selection of cases: those of `groups` (empty: all), with `only` in the source's name, for
    targets with `target` in their name; `everywhere` adds all targets. `last` is the last stage to
    compute, `keep` the folder for texts."""

    groups: tuple[str, ...] = ()
    only: str = ""
    target: str = ""
    everywhere: bool = False
    last: str = "text"
    keep: Path | None = None


def sources(groups: Sequence[str] = ()) -> list[Source]:
    """The sources of the given groups, or of all, in a fixed order. Only their tables are read.
    Raises UsageError for an unknown group."""
    for folder in reversed(FOLDERS):
        if str(TESTS / folder) not in sys.path:
            sys.path.insert(1, str(TESTS / folder))
    from fingerprints import checks, imports, models, nets, packed

    known: dict[str, Callable[[], Iterator[Source]]] = {}
    for module in (models, packed, nets, imports, checks):
        known |= module.GROUPS
    if unknown := [name for name in groups if name not in known]:
        raise UsageError(
            f"no group of cases is called {unknown[0]!r}; there are {', '.join(known)}"
        )
    made = [s for name, found in known.items() if not groups or name in groups for s in found()]
    if len({source.label for source in made}) < len(made):
        raise ValueError("two sources have one name")
    return made


def selected(wanted: Wanted) -> list[Source]:
    """The sources of the cases that were asked for."""
    return [s for s in sources(wanted.groups) if wanted.only in s.label]


def targets_of(source: Source, case: str, wanted: Wanted) -> list[str]:
    """The targets of a case: names of CAPS."""
    if wanted.everywhere or (source.every and source.emulated):
        names = list(CAPS)
    elif source.every:
        names = [name for name in CAPS if not name.startswith(EMULATED)]
    else:
        names = chosen(case, 1 if source.alone else 3)
    return [name for name in names if wanted.target in name]


def records(source: Source, made: Fingerprints, wanted: Wanted) -> dict[str, Record]:
    """ "case @target" -> its record, for every case of a source."""
    found: dict[str, Record] = {}
    gc.disable()  # graphs are many small objects that die together
    with tempfile.TemporaryDirectory() as name, _quiet():
        try:
            for step, item in source.build(Path(name)):
                case = f"{source.label}.{step}"
                if isinstance(item, Graph) and source.traced(step):
                    found[case] = made.traced(item)
                    continue
                for target in targets_of(source, case, wanted):
                    found[f"{case} @{target}"] = made.of(item, target)
        except WeftError as error:  # what it could not build is a difference, not the run's end
            found[f"{source.label} cannot be built"] = {"error": said(error)}
    made.forget()
    gc.enable()
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps other packages' messages out of a run's output."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def run(wanted: Wanted, jobs: int, note: Callable[[str], None]) -> dict[str, Record]:
    """All records, in the order of the sources. `note` receives lines about the progress."""
    todo = selected(wanted)
    parts: dict[int, dict[str, Record]] = {}
    began = time.monotonic()

    def done(number: int, part: dict[str, Record]) -> None:
        parts[number] = part
        seconds = time.monotonic() - began
        note(f"{len(parts)} of {len(todo)} sources, {seconds:.0f} s: {todo[number].label}")

    if jobs == 1:
        made = Fingerprints(Texts(wanted.keep), wanted.last)
        for i, source in enumerate(todo):
            done(i, records(source, made, wanted))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, _begin, (wanted,)) as pool:
            futures = {pool.submit(_work, s.label): i for i, s in enumerate(todo)}
            for future in as_completed(futures):
                done(futures[future], future.result())
    return {case: record for i in range(len(todo)) for case, record in parts[i].items()}


# -- in a process of its own ----------------------------------------------------------------------

_STATE: list[tuple[dict[str, Source], Fingerprints, Wanted]] = []


def _begin(wanted: Wanted) -> None:
    by_label = {source.label: source for source in selected(wanted)}
    _STATE.append((by_label, Fingerprints(Texts(wanted.keep), wanted.last), wanted))


def _work(label: str) -> dict[str, Record]:
    by_label, made, wanted = _STATE[0]
    return records(by_label[label], made, wanted)


def default_jobs() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
