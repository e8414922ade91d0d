"""The whole module: Kernel -> WGSL."""

from __future__ import annotations

import numpy as np

from weft.backends.wgsl import analysis, layout, memory, prelude, statements, values
from weft.backends.wgsl.writer import WgslWriter
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.ir import Kernel
from weft.kernel.rules import Rules
from weft.program.device import Dialect

ENTRY = "main"
RULES = Rules("WGSL", values.RULES, memory.RULES, statements.RULES)


class Wgsl(Dialect):
    """WGSL for GPU-style kernels. Features of Caps that matter: "shader-f16" (native f16 arrays),
    "enable-subgroups" (write `enable subgroups;`, which browsers need and naga refuses)."""

    name = "wgsl"

    def render(self, kernel: Kernel, caps: Caps) -> str:
        return render(kernel, caps)


def render(kernel: Kernel, caps: Caps, writable: frozenset[int] = frozenset()) -> str:
    """The WGSL module of a kernel, entry point "main" (see layout.plan for `writable`).

    Raises CompileError for what WGSL cannot express and LimitError for what `caps` cannot hold.
    """
    if caps.is_cpu:
        raise CompileError(f"kernel {kernel.name}: {caps.name} is a CPU; WGSL needs GPU-style Caps")
    layout.check(kernel, caps)
    plan = layout.plan(kernel, caps, writable)
    split: dict[int, tuple[int, ...]] = {}
    for b in plan.bindings:
        split[b.buffer] = (*split.get(b.buffer, ()), b.offset)
    w = WgslWriter(kernel, caps, RULES)
    w.sources, w.aligned = analysis.sources(kernel, caps, split)
    with np.errstate(all="ignore"):
        w.statement(kernel.body)
        body, w.lines = w.lines, []
        _prologue(w, plan.fold)
    return _module(w, plan, w.lines + body)


def _prologue(w: WgslWriter, fold: bool) -> None:
    """Group and thread indices as i32."""
    for dim, axis in enumerate("xyz"):
        if f"thread{dim}" in w.used:
            w.emit(f"let w_thread{dim} = i32(w_local.{axis});")
    if fold:
        return _folded(w)
    for dim, axis in enumerate("xyz"):
        if f"group{dim}" in w.used:
            w.emit(f"let w_group{dim} = i32(w_group.{axis});")


def _folded(w: WgslWriter) -> None:
    """The place in a grid whose groups are counted through x and y; groups beyond its end leave
    (all threads of a group alike, so barriers stay uniform)."""
    for dim in range(3):
        w.emit(f"let w_size{dim} = {w.scalar(w.kernel.grid[dim])};")
    w.emit("let w_flat = i32(w_group.y) * i32(w_groups.x) + i32(w_group.x);")
    w.emit("if (w_flat >= w_size0 * w_size1 * w_size2) { return; }")
    line = all(isinstance(g, ir.Const) and int(g.value) == 1 for g in w.kernel.grid[1:])
    found = (
        "w_flat" if line else "w_flat % w_size0",
        "w_flat / w_size0 % w_size1",
        "w_flat / w_size0 / w_size1",
    )
    for dim, text in enumerate(found):
        if f"group{dim}" in w.used:
            w.emit(f"let w_group{dim} = {text};")


def _module(w: WgslWriter, plan: layout.BindingLayout, body: list[str]) -> str:
    text = []
    if any(s.word == "f16" for s in w.sources.values()):
        text.append("enable f16;")
    if "subgroups" in w.used and "enable-subgroups" in w.caps.features:
        text.append("enable subgroups;")
    for n, b in enumerate(plan.bindings):
        text.append(_binding(w, n, b))
    if "w_one" in w.used:
        text.append("var<private> w_one: u32 = 1u;")
    for node in layout.facts(w.kernel).arrays:
        if node.space == "shared":
            source = w.sources[id(node)]
            text.append(f"var<workgroup> {source.name}: {memory.array_type(source)};")
    text.append(prelude.functions(w.helpers))
    for buffer in w.kernel.buffers:
        source = w.sources[id(buffer)]
        if len(source.parts) > 1:
            text.append(memory.part_functions(source, buffer.access != "r"))
    x, y, z = w.kernel.threads
    text.append(
        f"@compute @workgroup_size({x}, {y}, {z})\n"
        f"fn {ENTRY}(@builtin(workgroup_id) w_group: vec3<u32>,\n"
        "        @builtin(num_workgroups) w_groups: vec3<u32>,\n"
        "        @builtin(local_invocation_id) w_local: vec3<u32>) {"
    )
    return "\n".join([*text, *body, "}", ""])


def _binding(w: WgslWriter, number: int, b: layout.Binding) -> str:
    if b.buffer == layout.SCALARS:
        count = b.nbytes // 16  # elements of a uniform array are on multiples of 16 bytes
        return f"@group(0) @binding({number}) var<uniform> w_scalars: array<vec4<i32>, {count}>;"
    head = f"@group(0) @binding({number}) var<storage, {'read_write' if b.writable else 'read'}>"
    source = w.sources[id(w.kernel.buffers[b.buffer])]
    word = f"atomic<{source.word}>" if source.atomic else prelude.vec(source.word, source.k)
    name = source.name
    if len(source.parts) > 1:
        unit_bytes = source.k * (2 if source.word == "f16" else 4)
        name += f"p{source.parts.index(b.offset // unit_bytes)}"
    return f"{head} {name}: array<{word}>;"
