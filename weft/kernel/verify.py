"""The rules of the Kernel IR, checked before a kernel is interpreted or rendered."""

from __future__ import annotations

import re
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from weft.core import dtypes as dt
from weft.core.errors import KernelError
from weft.kernel import ir
from weft.kernel.ir import BOOL, I32, Expr, Kernel, Stmt, Type
from weft.kernel.printer import expr_text, shorten, stmt_text, type_text
from weft.kernel.rules import Table
from weft.kernel.tiles import tile_problem, tile_roles
from weft.kernel.types import expr_problem
from weft.kernel.uniform import check_barriers
from weft.kernel.walk import operands

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHARED_LEAVES = (ir.Const, ir.Param, ir.Var, ir.Axis)
_HOST_OPS = ("add", "sub", "mul", "div", "rem", "min", "max")

_right: WeakValueDictionary[int, Kernel] = WeakValueDictionary()


def verify(kernel: Kernel) -> None:
    """Raises KernelError, naming the kernel and the statement, at the first broken rule.

    Every type fits. Names are unique identifiers. Variables and arrays are declared before use and
    in scope; only mutable variables are assigned. An expression object other than Const, Param, Var
    and Axis occurs in one place only. No arithmetic uses f16 or bf16; lanes are powers of two.
    "r" buffers are not stored to and "w" buffers not loaded. Shared arrays are declared at the top
    level. The host can evaluate grid entries. No barrier follows where threads may have diverged.
    A kernel never changes, so one that passed is not checked again.
    """
    if _right.get(id(kernel)) is not kernel:
        _Verifier(kernel).run()
        _right[id(kernel)] = kernel


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: set[str] = set()
        self.seen: set[int] = set()
        self.memory: dict[str, ir.Buffer | ir.Array | ir.Tile] = {}
        self.vars: dict[str, tuple[Type, bool]] = {}  # name -> type, mutable
        self.depth = 0

    def fail(self, message: str) -> NoReturn:
        raise KernelError(f"kernel {self.kernel.name}: {message}")

    def run(self) -> None:
        kernel = self.kernel
        if not _NAME.fullmatch(kernel.name):
            self.fail(f"the kernel's name {kernel.name!r} is not an identifier")
        if len(kernel.threads) != 3 or any(t < 1 for t in kernel.threads):
            self.fail(f"threads must be three positive numbers, not {kernel.threads}")
        if not 1 <= kernel.resident <= 32:
            self.fail(f"{kernel.resident} groups on a core")
        for buffer in kernel.buffers:
            self.declare(buffer.name)
            if buffer.dtype not in dt.DEVICE:
                self.fail(f"buffer {buffer.name} has dtype {buffer.dtype}, which no device holds")
            if buffer.size < 0 or buffer.access not in ("r", "w", "rw"):
                self.fail(f"buffer {buffer.name} has size {buffer.size}, access {buffer.access}")
            self.memory[buffer.name] = buffer
        for g in kernel.grid:
            self.grid(g)
        self.block(kernel.body)
        check_barriers(kernel)
        if kernel.threads != (1, 1, 1):
            tile_roles(kernel)

    def declare(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            self.fail(f"the name {name!r} is not an identifier")
        if name in self.names:
            self.fail(f"the name {name!r} is declared twice")
        self.names.add(name)

    def grid(self, e: Expr) -> None:
        if e.type != I32:
            self.fail(f"a grid entry must be int32, not {e.type}")
        if isinstance(e, ir.Binary) and e.op in _HOST_OPS:
            self.grid(e.a)
            self.grid(e.b)
        elif not isinstance(e, ir.Const | ir.Param):
            self.fail(f"a grid may hold Const, Param and + - * / % min max, not {expr_text(e)}")

    # -- statements

    def block(self, block: ir.Block) -> None:
        """Statements in order; what they declare goes out of scope at the end."""
        outer_vars, outer_memory = dict(self.vars), dict(self.memory)
        self.depth += 1
        for s in block.body:
            self.stmt(s)
        self.depth -= 1
        self.vars, self.memory = outer_vars, outer_memory

    def stmt(self, s: Stmt) -> None:
        rule = _RULES.get(type(s))
        if rule is None:
            self.fail(f"{type(s).__name__} is not a statement")
        if id(s) in self.seen and not isinstance(s, ir.Barrier):
            self.fail(f"one statement object stands in two places: {shorten(stmt_text(s))}")
        self.seen.add(id(s))
        try:
            rule(self, s)
        except KernelError as error:
            prefix = f"kernel {self.kernel.name}: "
            if str(error).startswith(prefix):
                raise  # an inner statement has named itself already
            found = KernelError(f"{prefix}in `{shorten(stmt_text(s))}`: {error}")
            found.stmt = s
            raise found from None

    def let(self, s: ir.Let) -> None:
        self.expr(s.value)
        self.same(s.var.type, s.value.type)
        self.declare_var(s.var, s.mutable)

    def branch(self, s: ir.If) -> None:
        self.expr(s.cond)
        if s.cond.type != BOOL:
            raise KernelError(f"a condition must be bool, not {s.cond.type}")
        self.block(s.then)
        if s.other is not None:
            self.block(s.other)

    def prefetch(self, s: ir.Prefetch) -> None:
        self.target(s.source)
        self.expr(s.index)
        self.same(I32, s.index.type)

    def barrier(self, s: ir.Barrier) -> None:
        """See check_barriers."""

    def declare_var(self, var: ir.Var, mutable: bool) -> None:
        self.local(var.name)
        self.vars[var.name] = (var.type, mutable)

    def local(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise KernelError(f"the name {name!r} is not an identifier")
        if name in self.names:
            raise KernelError(f"the name {name!r} is declared twice")
        self.names.add(name)

    def assign(self, s: ir.Assign) -> None:
        self.expr(s.value)
        known = self.vars.get(s.var.name)
        if known is None:
            raise KernelError(f"{s.var.name} is not declared here")
        if not known[1]:
            raise KernelError(f"{s.var.name} is not mutable")
        self.same(known[0], s.value.type)
        self.same(known[0], s.var.type)

    def store(self, s: ir.Store) -> None:
        self.target(s.target)
        if isinstance(s.target, ir.Buffer) and s.target.access == "r":
            raise KernelError(f"{s.target.name} is read-only")
        for e in (s.index, s.value, s.mask):
            if e is not None:
                self.expr(e)
        if s.value.type.dtype != s.target.dtype:
            raise KernelError(f"{s.target.name} holds {s.target.dtype}, not {s.value.type}")
        problem = access_problem(s.index.type, s.value.type.lanes, s.mask)
        if problem:
            raise KernelError(problem)

    def async_copy(self, s: ir.AsyncCopy) -> None:
        self.stmt(s.store)
        target, value = s.store.target, s.store.value
        shared = isinstance(target, ir.Array) and target.space == "shared"
        if not shared or not isinstance(value, ir.Load) or isinstance(value.source, ir.Array):
            raise KernelError("an async copy goes from a buffer to shared memory as it is")
        if s.store.mask is not None or type(s.barriers) is not int or s.barriers < 1:
            raise KernelError("an async copy is without a mask, a barrier or more before its use")

    def loop(self, s: ir.For) -> None:
        for bound in (s.start, s.stop):
            self.expr(bound)
            self.same(I32, bound.type)
        self.same(I32, s.var.type)
        if s.step < 1:
            raise KernelError(f"the step must be positive, not {s.step}")
        if s.unroll and not (isinstance(s.start, ir.Const) and isinstance(s.stop, ir.Const)):
            raise KernelError("unroll needs constant bounds")
        outer = dict(self.vars)
        self.declare_var(s.var, False)
        self.block(s.body)
        self.vars = outer

    def array(self, s: ir.Array) -> None:
        self.local(s.name)
        if s.size < 1:
            raise KernelError(f"an array needs a positive size, not {s.size}")
        if s.dtype not in dt.DEVICE:
            raise KernelError(f"no device holds {s.dtype}")
        if s.space not in ("shared", "private"):
            raise KernelError(f"the space is shared or private, not {s.space!r}")
        if s.space == "shared" and self.depth != 1:
            raise KernelError("a shared array must be declared at the top of the kernel")
        self.memory[s.name] = s

    def tile(self, s: ir.Tile) -> None:
        self.local(s.name)
        self.tile_rules(s)
        self.memory[s.name] = s

    def tile_rules(self, s: ir.Tile | ir.TileOp) -> None:
        problem = tile_problem(s)
        if problem:
            raise KernelError(problem)

    def tile_op(self, s: ir.TileOp) -> None:
        self.tile_rules(s)
        for tile in s.tiles:
            self.target(tile, ir.Tile)
        if s.memory is None or s.index is None:
            return
        self.target(s.memory)
        self.expr(s.index)
        self.same(I32, s.index.type)
        if isinstance(s.memory, ir.Array):
            if s.memory.space == "private" and self.kernel.threads != (1, 1, 1):
                raise KernelError("a subgroup's tile cannot move to or from one thread's array")
        elif s.memory.access == ("r" if s.op == "store" else "w"):
            raise KernelError(f"{s.memory.name} has access {s.memory.access!r}")

    def target(
        self, memory: ir.Buffer | ir.Array | ir.Tile, kind: Any = ir.Buffer | ir.Array
    ) -> None:
        if self.memory.get(memory.name) is not memory or not isinstance(memory, kind):
            raise KernelError(f"{memory.name} is not declared here")

    def same(self, expected: Type, given: Type) -> None:
        if expected != given:
            raise KernelError(f"expected {type_text(expected)}, got {type_text(given)}")

    # -- expressions

    def expr(self, e: Expr) -> None:
        """Scope, single use and types of `e` and everything below it."""
        if isinstance(e, ir.Var):
            known = self.vars.get(e.name)
            if known is None:
                raise KernelError(f"{e.name} is not declared here")
            if known[0] != e.type:
                raise KernelError(f"{e.name} is {known[0]}, used as {e.type}")
            return
        if not isinstance(e, _SHARED_LEAVES):
            if id(e) in self.seen:
                raise KernelError(f"{expr_text(e)} is used in two places: bind it with let")
            self.seen.add(id(e))
            for child in operands(e):
                self.expr(child)
        if isinstance(e, ir.Load):
            self.target(e.source)
            if isinstance(e.source, ir.Buffer) and e.source.access == "w":
                raise KernelError(f"{e.source.name} is write-only")
            problem = access_problem(e.index.type, e.type.lanes, e.mask)
        else:
            problem = None
        problem = problem or expr_problem(e)
        if problem:
            raise KernelError(f"{shorten(expr_text(e))}: {problem}")


_RULES: Table = {
    ir.Let: _Verifier.let, ir.Assign: _Verifier.assign, ir.Store: _Verifier.store,
    ir.For: _Verifier.loop, ir.If: _Verifier.branch, ir.Array: _Verifier.array,
    ir.Prefetch: _Verifier.prefetch, ir.Block: _Verifier.block, ir.Barrier: _Verifier.barrier,
    ir.Tile: _Verifier.tile, ir.TileOp: _Verifier.tile_op, ir.AsyncCopy: _Verifier.async_copy,
}  # fmt: skip


def access_problem(index: Type, lanes: int, mask: Expr | None) -> str | None:
    """Returns the fault in the index and mask of an access of `lanes` elements, or None."""
    if index.dtype != dt.int32:
        return f"an index must be int32, not {index.dtype}"
    if index.lanes not in (1, lanes):
        return f"an index of {index.lanes} lanes for {lanes} elements"
    if mask is not None and mask.type != Type(dt.bool_, lanes):
        return f"the mask must be {type_text(Type(dt.bool_, lanes))}, not {mask.type}"
    return None
