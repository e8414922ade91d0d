"""Statements: each Kernel IR statement becomes blocks of LLVM IR. The subclass that writes the
whole module defines a group (an iteration of a loop on a CPU, threads together on a GPU)."""

from __future__ import annotations

from weft.backends.llvm import text
from weft.backends.llvm.outer import Outer
from weft.backends.llvm.values import is_literal
from weft.kernel import ir
from weft.kernel.linear import address_vars, is_linear

_MAX_UNROLL = 4096  # bodies that one fully unrolled loop may expand to
_RULES: dict[type, str] = {
    ir.Block: "_block", ir.Let: "_let", ir.Assign: "_assign", ir.Store: "store", ir.For: "_for",
    ir.If: "_if", ir.Array: "declare_array", ir.Tile: "declare_tile", ir.TileOp: "tile_op",
    ir.AsyncCopy: "async_copy", ir.Prefetch: "prefetch", ir.Barrier: "barrier",
}  # fmt: skip


class Statements(Outer):
    """Adds statements to the emitter. `end` is the block where a thread is done with its group."""

    end = "next"

    def body(self) -> list[str]:
        """Emits the kernel's body. Raises CompileError for what the target cannot express."""
        kernel = self.kernel
        try:
            self.addressing = address_vars(kernel.body)
            self.statement(kernel.body)
        except KeyError as missing:
            raise self.fail(f"{missing} is used before it is declared") from None
        except RecursionError:
            raise self.fail("an expression is nested too deeply; bind its parts with let") from None
        return self.lines

    def barrier(self, s: ir.Barrier) -> None:
        """All threads of the group meet (a group of one thread always has)."""

    def async_copy(self, s: ir.AsyncCopy) -> None:
        """A store that hardware may do by itself."""
        self.store(s.store)

    def statement(self, s: ir.Stmt) -> None:
        rule = _RULES.get(type(s))
        if rule is None:
            raise self.fail(f"the LLVM dialect has no rule for {type(s).__name__}")
        getattr(self, rule)(s)

    def _block(self, s: ir.Block) -> None:
        for inner in s.body:
            self.statement(inner)

    def _let(self, s: ir.Let) -> None:
        if not s.mutable:
            if s.var.name in self.addressing and is_linear(s.value):
                self._bind_wide(s.var, self.wide(s.value))
            else:
                operand = self.env[s.var.name] = self.value(s.value)
                if s.var.name in self.addressing and s.var.type == ir.I32:
                    self.wides[s.var.name] = self.widened(operand)
            return
        if s.var.name not in self.slots:
            slot = f"%{self.fresh('slot')}"
            self.slots.add(s.var.name)
            self.env[s.var.name] = slot
            self.prologue.append(f"  {slot} = alloca {text.register(s.var.type)}{self.stack_note}")
        self._assign(s)

    def _bind_wide(self, var: ir.Var, operand: str) -> None:
        """`var` is `operand`, of the target's index type, which int32 holds."""
        self.wides[var.name] = self.env[var.name] = operand
        if self.target.index == "i64" and not is_literal(operand):
            self.env[var.name] = self.emit(f"trunc nsw i64 {operand} to i32")

    def _assign(self, s: ir.Let | ir.Assign) -> None:
        operand, place = self.value(s.value), self.env[s.var.name]
        self.lines.append(f"  store {text.register(s.var.type)} {operand}, {self.stack} {place}")

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
        loop, after = self.fresh("loop"), self.fresh("after")
        t = self.target.index if wide else "i32"
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
        if any(isinstance(inner, ir.Barrier) for inner in s.body.body):
            # A pipeline: unrolled, it would only need more registers.
            self.declared["!loop"] = '!8 = distinct !{!8, !9}\n!9 = !{!"llvm.loop.unroll.disable"}'
            self.lines[-1] += ", !llvm.loop !8"
        self.label(after)
