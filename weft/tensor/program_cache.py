"""Compiled Programs, kept on disk: a second process does not compile them again.

A key names everything a Program depends on: the graph's parameters, the device's Caps, their tuning
table and the version of weft's own source. The version covers sizes and times of the source files,
so a changed template never gets an old entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.core import versions
from weft.core.caps import Caps
from weft.core.errors import DTypeError, FileFormatError, LimitError
from weft.host import cache as disk
from weft.host.clock import compiling
from weft.program.parted import PartedProgram, ProgramPart
from weft.program.program import Program

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.program.device import Device

LARGE = 64  # nodes from which a traced graph is worth a place on the disk


@compiling.running()
def program_for(
    what: object, caps: Caps, build: Callable[[], Graph], device: Device | None = None
) -> Program:
    """The Program of `build()` for `caps`: from disk, else compiled and put there. A `device` hears
    of each kernel as soon as there is one (Device.prepare).

    `what` identifies the graph: its repr must be the same whenever the graph is the same.
    """
    from weft.compile import tuned
    from weft.program import serial

    cache = disk.programs()
    text = "\n".join(
        ("program", versions.stamp("programs"), caps.text(), tuned.digest(caps), repr(what))
    )
    key = hashlib.sha256(text.encode()).hexdigest()
    stored = cache.get(key)
    if stored is not None:
        try:
            return serial.loads(stored, trusted=True)
        except (FileFormatError, MemoryError):
            pass  # written by something else: compile again and replace it
    from weft.compile.passes import compile_graph

    graph = build()
    program = compile_graph(graph, caps, graph.name, device.prepare if device else None)
    cache.put(key, serial.dumps(program))
    return program


@compiling.running()
def program_from(data: bytes) -> Program:
    """The Program in the bytes of a stranger's file, made harmless: what came of it is kept on
    disk. Raises FileFormatError."""
    from weft.program import serial

    cache, key = disk.programs(), _checked(data)
    stored = cache.get(key)
    if stored is not None:
        try:
            kept = serial.loads(stored, trusted=True)
            return replace(kept, meta={**kept.meta, "foreign": True})
        except (FileFormatError, MemoryError):
            pass
    program = serial.loads(data)
    cache.put(key, serial.dumps(program, report=False))
    return program


def vouch(data: bytes, program: Program) -> None:
    """Notes on disk that the compiler here made `program`, whose bytes are `data`. A file with
    these bytes is then trusted, and loading it skips the proof that it is harmless."""
    from weft.program import serial

    disk.programs().put(_checked(data), serial.dumps(program, report=False))


def _checked(data: bytes) -> str:
    return f"checked {versions.stamp('programs')} {hashlib.sha256(data).hexdigest()}"


def program_of(graph: Graph, caps: Caps, device: Device | None = None) -> Program:
    """The Program of a traced graph, kept on disk when it is large; `device` as in `program_for`.
    Raises as compile_graph."""
    from weft.graph.digest import digest

    if sum(1 for _ in graph.nodes()) < LARGE:
        from weft.compile.passes import compile_graph

        return compile_graph(graph, caps, graph.name, device.prepare if device else None)
    frozen = bool(graph.meta.get("frozen"))
    return program_for(("graph", digest(graph), frozen), caps, lambda: graph, device)


def programs_of(graph: Graph, device: Device, name: str, held: int | None) -> PartedProgram:
    """The Programs of a traced graph: one for the device or, if `held` is given, one for each part
    that the device or the CPU computes. `held`: bytes of the device that the parts find taken for
    them already. An error of the device names the values that it cannot compute."""
    from weft.backends import registry

    if held is not None and not device.is_host:
        from weft.compile.parts import compile_parts

        free = device.free_memory()  # 0 where the device does not say
        memory = free and free + held
        return compile_parts(graph, device.caps, registry.host().caps, name, memory)
    try:
        program = program_of(graph, device.caps, device)
    except (DTypeError, LimitError) as error:
        if device.is_host:
            raise
        from weft.compile import limits

        help_ = limits.offer(graph, device.caps, registry.host().caps)
        raise type(error)(f"{error}{help_}") from None
    outputs = tuple(f"out{i}" for i in range(len(program.outputs)))
    return PartedProgram(name, (ProgramPart("device", program, outputs),), outputs)
