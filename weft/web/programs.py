"""Programs in the form that a page's player reads: heads as in docs/file-format.md, and their code.

`webgpu.json` holds WGSL, each text once; `wasm.json` names the exports of `kernels*.wasm`. A player
checks everything that it reads here: sizes, places and names (js/program.js).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends import wgsl
from weft.backends.llvm import LlvmTarget, wasm
from weft.core.caps import Caps
from weft.kernel.ir import Kernel
from weft.program.program import Dispatch, Program
from weft.program.serial import head

# What was made of a kernel with some arguments in one buffer: layers are steps of the same kernels.
_Known = dict[tuple[int, frozenset[int]], tuple[wgsl.BindingLayout, str]]
MODULES = {"kernels.wasm": wasm.WASM, "kernels-relaxed.wasm": wasm.RELAXED}


def webgpu(programs: Mapping[str, Program], caps: Caps) -> dict[str, Any]:
    """Programs by name, with WGSL. A step's code is [shader, bindings, whether the grid is folded]:
    a binding is [argument (-1: the scalars), byte offset, bytes, whether it is written (null: a
    uniform buffer)]."""
    kinds: dict[str, str] = {}  # the kind of kernel, by the text of its shader
    known: _Known = {}
    made = {}
    for name, program in programs.items():
        codes = [
            _shader(program, step, caps, kinds, known) if isinstance(step, Dispatch) else None
            for step in program.steps
        ]
        made[name] = _head(program) | {"code": codes}
    # texts alike side by side: gzip looks back 32 KiB
    shaders = sorted(kinds, key=lambda text: (kinds[text], len(text), text))
    number = {text: n for n, text in enumerate(shaders)}
    for each in made.values():
        each["code"] = [code and [number[code[0]], *code[1:]] for code in each["code"]]
    return {"target": "webgpu", "programs": made, "shaders": shaders}


def _head(program: Program) -> dict[str, Any]:
    """A Program's head without what a page's player does not read."""
    found = head(program)
    kernels = [
        {key: k[key] for key in ("name", "buffers", "grid", "flops")} for k in found["kernels"]
    ]
    found.pop("formulas", None)  # their values are among the tensors
    return found | {"kernels": kernels}


def _shader(
    program: Program, step: Dispatch, caps: Caps, kinds: dict[str, str], known: _Known
) -> list[Any]:
    kernel = program.kernels[step.kernel]
    shared = shared_arguments(kernel, step)
    if (id(kernel), shared) not in known:
        lines = wgsl.render(kernel, caps, shared).splitlines()
        text = "\n".join(line.strip() for line in lines if line.strip())
        kinds.setdefault(text, kernel.name.rpartition("_")[0])
        known[id(kernel), shared] = wgsl.plan(kernel, caps, shared), text
    plan, text = known[id(kernel), shared]
    bindings = [[b.buffer, b.offset, b.nbytes, b.writable] for b in plan.bindings]
    return [text, bindings, plan.fold]


def shared_arguments(kernel: Kernel, step: Dispatch) -> frozenset[int]:
    """Read-only arguments in the same buffer as an argument that the step writes."""
    args = list(zip(step.args, kernel.buffers, strict=True))
    written = {ref.buffer for ref, b in args if b.access != "r"}
    return frozenset(
        n for n, (ref, b) in enumerate(args) if b.access == "r" and ref.buffer in written
    )


def webassembly(
    programs: Mapping[str, Program], caps: Caps, modules: Mapping[str, LlvmTarget] = MODULES
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Programs by name, and the modules that have their kernels: by default one plain and one with
    relaxed instructions. A step's code is the number n of the export k<n>. "modules" gives the
    first free address of each, and the position of the flags in its memory."""
    numbers: dict[str, int] = {}
    kernels: list[Kernel] = []
    made = {}
    for name, program in programs.items():
        heads = head(program)["kernels"]
        codes: list[int | None] = []
        for step in program.steps:
            if not isinstance(step, Dispatch):
                codes.append(None)
                continue
            digest = heads[step.kernel]["digest"]
            if digest not in numbers:
                numbers[digest] = len(kernels)
                kernels.append(program.kernels[step.kernel])
            codes.append(numbers[digest])
        made[name] = _head(program) | {"code": codes}
    linked = {n: wasm.compile_module(kernels, caps, target) for n, target in modules.items()}
    about = {n: [wasm.BASE + m.constants, m.flags] for n, m in linked.items()}
    meta = {"target": "wasm", "programs": made, "modules": about, "scratch": caps.scratch_bytes}
    return meta, {name: module.code for name, module in linked.items()}
