"""A source builds some cases: its graphs by step. Nothing is built before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fingerprints.stages import Item
from weft.backends.interp import InterpDevice
from weft.compile import passes
from weft.core.caps import PRESETS
from weft.graph.ir import Graph

# The device for which models are loaded and functions are compiled while they are traced: it does
# not depend on the machine.
DEVICE = InterpDevice(PRESETS["cpu-avx2"])

Built = Iterable[tuple[str, Item]]


@dataclass(frozen=True)
class Source:
    """Cases "group/name.step" made by `build` in an empty folder. `every` compiles them for all of
    CAPS (`emulated`: also for those machines), else for three that `targets.chosen` names. `alone`
    compiles for one target (many similar cases). Cases named by `traced` have no target: their
    graphs are hashed."""

    group: str
    name: str
    build: Callable[[Path], Built]
    every: bool = False
    emulated: bool = False
    alone: bool = False
    traced: Callable[[str], bool] = lambda step: False

    @property
    def label(self) -> str:
        """Its part of the cases' names."""
        return f"{self.group}/{self.name}"


class _Taken(BaseException):
    """Ends a call as soon as it has traced a graph."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph


def traced(call: Callable[[], Any]) -> Graph:
    """The first graph that `call` gives to the compiler, which does not see it. Raises LookupError
    where it gives none."""

    def take(graph: Graph, *_: Any) -> Graph:
        raise _Taken(graph)

    with patch.object(passes, "simplify_graph", take):
        try:
            call()
        except _Taken as taken:
            return taken.graph
    raise LookupError("the call compiled nothing")


def table(group: str, rows: Iterable[str], build: Callable[[str, Path], Built], **given: Any) -> (
    Iterator[Source]
):  # fmt: skip
    """A source per row of a table."""
    for name in rows:
        yield Source(group, name, partial(build, name), **given)
