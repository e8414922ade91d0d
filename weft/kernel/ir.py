"""Kernel IR: one small typed language that every template writes and every dialect renders.

A kernel runs `grid` groups of `threads` threads. Expressions are pure trees; a value that is used
twice is bound with Let (the verifier refuses an expression object that appears in two places, so
no dialect ever has to find common subexpressions). Lanes are explicit: a Type of `lanes` > 1 is a
vector, and arithmetic is lane by lane. Narrow floats (f16, bf16) are storage types: load, cast to
f32, compute, cast back, store. Index arithmetic is int32.

The interpreter (`weft.kernel.interp`) defines what each node means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """An element dtype and a lane count (a power of two; 1 is a scalar)."""

    dtype: DType
    lanes: int = 1

    def __repr__(self) -> str:
        return self.dtype.name if self.lanes == 1 else f"{self.dtype.name}x{self.lanes}"


I32, U32, F32, BOOL = Type(dt.int32), Type(dt.uint32), Type(dt.float32), Type(dt.bool_)

# -- expressions --------------------------------------------------------------------------------

if TYPE_CHECKING:

    def _of_numbers(self: Expr, other: Expr | float) -> Expr: ...
    def _of_integers(self: Expr, other: Expr | int) -> Expr: ...


class Expr:
    """Base of the expressions. Every expression has a `.type`.

    `weft.kernel.builder` gives expressions their operators: + - * / // % & | ^ << >> < <= > >= and
    the functions for the rest.
    """

    __slots__ = ()
    type: Type

    if TYPE_CHECKING:
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _of_numbers
        __truediv__ = __rtruediv__ = __lt__ = __le__ = __gt__ = __ge__ = _of_numbers
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _of_integers
        __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _of_integers

        def __neg__(self) -> Expr: ...


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A literal; for a vector type, the same value in every lane."""

    value: float | int | bool
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Param(Expr):
    """A runtime scalar (int32): entry `slot` of the Program's scalar buffer."""

    name: str
    slot: int
    type: Type = I32


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A named local, introduced by Let or as a For loop's counter. Names are unique in a kernel."""

    name: str
    type: Type


AxisKind = Literal["group", "thread"]


@dataclass(frozen=True, slots=True, eq=False)
class Axis(Expr):
    """The index of this group in the grid, or of this thread in its group, along `dim` (0..2)."""

    kind: AxisKind
    dim: int = 0
    type: Type = I32


UNARY = ("neg", "abs", "not", "sqrt", "floor", "ceil", "trunc", "rint", "keep")


@dataclass(frozen=True, slots=True, eq=False)
class Unary(Expr):
    """neg abs sqrt floor ceil trunc rint (half to even) keep on floats; neg abs not on integers;
    not on bool. keep is x itself, rounded as written. LLVM targets round every sum and product that
    way. A compiler of shaders may add up the constants of c - n * p - n * q, or take (x + y) - y
    for x; it does not look through keep."""

    op: str
    x: Expr
    type: Type


ARITH = ("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr")
COMPARE = ("lt", "le", "eq", "ne")
BINARY = (*ARITH, *COMPARE)


@dataclass(frozen=True, slots=True, eq=False)
class Binary(Expr):
    """Lane-wise; both sides have the same Type. Comparisons give bool lanes.

    Integer add, sub, mul wrap. Integer div and rem truncate; a zero divisor is the caller's to
    avoid. shl and shr take counts 0..bits-1; shr is arithmetic on signed types. Float rem is C's
    fmod only where a target has it: WGSL and NVIDIA's give x - trunc(x / y) y, a divisor off where
    the quotient rounds up (kernel.division does better). Float min and max return the other side
    when one is NaN (IEEE 754-2008 minNum); comparisons with NaN are unspecified: test NaN on bits.
    """

    op: str
    a: Expr
    b: Expr
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Fma(Expr):
    """a * b + c in f32. Fused (one rounding) on LLVM targets; a dialect may round twice."""

    a: Expr
    b: Expr
    c: Expr
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Select(Expr):
    """`a` where `cond` (bool, same lanes) holds, else `b`. Both sides are evaluated."""

    cond: Expr
    a: Expr
    b: Expr
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Cast(Expr):
    """A value conversion. Float to integer truncates and saturates (NaN gives 0); to a narrower
    float rounds to nearest even; to bool is `!= 0`; integer to integer wraps."""

    x: Expr
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Bitcast(Expr):
    """The same bits as another type. Each lane of 32 bits (f32, i32, u32) becomes another 32-bit
    type. Or a whole vector's bits, the first lane lowest, become lanes of any other type with
    equally many bits in all (on GPUs: bytes as words and words as bytes)."""

    x: Expr
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Load(Expr):
    """Elements of `source` (a Buffer or an Array) at `index` (in elements).

    A scalar index with `type.lanes` > 1 loads consecutive elements; a vector index gathers, one
    element per lane. Where `mask` (bool lanes) is false nothing is read and the lane is 0.
    """

    source: Buffer | Array
    index: Expr
    type: Type
    mask: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Vec(Expr):
    """Operations on lanes: splat(x); iota() = 0, 1, 2, ...; pack(x0, x1, ...); extract(v) with
    `lanes[0]`. `shuffle`(a[, b]): lane i of the result is lane `lanes[i]` of a ++ b. `any`(v): a
    scalar, true if a lane of v (bool) is. `lookup`(table, index) of f32 (CPUs only): lane i is lane
    `index[i]` of the table, modulo their number."""

    op: str
    args: tuple[Expr, ...]
    type: Type
    lanes: tuple[int, ...] = ()


COLLECTIVE = ("subgroup_add", "subgroup_max", "subgroup_xor", "dot2", "dot4", "dot2_int16")


@dataclass(frozen=True, slots=True, eq=False)
class Collective(Expr):
    """An operation across several lanes or threads, used only where Caps allow it.

    `subgroup_add`, `subgroup_max` (x): over the subgroup, same value in every thread.
    `subgroup_xor` (x) with `attr`: the value of thread `lane ^ attr`.
    `dot2` (acc f32 x n, a bf16 x 2n, b bf16 x 2n): acc[i] + a[2i] b[2i] + a[2i+1] b[2i+1].
    `dot4` (acc i32 x n, a u8|i8 x 4n, b i8 x 4n): acc[i] + sum of four products. An `attr` of 1
    promises that each b is above -128 and each unsigned a at most 127, so two products fit 16 bits.
    A lane that breaks this promise may hold any number.
    `dot2_int16` (acc i32 x n, a i32 x n, b i32 x n): acc[i] + the products of the signed 16-bit
    halves of a[i] and b[i].
    """

    op: str
    args: tuple[Expr, ...]
    type: Type
    attr: int = 0


# -- statements ---------------------------------------------------------------------------------


class Stmt:
    """Base of the statements."""

    __slots__ = ()


Access = Literal["r", "w", "rw"]
Space = Literal["shared", "private"]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A buffer parameter: `size` elements of `dtype` in device memory. Two Buffers of one kernel
    never overlap unless both are read-only."""

    name: str
    dtype: DType
    size: int
    access: Access = "r"


@dataclass(frozen=True, slots=True, eq=False)
class Array(Stmt):
    """A local array of `size` elements: "shared" by the group, or "private" to the thread. Its
    content is undefined until stored."""

    name: str
    dtype: DType
    size: int
    space: Space = "private"


@dataclass(frozen=True, slots=True, eq=False)
class Tile(Stmt):
    """A matrix of `rows` x `cols` elements in registers, held by the subgroup together (by the
    thread where a group is one thread). Its content is undefined until zeroed or loaded."""

    name: str
    dtype: DType
    rows: int
    cols: int


TILE_OPS = ("zero", "load", "store", "mma", "mma_nt", "mma_tn", "scale", "add", "fma")


@dataclass(frozen=True, slots=True, eq=False)
class TileOp(Stmt):
    """An operation of a subgroup's threads on tiles, used only where Caps allow it.

    All threads reach it with the same index. The target chooses the threads that touch the memory.
    So a barrier must separate a tile's access to shared memory from any other access to the same
    elements, even by the same subgroup.

    `zero` (t): every element becomes 0.
    `load` (t), `store` (t): row r is the t.cols elements of `memory` from `index` + r * `stride`.
    `mma` (c, a, b): c[m, n] += sum over k of a[m, k] * b[k, n], c in f32 (i32 for int8). `b` holds
    groups of g = a.cols / b.rows adjacent k together, as the hardware reads them: element (k, n) at
    row k / g, column n * g + k % g. The target chooses the order of the sum over one tile's k.
    `mma_nt` (c, a, b): c[m, n] += sum over k of a[m, k] * b[n, k].
    `mma_tn` (c, a, b): c[m, n] += sum over k of a[k, m] * b[k, n], outer products of rows; both
    hold g adjacent k together as `b` of mma does. In f32 an element is one chain of fused
    multiply-adds in ascending k.
    `scale` (c): row r of c, in f32, times the f32 element of `memory` at `index` + r * `stride`.
    `add` (c, d): c += d, element by element, both sums in f32 or i32 (CPU units lack it).
    `fma` (c, d, e): c += d * e in one rounding, element by element; c and e are sums in f32, d in
    f32 or i32, which rounds to f32 (CPU units lack it).

    GPU units (Caps "mma16_bf16", "mma16_f16") take tiles of 16 x 16 and plain rows (g = 1); of int8
    ("mma16_int8") a and b of 16 x 32, sums in i32, and `mma_nt` only. They load a and b fastest
    when `index` and `stride` are known to divide by 16 bytes. A subgroup's tile has one role: b of
    `mma`, another operand, or a sum c.
    """

    op: str
    tiles: tuple[Tile, ...]
    memory: Buffer | Array | None = None
    index: Expr | None = None
    stride: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Block(Stmt):
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Let(Stmt):
    """Introduces `var` with a first value. Only a `mutable` one may be assigned again."""

    var: Var
    value: Expr
    mutable: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Assign(Stmt):
    var: Var
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Store(Stmt):
    """Writes `value` to `target` at `index`; lanes, mask and vector index as in Load (a scatter's
    lanes must not collide)."""

    target: Buffer | Array
    index: Expr
    value: Expr
    mask: Expr | None = None
    nontemporal: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCopy(Stmt):
    """An asynchronous store to shared memory of a value loaded from a buffer, without a mask. Until
    the `barriers`-th barrier from here no thread, this one included, may access the elements. Where
    hardware copies by itself, threads do not wait for it; elsewhere it is an ordinary store (Caps
    "async_copy" tells)."""

    store: Store
    barriers: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Prefetch(Stmt):
    """A hint that `source` at `index` will be read soon; no meaning, no bounds check."""

    source: Buffer
    index: Expr


@dataclass(frozen=True, slots=True, eq=False)
class For(Stmt):
    """for var in range(start, stop, step), int32, step a positive constant; bounds are evaluated
    once. `unroll` asks the dialect to unroll fully (constant bounds)."""

    var: Var
    start: Expr
    stop: Expr
    body: Block
    step: int = 1
    unroll: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class If(Stmt):
    cond: Expr
    then: Block
    other: Block | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Barrier(Stmt):
    """All threads of the group meet; shared and buffer writes before it are seen after it."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Kernel:
    """One compiled function. `grid` entries are expressions over Const, Param and Binary only, so
    that the host can evaluate them (kernel/grid.py); `threads` is the group's shape. `resident`
    groups should find room on one core at a time, which limits their registers (a hint for GPUs).
    In a `clean` one local arrays and tiles start as zeros, or as what this launch left there."""

    name: str
    buffers: tuple[Buffer, ...]
    body: Block
    grid: tuple[Expr, Expr, Expr]
    threads: tuple[int, int, int] = (1, 1, 1)
    flops: int = 0  # at full size, for reports
    bytes: int = 0  # least traffic at full size, for reports
    resident: int = 1
    clean: bool = False
