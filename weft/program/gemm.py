"""Gemm: a matrix product in a vendor's terms, and what must hold of one before it is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.records import dataclass
from weft.kernel.ir import Buffer

MAX_SIDE = 1 << 31

# (a and b, c): the products that vendors' libraries know; sums are in float32 or int32
DTYPES = frozenset(
    {
        (dt.float32, dt.float32),
        (dt.float16, dt.float16),
        (dt.float16, dt.float32),
        (dt.bfloat16, dt.bfloat16),
        (dt.bfloat16, dt.float32),
        (dt.int8, dt.int32),
    }
)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Element [t, i, j] is element offset + t * strides[0] + i * strides[1] + j * strides[2] of
    argument number `arg`, which holds `dtype`."""

    arg: int
    dtype: DType
    offset: int
    strides: tuple[int, int, int]

    @property
    def row_major(self) -> bool:
        """True if the elements of a row are next to each other."""
        return self.strides[2] == 1

    @property
    def ld(self) -> int:
        """The distance between rows, or between columns where those are contiguous."""
        return self.strides[1] if self.row_major else self.strides[2]


@dataclass(frozen=True, slots=True)
class Gemm:
    """The product c[t] = gelu?(a[t] b[t] + bias + residual[t]) for t < batch.

    Sums are float32 (int8: int32) and are rounded once. Shapes: a [m, k], b [k, n], c and residual
    [m, n], bias [n] for each row. `gelu` is the tanh form.
    """

    m: int
    n: int
    k: int
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    bias: Matrix | None = None
    residual: Matrix | None = None
    gelu: bool = False


def plain(x: Matrix, rows: int, columns: int) -> bool:
    """True if libraries take a matrix with these sides: rows or columns contiguous and not
    overlapping."""
    _, i, j = x.strides
    return i >= columns if j == 1 else i == 1 and j >= rows


def check_gemm(g: Gemm, buffers: Sequence[Buffer], want: Callable[[bool, str], None]) -> None:
    """Calls want(holds, message) for every condition on `g` as a product of the given kernel
    arguments. All its accesses must lie within them, and it must write the kernel's written
    argument, whole."""
    sides = (g.m, g.n, g.k, g.batch)
    want(all(type(s) is int and 0 < s < MAX_SIDE for s in sides), f"has sides {sides!r}")
    want(type(g.gelu) is bool, f"has gelu {g.gelu!r}")
    for name, x, rows, columns in _operands(g):
        want(_inside(g, x, rows, columns, buffers), f"reads or writes beyond its {name}")
        want(name == "bias" or plain(x, rows, columns), f"has a {name} that is no plain matrix")
        writes = buffers[x.arg].access != "r"
        want(writes == (name == "c"), f"has {name} in an argument of the other kind")
    c = g.c
    whole = (c.offset, c.strides, buffers[c.arg].size) == (0, (g.m * g.n, g.n, 1), _size(g))
    want(whole, "does not write all of c")
    want(sum(b.access != "r" for b in buffers) == 1, "would leave results of its kernel out")
    want(g.a.dtype is g.b.dtype and (g.a.dtype, c.dtype) in DTYPES, "mixes dtypes")
    extra = [x for x in (g.bias, g.residual) if x is not None]
    floats = c.dtype.is_float or not (extra or g.gelu)
    want(floats and all(x.dtype is c.dtype for x in extra), "adds another dtype")
    want(g.bias is None or g.bias.strides == (0, 0, 1), "has a bias that is no vector")
    want(g.residual is None or g.residual.row_major, "has a residual by columns")


def _operands(g: Gemm) -> list[tuple[str, Matrix, int, int]]:
    """(name, matrix, rows, columns) of each operand that there is."""
    every = (
        ("a", g.a, g.m, g.k), ("b", g.b, g.k, g.n), ("c", g.c, g.m, g.n),
        ("bias", g.bias, g.m, g.n), ("residual", g.residual, g.m, g.n),
    )  # fmt: skip
    return [(name, x, rows, columns) for name, x, rows, columns in every if x is not None]


def _size(g: Gemm) -> int:
    return g.batch * g.m * g.n


def _inside(g: Gemm, x: Matrix, rows: int, columns: int, buffers: Sequence[Buffer]) -> bool:
    numbers = (x.arg, x.offset, *x.strides)
    if any(type(n) is not int or n < 0 for n in numbers) or x.arg >= len(buffers):
        return False
    buffer, extents = buffers[x.arg], (g.batch, rows, columns)
    last = x.offset + sum((d - 1) * s for d, s in zip(extents, x.strides))
    return buffer.dtype is x.dtype and last < buffer.size
