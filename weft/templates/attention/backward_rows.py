"""The derivative of attention on a CPU: what its kernels share beside the tiles."""

from __future__ import annotations

from collections.abc import Callable

from weft.core import dtypes as dt
from weft.core.caps import Caps
from weft.graph.ir import Node
from weft.kernel.builder import Builder, Expr, const, load, maximum, minimum, select
from weft.kernel.ir import Array
from weft.templates import affine
from weft.templates.affine import Affine
from weft.templates.attention.backward_tiles import MR, Sizes, Tiles
from weft.templates.attention.flash import Operand
from weft.templates.attention.places import seeing_rows, visible_keys
from weft.templates.emit import Emitter
from weft.templates.group import Group
from weft.templates.product.epilogue import store_all
from weft.templates.product.problem import operand
from weft.templates.view import Index


class Rows:
    """Operands, places, and a block of query rows with the keys that each sees. `wide` operands
    hold components; lengths come last, where `inputs` are one more than `narrow`."""

    def __init__(
        self, group: Group, node: Node, caps: Caps, size: Sizes, wide: int, narrow: int
    ) -> None:
        self.group, self.node, self.size = group, node, size
        self.b = b = Builder(group.name or node.attrs["name"])
        self.em = Emitter(b, group, caps)
        self.params = node.attrs["params"]
        self.views = [operand(group, x) for x in node.inputs[:wide]]
        self.batch, self.heads, self.t, self.depth = node.inputs[0].shape
        self.groups, self.s = node.inputs[1].shape[1:3]
        self.share = self.heads // self.groups
        self.tiles = Tiles(b, size, self.depth, self.params["scale"], self.params["softcap"])
        self.low, self.high = (b.array(n, dt.int32, size.rows) for n in ("low", "high"))
        self._narrow = narrow
        self.origin: Expr = const(0)  # the key that stands first in p and ds

    def batch_entry(self, at: Expr) -> None:
        """The batch entry of this kernel's group, and how many keys it has."""
        self.bi = self.em.axis(at, self.batch)
        self.length: Expr = const(self.s)
        if len(self.node.inputs) > self._narrow:
            given = self.em.value(self.node.inputs[self._narrow], (self.bi,))
            self.length = self.b.let(maximum(minimum(given, self.s), 0), "length")

    def operand_of(self, i: int, head: Affine, row: Expr) -> tuple[Operand, Expr]:
        """Operand i of one head, and where its row `row` starts."""
        view = self.views[i]
        base = self.em.expr(affine.flatten((self.bi, head), view.strides[:2], view.offset))
        source = Operand(self.em.buffers[id(view.node)], view.strides[2], view.strides[3])
        return source, base + row * view.strides[2]

    # -- a block of query rows

    def take(self, t0: Expr) -> None:
        """Takes up the rows from t0 on: `count` of them, `padded` in whole tiles."""
        b = self.b
        self.t0 = t0
        self.count = b.let(minimum(self.t - t0, self.size.rows), "count")
        self.padded = b.let((self.count + (MR - 1)) // MR * MR, "padded")
        self._limits()

    def take_rows(self, i: int, head: Affine, target: Array) -> None:
        """The block's rows of operand i in scratch."""
        source, base = self.operand_of(i, head, self.t0)
        self.tiles.pack(source, base, target, self.count, self.padded)

    def _limits(self) -> None:
        """Which keys each row sees (none where there is no row), and all rows together."""
        b, params, t0, count = self.b, self.params, self.t0, self.count

        def limits(row: Expr) -> tuple[Expr, Expr]:
            return visible_keys(
                b, row, self.t, self.s, self.length, params["causal"], params["window"]
            )

        with b.loop(self.padded, name="r") as r:
            low, high = limits(b.let(t0 + r, "row"))
            b.store(self.low, r, low)
            b.store(self.high, r, select(r < count, high, 0))
        low, _ = limits(t0)
        self.first = b.let(low, "first_key")
        self.stop = b.let(load(self.high, count - 1), "stop_key")

    def tile_limits(self, r: Expr) -> tuple[list[Expr], list[Expr], Expr, Expr]:
        """low and high of the tile's rows, the least low and the greatest high."""
        b = self.b
        low = [b.let(load(self.low, r + i), "low") for i in range(MR)]
        high = [b.let(load(self.high, r + i), "high") for i in range(MR)]
        near = minimum(minimum(low[0], low[1]), minimum(low[2], low[3]))
        far = maximum(maximum(high[0], high[1]), maximum(high[2], high[3]))
        return low, high, b.let(near, "near"), b.let(far, "far")

    def each_tile(self, body: Callable[[Expr], None]) -> None:
        """body(r) for each tile of rows."""
        with self.b.loop(self.padded, step=MR, name="r") as r:
            body(r)

    def each_seen(self, k0: Expr, body: Callable[[Expr, list[Expr], list[Expr]], None]) -> None:
        """body(r, low, high) for each tile of rows that sees some of the key block from k0."""
        b = self.b
        with b.loop(self.padded, step=MR, name="r") as r:
            low, high, near, far = self.tile_limits(r)
            with b.when((far > k0) & (near < k0 + self.size.keys)):
                body(r, low, high)

    # -- a key block: needs the arrays named here

    q: Array
    g: Array
    k: Array
    kt: Array
    vt: Array
    p: Array
    ds: Array
    slope: Array | None = None  # the soft cap's derivative

    def scores(self, k0: Expr, r: Expr, low: list[Expr], high: list[Expr]) -> None:
        """p = the scores of a tile against the block, HIDDEN where a key is not seen."""
        b, x, keys = self.b, self.tiles, self.size.keys
        column = b.let(k0 - self.origin, "column")
        block = b.let(column * x.wide, "block")
        x.scores(self.q, r, self.kt, block, column, self.p, self.slope)
        last = maximum(maximum(low[0], low[1]), maximum(low[2], low[3]))
        least = minimum(minimum(high[0], high[1]), minimum(high[2], high[3]))
        with b.when((least < k0 + keys) | (last > k0)):
            x.hide(self.p, r, column, k0, low, high)

    def add_rows(self, first_key: Expr, stop_key: Expr, dk: Array, dv: Array) -> None:
        """Every tile of keys from first_key (a multiple of MR) meets the rows that see some."""
        b, x, params = self.b, self.tiles, self.params
        ahead = b.let(self.t0 + (self.s - self.t), "ahead")
        with b.loop(stop_key, first_key, step=MR, name="j") as j:
            first, stop = seeing_rows(
                b, j, MR, ahead, self.padded, params["causal"], params["window"]
            )
            first = b.let(first - first % MR, "first")
            stop = b.let((stop + (MR - 1)) // MR * MR, "stop")
            column = b.let(j - self.origin, "column")
            x.add_rows(self.p, column, first, stop, self.g, dv)
            x.add_rows(self.ds, column, first, stop, self.q, dk)

    # -- results

    def store(self, index: Index, value: Expr, mask: Expr | None) -> None:
        with self.em.scope():
            store_all(self.em, self.node, index, value, mask)
