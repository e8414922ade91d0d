"""The objects that `weft explain` shows: the steps of a model, of a compiled file, of one
Program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.errors import CompileError, FileFormatError, UsageError, WeftError

if TYPE_CHECKING:
    from weft.backends.llvm.resources import Resources
    from weft.compile.parts import PartsReport
    from weft.compile.report import CompileReport
    from weft.core.caps import Caps
    from weft.graph.ir import Graph
    from weft.kernel.ir import Kernel
    from weft.program.device import Device
    from weft.program.program import Program


MOST_GRAPH = 1 << 30  # bytes of a graph's file


@dataclass(frozen=True)
class Goal:
    """A target that programs are compiled for. `resources` gives the resources that kernels use
    there, if they are known without a run; else `missing` says why not. `library` gives the name of
    the vendor's library, or the reason why there is none."""

    name: str
    caps: Caps
    source: Callable[[Kernel], str]
    resources: Callable[[Program], Mapping[str, Resources]] | None = None
    missing: str = ""
    library: Callable[[], str] = str
    device: Device | None = None  # this machine's device, if there is one


@dataclass(frozen=True)
class ExplainedStep:
    """One Program: its Graph, if that is known, the function that makes it and its report (None
    where none was kept), and its goal if it differs from the whole's."""

    graph: Graph | None
    make: Callable[[], tuple[Program, CompileReport | None]]
    goal: Goal | None = None


@dataclass(frozen=True)
class Explained:
    """`facts` are lines about the whole, of a file; `parts` how a graph was cut that the goal
    cannot run whole."""

    goal: Goal
    steps: Mapping[str, ExplainedStep]
    facts: Mapping[str, str] = field(default_factory=dict)
    parts: PartsReport | None = None


def of_model(model: Any, target: str | None) -> Explained:
    """The steps of a loaded model, for its device or for the architecture `target`."""
    from weft.models.run.compiled_runner import model_caps

    goal = of_device(model.device) if target is None else of_target(target)
    goal = replace(goal, caps=model_caps(goal.caps))
    return Explained(goal, {name: _step(graph, goal) for name, graph in model.graphs().items()})


def of_graph(graph: Graph, goal: Goal, whole: bool = False) -> Explained:
    """A graph alone: one step, or its parts where the goal cannot run it all (never if `whole`)."""
    if whole or goal.caps.is_cpu:
        return Explained(goal, {graph.name: _step(graph, goal)})
    from weft.backends import registry
    from weft.compile.parts import compile_parts

    host = of_device(registry.host())
    parted = compile_parts(graph, goal.caps, host.caps, graph.name)
    if len(parted.parts) == 1 and parted.parts[0].side == "device":
        return Explained(goal, {graph.name: _made(parted.parts[0].program, None, graph)})
    steps = {
        p.program.name: _made(p.program, host if p.side == "host" else None) for p in parted.parts
    }
    return Explained(goal, steps, parts=parted.meta["report"])


def _made(program: Program, goal: Goal | None, graph: Graph | None = None) -> ExplainedStep:
    return ExplainedStep(graph, lambda: (program, program.meta["report"]), goal)


def _step(graph: Graph, goal: Goal) -> ExplainedStep:
    def make() -> tuple[Program, CompileReport]:
        from weft.compile.passes import compile_graph

        program = compile_graph(graph, goal.caps, name=graph.name)
        return program, program.meta["report"]

    return ExplainedStep(graph, make)


def read_graph(path: Path) -> Graph:
    """The graph in a JSON file (docs/file-format.md). Raises FileFormatError."""
    import json

    from weft.graph import serial
    from weft.importers.hf_config import read_bounded
    from weft.ops import make_node
    from weft.ops.check import verify

    try:
        data = json.loads(read_bounded(path, MOST_GRAPH))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON: {error}") from None
    graph = serial.from_data(data, make_node)
    try:
        verify(graph)
    except CompileError as error:
        raise FileFormatError(f"{path}: {error}") from None
    return graph


def of_bundle(path: Path) -> Explained:
    """The Programs of a compiled model's file, without any device."""
    from weft.core.caps import Caps
    from weft.host.records import from_data
    from weft.program import bundle

    read = bundle.read(path)
    caps = from_data(Caps, read.head.get("caps"), f"{path}: caps")
    flags = read.head.get("flags")
    given = [f"{k} {v}" for k, v in flags.items()] if isinstance(flags, dict) else []
    weights = sum(array.nbytes for array in read.tensors.values())
    facts = {
        "model": str(read.head.get("name")), "kind": str(read.head.get("kind")),
        "compiled by": f"weft {read.head.get('weft')}", "for": str(read.head.get("device")),
        "asked for": ", ".join(given) or "nothing special",
        "weights": f"{len(read.tensors)} tensors, {weights:,} bytes",
    }  # fmt: skip
    name = str(read.head.get("device"))
    steps = {n: ExplainedStep(None, _reader(data)) for n, data in read.programs.items()}
    return Explained(_of_caps(name, caps), steps, {k: v[:200] for k, v in facts.items()})


def of_program(path: Path, device: Device) -> Explained:
    """The one Program in a file, which does not say what it was compiled for."""
    from weft.program import serial

    data = serial.read(path)
    return Explained(of_device(device), {path.stem: ExplainedStep(None, _reader(data))})


def _reader(data: bytes) -> Callable[[], tuple[Program, CompileReport | None]]:
    def make() -> tuple[Program, CompileReport | None]:
        from weft.compile.report import CompileReport
        from weft.program import serial
        from weft.tensor.program_cache import program_from

        kept = serial.report(data)
        return program_from(data), None if kept is None else CompileReport.of(kept)

    return make


def of_device(device: Device) -> Goal:
    return Goal(device.info.id, device.caps, device.source, library=device.library, device=device)


def of_target(name: str) -> Goal:
    """A GPU architecture, which this machine does not have to have. Raises UsageError for one that
    weft does not know."""
    from weft.backends.llvm import gpu_target, offline, ptxas

    target = gpu_target(name)
    missing = ""
    if target.code == "ptx" and ptxas.find() is None:
        missing = "registers and spills are not known: " + ptxas.MISSING
    return Goal(
        name,
        target.caps,
        lambda kernel: offline.source(kernel, target),
        None if missing else lambda program: offline.resources(program.kernels, target),
        missing,
    )


def _of_caps(name: str, caps: Caps) -> Goal:
    """The target that a file was compiled for, as far as its text can be shown here."""
    from weft.backends import registry, wgsl

    try:
        return of_target(name)
    except UsageError:
        pass
    here = _here(name, caps)
    if caps.is_cpu:
        return Goal(name, caps, registry.host().source, device=here)
    return Goal(name, caps, lambda kernel: wgsl.render(kernel, caps), device=here)


def _here(name: str, caps: Caps) -> Device | None:
    """A device of this machine that can run Programs compiled for `caps`."""
    from weft.backends import registry

    try:
        device = registry.host() if caps.is_cpu else registry.get(name)
    except WeftError:
        return None
    return None if device.caps.lacks(caps) else device
