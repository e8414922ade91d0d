"""Writing kernels: the statement builder (expressions and their operators: kernel/expr.py).

b = Builder("double")
x, y = b.buffer("x", dt.float32, n), b.buffer("y", dt.float32, n, "w")
i = b.let(b.group(0) * 64 + b.thread(0), "i")
with b.when(i < n):
    b.store(y, i, load(x, i) * 2.0)
kernel = b.kernel(grid=(ceil_div(n, 64),), threads=(64,))
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from weft.core.dtypes import DType
from weft.core.errors import KernelError
from weft.kernel import ir
from weft.kernel.expr import Value, as_expr, const, load, splat
from weft.kernel.ir import F32, I32, Expr, Type

T = TypeVar("T")


class Builder:
    """Collects the statements of one kernel. Every name it is given is made unique, also among
    those in `taken` (which it adds to)."""

    def __init__(self, name: str, taken: set[str] | None = None) -> None:
        self.name = name
        self._buffers: list[ir.Buffer] = []
        self._stack: list[list[ir.Stmt]] = [[]]
        self._made: list[dict[Any, Any]] = [{}]  # per open block, see `once`
        self._names: set[str] = set() if taken is None else taken
        self._copies: dict[str, int] = {}  # a name used several times -> the last number given
        self._mutable: set[str] = set()

    def unique(self, name: str) -> str:
        candidate, n = name, self._copies.get(name, 0)
        while candidate in self._names:
            n += 1
            candidate = f"{name}_{n}"
        self._names.add(candidate)
        self._copies[name] = n
        return candidate

    def emit(self, stmt: ir.Stmt) -> None:
        self._stack[-1].append(stmt)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the result of `make`, reusing an earlier one for this key if it is in scope
        here."""
        for known in self._made:
            if key in known:
                found: T = known[key]
                return found
        value = make()
        self._made[-1][key] = value
        return value

    def _open(self) -> None:
        self._stack.append([])
        self._made.append({})

    def _close(self) -> ir.Block:
        self._made.pop()
        return ir.Block(tuple(self._stack.pop()))

    # -- declarations

    def buffer(self, name: str, dtype: DType, size: int, access: ir.Access = "r") -> ir.Buffer:
        """The next buffer parameter: `size` elements."""
        buffer = ir.Buffer(self.unique(name), dtype, size, access)
        self._buffers.append(buffer)
        return buffer

    @property
    def buffers(self) -> tuple[ir.Buffer, ...]:
        """The buffer parameters so far, in order."""
        return tuple(self._buffers)

    @property
    def statements(self) -> tuple[ir.Stmt, ...]:
        """The statements emitted at the top level so far."""
        return tuple(self._stack[0])

    def tile(self, name: str, dtype: DType, rows: int, cols: int) -> ir.Tile:
        """A tile in matrix registers; its content is undefined until zeroed or loaded."""
        tile = ir.Tile(self.unique(name), dtype, rows, cols)
        self.emit(tile)
        return tile

    def array(self, name: str, dtype: DType, size: int, space: str = "private") -> ir.Array:
        """A local array, "private" or "shared"; its content is undefined until stored. A shared one
        belongs to the kernel: it is declared before the statement that is being written."""
        array = ir.Array(self.unique(name), dtype, size, space)  # type: ignore[arg-type]
        self._stack[0 if space == "shared" else -1].append(array)
        return array

    def group(self, dim: int = 0) -> Expr:
        return ir.Axis("group", dim)

    def thread(self, dim: int = 0) -> Expr:
        return ir.Axis("thread", dim)

    # -- values

    def let(self, value: Value, name: str = "t") -> Expr:
        """Binds a value so that it can be used many times (atoms pass through)."""
        value = as_expr(value)
        if isinstance(value, ir.Const | ir.Param) or (
            isinstance(value, ir.Var) and value.name not in self._mutable
        ):
            return value
        var = ir.Var(self.unique(name), value.type)
        self.emit(ir.Let(var, value))
        return var

    def var(self, value: Value, name: str = "v", type_: Type = F32) -> ir.Var:
        """A mutable local with a first value."""
        value = as_expr(value, type_)
        var = ir.Var(self.unique(name), value.type)
        self._mutable.add(var.name)
        self.emit(ir.Let(var, value, mutable=True))
        return var

    def assign(self, var: Expr, value: Value) -> None:
        assert isinstance(var, ir.Var)
        self.emit(ir.Assign(var, splat(as_expr(value, var.type), var.type.lanes)))

    # -- effects

    def store(
        self,
        target: ir.Buffer | ir.Array,
        index: Value,
        value: Value,
        mask: Expr | None = None,
        nontemporal: bool = False,
    ) -> None:
        """Writes a value; its lanes go to consecutive elements, or one per lane of the index."""
        value = as_expr(value, Type(target.dtype))
        index = as_expr(index)
        if value.type.dtype != target.dtype:
            raise KernelError(
                f"store of {value.type} to {target.name} of {target.dtype}: cast the value"
            )
        if index.type.lanes > 1:
            value = splat(value, index.type.lanes)
        self.emit(ir.Store(target, index, value, mask, nontemporal))

    def tile_zero(self, tile: ir.Tile) -> None:
        self.emit(ir.TileOp("zero", (tile,)))

    def tile_load(
        self, tile: ir.Tile, source: ir.Buffer | ir.Array, index: Value, stride: int
    ) -> None:
        """Row r of the tile from elements index + r * stride onwards."""
        self.emit(ir.TileOp("load", (tile,), source, as_expr(index), stride))

    def tile_store(
        self, target: ir.Buffer | ir.Array, index: Value, stride: int, tile: ir.Tile
    ) -> None:
        """The reverse of `tile_load`."""
        self.emit(ir.TileOp("store", (tile,), target, as_expr(index), stride))

    def mma(self, c: ir.Tile, a: ir.Tile, b: ir.Tile) -> None:
        """c += a . b; `b` holds pairs (or fours) of adjacent k together (see ir.TileOp)."""
        self.emit(ir.TileOp("mma", (c, a, b)))

    def mma_nt(self, c: ir.Tile, a: ir.Tile, b: ir.Tile) -> None:
        """c += a . b transposed: `b` holds a row per column of c, contiguous along k."""
        self.emit(ir.TileOp("mma_nt", (c, a, b)))

    def mma_tn(self, c: ir.Tile, a: ir.Tile, b: ir.Tile) -> None:
        """c += a^T . b; both hold groups of adjacent k together (see ir.TileOp)."""
        self.emit(ir.TileOp("mma_tn", (c, a, b)))

    def tile_scale(
        self, tile: ir.Tile, factors: ir.Buffer | ir.Array, index: Value, stride: int = 1
    ) -> None:
        """Row r of a tile of f32 times factors[index + r * stride] (f32)."""
        self.emit(ir.TileOp("scale", (tile,), factors, as_expr(index), stride))

    def tile_add(self, tile: ir.Tile, other: ir.Tile) -> None:
        """tile += other, both of f32 or i32 and one shape."""
        self.emit(ir.TileOp("add", (tile, other)))

    def tile_fma(self, tile: ir.Tile, x: ir.Tile, y: ir.Tile) -> None:
        """tile += x * y, element by element, in one rounding; x in f32 or i32, the others f32."""
        self.emit(ir.TileOp("fma", (tile, x, y)))

    def prefetch(self, source: ir.Buffer, index: Value) -> None:
        self.emit(ir.Prefetch(source, as_expr(index)))

    def barrier(self) -> None:
        self.emit(ir.Barrier())

    def copy_async(
        self,
        target: ir.Array,
        index: Value,
        source: ir.Buffer,
        at: Value,
        lanes: int = 1,
        mask: Expr | None = None,
        barriers: int = 1,
    ) -> None:
        """Elements of `source` from `at` (0 where the mask is false) to shared memory, to be there
        after as many barriers (see ir.AsyncCopy)."""
        value = load(source, at, lanes, mask)
        self.emit(ir.AsyncCopy(ir.Store(target, as_expr(index), value), barriers))

    # -- control flow

    @contextlib.contextmanager
    def loop(
        self, stop: Value, start: Value = 0, step: int = 1, name: str = "i", unroll: bool = False
    ) -> Iterator[Expr]:
        """for name in range(start, stop, step): the body is what is emitted inside."""
        var = ir.Var(self.unique(name), I32)
        self._open()
        try:
            yield var
        finally:
            body = self._close()
        self.emit(ir.For(var, as_expr(start), as_expr(stop), body, step, unroll))

    @contextlib.contextmanager
    def when(self, cond: Expr) -> Iterator[None]:
        """if cond: the body is what is emitted inside."""
        self._open()
        try:
            yield
        finally:
            body = self._close()
        self.emit(ir.If(cond, body))

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        """The else branch of the `when` just closed."""
        last = self._stack[-1].pop()
        assert isinstance(last, ir.If) and last.other is None, "otherwise() follows when()"
        self._open()
        try:
            yield
        finally:
            body = self._close()
        self.emit(ir.If(last.cond, last.then, body))

    # -- the result

    def kernel(
        self,
        grid: Sequence[Value],
        threads: Sequence[int] = (1,),
        flops: int = 0,
        bytes: int = 0,
        resident: int = 1,
    ) -> ir.Kernel:
        """The finished kernel; grid and threads are padded with ones to three axes."""
        g = [as_expr(x) for x in grid] + [const(1)] * (3 - len(grid))
        t = [*threads] + [1] * (3 - len(threads))
        body = ir.Block(tuple(self._stack[0]))
        return ir.Kernel(
            self.name, tuple(self._buffers), body,
            (g[0], g[1], g[2]), (t[0], t[1], t[2]), flops, bytes, resident,
        )  # fmt: skip
