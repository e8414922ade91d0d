"""Statements and whole functions: one Kernel becomes two LLVM functions.

The entry `@weft_kernel` runs a range of linear group numbers for the runtime:

    void (ptr bufs, ptr scalars, i32 gx, i32 gy, i32 gz, i64 begin, i64 end, ptr scratch)

It loads the buffer pointers and calls `@body`, which loops over the groups, axis 0 fastest. The
parameters of `@body` are `noalias` (the Kernel IR promises that buffers do not overlap).
"""

from __future__ import annotations

from weft.backends.llvm import outer, rules, statements, tiles
from weft.backends.llvm.target import LlvmTarget, cpu_target
from weft.backends.llvm.writer import LlvmWriter
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.tiles import expand, products
from weft.program.device import Dialect

ENTRY = "weft_kernel"


class LlvmDialect(Dialect):
    """Renders kernels for one LlvmTarget."""

    name = "llvm"

    def __init__(self, target: LlvmTarget | None = None) -> None:
        self.target = target or cpu_target("", frozenset())

    def render(self, kernel: ir.Kernel, caps: Caps) -> str:
        """The LLVM IR of a kernel with one thread per group. Raises CompileError otherwise."""
        return render(kernel, caps, self.target)


def render(kernel: ir.Kernel, caps: Caps, target: LlvmTarget) -> str:
    """The text of one LLVM module with the kernel's entry, `@weft_kernel`."""
    if kernel.threads != (1, 1, 1):
        raise CompileError(
            f"kernel {kernel.name}: {kernel.threads} threads per group; this target runs one "
            "(choose templates by Caps with max_threads=1)"
        )
    if outer.takes(kernel, target):
        w = LlvmWriter(kernel, outer.streaming(target), rules.OUTER, caps.scratch_bytes)
        return _module(w, outer.attributes(target))
    if not target.tiles or products(kernel) == {"mma_tn"}:
        kernel = expand(kernel)
    table = rules.AMX if target.tiles else rules.CPU
    return _module(LlvmWriter(kernel, target, table, caps.scratch_bytes))


def _module(w: LlvmWriter, attributes: str = "#0") -> str:
    kernel, body = w.kernel, statements.body(w)
    before, after = tiles.setup(w)
    buffers = [f"%buffer{i}" for i in range(len(kernel.buffers))]
    rest = ["ptr noalias %scalars", "i32 %gx", "i32 %gy", "i64 %begin", "i64 %end"]
    args = ", ".join([f"ptr noalias {b}" for b in buffers] + rest + ["ptr noalias %scratch"])
    features = f' "target-features"="{w.features}"' if w.features else ""
    function = [
        f"; {' '.join(kernel.name.split())}",
        *w.globals,
        *_entry(w, buffers),
        f"define internal void @body({args}) {attributes} {{",
        "entry:", *w.prologue, *_load_params(w), *before,
        "  %some = icmp slt i64 %begin, %end",
        "  br i1 %some, label %group, label %done",
        "group:",
        "  %linear = phi i64 [ %begin, %entry ], [ %linear.next, %next ]",
        *_axes(w), *body, "  br label %next", "next:",
        "  %linear.next = add nsw i64 %linear, 1",
        "  %more = icmp slt i64 %linear.next, %end",
        "  br i1 %more, label %group, label %done",
        "done:",
        *after,
        *([f"  call void @{w.target.store_fence}()"] if _fence(w) else []),
        "  ret void", "}",
        *sorted(w.declared.values()),
        f"attributes #0 = {{ {w.target.kernel_attributes}{features} }}",
        "!0 = !{i32 1}",
    ]  # fmt: skip
    return "\n".join(function) + "\n"


def _fence(w: LlvmWriter) -> bool:
    fence = w.target.store_fence
    if w.fences and fence:
        w.declared[fence] = f"declare void @{fence}()"
    return w.fences and bool(fence)


def _entry(w: LlvmWriter, buffers: list[str]) -> list[str]:
    lines = [
        f"define void @{ENTRY}(ptr %bufs, ptr %scalars, i32 %gx, i32 %gy, "
        "i32 %gz, i64 %begin, i64 %end, ptr %scratch) #0 {"
    ]
    for i, name in enumerate(buffers):
        lines.append(f"  %at{i} = getelementptr ptr, ptr %bufs, i64 {i}")
        lines.append(f"  {name} = load ptr, ptr %at{i}")
    args = ", ".join(
        [f"ptr {b}" for b in buffers]
        + ["ptr %scalars", "i32 %gx", "i32 %gy", "i64 %begin", "i64 %end", "ptr %scratch"]
    )
    return [*lines, f"  call void @body({args})", "  ret void", "}"]


def _load_params(w: LlvmWriter) -> list[str]:
    lines = []
    for slot, name in sorted(w.params.items()):
        lines.append(f"  {name}.at = getelementptr i32, ptr %scalars, i64 {slot}")
        lines.append(f"  {name} = load i32, ptr {name}.at")
    return lines


def _axes(w: LlvmWriter) -> list[str]:
    """%group0.. from %linear; a grid that is constant 1 along y and z needs no division."""
    lengths = [g.value if isinstance(g, ir.Const) else None for g in w.kernel.grid]
    if lengths[1] == 1 and lengths[2] == 1:
        lines = ["  %group0 = trunc nsw i64 %linear to i32"]
        return lines + [f"  %group{d} = add i32 0, 0" for d in (1, 2) if d in w.axes]
    lines = [
        "  %gx64 = zext i32 %gx to i64",
        "  %upper = udiv i64 %linear, %gx64",
        "  %upper.low = mul i64 %upper, %gx64",
        "  %rem0 = sub i64 %linear, %upper.low",
        "  %group0 = trunc nsw i64 %rem0 to i32",
    ]
    if lengths[2] == 1:
        lines.append("  %group1 = trunc nsw i64 %upper to i32")
        return lines + (["  %group2 = add i32 0, 0"] if 2 in w.axes else [])
    return [
        *lines,
        "  %gy64 = zext i32 %gy to i64",
        "  %group2.wide = udiv i64 %upper, %gy64",
        "  %group2.low = mul i64 %group2.wide, %gy64",
        "  %group1.wide = sub i64 %upper, %group2.low",
        "  %group1 = trunc nsw i64 %group1.wide to i32",
        "  %group2 = trunc nsw i64 %group2.wide to i32",
    ]
