"""Finds conditions that may differ between the threads of a group, and barriers under one."""

from __future__ import annotations

from weft.core.errors import KernelError
from weft.kernel import ir
from weft.kernel.ir import Expr, Kernel
from weft.kernel.printer import expr_text
from weft.kernel.walk import children, operands, walk


def check_barriers(kernel: Kernel) -> None:
    """Raises KernelError for a barrier (or a subgroup operation) that some threads may not reach.

    The check follows the text: a barrier under a condition or loop bound that depends on the thread
    index, or after a return under one. Values loaded from memory at a uniform index count as
    uniform; the interpreter checks the real behaviour.
    """
    if kernel.threads == (1, 1, 1):
        return
    taint = _Taint(kernel)
    while True:  # variables assigned late in a loop may taint statements before them
        before = len(taint.names)
        taint.report = False
        taint.block(kernel.body, None)
        if len(taint.names) == before:
            break
    taint.report = True
    taint.block(kernel.body, None)


class _Taint:
    """Names (of variables and private arrays) whose value may depend on the thread."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: set[str] = set()
        self.report = False

    def varies(self, e: Expr) -> bool:
        if isinstance(e, ir.Axis):
            return e.kind == "thread" and self.kernel.threads[e.dim] > 1
        if isinstance(e, ir.Var):
            return e.name in self.names
        if isinstance(e, ir.Load) and e.source.name in self.names:
            return True
        return any(map(self.varies, operands(e)))

    def check(self, what: str, under: Expr | None, s: ir.Stmt) -> None:
        if self.report and under is not None:
            found = KernelError(
                f"kernel {self.kernel.name}: {what} is inside a condition that may differ between "
                f"threads: {expr_text(under)}"
            )
            found.stmt = s
            raise found

    def block(self, block: ir.Block, under: Expr | None) -> None:
        for s in block.body:
            for child in children(s) if self.report else ():
                for e in walk(child) if isinstance(child, Expr) else ():
                    if isinstance(e, ir.Collective) and e.op.startswith("subgroup"):
                        self.check(e.op, under, s)
            if isinstance(s, ir.Let | ir.Assign):
                if under is not None or self.varies(s.value):
                    self.names.add(s.var.name)
            elif isinstance(s, ir.Store):
                private = isinstance(s.target, ir.Array) and s.target.space == "private"
                if private and (under is not None or self.varies(s.value) or self.varies(s.index)):
                    self.names.add(s.target.name)
            elif isinstance(s, ir.If):
                inner = s.cond if under is None and self.varies(s.cond) else under
                self.block(s.then, inner)
                if s.other is not None:
                    self.block(s.other, inner)
            elif isinstance(s, ir.For):
                bad = next((x for x in (s.start, s.stop) if self.varies(x)), None)
                if bad is not None:
                    self.names.add(s.var.name)
                self.block(s.body, bad if under is None and bad is not None else under)
            elif isinstance(s, ir.Block):
                self.block(s, under)
            elif isinstance(s, ir.AsyncCopy):
                self.block(ir.Block((s.store,)), under)
            elif isinstance(s, ir.Barrier):
                self.check("a barrier", under, s)
            elif isinstance(s, ir.TileOp):
                self.check(f"tile.{s.op}", under, s)
