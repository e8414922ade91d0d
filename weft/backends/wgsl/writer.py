"""The writer of one kernel's WGSL: the state that all rules share.

The files of rules have a table `RULES` with a function (writer, node) for some classes of nodes;
dialect.py joins them. A value of up to four lanes is one WGSL scalar or vector; a wider one is a
list of vec4 chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.backends.wgsl import constants
from weft.backends.wgsl.analysis import REGISTER, StorageWords
from weft.backends.wgsl.constants import literal
from weft.backends.wgsl.prelude import vec
from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.core.dtypes import DType
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.rules import Rules

_ATOM = re.compile(r"^(\w+|\(-\d+i\)|i32\(2147483648u\)|-?[\d.]+f)$")


def chunk(lanes: int) -> int:
    """Lanes of one WGSL vector of a value of `lanes`."""
    return min(lanes, 4)


def wtype(type_: ir.Type) -> str:
    """The WGSL type of one chunk of a value."""
    return vec(REGISTER[type_.dtype.kind], chunk(type_.lanes))


@dataclass
class WgslWriter:
    """The state of rendering one kernel: text so far, what is known, what was used."""

    kernel: ir.Kernel
    caps: Caps
    rules: Rules
    sources: dict[int, StorageWords] = field(default_factory=dict)
    aligned: dict[int, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    known: dict[str, constants.Lanes] = field(default_factory=dict)  # variables of one value here
    helpers: set[tuple[str, int]] = field(default_factory=set)
    used: set[str] = field(default_factory=set)  # "group0", "thread1", "w_one", ...
    count: int = 0

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def temp(self, text: str) -> str:
        """A name for the value of `text` (atoms are their own name)."""
        if _ATOM.match(text):
            return text
        self.count += 1
        self.emit(f"let t{self.count} = {text};")
        return f"t{self.count}"

    def helper(self, name: str, lanes: int) -> str:
        self.helpers.add((name, lanes))
        return f"{name}{lanes}"

    def fail(self, what: str) -> CompileError:
        return CompileError(f"kernel {self.kernel.name}: {what}")

    def literal(self, value: float | int | bool, dtype: DType) -> str:
        text = literal(value, dtype)
        if "w_one" in text:
            self.used.add("w_one")
        return text

    # -- rules

    def statement(self, s: ir.Stmt) -> None:
        """Writes a statement."""
        self.rules[type(s)](self, s)

    def scalar(self, expr: ir.Expr) -> str:
        """A one-lane expression."""
        (text,) = self.value(expr)
        return text

    def value(self, expr: ir.Expr) -> list[str]:
        """The chunks of an expression."""
        if not isinstance(expr, ir.Const):
            known = constants.fold(expr, self.known)
            if known is not None:
                return self.constant(known, expr.type)
        chunks: list[str] = self.rules[type(expr)](self, expr)
        return chunks

    # -- lanes

    def constant(self, lanes: constants.Lanes, type_: ir.Type) -> list[str]:
        """The chunks of a value that is known."""
        texts = [self.literal(x, type_.dtype) for x in lanes.tolist()]
        n = chunk(type_.lanes)
        if n > 1 and len(set(texts)) == 1:
            return [f"{wtype(type_)}({texts[0]})"] * (type_.lanes // n)
        return self.join(texts, type_.dtype)

    def spread(self, expr: ir.Expr) -> list[str]:
        """One text per lane of an expression."""
        known = constants.fold(expr, self.known)
        if known is not None:
            return [self.literal(x, expr.type.dtype) for x in known.tolist()]
        return self.lanes(self.value(expr), expr.type.lanes)

    def lanes(self, chunks: list[str], lanes: int) -> list[str]:
        """One text per lane of a value."""
        if lanes == 1:
            return chunks
        n = chunk(lanes)
        names = [self.temp(c) for c in chunks]
        return [f"{names[i // n]}.{'xyzw'[i % n]}" for i in range(lanes)]

    def join(self, texts: list[str], dtype: DType) -> list[str]:
        """Chunks from one text per lane."""
        if len(texts) == 1:
            return texts
        n = chunk(len(texts))
        kind = vec(REGISTER[dtype.kind], n)
        return [f"{kind}({', '.join(texts[i : i + n])})" for i in range(0, len(texts), n)]

    def map(self, expr: ir.Expr, fn: Callable[..., str], *args: ir.Expr) -> list[str]:
        """`fn(text, ...)` for each chunk of the arguments."""
        return [fn(*texts) for texts in zip(*(self.value(a) for a in args), strict=True)]

    def wrap(self, text: str, type_: ir.Type) -> str:
        """An i8 or u8 result brought back into range."""
        n = chunk(type_.lanes)
        if type_.dtype is dt.int8:
            return f"{self.helper('w_i8_', n)}({text})"
        return f"({text} & {vec('u32', n)}(255u))" if type_.dtype is dt.uint8 else text
