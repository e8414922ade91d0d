"""Sizes of a convolution's kernels: tiles, blocks, and the bands that its weights come in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.core.caps import Caps
from weft.core.records import dataclass
from weft.graph.ir import Node
from weft.ops.conv import Sides, Sizes
from weft.ops.winograd import KERNEL, STEP, WINOGRAD

ROWS = 256  # most results per channel of a CPU's group, where rows are not longer
FOUR = 4  # outputs per place that one thread of a GPU computes
# Share of the peak speed that a tile of this many vectors reaches: fewer load more per product.
_SHARE = {1: 0.6, 2: 0.85, 3: 0.95, 4: 1.0}
_TILES = {32: {1: 12, 2: 12, 3: 8, 4: 6}, 16: {1: 8, 2: 6}}  # registers -> vectors -> places


@dataclass(frozen=True)
class ConvShape:
    """x[N, H, W, C] with windows of `kernel`, and the results of one channel [N, OH, OW]."""

    n: int
    h: int
    w: int
    c: int
    oh: int
    ow: int
    o: int
    kernel: Sizes
    stride: Sizes
    padding: Sides
    dilation: Sizes
    zero: int = 0  # the value around the image

    @property
    def places(self) -> int:
        """Places of a window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def k(self) -> int:
        return self.places * self.c

    @property
    def padded(self) -> bool:
        return any(map(any, self.padding))

    @property
    def wide(self) -> int:
        """Columns of the image with its padding."""
        return self.w + sum(self.padding[1])

    def high(self, rows: int) -> int:
        """Returns the number of image rows that `rows` rows of results see."""
        return (rows - 1) * self.stride[0] + self.dilation[0] * (self.kernel[0] - 1) + 1


def shape_of(call: Node) -> ConvShape:
    """The sizes of a call of a convolution with channels last."""
    params: dict[str, Any] = dict(call.attrs["params"])
    if call.attrs["name"] == WINOGRAD:
        params |= {"kernel": (KERNEL,) * 2, "stride": (1, 1), "dilation": (1, 1)}
    params.pop("channels", None)
    n, h, w, c = call.inputs[0].shape
    _, oh, ow, o = call.shape
    return ConvShape(n, h, w, c, oh, ow, o, **params)


def tile(o: int, caps: Caps) -> tuple[int, int]:
    """(places, vectors of outputs) whose sums a CPU's registers hold."""
    table = _TILES[32 if caps.registers >= 32 else 16]
    vectors = -(-o // caps.lanes)

    def cost(nv: int) -> float:
        return -(-vectors // nv) * nv / _SHARE[nv]

    nv = min(reversed(table), key=cost)
    return table[nv], nv


def bands(o: int, caps: Caps) -> tuple[int, int]:
    """(bands, outputs in each) of the weights of `o` outputs: as a CPU's tile reads them, or for
    the threads of a GPU all side by side."""
    if not caps.is_cpu:
        return 1, -(-o // FOUR) * FOUR
    _, nv = tile(o, caps)
    return -(-o // (caps.lanes * nv)) * nv, caps.lanes


def rows_per_group(s: ConvShape, caps: Caps, mr: int, nv: int, itemsize: int = 4) -> int:
    """Rows of results that a CPU's group sums: few enough for its cache, in as many groups as keep
    all cores at work, and no tile of places half empty where that can be."""
    panels = -(-s.o // (nv * caps.lanes))
    most = max(1, min(s.oh, ROWS // s.ow))
    room = caps.scratch_bytes // 2 // (itemsize * s.wide * s.c) if s.padded else s.h
    while most > 1 and s.high(most) > room:
        most -= 1

    def cost(rows: int) -> float:
        blocks = -(-s.oh // rows)
        groups = s.n * blocks * panels
        tiles = -(-rows * s.ow // mr)
        # A group's weights and windows come from beyond its L1 cache once per group.
        return -(-groups // caps.cores) * (tiles + 2.0)

    return min(range(1, most + 1), key=lambda rows: (cost(rows), -rows))


# -- with fewer products (ops/winograd) -----------------------------------------------------------

HELD = 640 << 10  # bytes of a group's tiles, their products and its part of the image, in L2
DEEP = 8  # channels and outputs from which on the transforms pay
# most weights per place of the results: beyond it more memory traffic, for 16 matrices in place of
# 9
FAR = 2048


class WinogradTiling:
    """The walk of a CPU's group through tiles of 2 x 2 results. An image has `high` x `wide` tiles
    and a group `rows` rows of them. Registers hold `mr` tiles by `nv` vectors of outputs. `s` is
    the shape with enough padding for whole tiles."""

    def __init__(self, s: ConvShape, caps: Caps) -> None:
        self.high, self.wide = -(-s.oh // STEP), -(-s.ow // STEP)
        more = [STEP * n + 2 - d - sum(p) for n, d, p in
                zip((self.high, self.wide), (s.h, s.w), s.padding)]  # fmt: skip
        (top, bottom), (left, right) = s.padding
        self.s = replace(s, padding=((top, bottom + more[0]), (left, right + more[1])))
        self.mr, self.nv = tile(s.o, caps)
        self.rows = self._rows(caps)

    def nbytes(self, rows: int, caps: Caps) -> int:
        """Returns the bytes of scratch memory for `rows` rows of tiles."""
        s, lanes = self.s, caps.lanes
        wide = -(-s.c // lanes) * lanes + self.nv * lanes
        pixels = (STEP * rows + 2) * s.wide * s.c + lanes
        return 4 * (16 * rows * self.wide * wide + pixels)

    def _rows(self, caps: Caps) -> int:
        """Returns the rows per group: large, even groups that fit, and enough of them for all
        cores."""
        panels = -(-self.s.o // (self.nv * caps.lanes)) * self.s.n
        fits = [r for r in range(1, self.high + 1) if self.nbytes(r, caps) <= HELD] or [1]

        def cost(rows: int) -> float:
            groups = panels * -(-self.high // rows)
            tiles = -(-rows * self.wide // self.mr)
            return -(-groups // caps.cores) * (tiles + 2.0)

        return min(fits, key=lambda rows: (cost(rows), -rows))


def fewer_products(s: ConvShape, caps: Caps) -> bool:
    """True if a convolution is faster with fewer products and more sums (measured on Zen 4)."""
    plain = s.kernel == (KERNEL,) * 2 and s.stride == s.dilation == (1, 1)
    if not (plain and caps.is_cpu and caps.registers >= 32 and min(s.oh, s.ow) >= 4):
        return False
    fits = WinogradTiling(s, caps).nbytes(1, caps) <= caps.scratch_bytes // 2
    return fits and min(s.c, s.o) >= DEEP and s.c * s.o <= FAR * s.oh * s.ow
