"""Statements and the whole module: Kernel -> WGSL."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.backends.wgsl import analysis, constants, layout, memory, prelude
from weft.backends.wgsl.analysis import Source
from weft.backends.wgsl.expr import Writer, names, wtype
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.ir import Kernel
from weft.program.device import Dialect

MAX_UNROLL = 64  # trips; a longer loop stays a loop

ENTRY = "main"


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
    w = Writer(kernel, caps)
    w.sources, w.aligned = analysis.sources(kernel, caps, split)
    with np.errstate(all="ignore"):
        _block(w, kernel.body)
        body, w.lines = w.lines, []
        _prologue(w, plan.fold)
    return _module(w, plan, w.lines + body)


# -- statements ---------------------------------------------------------------------------------


def _block(w: Writer, block: ir.Block) -> None:
    for stmt in block.body:
        _STATEMENT[type(stmt)](w, stmt)


def _let(w: Writer, s: ir.Let) -> None:
    if not s.mutable:
        known = constants.fold(s.value, w.known)
        if known is not None:
            w.known[s.var.name] = known
            return
    word = "var" if s.mutable else "let"
    for name, text in zip(names(s.var), w.value(s.value), strict=True):
        kind = f": {wtype(s.var.type)}" if s.mutable else ""
        w.emit(f"{word} {name}{kind} = {text};")


def _assign(w: Writer, s: ir.Assign) -> None:
    texts = w.value(s.value)
    if len(texts) > 1:  # all chunks are read before the first is written
        texts = [w.temp(f"({t})") for t in texts]
    for name, text in zip(names(s.var), texts, strict=True):
        w.emit(f"{name} = {text};")


def _for(w: Writer, s: ir.For) -> None:
    start, stop = constants.number(s.start, w.known), constants.number(s.stop, w.known)
    if start is not None and stop is not None:
        trips = range(start, stop, s.step)
        if not trips:
            return
        if (s.unroll and len(trips) <= MAX_UNROLL) or len(trips) == 1:
            _unrolled(w, s, trips)
            return
    name = names(s.var)[0]
    first, last = w.scalar(s.start), w.temp(w.scalar(s.stop))
    w.emit(f"for (var {name} = {first}; {name} < {last}; {name} += {s.step}i) {{")
    _nested(w, s.body)
    w.emit("}")


def _unrolled(w: Writer, s: ir.For, trips: range) -> None:
    outer = dict(w.known)
    for value in trips:
        w.known = outer | {s.var.name: np.array([value], np.int32)}
        w.emit("{")
        _nested(w, s.body)
        w.emit("}")
    w.known = outer


def _tile(w: Writer, s: ir.Tile | ir.TileOp) -> None:
    raise CompileError(f"kernel {w.kernel.name}: WGSL has no matrix registers for tiles")


def _nested(w: Writer, block: ir.Block) -> None:
    outer = dict(w.known)
    w.depth += 1
    _block(w, block)
    w.depth -= 1
    w.known = outer


def _if(w: Writer, s: ir.If) -> None:
    known = constants.number(s.cond, w.known)
    if known is not None:
        chosen = s.then if known else s.other
        if chosen is not None:
            w.emit("{")
            _nested(w, chosen)
            w.emit("}")
        return
    w.emit(f"if ({w.scalar(s.cond)}) {{")
    _nested(w, s.then)
    if s.other is not None:
        w.emit("} else {")
        _nested(w, s.other)
    w.emit("}")


def _array(w: Writer, s: ir.Array) -> None:
    source = w.sources[id(s)]
    if s.space == "private":
        w.emit(f"var {source.name}: {_array_type(source)};")


def _array_type(source: Source) -> str:
    return f"array<{prelude.vec(source.word, source.k)}, {source.units}>"


def _barrier(w: Writer, s: ir.Barrier) -> None:
    w.emit("workgroupBarrier();")
    if any(b.access == "rw" for b in w.kernel.buffers):
        w.emit("storageBarrier();")


def _nothing(w: Writer, s: ir.Stmt) -> None:
    """Ignores Prefetch, a hint that WGSL lacks."""


_STATEMENT: dict[type, Callable[..., None]] = {
    ir.Block: _block, ir.Let: _let, ir.Assign: _assign, ir.Store: memory.store, ir.For: _for,
    ir.AsyncCopy: lambda w, s: memory.store(w, s.store),
    ir.If: _if, ir.Array: _array, ir.Barrier: _barrier, ir.Prefetch: _nothing,
    ir.Tile: _tile, ir.TileOp: _tile,
}  # fmt: skip


# -- the module ---------------------------------------------------------------------------------


def _prologue(w: Writer, fold: bool) -> None:
    """Group and thread indices as i32."""
    for dim, axis in enumerate("xyz"):
        if f"thread{dim}" in w.used:
            w.emit(f"let w_thread{dim} = i32(w_local.{axis});")
    if fold:
        return _folded(w)
    for dim, axis in enumerate("xyz"):
        if f"group{dim}" in w.used:
            w.emit(f"let w_group{dim} = i32(w_group.{axis});")


def _folded(w: Writer) -> None:
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


def _module(w: Writer, plan: layout.Layout, body: list[str]) -> str:
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
            text.append(f"var<workgroup> {source.name}: {_array_type(source)};")
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


def _binding(w: Writer, number: int, b: layout.Binding) -> str:
    head = f"@group(0) @binding({number}) var<storage, {'read_write' if b.writable else 'read'}>"
    if b.buffer == layout.SCALARS:
        return f"{head} w_scalars: array<i32>;"
    source = w.sources[id(w.kernel.buffers[b.buffer])]
    word = f"atomic<{source.word}>" if source.atomic else prelude.vec(source.word, source.k)
    name = source.name
    if len(source.parts) > 1:
        unit_bytes = source.k * (2 if source.word == "f16" else 4)
        name += f"p{source.parts.index(b.offset // unit_bytes)}"
    return f"{head} {name}: array<{word}>;"
