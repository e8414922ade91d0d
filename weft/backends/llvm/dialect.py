"""Statements and whole functions: one Kernel becomes two LLVM functions.

`@weft_kernel` is the entry that the runtime calls for a range of linear group numbers:

    void (ptr bufs, ptr scalars, i32 gx, i32 gy, i32 gz, i64 begin, i64 end, ptr scratch)

It loads the buffer pointers and calls `@body`, whose parameters are `noalias` (the Kernel IR
promises that buffers do not overlap), and which loops over the groups, axis 0 fastest.
"""

from __future__ import annotations

from weft.backends.base import Dialect
from weft.backends.llvm import text
from weft.backends.llvm.target import LlvmTarget, cpu_target
from weft.backends.llvm.tiles import Tiles
from weft.backends.llvm.values import is_linear, is_literal
from weft.core.caps import Caps
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.ir import Expr
from weft.kernel.tiles import expand

ENTRY = "weft_kernel"
_MAX_UNROLL = 4096  # bodies that one fully unrolled loop may expand to


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
    if not target.tiles:
        kernel = expand(kernel)
    return _Renderer(kernel, target, caps.scratch_bytes).module()


class _Renderer(Tiles):
    def module(self) -> str:
        kernel = self.kernel
        try:
            self.addressing = _address_vars(kernel.body)
            self.statement(kernel.body)
        except KeyError as missing:
            raise self.fail(f"{missing} is used before it is declared") from None
        except RecursionError:
            raise self.fail("an expression is nested too deeply; bind its parts with let") from None
        body = self.lines
        constants, before, after = self.tile_setup()
        buffers = [f"%buffer{i}" for i in range(len(kernel.buffers))]
        rest = ["ptr noalias %scalars", "i32 %gx", "i32 %gy", "i64 %begin", "i64 %end"]
        args = ", ".join([f"ptr noalias {b}" for b in buffers] + rest + ["ptr noalias %scratch"])
        function = [
            f"; {' '.join(kernel.name.split())}",
            *constants,
            *self._entry(buffers),
            f"define internal void @body({args}) #0 {{",
            "entry:", *self.prologue, *self._load_params(), *before,
            "  %some = icmp slt i64 %begin, %end",
            "  br i1 %some, label %group, label %done",
            "group:",
            "  %linear = phi i64 [ %begin, %entry ], [ %linear.next, %next ]",
            *self._axes(), *body, "  br label %next", "next:",
            "  %linear.next = add nsw i64 %linear, 1",
            "  %more = icmp slt i64 %linear.next, %end",
            "  br i1 %more, label %group, label %done",
            "done:",
            *after,
            *([f"  call void @{self.target.store_fence}()"] if self._fence() else []),
            "  ret void", "}",
            *sorted(self.declared.values()),
            f"attributes #0 = {{ {self.target.kernel_attributes} }}",
            "!0 = !{i32 1}",
        ]  # fmt: skip
        return "\n".join(function) + "\n"

    def _fence(self) -> bool:
        fence = self.target.store_fence
        if self.fences and fence:
            self.declared[fence] = f"declare void @{fence}()"
        return self.fences and bool(fence)

    def _entry(self, buffers: list[str]) -> list[str]:
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

    def _load_params(self) -> list[str]:
        lines = []
        for slot, name in sorted(self.params.items()):
            lines.append(f"  {name}.at = getelementptr i32, ptr %scalars, i64 {slot}")
            lines.append(f"  {name} = load i32, ptr {name}.at")
        return lines

    def _axes(self) -> list[str]:
        """%group0.. from %linear; a grid that is constant 1 along y and z needs no division."""
        lengths = [g.value if isinstance(g, ir.Const) else None for g in self.kernel.grid]
        if lengths[1] == 1 and lengths[2] == 1:
            lines = ["  %group0 = trunc nsw i64 %linear to i32"]
            return lines + [f"  %group{d} = add i32 0, 0" for d in (1, 2) if d in self.axes]
        lines = [
            "  %gx64 = zext i32 %gx to i64",
            "  %upper = udiv i64 %linear, %gx64",
            "  %upper.low = mul i64 %upper, %gx64",
            "  %rem0 = sub i64 %linear, %upper.low",
            "  %group0 = trunc nsw i64 %rem0 to i32",
        ]
        if lengths[2] == 1:
            lines.append("  %group1 = trunc nsw i64 %upper to i32")
            return lines + (["  %group2 = add i32 0, 0"] if 2 in self.axes else [])
        return [
            *lines,
            "  %gy64 = zext i32 %gy to i64",
            "  %group2.wide = udiv i64 %upper, %gy64",
            "  %group2.low = mul i64 %group2.wide, %gy64",
            "  %group1.wide = sub i64 %upper, %group2.low",
            "  %group1 = trunc nsw i64 %group1.wide to i32",
            "  %group2 = trunc nsw i64 %group2.wide to i32",
        ]

    # -- statements

    def statement(self, s: ir.Stmt) -> None:
        if isinstance(s, ir.Block):
            for inner in s.body:
                self.statement(inner)
        elif isinstance(s, ir.Let):
            self._let(s)
        elif isinstance(s, ir.Assign):
            self._set(s.var, s.value)
        elif isinstance(s, ir.Store):
            self.store(s)
        elif isinstance(s, ir.For):
            self._for(s)
        elif isinstance(s, ir.If):
            self._if(s)
        elif isinstance(s, ir.Prefetch):
            self.prefetch(s)
        elif isinstance(s, ir.Array):
            self.declare_array(s)
        elif isinstance(s, ir.Tile):
            self.declare_tile(s)
        elif isinstance(s, ir.TileOp):
            self.tile_op(s)
        elif isinstance(s, ir.Return):
            self.jump("next")
            self.label(self.fresh("dead"))
        elif not isinstance(s, ir.Barrier):  # a group of one thread always meets itself
            raise self.fail(f"the LLVM dialect has no rule for {type(s).__name__}")

    def _let(self, s: ir.Let) -> None:
        if not s.mutable:
            if s.var.name in self.addressing and is_linear(s.value):
                self._bind_wide(s.var, self.wide(s.value))
            else:
                operand = self.env[s.var.name] = self.value(s.value)
                if s.var.name in self.addressing and s.var.type == ir.I32:
                    known = is_literal(operand)
                    wide = operand if known else self.emit(f"sext i32 {operand} to i64")
                    self.wides[s.var.name] = wide
            return
        if s.var.name not in self.slots:
            slot = f"%{self.fresh('slot')}"
            self.slots.add(s.var.name)
            self.env[s.var.name] = slot
            self.prologue.append(f"  {slot} = alloca {text.register(s.var.type)}")
        self._set(s.var, s.value)

    def _bind_wide(self, var: ir.Var, operand: str) -> None:
        """`var` is the 64-bit `operand`, which int32 holds."""
        self.wides[var.name] = self.env[var.name] = operand
        if not is_literal(operand):
            self.env[var.name] = self.emit(f"trunc nsw i64 {operand} to i32")

    def _set(self, var: ir.Var, value: Expr) -> None:
        operand = self.value(value)
        self.lines.append(f"  store {text.register(var.type)} {operand}, ptr {self.env[var.name]}")

    def _if(self, s: ir.If) -> None:
        cond = self.value(s.cond)
        if cond in ("true", "false"):
            taken = s.then if cond == "true" else s.other
            if taken is not None:
                self.statement(taken)
            return
        then, other, after = (self.fresh(p) for p in ("then", "else", "after"))
        self.branch(cond, then, other if s.other is not None else after)
        self.label(then)
        self.statement(s.then)
        self.jump(after)
        if s.other is not None:
            self.label(other)
            self.statement(s.other)
            self.jump(after)
        self.label(after)

    def _for(self, s: ir.For) -> None:
        wide = s.var.name in self.addressing
        start, stop = (self.wide(x) if wide else self.value(x) for x in (s.start, s.stop))
        if is_literal(start) and is_literal(stop):
            counts = range(int(start), int(stop), s.step)
            if len(counts) <= (_MAX_UNROLL if s.unroll else 1):
                for i in counts:
                    self.env[s.var.name] = self.wides[s.var.name] = str(i)
                    self.statement(s.body)
                return
        loop, after, t = self.fresh("loop"), self.fresh("after"), "i64" if wide else "i32"
        counter, following = f"%{self.fresh('i')}", f"%{self.fresh('i')}"
        self.branch(self.emit(f"icmp slt {t} {start}, {stop}"), loop, after)
        before = self.block
        self.label(loop)
        phi = len(self.lines)
        self.lines.append("")  # the phi, once the last block of the body is known
        self.env[s.var.name] = counter
        if wide:
            self._bind_wide(s.var, counter)
        self.statement(s.body)
        self.lines[phi] = (
            f"  {counter} = phi {t} [ {start}, %{before} ], [ {following}, %{self.block} ]"
        )
        self.lines.append(f"  {following} = add nsw {t} {counter}, {s.step}")
        self.branch(self.emit(f"icmp slt {t} {following}, {stop}"), loop, after)
        self.label(after)


def _address_vars(body: ir.Block) -> set[str]:
    """The Vars whose values go into addresses through additions and products alone: their
    arithmetic may be taken not to overflow."""
    lets: list[tuple[str, Expr]] = []
    found: set[str] = set()

    def note(x: Expr) -> None:
        if isinstance(x, ir.Var) and x.type == ir.I32:
            found.add(x.name)
        elif isinstance(x, ir.Binary) and is_linear(x):
            note(x.a)
            note(x.b)

    def walk(node: object) -> None:
        if isinstance(node, ir.Load | ir.Store | ir.Prefetch | ir.TileOp) and node.index:
            note(node.index)
        if isinstance(node, ir.Let | ir.Assign):
            lets.append((node.var.name, node.value))
        if isinstance(node, ir.For):
            lets.extend([(node.var.name, node.start), (node.var.name, node.stop)])
        for child in ir.children(node):
            walk(child)

    walk(body)
    for name, value in reversed(lets):
        if name in found:
            note(value)
    return found
