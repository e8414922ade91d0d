"""The cases of `weft check`, traced: nodes of the Kernel IR, primitives and their gradients,
templates; every public function; graphs that are cut into parts."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import weft
from fingerprints.sources import DEVICE, Built, table, traced
from weft.backends import registry
from weft.backends.interp import InterpDevice
from weft.compile.parts import compile_parts
from weft.conform import kernels, packed, primitives, templates
from weft.conform.report import Skip
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.errors import GradientError
from weft.program.program import Program

LEVELS = {"primitives": primitives, "templates": templates, "packed": packed}
ON_VALUES = {"nonzero", "unique_values"}  # functions whose shapes depend on values


def _level(name: str, folder: Path) -> Built:
    """The graphs of a level's checks; those that only look at Caps compile nothing."""
    with patch.dict(registry._open_devices, {DEVICE.info.id: DEVICE}):
        for label, check in LEVELS[name].checks(DEVICE):
            try:
                graph = traced(check)
            except (LookupError, Skip):
                continue
            yield label.replace(" ", "_"), graph


class _Recorder(InterpDevice):
    """Keeps the first Program that it meets."""

    def bind(self, program: Program, buffers: Any) -> Any:
        raise _Bound(program)


class _Bound(BaseException):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program


def _nodes(name: str, folder: Path) -> Built:
    """Every node and dtype of the Kernel IR, as kernels of each target's shape."""

    @functools.cache
    def checks(caps: Caps) -> dict[str, Callable[[], float]]:
        return dict(kernels.checks(_Recorder(caps)))

    def made(label: str, caps: Caps) -> Program:
        try:
            checks(caps)[label]()
        except (_Bound, Skip, KeyError) as met:
            if isinstance(met, _Bound):
                return met.program
        return Program("none", (), (), (), (), (), ())

    for label in checks(DEVICE.caps):
        yield label.replace(" ", "_"), functools.partial(made, label)


# -- public functions -----------------------------------------------------------------------------


def functions() -> list[str]:
    """Public functions, a method or its function once (tests/backends/tiny_cases.py)."""
    from tiny_cases import HOST, PUBLIC, maker

    names = sorted(n for n in PUBLIC if n.rpartition(".")[2] not in HOST | ON_VALUES)
    return list({n.rpartition(".")[2]: n for n in names if maker(n) is not None}.values())


def _functions(name: str, folder: Path) -> Built:
    from tiny_cases import OWN, PUBLIC, maker
    from tiny_kit import Draw, tensors

    for each in functions():
        fn, arrays = maker(each)(Draw(random.Random(f"{each} 0").randint), PUBLIC[each])
        specs = [weft.Spec(t.shape, t.dtype) for t in map(weft.tensor, arrays)]
        yield each, _traced(lambda *ts, fn=fn: tensors(fn(*ts)), specs)
        if each.rpartition(".")[2] not in OWN and any(dt.as_dtype(s.dtype).is_float for s in specs):
            with contextlib.suppress(GradientError):  # functions that write have no gradient
                yield f"{each}.gradient", _traced(_gradient(fn, tensors), specs)


def _gradient(fn: Callable[..., Any], tensors: Callable[[Any], list[Any]]) -> Callable[..., Any]:
    """The gradients of half the sum of fn's results; its results where there are none."""

    def run(*given: Any) -> Any:
        given = tuple(t.detach().requires_grad_() if t.dtype.is_float else t for t in given)
        results = tensors(fn(*given))
        out = [t for t in results if t.dtype.is_float and t.requires_grad]
        if not out:
            return results
        total = sum(((t.cast(weft.float32) * 0.5).sum() for t in out), weft.tensor(0.0))
        leaves = [t for t in given if t.dtype.is_float]
        return [g for g in weft.grad(total, leaves) if g is not None] or results

    return run


def _traced(fn: Callable[..., Any], specs: list[Any]) -> Any:
    return weft.trace(fn, specs, "f")


# -- parts ----------------------------------------------------------------------------------------


def _parts(name: str, folder: Path) -> Built:
    """Yields each part that a device without narrow floats computes of a graph with narrow
    floats."""
    narrow = frozenset({dt.float16, dt.bfloat16})

    def half(x: Any) -> Any:
        y = (x * 2).exp()
        return (y.cast("float16") + 1).cast("float32") * x

    graph = weft.trace(half, [weft.Spec((4, 8), dt.float32)])
    for i in range(2):

        def part(caps: Caps, number: int = i) -> Program:
            lacking = replace(caps, dtypes=caps.dtypes - narrow)
            made = compile_parts(graph, lacking, DEVICE.caps, "half")
            return [p.program for p in made.parts if p.side == "device"][number]

        yield f"{i}", part


GROUPS = {
    "nodes": lambda: table("nodes", ("kernels",), _nodes, every=True, emulated=True),
    "checks": lambda: table("checks", LEVELS, _level, alone=True),
    "functions": lambda: table("functions", ("public",), _functions, alone=True),
    "parts": lambda: table("parts", ("half",), _parts),
}
