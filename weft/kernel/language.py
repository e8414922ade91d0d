"""The kernel language: what `@weft.kernel` functions write with. A door to the builder of the
Kernel IR: every method emits the statements that a template would."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from weft.core import dtypes as dt
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, LimitError, UsageError
from weft.core.lines import user_line
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.formulas import Formulas, natural
from weft.kernel.ir import I32, Expr, Kernel, Type
from weft.kernel.places import Memory, condition
from weft.kernel.values import COMPUTED, Operand, Value, Variable, arithmetic, operand

MAX_STATEMENTS = 1 << 16  # beyond: more likely an endless loop of Python than a kernel
MAX_THREADS = 1024
MAX_DEPTH = 64  # of loops and branches within one another


class _Lines(Builder):
    """A builder that knows the user's line of each statement, and ends what would not end."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lines: dict[int, str] = {}
        self._count = 0

    def emit(self, stmt: ir.Stmt) -> None:
        self._count += 1
        if self._count > MAX_STATEMENTS:
            raise LimitError(
                f"the kernel has more than {MAX_STATEMENTS:,} statements: a Python loop writes its "
                "body once per turn; use `with k.loop(n) as i:`"
            )
        self.lines[id(stmt)] = user_line()
        super().emit(stmt)

    def _open(self) -> None:
        if len(self._stack) > MAX_DEPTH:
            raise LimitError(
                f"the kernel has more than {MAX_DEPTH} loops and branches within one another: a "
                "function of Python that calls itself does not end by k.when"
            )
        super()._open()

    @property
    def after_when(self) -> bool:
        """True straight after a `when` without an `otherwise`."""
        last = self._stack[-1][-1] if self._stack[-1] else None
        return isinstance(last, ir.If) and last.other is None


class KernelWriter(Formulas):
    """The writer of a kernel: the first argument of a function under `@weft.kernel`."""

    def __init__(self, name: str) -> None:
        self.builder: _Lines = _Lines(name)
        self.outputs: list[Memory] = []
        self._grid: tuple[int, ...] = ()
        self._threads: tuple[int, int, int] = (0, 0, 0)
        self._scratch: dict[DType, Memory] = {}

    def value(self, expr: Expr, name: str = "t") -> Value:
        """An expression as a value; anything but a condition is bound to a name."""
        kept = expr if expr.type.dtype is dt.bool_ else self.builder.let(expr, name)
        return Value(self, kept)

    # -- memory and launch

    def argument(self, name: str, shape: Sequence[int], dtype: DType) -> Memory:
        """The next argument (weft calls this for each before it calls the function)."""
        return self._memory(self.builder.buffer(name, dtype, math.prod(shape)), shape)

    def output(self, shape: int | Sequence[int], dtype: Any = dt.float32) -> Memory:
        """The next output of the kernel, a new tensor. Elements that a kernel does not write are
        undefined."""
        dims, kind = _dims("output", shape), _stored("output", dtype)
        name = f"out{len(self.outputs)}"
        made = self._memory(self.builder.buffer(name, kind, math.prod(dims), "w"), dims)
        self.outputs.append(made)
        return made

    def shared(self, shape: int | Sequence[int], dtype: Any = dt.float32) -> Memory:
        """An array that all threads of a group share; undefined until stored. Other threads may
        read a thread's writes after a barrier."""
        return self._array("shared", shape, dtype)

    def private(self, shape: int | Sequence[int], dtype: Any = dt.float32) -> Memory:
        """An array of each thread for itself; undefined until stored."""
        return self._array("private", shape, dtype)

    def launch(self, groups: int | Sequence[int], threads: int | Sequence[int] = 1) -> None:
        """Runs the kernel in `groups` groups of `threads` threads, each a number or up to three."""
        if self._grid:
            raise UsageError("a kernel calls k.launch once")
        grid, block = _dims("launch: groups", groups), _dims("launch: threads", threads)
        if not 1 <= len(grid) <= 3 or not 1 <= len(block) <= 3 or not all(block):
            raise UsageError(
                f"launch({groups!r}, {threads!r}): groups and threads are one to three numbers "
                "each, and threads positive"
            )
        if math.prod(block) > MAX_THREADS:
            raise LimitError(
                f"launch: {math.prod(block):,} threads in a group; at most {MAX_THREADS:,}, and "
                "256 on WebGPU"
            )
        x, y, z = (*block, 1, 1)[:3]
        self._grid, self._threads = grid, (x, y, z)

    @property
    def threads(self) -> int:
        """The number of threads of a group."""
        if not self._grid:
            raise UsageError("k.launch(groups, threads) comes before what depends on threads")
        return math.prod(self._threads)

    def group(self, axis: int = 0) -> Value:
        """The number of this group along an axis of the launch (int32)."""
        return self.value(self.builder.group(_axis(axis)), "group")

    def thread(self, axis: int = 0) -> Value:
        """The number of this thread in its group along an axis (int32)."""
        return self.value(self.builder.thread(_axis(axis)), "thread")

    # -- control flow

    def loop(
        self, *bounds: Operand, step: int = 1, unroll: bool = False
    ) -> AbstractContextManager[Value]:
        """`with k.loop(n) as i:` or `with k.loop(start, stop) as i:` runs what is written inside
        for each i of the range. Bounds are integers or int32 values, read once; `step` is a
        positive Python number. `unroll` writes the body out (bounds must be Python numbers)."""
        if len(bounds) not in (1, 2):
            raise UsageError(f"loop takes a stop, or a start and a stop, got {len(bounds)} bounds")
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:
            raise UsageError(f"loop: step={step!r}; expected a positive Python number")
        low, high = (0, *bounds)[-2:]
        start, stop = operand(low, I32), operand(high, I32)
        for bound in (start, stop):
            if bound.type != I32:
                raise DTypeError(f"loop: a bound is an int32, not {bound.type!r}; cast the bound")
        if unroll and not (isinstance(start, ir.Const) and isinstance(stop, ir.Const)):
            raise UsageError("loop: unroll=True needs bounds that are Python numbers")
        return self._loop(start, stop, step, unroll)

    @contextmanager
    def _loop(self, start: Expr, stop: Expr, step: int, unroll: bool) -> Iterator[Value]:
        with self.builder.loop(stop, start, step, unroll=unroll) as i:
            yield Value(self, i)

    def when(self, cond: Operand) -> AbstractContextManager[None]:
        """`with k.when(condition):` runs what is written inside where the condition holds."""
        found = condition(cond)
        if found.type.lanes > 1:
            raise UsageError(f"when: a condition of {found.type.lanes} lanes; use k.where")
        return self.builder.when(found)

    def otherwise(self) -> AbstractContextManager[None]:
        """`with k.otherwise():` after a `when`: where its condition does not hold."""
        if not self.builder.after_when:
            raise UsageError("otherwise: it comes straight after the end of a `with k.when(...)`")
        return self.builder.otherwise()

    def barrier(self) -> None:
        """All threads of the group meet here; what they wrote before, all see after."""
        self.builder.barrier()

    def var(self, value: Operand, dtype: Any = None) -> Variable:
        """A variable with a first value; of numbers float32, or int32 for integers."""
        if isinstance(value, Value):
            first = value.expr
        else:
            like = Type(as_dtype(dtype)) if dtype is not None else natural(value)
            first = operand(value, like)
        if first.type.dtype not in COMPUTED:
            raise DTypeError(f"a variable of {first.type.dtype.name}; a kernel computes in float32")
        return Variable(self, self.builder.var(first))

    # -- reductions over the group

    def sum(self, x: Operand) -> Value:
        """The sum of x over all threads of the group, in every thread and always in one order."""
        return self._over_group("sum", x, lambda a, b: arithmetic(self, "add", a, b))

    def max(self, x: Operand) -> Value:
        """The largest x of all threads of the group, in every thread; NaN where one is."""
        return self._over_group("max", x, self.maximum)

    def min(self, x: Operand) -> Value:
        """The smallest x of all threads of the group, in every thread; NaN where one is."""
        return self._over_group("min", x, self.minimum)

    def _over_group(self, name: str, x: Operand, join: Callable[[Value, Value], Value]) -> Value:
        """Halves meet in shared memory until one value is left: the same tree on every target."""
        first = self.value(operand(x, natural(x)))
        if first.lanes > 1 or first.dtype is dt.bool_:
            raise DTypeError(f"{name} over the group of {first!r}; it takes plain numbers")
        threads = self.threads
        if threads == 1:
            return first
        if first.dtype not in self._scratch:
            self._scratch[first.dtype] = self.shared(threads, first.dtype)
        scratch, t = self._scratch[first.dtype], self.number()
        scratch[t] = first
        reach = 1 << (threads - 1).bit_length()
        while reach > 1:
            reach //= 2
            self.barrier()
            with self.when(t < min(reach, threads - reach)):
                scratch[t] = join(scratch[t], scratch[t + reach])
        self.barrier()
        found = scratch[0]
        self.barrier()
        return found

    def number(self) -> Value:
        """The number of this thread among all threads of its group (int32)."""
        if not self._grid:
            raise UsageError("k.launch(groups, threads) comes before k.number()")
        (x, y, _), t = self._threads, self.thread(0)
        for axis, before in ((1, x), (2, x * y)):
            if self._threads[axis] > 1:
                t = t + self.thread(axis) * before
        return t

    # -- numbers of Python

    @staticmethod
    def ceil_div(a: int, b: int) -> int:
        """a / b rounded up, of Python numbers: how many blocks of b cover a."""
        return -(-a // b)

    def finished(self) -> Kernel:
        """The kernel as written (weft calls this after the function). Raises UsageError."""
        if not self._grid:
            raise UsageError("the kernel never calls k.launch(groups, threads)")
        if not self.outputs:
            raise UsageError("the kernel lacks an output: y = k.output(shape, dtype)")
        if not all(self._grid) and any(out.size for out in self.outputs):
            raise UsageError(f"launch of {list(self._grid)} groups: nothing would be written")
        moved = sum(b.size * b.dtype.itemsize for b in self.builder.buffers)
        return self.builder.kernel(self._grid, self._threads, bytes=moved)

    def _memory(self, source: ir.Buffer | ir.Array, shape: Sequence[int]) -> Memory:
        return Memory(self, source, tuple(shape))

    def _array(self, space: str, shape: int | Sequence[int], dtype: Any) -> Memory:
        dims, kind = _dims(space, shape), _stored(space, dtype)
        if not math.prod(dims):
            raise UsageError(f"{space}({shape!r}): an array has at least one element")
        return self._memory(self.builder.array(space, kind, math.prod(dims), space), dims)


def _dims(what: str, shape: int | Sequence[int]) -> tuple[int, ...]:
    """A number or a sequence of them as a tuple of sizes. Raises UsageError."""
    dims = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in dims):
        raise UsageError(f"{what}: {shape!r}; expected Python numbers >= 0")
    return dims


def _stored(what: str, dtype: Any) -> DType:
    kind = as_dtype(dtype)
    if kind not in dt.DEVICE:
        raise DTypeError(f"{what}: no device holds {kind.name}; use float32 or int32")
    return kind


def _axis(axis: int) -> int:
    if axis not in (0, 1, 2):
        raise UsageError(f"axis {axis!r}; a launch has axes 0, 1 and 2")
    return axis
