"""Functions in LLVM IR, written by Python: values with operators, variables, blocks that nest.

A variable is a place on the stack, which LLVM turns into a register; so no block names another, and
a loop is a `with`. Comparisons are signed. An `order` makes an access atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ALIGN = {"i1": 1, "i8": 1, "i32": 4, "i64": 8, "ptr": 8}
ATTRIBUTES = "attributes #0 = { nounwind }\n"
INTRINSICS = """\
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def _operator(op: str, type: str = "") -> Callable[[NativeValue, NativeValue | int], NativeValue]:
    """The method that computes `op` of a value and another or a constant; of the value's own type
    without a `type`."""

    def method(self: NativeValue, other: NativeValue | int) -> NativeValue:
        right = other.text if isinstance(other, NativeValue) else str(other)
        return self.fn.let(type or self.type, f"{op} {self}, {right}")

    return method


class NativeValue:
    """A result, an argument or a constant of type i1, i8, i32, i64 or ptr."""

    def __init__(self, fn: NativeFunction, type: str, text: str) -> None:
        self.fn, self.type, self.text = fn, type, text

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    __add__, __sub__, __mul__ = _operator("add"), _operator("sub"), _operator("mul")
    __floordiv__, __and__, __or__ = _operator("udiv"), _operator("and"), _operator("or")
    __lshift__, __rshift__ = _operator("shl"), _operator("lshr")
    __lt__, __le__ = _operator("icmp slt", "i1"), _operator("icmp sle", "i1")
    __gt__, __ge__ = _operator("icmp sgt", "i1"), _operator("icmp sge", "i1")
    same, differs = _operator("icmp eq", "i1"), _operator("icmp ne", "i1")
    half = _operator("ashr")  # divides by a power of 2 and keeps the sign

    def missing(self) -> NativeValue:
        """True, for a pointer, if it is null."""
        return self.fn.let("i1", f"icmp eq {self}, null")

    def to(self, type: str) -> NativeValue:
        """A wider (filled with zeros) or narrower integer."""
        wider = int(type[1:]) > int(self.type[1:])
        return self.fn.let(type, f"{'zext' if wider else 'trunc'} {self} to {type}")

    def at(self, type: str, offset: NativeValue | int = 0, scale: int = 1) -> NativeSlot:
        """The memory of a `type` that lies `offset` times `scale` bytes behind this pointer."""
        index = offset if isinstance(offset, NativeValue) else self.fn.const("i64", offset)
        unit = "i8" if scale == 1 else f"[{scale} x i8]"
        return NativeSlot(self.fn.let("ptr", f"getelementptr {unit}, {self}, {index}"), type)


class NativeSlot:
    """Memory that holds a `type`."""

    def __init__(self, address: NativeValue, type: str) -> None:
        self.address, self.type, self._fn = address, type, address.fn
        self._align = f"align {_ALIGN[type]}"

    def get(self, order: str = "") -> NativeValue:
        if not order:
            return self._fn.let(self.type, f"load {self.type}, {self.address}")
        text = f"load atomic {self.type}, {self.address} {order}, {self._align}"
        return self._fn.let(self.type, text)

    def set(self, value: NativeValue | int, order: str = "") -> None:
        operand = value if isinstance(value, NativeValue) else self._fn.const(self.type, value)
        if not order:
            self._fn.line(f"store {operand}, {self.address}")
        else:
            self._fn.line(f"store atomic {operand}, {self.address} {order}, {self._align}")

    def add(self, value: NativeValue | int, order: str) -> NativeValue:
        """Adds atomically; what was there before."""
        operand = value if isinstance(value, NativeValue) else self._fn.const(self.type, value)
        text = f"atomicrmw add {self.address}, {operand} {order}, {self._align}"
        return self._fn.let(self.type, text)

    def exchange(
        self, old: NativeValue, new: NativeValue, orders: str
    ) -> tuple[NativeValue, NativeValue]:
        """Puts `new` where `old` still is, atomically; what was there, and whether it was `old`."""
        text = f"cmpxchg {self.address}, {old}, {new} {orders}, {self._align}"
        both = f"{{ {self.type}, i1 }}"
        pair = self._fn.let(both, text)
        seen = self._fn.let(self.type, f"extractvalue {both} {pair.text}, 0")
        return seen, self._fn.let("i1", f"extractvalue {both} {pair.text}, 1")


class Loop:
    """An endless loop, left by `leave` or by a return."""

    def __init__(self, fn: NativeFunction) -> None:
        self.fn, self.top, self.out = fn, fn.name("loop"), fn.name("out")

    def leave(self, condition: NativeValue) -> None:
        """Goes on behind the loop where the condition holds."""
        self.fn.branch(condition, self.out)

    def again(self, condition: NativeValue | None = None) -> None:
        """Begins the next turn, where the condition holds if there is one."""
        self.fn.branch(condition, self.top)


class NativeFunction:
    """One function being written. `arguments` is "type name, ..."; they are `fn[name]`."""

    def __init__(self, name: str, arguments: str, result: str = "void", local: bool = True) -> None:
        pairs = [argument.split() for argument in arguments.split(", ")] if arguments else []
        self._head = (
            f"define {'internal ' if local else ''}{result} @{name}"
            f"({', '.join(f'{type} %{name}' for type, name in pairs)}) #0 {{"
        )
        self._arguments = {name: NativeValue(self, type, f"%{name}") for type, name in pairs}
        self._result = result
        self._variables: list[str] = []
        self._lines: list[str] = []
        self._names = 0
        self._open = True  # true if the current block still needs an end

    def __getitem__(self, name: str) -> NativeValue:
        return self._arguments[name]

    def text(self) -> str:
        """The whole function."""
        if self._open and self._result == "void":
            self.give()
        end = ["  unreachable"] if self._open else []
        return "\n".join([self._head, "start:", *self._variables, *self._lines, *end, "}", "", ""])

    # -- values

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}.{self._names}"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def let(self, type: str, text: str) -> NativeValue:
        made = NativeValue(self, type, f"%{self.name('v')}")
        self.line(f"{made.text} = {text}")
        return made

    def const(self, type: str, value: int) -> NativeValue:
        return NativeValue(self, type, str(value))

    def variable(self, type: str, value: NativeValue | int = 0) -> NativeSlot:
        """A place of its own that starts as `value` each time this line is reached."""
        address = NativeValue(self, "ptr", f"%{self.name('var')}")
        self._variables.append(f"  {address.text} = alloca {type}")
        made = NativeSlot(address, type)
        made.set(value)
        return made

    def choose(self, condition: NativeValue, yes: NativeValue, no: NativeValue) -> NativeValue:
        return self.let(yes.type, f"select {condition}, {yes}, {no}")

    def call(
        self, callee: str | NativeValue, result: str, *arguments: NativeValue, form: str = ""
    ) -> NativeValue:
        """The result of a function, by name or address; `form` is its type where it is variadic."""
        where = callee.text if isinstance(callee, NativeValue) else f"@{callee}"
        text = f"call {form or result} {where}({', '.join(map(str, arguments))})"
        if result != "void":
            return self.let(result, text)
        self.line(text)
        return self.const("i32", 0)

    def least(self, a: NativeValue, b: NativeValue) -> NativeValue:
        return self.call("llvm.smin.i64", "i64", a, b)

    def most(self, a: NativeValue, b: NativeValue | int) -> NativeValue:
        other = b if isinstance(b, NativeValue) else self.const("i64", b)
        return self.call("llvm.smax.i64", "i64", a, other)

    # -- blocks

    def give(self, value: NativeValue | int | None = None) -> None:
        """Returns."""
        if value is None:
            self._end("ret void")
        else:
            self._end(
                f"ret {value}" if isinstance(value, NativeValue) else f"ret {self._result} {value}"
            )

    def branch(self, condition: NativeValue | None, target: str) -> None:
        """Goes to a block where the condition holds, else on; without a condition, always."""
        if condition is None:
            self._end(f"br label %{target}")
            return
        rest = self.name("on")
        self._end(f"br {condition}, label %{target}, label %{rest}")
        self._label(rest)

    @contextmanager
    def when(self, condition: NativeValue) -> Iterator[None]:
        """Runs the block only where the condition holds."""
        then, after = self.name("then"), self.name("after")
        self._end(f"br {condition}, label %{then}, label %{after}")
        self._label(then)
        yield
        self._label(after)

    @contextmanager
    def loop(self) -> Iterator[Loop]:
        """Runs the block repeatedly until it leaves the loop."""
        loop = Loop(self)
        self._label(loop.top)
        yield loop
        if self._open:
            self.branch(None, loop.top)
        self._label(loop.out)

    @contextmanager
    def count(self, limit: NativeValue) -> Iterator[NativeValue]:
        """Runs the block for each number from 0 below `limit` (an i64)."""
        at = self.variable("i64")
        with self.loop() as loop:
            now = at.get()
            loop.leave(now >= limit)
            yield now
            at.set(now + 1)

    def _end(self, text: str) -> None:
        self.line(text)
        self._open = False

    def _label(self, name: str) -> None:
        if self._open:
            self.line(f"br label %{name}")
        self._lines.append(f"{name}:")
        self._open = True
