"""Statements: each becomes blocks of LLVM IR, within one group of the grid."""

from __future__ import annotations

from weft.backends.llvm import text
from weft.backends.llvm.values import is_literal, wide, widened
from weft.backends.llvm.writer import LlvmWriter
from weft.kernel import ir
from weft.kernel.linear import address_vars, is_linear
from weft.kernel.rules import Table

_MAX_UNROLL = 4096  # bodies that one fully unrolled loop may expand to


def body(w: LlvmWriter) -> list[str]:
    """Emits the kernel's body. Raises CompileError for what the target cannot express."""
    kernel = w.kernel
    try:
        w.addressing = address_vars(kernel.body)
        w.statement(kernel.body)
    except KeyError as missing:
        raise w.fail(f"{missing} is used before it is declared") from None
    except RecursionError:
        raise w.fail("an expression is nested too deeply; bind its parts with let") from None
    return w.lines


def _block(w: LlvmWriter, s: ir.Block) -> None:
    for inner in s.body:
        w.statement(inner)


def _let(w: LlvmWriter, s: ir.Let) -> None:
    if not s.mutable:
        if s.var.name in w.addressing and is_linear(s.value):
            _bind_wide(w, s.var, wide(w, s.value))
        else:
            operand = w.env[s.var.name] = w.value(s.value)
            if s.var.name in w.addressing and s.var.type == ir.I32:
                w.wides[s.var.name] = widened(w, operand)
        return
    if s.var.name not in w.slots:
        slot = f"%{w.fresh('slot')}"
        w.slots.add(s.var.name)
        w.env[s.var.name] = slot
        w.prologue.append(f"  {slot} = alloca {text.register(s.var.type)}{w.stack_note}")
    _assign(w, s)


def _bind_wide(w: LlvmWriter, var: ir.Var, operand: str) -> None:
    """`var` is `operand`, of the target's index type, which int32 holds."""
    w.wides[var.name] = w.env[var.name] = operand
    if w.target.index == "i64" and not is_literal(operand):
        w.env[var.name] = w.emit(f"trunc nsw i64 {operand} to i32")


def _assign(w: LlvmWriter, s: ir.Let | ir.Assign) -> None:
    operand, place = w.value(s.value), w.env[s.var.name]
    w.lines.append(f"  store {text.register(s.var.type)} {operand}, {w.stack} {place}")


def _if(w: LlvmWriter, s: ir.If) -> None:
    cond = w.value(s.cond)
    if cond in ("true", "false"):
        taken = s.then if cond == "true" else s.other
        if taken is not None:
            w.statement(taken)
        return
    then, other, after = (w.fresh(p) for p in ("then", "else", "after"))
    w.branch(cond, then, other if s.other is not None else after)
    w.label(then)
    w.statement(s.then)
    w.jump(after)
    if s.other is not None:
        w.label(other)
        w.statement(s.other)
        w.jump(after)
    w.label(after)


def _for(w: LlvmWriter, s: ir.For) -> None:
    addresses = s.var.name in w.addressing
    start, stop = (wide(w, x) if addresses else w.value(x) for x in (s.start, s.stop))
    if is_literal(start) and is_literal(stop):
        counts = range(int(start), int(stop), s.step)
        if len(counts) <= (_MAX_UNROLL if s.unroll else 1):
            for i in counts:
                w.env[s.var.name] = w.wides[s.var.name] = str(i)
                w.statement(s.body)
            return
    loop, after = w.fresh("loop"), w.fresh("after")
    t = w.target.index if addresses else "i32"
    counter, following = f"%{w.fresh('i')}", f"%{w.fresh('i')}"
    w.branch(w.emit(f"icmp slt {t} {start}, {stop}"), loop, after)
    before = w.block
    w.label(loop)
    phi = len(w.lines)
    w.lines.append("")  # the phi, once the last block of the body is known
    w.env[s.var.name] = counter
    if addresses:
        _bind_wide(w, s.var, counter)
    w.statement(s.body)
    w.lines[phi] = f"  {counter} = phi {t} [ {start}, %{before} ], [ {following}, %{w.block} ]"
    w.lines.append(f"  {following} = add nsw {t} {counter}, {s.step}")
    w.branch(w.emit(f"icmp slt {t} {following}, {stop}"), loop, after)
    if any(isinstance(inner, ir.Barrier) for inner in s.body.body):
        # A pipeline: unrolled, it would only need more registers.
        w.declared["!loop"] = '!8 = distinct !{!8, !9}\n!9 = !{!"llvm.loop.unroll.disable"}'
        w.lines[-1] += ", !llvm.loop !8"
    w.label(after)


def _barrier(w: LlvmWriter, s: ir.Barrier) -> None:
    """All threads of the group meet (a group of one thread always has)."""


RULES: Table = {
    ir.Block: _block, ir.Let: _let, ir.Assign: _assign, ir.If: _if, ir.For: _for,
    ir.Barrier: _barrier,
}  # fmt: skip
