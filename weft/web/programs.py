"""Programs as a page's player takes them: their heads as in docs/file-format.md, and code beside.

`webgpu.json` holds WGSL, each text once; `wasm.json` names the exports of `kernels.wasm`. A player
takes nothing from here that it has not checked: sizes, places and names (js/program.js).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends import wgsl
from weft.backends.llvm import wasm
from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.program.program import Dispatch, Program
from weft.program.serial import head


def webgpu(programs: Mapping[str, Program], caps: Caps) -> dict[str, Any]:
    """Programs by name, with WGSL. A step's code is [shader, bindings, whether the grid is folded]:
    a binding is [argument (-1: the scalars), byte offset, bytes, whether it is written]."""
    shaders: dict[str, int] = {}
    made = {}
    for name, program in programs.items():
        codes = [
            _shader(program, step, caps, shaders) if isinstance(step, Dispatch) else None
            for step in program.steps
        ]
        made[name] = head(program) | {"code": codes}
    return {"target": "webgpu", "programs": made, "shaders": list(shaders)}


def _shader(program: Program, step: Dispatch, caps: Caps, shaders: dict[str, int]) -> list[Any]:
    kernel = program.kernels[step.kernel]
    shared = shared_arguments(kernel, step)
    plan = wgsl.plan(kernel, caps, shared)
    text = wgsl.render(kernel, caps, shared)
    bindings = [[b.buffer, b.offset, b.nbytes, b.writable] for b in plan.bindings]
    return [shaders.setdefault(text, len(shaders)), bindings, plan.fold]


def shared_arguments(kernel: Kernel, step: Dispatch) -> frozenset[int]:
    """What is only read, but lies in a buffer that the step also writes."""
    args = list(zip(step.args, kernel.buffers, strict=True))
    written = {ref.buffer for ref, b in args if b.access != "r"}
    return frozenset(
        n for n, (ref, b) in enumerate(args) if b.access == "r" and ref.buffer in written
    )


def webassembly(programs: Mapping[str, Program], caps: Caps) -> tuple[dict[str, Any], bytes]:
    """Programs by name, and the module that has their kernels: a step's code is the number n of the
    export k<n>. `start` is the first address that the module leaves free."""
    numbers: dict[str, int] = {}
    kernels: list[Kernel] = []
    made = {}
    for name, program in programs.items():
        heads = head(program)
        codes: list[int | None] = []
        for step in program.steps:
            if not isinstance(step, Dispatch):
                codes.append(None)
                continue
            digest = heads["kernels"][step.kernel]["digest"]
            if digest not in numbers:
                numbers[digest] = len(kernels)
                kernels.append(program.kernels[step.kernel])
            codes.append(numbers[digest])
        made[name] = heads | {"code": codes}
    module = wasm.compile_module(kernels, caps)
    start = wasm.BASE + module.constants
    meta = {"target": "wasm", "programs": made, "start": start, "scratch": caps.scratch_bytes}
    return meta, module.code
