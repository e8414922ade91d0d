"""Writing kernels: expression operators with constant folding, and a statement builder.

    b = Builder("double")
    x, y = b.buffer("x", dt.float32, n), b.buffer("y", dt.float32, n, "w")
    i = b.let(b.group(0) * 64 + b.thread(0), "i")
    with b.when(i < n):
        b.store(y, i, load(x, i) * 2.0)
    kernel = b.kernel(grid=(ceil_div(n, 64),), threads=(64,))

Python numbers become constants of the other side's type; a scalar meets a vector by splatting. An
expression used twice must be bound with `let` first: the verifier insists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import KernelError, LimitError
from weft.kernel import ir
from weft.kernel.ir import BOOL, F32, I32, Expr, Type

Value = Expr | int | float | bool
T = TypeVar("T")
_I32 = (-(1 << 31), (1 << 31) - 1)


def const(value: float | int | bool, type_: Type = I32) -> ir.Const:
    """A literal of the given type (every lane the same). Raises LimitError for an extent or index
    that int32 does not hold."""
    if type_.dtype == dt.int32 and not _I32[0] <= value <= _I32[1]:
        raise LimitError(f"an index over {value:,}; 32 bits count at most {_I32[1]:,}: split it")
    return ir.Const(value, type_)


def as_expr(value: Value, like: Type = I32) -> Expr:
    """A Python number as a constant of `like`; expressions pass through."""
    return value if isinstance(value, Expr) else const(value, like)


def is_const(x: Expr, value: float | int | None = None) -> bool:
    return isinstance(x, ir.Const) and (value is None or x.value == value)


def splat(x: Expr, lanes: int) -> Expr:
    """A scalar in every lane."""
    if x.type.lanes == lanes:
        return x
    if x.type.lanes != 1:
        raise KernelError(f"cannot splat {x.type} to {lanes} lanes")
    type_ = Type(x.type.dtype, lanes)
    return ir.Const(x.value, type_) if isinstance(x, ir.Const) else ir.Vec("splat", (x,), type_)


def _match(a: Value, b: Value) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        b = as_expr(b, a.type)
    elif isinstance(b, Expr):
        a = as_expr(a, b.type)
    else:
        raise KernelError(f"no expression among {a!r}, {b!r}")
    assert isinstance(a, Expr) and isinstance(b, Expr)
    lanes = max(a.type.lanes, b.type.lanes)
    a, b = splat(a, lanes), splat(b, lanes)
    if a.type != b.type:
        raise KernelError(f"operands differ: {a.type} and {b.type}; cast one")
    return a, b


def _wrap(value: int, dtype: DType) -> int:
    if dtype.kind == "bool":
        return int(bool(value))
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "int" and value >> (bits - 1) else value


def _fold_int(op: str, a: int, b: int, dtype: DType) -> int | None:
    if op in ("div", "rem") and b == 0:
        return None
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if op in ("div", "rem") else 0
    table = {
        "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b,
        "div": lambda: quotient, "rem": lambda: a - quotient * b,
        "min": lambda: min(a, b), "max": lambda: max(a, b),
        "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b,
        "shl": lambda: a << b, "shr": lambda: a >> b,
        "lt": lambda: a < b, "le": lambda: a <= b, "eq": lambda: a == b, "ne": lambda: a != b,
    }  # fmt: skip
    result = int(table[op]())
    return result if op in ir.COMPARE else _wrap(result, dtype)


def binary(op: str, a: Value, b: Value) -> Expr:
    """`a op b` lane by lane, folding integer constants and neutral elements."""
    x, y = _match(a, b)
    type_ = Type(dt.bool_, x.type.lanes) if op in ir.COMPARE else x.type
    if not x.type.dtype.is_float:
        if isinstance(x, ir.Const) and isinstance(y, ir.Const):
            folded = _fold_int(op, int(x.value), int(y.value), x.type.dtype)
            if folded is not None:
                return ir.Const(folded if type_.dtype != dt.bool_ else bool(folded), type_)
        if op in ("add", "mul") and isinstance(x, ir.Const):
            x, y = y, x
        if is_const(y, 0) and op in ("add", "sub", "or", "xor", "shl", "shr"):
            return x
        if is_const(y, 0) and op in ("mul", "and"):
            return y
        if is_const(y, 1) and op in ("mul", "div"):
            return x
        if is_const(y, 1) and op == "rem":
            return ir.Const(0, type_)
    return ir.Binary(op, x, y, type_)


def unary(op: str, x: Expr) -> Expr:
    return ir.Unary(op, x, x.type)


def fma(a: Value, b: Value, c: Value) -> Expr:
    """a * b + c with one rounding (f32; a, b, c may mix scalars and vectors)."""
    lanes = max(v.type.lanes for v in (a, b, c) if isinstance(v, Expr))
    a, b, c = (splat(as_expr(v, F32), lanes) for v in (a, b, c))
    return ir.Fma(a, b, c, c.type)


def minimum(a: Value, b: Value) -> Expr:
    return binary("min", a, b)


def maximum(a: Value, b: Value) -> Expr:
    return binary("max", a, b)


def eq(a: Value, b: Value) -> Expr:
    return binary("eq", a, b)


def ne(a: Value, b: Value) -> Expr:
    return binary("ne", a, b)


def not_(x: Expr) -> Expr:
    return ir.Unary("not", x, x.type)


def select(cond: Expr, a: Value, b: Value) -> Expr:
    """a where cond, else b; scalars are splatted to the widest of the three."""
    x, y = _match(a, b)
    lanes = max(cond.type.lanes, x.type.lanes)
    if is_const(cond):
        return splat(x if cond.value else y, lanes)  # type: ignore[attr-defined]
    x, y = splat(x, lanes), splat(y, lanes)
    return ir.Select(splat(cond, lanes), x, y, x.type)


def cast(x: Value, dtype: DType) -> Expr:
    """The value as another dtype, lanes kept (see ir.Cast for the rounding)."""
    if not isinstance(x, Expr):
        return ir.Const(x, Type(dtype))
    if x.type.dtype == dtype:
        return x
    return ir.Cast(x, Type(dtype, x.type.lanes))


def bitcast(x: Expr, dtype: DType) -> Expr:
    """The same bits as lanes of `dtype` (see ir.Bitcast)."""
    lanes = x.type.lanes * x.type.dtype.itemsize // dtype.itemsize
    return x if x.type.dtype == dtype else ir.Bitcast(x, Type(dtype, lanes))


def load(
    source: ir.Buffer | ir.Array,
    index: Value,
    lanes: int = 1,
    mask: Expr | None = None,
) -> Expr:
    """`lanes` consecutive elements from `index`; a vector index gathers."""
    index = as_expr(index)
    type_ = Type(source.dtype, max(lanes, index.type.lanes))
    return ir.Load(source, index, type_, mask)


def iota(lanes: int) -> Expr:
    """0, 1, 2, ... as int32 lanes (a plain 0 for one lane)."""
    return ir.Vec("iota", (), Type(dt.int32, lanes)) if lanes > 1 else ir.Const(0, I32)


def pack(*xs: Expr) -> Expr:
    if len(xs) == 1:
        return xs[0]
    return ir.Vec("pack", xs, Type(xs[0].type.dtype, len(xs)))


def extract(v: Expr, lane: int) -> Expr:
    return v if v.type.lanes == 1 else ir.Vec("extract", (v,), Type(v.type.dtype), (lane,))


def shuffle(lanes: Sequence[int], a: Expr, b: Expr | None = None) -> Expr:
    args = (a,) if b is None else (a, b)
    return ir.Vec("shuffle", args, Type(a.type.dtype, len(lanes)), tuple(lanes))


def any_(v: Expr) -> Expr:
    """Whether a lane of v (bool) holds, as a scalar: what a branch may ask."""
    return v if v.type.lanes == 1 else ir.Vec("any", (v,), BOOL)


def ceil_div(a: Value, b: int) -> Expr | int:
    """(a + b - 1) // b for a non-negative `a`; stays a Python int when `a` is one."""
    if isinstance(a, int):
        return -(-a // b)
    assert isinstance(a, Expr)
    return (a + (b - 1)) // b


class Builder:
    """Collects the statements of one kernel. Every name it is given is made unique, also among
    those in `taken` (which it adds to)."""

    def __init__(self, name: str, taken: set[str] | None = None) -> None:
        self.name = name
        self._buffers: list[ir.Buffer] = []
        self._stack: list[list[ir.Stmt]] = [[]]
        self._made: list[dict[Any, Any]] = [{}]  # per open block, see `once`
        self._names: set[str] = set() if taken is None else taken
        self._copies: dict[str, int] = {}  # a name that several want -> the last number given
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
        """What `make` gives: what it gave for this key before, if that is in scope here."""
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
        """What has been emitted at the top so far."""
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
            raise KernelError(f"store of {value.type} to {target.name} of {target.dtype}: cast it")
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

    def tile_scale(
        self, tile: ir.Tile, factors: ir.Buffer | ir.Array, index: Value, stride: int = 1
    ) -> None:
        """Row r of a tile of f32 times factors[index + r * stride] (f32)."""
        self.emit(ir.TileOp("scale", (tile,), factors, as_expr(index), stride))

    def tile_add(self, tile: ir.Tile, other: ir.Tile) -> None:
        """tile += other, both of f32 and one shape."""
        self.emit(ir.TileOp("add", (tile, other)))

    def prefetch(self, source: ir.Buffer, index: Value) -> None:
        self.emit(ir.Prefetch(source, as_expr(index)))

    def barrier(self) -> None:
        self.emit(ir.Barrier())

    def store_late(
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
        after as many barriers (see ir.Late)."""
        value = load(source, at, lanes, mask)
        self.emit(ir.Late(ir.Store(target, as_expr(index), value), barriers))

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


def _operator(op: str, swap: bool = False):  # type: ignore[no-untyped-def]
    if swap:
        return lambda self, other: binary(op, other, self)
    return lambda self, other: binary(op, self, other)


for _name, _op in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "div", "mod": "rem",
    "and": "and", "or": "or", "xor": "xor", "lshift": "shl", "rshift": "shr",
}.items():  # fmt: skip
    setattr(Expr, f"__{_name}__", _operator(_op))
    setattr(Expr, f"__r{_name}__", _operator(_op, swap=True))
for _op in ("lt", "le"):
    setattr(Expr, f"__{_op}__", _operator(_op))
    setattr(Expr, f"__{_op.replace('l', 'g')}__", _operator(_op, swap=True))
setattr(Expr, "__neg__", lambda self: unary("neg", self))  # noqa: B010 (as the others)

__all__ = [
    "BOOL", "F32", "I32", "Builder", "Type", "any_", "as_expr", "binary", "bitcast", "cast",
    "ceil_div",
    "const", "eq", "extract", "fma", "iota", "is_const", "load", "maximum", "minimum", "ne",
    "not_", "pack", "select", "shuffle", "splat", "unary",
]  # fmt: skip
