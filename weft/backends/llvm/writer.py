"""The writer of one kernel's LLVM IR: the state that all rules share.

Each file of rules has a table `RULES` with a function (writer, node) for some classes of nodes. The
tables are joined in rules.py to one per kind of target. A target's own entry replaces the usual
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from weft.backends.llvm import text
from weft.backends.llvm.target import LlvmTarget
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.align import accesses
from weft.kernel.ir import Expr, Stmt, Type
from weft.kernel.rules import Rules

T = TypeVar("T")


class LlvmWriter:
    """Writes the body of one kernel by a target's rules.

    `env` maps Var names to operands; a mutable Var maps to the pointer of its stack slot (listed in
    `slots`). `wides` holds the 64-bit form of the int32 Vars that form addresses, so that LLVM does
    not widen them in loops. `places` maps buffer and array names to pointers, `spaces` names to
    address spaces other than 0, `aligned` (by `id`) the loads and stores to a power of two that
    divides their index.
    """

    def __init__(
        self, kernel: ir.Kernel, target: LlvmTarget, rules: Rules, scratch_bytes: int = 0
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.rules = rules
        self.lines: list[str] = []
        self.globals: list[str] = []  # definitions before the function
        self.prologue: list[str] = []  # stack slots and scratch pointers, at function entry
        self.declared: dict[str, str] = {}
        self.block = "group"  # the label of the block that is being written
        self.env: dict[str, str] = {}
        self.slots: set[str] = set()
        self.wides: dict[str, str] = {}
        self.addressing: set[str] = set()  # Vars whose arithmetic forms addresses
        self.axes: set[int] = set()  # axes of the grid that are used
        self.params: dict[int, str] = {}
        self.places = {b.name: f"%buffer{i}" for i, b in enumerate(kernel.buffers)}
        space = target.buffer_space
        self.spaces = dict.fromkeys(self.places, space) if space else {}
        self.aligned: dict[int, int] = {}
        if target.base_align > 1:
            self.aligned = {id(a.node): a.aligned for a in accesses(kernel)}
        self.stack = text.pointer(target.stack_space)
        self.stack_note = f", addrspace({target.stack_space})" if target.stack_space else ""
        self.tiles: dict[str, tuple[int, ir.Tile]] = {}  # name -> a CPU's register and tile
        self.stack_used = 0  # bytes of private arrays on the stack
        self.scratch_used, self.scratch_bytes = 0, scratch_bytes
        self.features = ""  # LLVM's, of the function, beside the target's own
        self.fences = False  # True once a store has bypassed the cache
        self._count = 0
        self._kept: dict[Callable[..., Any], Any] = {}

    # -- rules

    def value(self, x: Expr) -> str:
        """Writes `x` and returns its operand."""
        operand: str = self.rules[type(x)](self, x)
        return operand

    def statement(self, s: Stmt) -> None:
        """Writes `s`."""
        self.rules[type(s)](self, s)

    def kept(self, make: Callable[[LlvmWriter], T]) -> T:
        """Returns `make(self)`, made when first asked for: what some rules know of the kernel, or
        remember between nodes."""
        if make not in self._kept:
            self._kept[make] = make(self)
        found: T = self._kept[make]
        return found

    def fail(self, why: str) -> CompileError:
        return CompileError(f"kernel {self.kernel.name}: {why}")

    # -- lines and names

    def fresh(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, instruction: str) -> str:
        """Appends `%new = instruction` and returns the new operand."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def call(
        self, name: str, result: str, args: Sequence[tuple[str, str]], convergent: bool = False
    ) -> str:
        """A call of an intrinsic; `args` are (type, operand). Returns the operand ("" if void).
        Set `convergent` where LLVM does not mark the intrinsic as such itself."""
        types = ", ".join(type_.split(" align")[0] for type_, _ in args)
        self.declared[name] = f"declare {result} @{name}({types})"
        line = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"
        if result == "void":
            self.lines.append(f"  {line}")
            return ""
        return self.emit(line + " convergent" * convergent)

    def intrinsic(self, base: str, type_: Type, *operands: str) -> str:
        """A call of `base` overloaded on one type that is also the type of every argument."""
        t = text.register(type_)
        name = f"{base}.{text.mangle(text.REGISTER[type_.dtype], type_.lanes)}"
        return self.call(name, t, [(t, x) for x in operands])

    # -- blocks

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, cond: str, yes: str, no: str) -> None:
        self.lines.append(f"  br i1 {cond}, label %{yes}, label %{no}")

    def jump(self, name: str) -> None:
        self.lines.append(f"  br label %{name}")
