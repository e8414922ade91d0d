"""Tiles: what each operation on them asks, what it computes, and how to do without them.

`expand` is the portable form: tiles become private arrays and the products plain multiply-adds,
so a kernel written for a matrix unit runs (slowly) on any target with one thread per group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import KernelError
from weft.kernel import ir, lanewise
from weft.kernel.batch import Batch
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, fma, load, splat
from weft.kernel.ir import Expr, Kernel, Type
from weft.kernel.rules import Table
from weft.kernel.walk import declared, rewritten, statements, with_body

# number of tiles it takes
PRODUCTS = ("mma", "mma_nt", "mma_tn")
_COUNT = {"zero": 1, "load": 1, "store": 1, "scale": 1, "add": 2, "fma": 3} | dict.fromkeys(
    PRODUCTS, 3
)
_MOVES = ("load", "store", "scale")  # operations that touch memory
_PRODUCTS = {  # dtypes of a and b -> dtype of c
    (dt.bfloat16, dt.bfloat16): dt.float32,
    (dt.float16, dt.float16): dt.float32,
    (dt.float32, dt.float32): dt.float32,
    (dt.int8, dt.int8): dt.int32,
    (dt.uint8, dt.int8): dt.int32,
}


# -- rules


def tile_problem(s: ir.Tile | ir.TileOp) -> str | None:
    """Returns the fault of a tile or tile operation (leaving out the memory it names), or None."""
    if isinstance(s, ir.Tile):
        if s.dtype not in dt.DEVICE:
            return f"no device holds {s.dtype}"
        sizes = (s.rows, s.cols)
        return None if all(n > 0 and n & (n - 1) == 0 for n in sizes) else f"a tile of {sizes}"
    if s.op not in ir.TILE_OPS:
        return f"no tile operation {s.op!r}"
    if len(s.tiles) != _COUNT[s.op]:
        return f"tile.{s.op} of {len(s.tiles)} tiles"
    moves = s.op in _MOVES
    if moves != (s.memory is not None and s.index is not None):
        return f"tile.{s.op} {'needs' if moves else 'takes no'} memory"
    if s.memory is not None and s.memory.dtype != s.tiles[0].dtype:
        return f"a tile of {s.tiles[0].dtype} and memory of {s.memory.dtype}"
    if type(s.stride) is not int:
        return f"a stride of {s.stride!r}"
    if s.op == "store" and s.stride < s.tiles[0].cols:
        return f"rows of {s.tiles[0].cols} stored {s.stride} apart overlap"
    if s.op == "scale":
        return None if s.tiles[0].dtype == dt.float32 else f"rows of {s.tiles[0].dtype} scaled"
    if s.op == "add":
        kinds = {(t.dtype, t.rows, t.cols) for t in s.tiles}
        alike = len(kinds) == 1 and s.tiles[0].dtype in (dt.float32, dt.int32)
        return None if alike else f"a sum of tiles of {s.tiles[0].dtype} and {s.tiles[1].dtype}"
    if s.op == "fma":
        c, d, e = s.tiles
        alike = len({(t.rows, t.cols) for t in s.tiles}) == 1 and c.dtype == e.dtype == dt.float32
        known = alike and d.dtype in (dt.float32, dt.int32)
        return None if known else f"{c.dtype} += {d.dtype} * {e.dtype} of tiles"
    return _mma_problem(s.op, *s.tiles) if s.op in PRODUCTS else None


def _mma_problem(op: str, c: ir.Tile, a: ir.Tile, b: ir.Tile) -> str | None:
    if _PRODUCTS.get((a.dtype, b.dtype)) != c.dtype:
        return f"products of {a.dtype} and {b.dtype} into {c.dtype}"
    of_a, of_b = f"[{a.rows}, {a.cols}]", f"[{b.rows}, {b.cols}]"
    if op == "mma_nt":
        fits, of_b = (b.rows, b.cols, a.rows) == (c.cols, a.cols, c.rows), f"{of_b} transposed"
    elif op == "mma_tn":
        g = max(a.cols // c.rows, 1)
        fits, of_a = (
            (a.cols, b.cols, a.rows) == (g * c.rows, g * c.cols, b.rows),
            f"{of_a} transposed",
        )
    else:
        g = a.cols // b.rows
        fits = g >= 1 and (g * b.rows, g * c.cols, a.rows) == (a.cols, b.cols, c.rows)
    return None if fits else f"[{c.rows}, {c.cols}] += {of_a} . {of_b}"


def tile_roles(kernel: Kernel) -> dict[str, str]:
    """Returns each tile's role for a GPU's matrix unit: "result" (sums), "operand" (rows along k)
    or "turned" (b of `mma`: rows along n). Raises KernelError for a tile with several roles."""
    roles: dict[str, str] = {}
    usual: dict[str, str] = {}

    def note(tile: ir.Tile, role: str) -> None:
        if roles.setdefault(tile.name, role) != role:
            raise KernelError(
                f"kernel {kernel.name}: tile {tile.name} is both {roles[tile.name]} and {role} of "
                "products; a subgroup holds these in different ways"
            )

    for s in statements(kernel.body):
        if isinstance(s, ir.Tile):
            usual[s.name] = "result" if s.dtype.itemsize == 4 else "operand"
        elif isinstance(s, ir.TileOp) and s.op in PRODUCTS:
            left = "turned" if s.op == "mma_tn" else "operand"
            right = "operand" if s.op == "mma_nt" else "turned"
            for tile, role in zip(s.tiles, ("result", left, right), strict=True):
                note(tile, role)
        elif isinstance(s, ir.TileOp) and s.op in ("add", "fma"):
            for tile in s.tiles:
                note(tile, "result")
    return usual | roles


# -- meaning


def play(batch: Batch, s: ir.TileOp) -> None:
    """The operation in the interpreter: one copy of a tile per subgroup. Raises KernelError."""
    width = 1 if batch.threads == 1 else batch.together(f"tile.{s.op}")
    active = batch.active[::width]
    tile = s.tiles[0]
    if s.op == "zero":
        _set(batch, tile, active, np.zeros((len(active), tile.rows, tile.cols), tile.dtype.numpy))
        return
    if s.op == "add":
        _set(batch, tile, active, _get(batch, tile) + _get(batch, s.tiles[1]))
        return
    if s.op == "fma":
        c, d, e = (_get(batch, t) for t in s.tiles)
        _set(batch, tile, active, lanewise.fma(d.astype(np.float32), e, c))
        return
    if s.op in PRODUCTS:
        c, a, b = (_get(batch, t) for t in s.tiles)
        _set(batch, tile, active, _outer(c, a, b) if s.op == "mma_tn" else _inner(s.op, c, a, b))
        return
    _move(batch, s, tile, width, active)


def _move(batch: Batch, s: ir.TileOp, tile: ir.Tile, width: int, active: np.ndarray) -> None:
    """Performs load, store and scale, as accesses by the subgroup's first thread."""
    assert s.memory is not None and s.index is not None
    index = np.broadcast_to(batch.eval(s.index), (batch.n, 1)).astype(np.int64)
    alike = index.reshape(-1, width) == index[::width]
    if not alike[active].all():
        raise KernelError("the threads of a subgroup disagree on the index")
    cols = 1 if s.op == "scale" else tile.cols
    spots = (np.arange(tile.rows)[:, None] * s.stride + np.arange(cols)).reshape(-1)
    memory = batch.memories[s.memory.name]
    mask = np.zeros((batch.n, spots.size), bool)
    mask[::width] = True
    _, at, who = batch.places(s.memory, memory, index + spots, spots.size, spots.size, mask)
    if batch.threads > 1:
        who = batch.apart(who, width)
    if s.op == "store":
        memory.write(at, _get(batch, tile).reshape(-1, spots.size)[active].reshape(-1), who)
        return
    value = np.zeros((len(active), spots.size), tile.dtype.numpy)
    value[active] = memory.read(at, who).reshape(-1, spots.size)
    value = value.reshape(-1, tile.rows, cols)
    _set(batch, tile, active, _get(batch, tile) * value if s.op == "scale" else value)


def _get(batch: Batch, tile: ir.Tile) -> np.ndarray:
    if tile.name not in batch.tiles:
        raise KernelError(f"tile {tile.name} is used before it is zeroed or loaded")
    return batch.tiles[tile.name]


def _set(batch: Batch, tile: ir.Tile, active: np.ndarray, value: np.ndarray) -> None:
    known = batch.tiles.get(tile.name)
    batch.tiles[tile.name] = (
        value if known is None else np.where(active[:, None, None], value, known)
    )


def _plain(b: np.ndarray, depth: int) -> np.ndarray:
    """b[subgroups, k, n] of tiles that hold groups of adjacent k together."""
    groups, rows, cols = b.shape
    g = depth // rows
    apart = b.reshape(groups, rows, cols // g, g).swapaxes(2, 3)
    return apart.reshape(groups, depth, cols // g)


def _inner(op: str, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """c + a . b with the sum in float64 (int64), rounded once."""
    b = b.swapaxes(1, 2) if op == "mma_nt" else _plain(b, a.shape[2])
    wide = np.float64 if c.dtype.kind == "f" else np.int64
    return (c + a.astype(wide) @ b.astype(wide)).astype(c.dtype)


def _outer(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """c + a^T . b, row by row; in f32 one multiply-add each."""
    g = a.shape[2] // c.shape[1]
    a, b = (_plain(x, g * x.shape[1]).astype(c.dtype) for x in (a, b))
    for k in range(a.shape[1]):
        x, y = a[:, k, :, None], b[:, k, None, :]
        c = lanewise.fma(x, y, c) if c.dtype.kind == "f" else c + x * y
    return c


RULES: Table = {ir.TileOp: play, ir.Tile: lambda batch, s: batch.tiles.pop(s.name, None)}


# -- doing without


def expand(kernel: Kernel) -> Kernel:
    """The same kernel without tiles, for one thread per group: each tile is a private array, each
    row of a product a chain of multiply-adds in ascending k. Raises KernelError where there are
    more threads."""
    if not has_tiles(kernel.body):
        return kernel
    if kernel.threads != (1, 1, 1):
        raise KernelError(f"kernel {kernel.name}: tiles of a subgroup lack a portable form")
    return with_body(kernel, rewritten(kernel.body, _Expansion(kernel).stmt))


def products(kernel: Kernel) -> set[str]:
    """The kinds of products of tiles that a kernel has."""
    ops = {s.op for s in statements(kernel.body) if isinstance(s, ir.TileOp)}
    return ops.intersection(PRODUCTS)


def has_tiles(s: ir.Stmt) -> bool:
    """True if a tile is declared in a statement."""
    return any(isinstance(x, ir.Tile) for x in statements(s))


class _Expansion:
    def __init__(self, kernel: Kernel) -> None:
        self.taken = set(declared(kernel))
        self.arrays: dict[str, ir.Array] = {}

    def stmt(self, s: ir.Stmt) -> Sequence[ir.Stmt] | None:
        if isinstance(s, ir.Tile):
            array = self.arrays[s.name] = ir.Array(s.name, s.dtype, s.rows * s.cols)
            return [array]
        if not isinstance(s, ir.TileOp):
            return None
        b = Builder("tiles", self.taken)
        self._op(b, s)
        return b.statements

    def _op(self, b: Builder, s: ir.TileOp) -> None:
        if s.op == "mma":
            self._mma(b, *s.tiles)
            return
        if s.op == "mma_nt":
            self._mma_nt(b, *s.tiles)
            return
        if s.op == "mma_tn":
            self._mma_tn(b, *s.tiles)
            return
        tile = s.tiles[0]
        array, cols = self.arrays[tile.name], tile.cols
        base = None if s.index is None else b.let(s.index, "base")
        with b.loop(tile.rows, name="row") as r:
            if s.op == "add":
                other = load(self.arrays[s.tiles[1].name], r * cols, cols)
                b.store(array, r * cols, load(array, r * cols, cols) + other)
            elif s.op == "fma":
                d, e = (load(self.arrays[t.name], r * cols, cols) for t in s.tiles[1:])
                factor = cast(d, dt.float32) if s.tiles[1].dtype.is_int else d
                b.store(array, r * cols, fma(factor, e, load(array, r * cols, cols)))
            elif s.memory is None or base is None:
                b.store(array, r * cols, ir.Const(0, Type(tile.dtype, cols)))
            elif s.op == "load":
                b.store(array, r * cols, load(s.memory, base + r * s.stride, cols))
            elif s.op == "scale":
                factor = splat(load(s.memory, base + r * s.stride), cols)
                b.store(array, r * cols, load(array, r * cols, cols) * factor)
            else:
                b.store(s.memory, base + r * s.stride, load(array, r * cols, cols))

    def _mma(self, b: Builder, c: ir.Tile, a: ir.Tile, right: ir.Tile) -> None:
        of_c, of_a, of_b = (self.arrays[t.name] for t in (c, a, right))
        g, n = a.cols // right.rows, c.cols
        with b.loop(c.rows, name="row") as r:
            acc = b.var(load(of_c, r * n, n), "acc")
            with b.loop(right.rows, name="k") as k:
                for j in range(g):
                    at = b.let(k * right.cols + ir.Vec("iota", (), Type(dt.int32, n)) * g + j)
                    y = cast(load(of_b, at, n), c.dtype)
                    x = splat(cast(load(of_a, r * a.cols + k * g + j), c.dtype), n)
                    b.assign(acc, _multiply_add(x, y, acc))
            b.store(of_c, r * n, acc)

    def _mma_nt(self, b: Builder, c: ir.Tile, a: ir.Tile, right: ir.Tile) -> None:
        of_c, of_a, of_b = (self.arrays[t.name] for t in (c, a, right))
        n, depth = c.cols, a.cols
        with b.loop(c.rows, name="row") as r:
            acc = b.var(load(of_c, r * n, n), "acc")
            with b.loop(depth, name="k") as k:
                column = ir.Vec("iota", (), Type(dt.int32, n)) * depth + splat(k, n)
                y = cast(load(of_b, b.let(column)), c.dtype)
                x = splat(cast(load(of_a, r * depth + k), c.dtype), n)
                b.assign(acc, _multiply_add(x, y, acc))
            b.store(of_c, r * n, acc)

    def _mma_tn(self, b: Builder, c: ir.Tile, a: ir.Tile, right: ir.Tile) -> None:
        of_c, of_a, of_b = (self.arrays[t.name] for t in (c, a, right))
        n, g = c.cols, a.cols // c.rows
        with b.loop(c.rows, name="row") as r:
            acc = b.var(load(of_c, r * n, n), "acc")
            with b.loop(a.rows, name="k") as k:
                for j in range(g):
                    at = b.let(k * right.cols + ir.Vec("iota", (), Type(dt.int32, n)) * g + j)
                    y = cast(load(of_b, at, n), c.dtype)
                    x = splat(cast(load(of_a, k * a.cols + r * g + j), c.dtype), n)
                    b.assign(acc, _multiply_add(x, y, acc))
            b.store(of_c, r * n, acc)


def _multiply_add(x: Expr, y: Expr, acc: ir.Var) -> Expr:
    return fma(x, y, acc) if acc.type.dtype == dt.float32 else acc + x * y
