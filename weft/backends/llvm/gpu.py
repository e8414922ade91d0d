"""GPU kernels: one Kernel becomes one LLVM function that every thread runs (see launch.py)."""

from __future__ import annotations

from weft.backends.llvm import launch, rules, statements, text
from weft.backends.llvm.gpu_target import GpuTarget
from weft.backends.llvm.gpu_threads import index
from weft.backends.llvm.writer import LlvmWriter
from weft.core.errors import LimitError
from weft.kernel import ir
from weft.kernel.clean import cleared


def render_gpu(kernel: ir.Kernel, target: GpuTarget) -> str:
    """The text of one LLVM module with the kernel's function, named `launch.entry(kernel)`.

    Raises LimitError for a group that the architecture cannot hold, CompileError for what it
    cannot express.
    """
    table = rules.NVPTX if target.copies else rules.AMDGCN
    return _module(LlvmWriter(cleared(kernel) if kernel.clean else kernel, target, table), target)


def _module(w: LlvmWriter, target: GpuTarget) -> str:
    kernel, caps = w.kernel, target.caps
    shared = launch.shared_layout(kernel)[1]
    x, y, z = kernel.threads
    if x * y * z > caps.max_threads:
        raise LimitError(
            f"kernel {kernel.name}: {x * y * z} threads per group; {caps.name} takes "
            f"{caps.max_threads}"
        )
    if shared > caps.shared_bytes:
        raise LimitError(
            f"kernel {kernel.name}: {shared} bytes of shared memory; {caps.name} "
            f"has {caps.shared_bytes}"
        )
    body = statements.body(w)
    axes = _axes(w, target)
    sizes = {"x": x, "y": y, "z": z, "n": x * y * z, "resident": kernel.resident}
    attributes = target.attributes.format(**sizes)
    flag = target.module_flags
    flags = [f'!llvm.module.flags = !{{!0}}\n!0 = !{{i32 1, !"{flag}", i32 500}}']
    lines = [
        f"; {' '.join(kernel.name.split())} for {target.arch}",
        f'target triple = "{target.triple}"',
        *w.globals,
        f"define protected {target.convention} void @{launch.entry(kernel)}({_arguments(w)}) #0 {{",
        "entry:", *w.prologue, *_load_params(w), *axes,
        "  br label %group",
        "group:", *body,
        "  br label %done",
        "done:",
        "  ret void", "}",
        *sorted(w.declared.values()),
        f"attributes #0 = {{ {attributes} }}",
        "!1 = !{}",
        *(flags if flag else []),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


# -- arguments and indices


def _arguments(w: LlvmWriter) -> str:
    p = text.pointer(w.target.buffer_space)
    how = {"r": " readonly", "w": " writeonly", "rw": ""}
    args = [
        f"{p} noalias{how[b.access]} align {launch.ALIGN} %buffer{i}"
        for i, b in enumerate(w.kernel.buffers)
    ]
    return ", ".join([*args, f"{p} noalias readonly align {launch.ALIGN} %scalars"])


def _load_params(w: LlvmWriter) -> list[str]:
    lines, p = [], text.pointer(w.target.buffer_space)
    for slot, name in sorted(w.params.items()):
        lines.append(f"  {name}.at = getelementptr i32, {p} %scalars, i64 {slot}")
        lines.append(f"  {name} = load i32, {p} {name}.at, align 4, !invariant.load !1")
    return lines


def _axes(w: LlvmWriter, target: GpuTarget) -> list[str]:
    """%group0.. of the axes in use; of a folded grid from one number and the grid's lengths,
    which the scalars give."""
    outer, w.lines = w.lines, []
    most = (1 << 31) - 1
    if not launch.folded(w.kernel):
        for dim in sorted(w.axes):
            number = index(w, target.group, dim, most if dim == 0 else 65536)
            w.lines.append(f"  %group{dim} = add nuw nsw i32 {number}, 0")
    elif w.axes:
        number = index(w, target.group, 0, most)
        x, y = (w.value(g) for g in w.kernel.grid[:2])
        w.lines.append(f"  %group0 = urem i32 {number}, {x}")
        upper = w.emit(f"udiv i32 {number}, {x}")
        w.lines.append(f"  %group1 = urem i32 {upper}, {y}")
        w.lines.append(f"  %group2 = udiv i32 {upper}, {y}")
    found, w.lines = w.lines, outer
    return found
