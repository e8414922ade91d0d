"""What the threads of a kernel ask of memory, counted without a GPU: subgroups of a few groups play
the kernel's integers, so the address of every access is known (an index that was loaded counts as
0), and with it how many pieces of 32 bytes the subgroup's threads touch together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from weft.kernel import ir
from weft.kernel.grid import groups
from weft.kernel.walk import walk

SECTOR = 32  # bytes that memory gives at once
_BANKS = 32  # words of shared memory that are read at once
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "//", "rem": "%", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>", "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
}  # fmt: skip
_SCALAR = 1 << 12  # what a runtime scalar counts as
_SAMPLES = 2  # groups
Access = tuple[int, int, int]  # number of the place in the kernel, address in bytes, bytes
Play = Callable[..., None]


@dataclass
class Traffic:
    """Bytes of a whole launch: `fetched` of memory, in pieces of 32, where each group finds again
    what it asked for before; `asked` by its subgroups, whose threads touch `used` bytes of them; of
    shared memory `shared`, which takes as long as `turns` bytes without bank conflicts.
    `operations` of floats by threads, and by `units` of matrices. The launch has `grid` groups."""

    grid: int = 0
    fetched: float = 0
    asked: float = 0
    used: float = 0
    shared: float = 0
    turns: float = 0
    operations: float = 0
    units: float = 0

    def add(self, other: Traffic, times: float = 1.0) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))


def traffic(kernel: ir.Kernel, subgroup: int) -> Traffic:
    """The traffic of one launch, from samples of its groups."""
    slots = max((x.slot for x in walk(kernel.body) if isinstance(x, ir.Param)), default=0)
    slots = max((x.slot for g in kernel.grid for x in walk(g) if isinstance(x, ir.Param)),
                default=slots)  # fmt: skip
    scalars = [_SCALAR] * (slots + 64)
    grid = groups(kernel, scalars)
    play, places = _Play(kernel).function()
    threads = [*_places(kernel.threads)]
    subs = -(-len(threads) // subgroup)
    found = Traffic()
    samples = _spaced(math.prod(grid))
    for group in samples:
        x, y, _ = grid
        at = (group % x, group // x % y, group // (x * y))
        pieces: set[tuple[str, int]] = set()
        for sub in range(subs):
            some = threads[sub * subgroup :][:subgroup]
            found.add(_subgroup(play, places, at, some, scalars, pieces))
        found.fetched += SECTOR * len(pieces)
    whole = Traffic()
    whole.add(found, math.prod(grid) / max(len(samples), 1))
    whole.grid = math.prod(grid)
    return whole


def _spaced(count: int) -> list[int]:
    """A few numbers below `count`, evenly."""
    return sorted({(2 * i + 1) * count // (2 * _SAMPLES) for i in range(_SAMPLES)} if count else ())


def _places(threads: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    x, y, z = threads
    return ((i % x, i // x % y, i // (x * y)) for i in range(x * y * z))


def _subgroup(
    play: Play, places: list[_Place], group: Any, threads: list[Any], scalars: list[int],
    pieces: set[tuple[str, int]],
) -> Traffic:  # fmt: skip
    found = Traffic()
    together: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for thread in threads:
        counts = [0.0, 0.0]
        accesses: list[Access] = []
        play(group, thread, scalars, accesses.append, counts)
        found.operations += counts[0]
        found.units += counts[1] / len(threads)
        times: dict[int, int] = defaultdict(int)
        for place, address, size in accesses:
            together[place, times[place]].append((address, size))
            times[place] += 1
    for (place, _), spots in together.items():
        if places[place].tile:
            spots = spots[:1]  # the subgroup's together
        used = sum(size for _, size in spots)
        if places[place].shared:
            found.shared += used
            found.turns += used if places[place].tile else _conflicts(spots) * used
        else:
            found.used += used
            own = {(places[place].name, p) for a, n in spots for p in _pieces(a, n)}
            found.asked += SECTOR * len(own)
            pieces |= own
    return found


def _pieces(address: int, size: int) -> range:
    return range(address // SECTOR, (address + size - 1) // SECTOR + 1)


def _conflicts(spots: list[tuple[int, int]]) -> float:
    """How many times as long a subgroup's access takes as with every bank busy."""
    size = max(spots[0][1], 4)
    share = max(_BANKS * 4 // size, 1)  # threads served at once
    turns = least = 0
    for i in range(0, len(spots), share):
        banks: dict[int, set[int]] = defaultdict(set)
        for address, n in spots[i : i + share]:
            for word in range(address // 4, (address + n - 1) // 4 + 1):
                banks[word % _BANKS].add(word)
        turns += max(len(words) for words in banks.values())
        least += 1
    return turns / least


@dataclass
class _Place:
    name: str
    shared: bool
    tile: bool


class _Play:
    """A kernel as a Python function of one thread's integers, which reports accesses."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.places: list[_Place] = []
        self.lines: list[str] = []
        self.names: dict[str, str] = {}

    def function(self) -> tuple[Play, list[_Place]]:
        self.lines = ["def play(group, thread, scalars, access, counts):"]
        self._block(self.kernel.body, " ")
        self.lines.append(" return")
        scope: dict[str, Any] = {}
        exec("\n".join(self.lines), scope)
        return scope["play"], self.places

    def _name(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}")

    def _block(self, block: ir.Block, indent: str) -> None:
        self.lines.append(f"{indent}pass")
        for s in block.body:
            self._statement(s, indent)

    def _statement(self, s: ir.Stmt, indent: str) -> None:
        add = self.lines.append
        match s:
            case ir.Block():
                self._block(s, indent)
            case ir.Let() | ir.Assign():
                self._count(s.value, indent)
                if not s.var.type.dtype.is_float and s.var.type.lanes == 1:
                    add(f"{indent}{self._name(s.var.name)} = {self._text(s.value)}")
            case ir.Store():
                self._store(s, indent)
            case ir.AsyncCopy():
                self._store(s.store, indent)
            case ir.For():
                for bound in (s.start, s.stop):
                    self._count(bound, indent)
                bounds = f"{self._text(s.start)}, {self._text(s.stop)}, {s.step}"
                add(f"{indent}for {self._name(s.var.name)} in range({bounds}):")
                self._block(s.body, indent + " ")
            case ir.If():
                self._count(s.cond, indent)
                add(f"{indent}if {self._text(s.cond)}:")
                self._block(s.then, indent + " ")
                if s.other is not None:
                    add(f"{indent}else:")
                    self._block(s.other, indent + " ")
            case ir.TileOp():
                self._tile(s, indent)

    def _store(self, s: ir.Store, indent: str) -> None:
        for e in (s.index, s.value, *([] if s.mask is None else [s.mask])):
            self._count(e, indent)
        self._access(s.target, s.index, s.value.type.lanes, s.mask, indent)

    def _tile(self, s: ir.TileOp, indent: str) -> None:
        if s.memory is None or s.index is None:
            if s.op.startswith("mma"):
                c, a = s.tiles[:2]
                depth = a.rows if s.op == "mma_tn" else a.cols
                self.lines.append(f"{indent}counts[1] += {2 * c.rows * c.cols * depth}")
            return
        t = s.tiles[0]
        index, size = self._text(s.index), t.dtype.itemsize
        for row in range(t.rows):
            number = self._place(s.memory, True)
            at = f"({index} + {row * s.stride}) * {size}"
            self.lines.append(f"{indent}access(({number}, {at}, {t.cols * size}))")

    def _place(self, memory: ir.Buffer | ir.Array, tile: bool = False) -> int:
        self.places.append(_Place(memory.name, isinstance(memory, ir.Array), tile))
        return len(self.places) - 1

    def _access(
        self, memory: Any, index: ir.Expr, lanes: int, mask: ir.Expr | None, indent: str
    ) -> None:
        if isinstance(memory, ir.Array) and memory.space == "private":
            return
        number, size = self._place(memory), memory.dtype.itemsize
        at = f"{self._text(index)} * {size}"
        condition = "" if mask is None else f"if {self._text(mask)}: "
        self.lines.append(f"{indent}{condition}access(({number}, {at}, {lanes * size}))")

    def _count(self, e: ir.Expr, indent: str) -> None:
        """Reports the loads and float operations of an expression."""
        operations = 0
        for x in walk(e):
            if isinstance(x, ir.Load):
                self._access(x.source, x.index, x.type.lanes, x.mask, indent)
            elif isinstance(x, ir.Binary | ir.Unary | ir.Fma) and x.type.dtype.is_float:
                operations += x.type.lanes * (1 + isinstance(x, ir.Fma))
            elif isinstance(x, ir.Collective) and x.op.startswith("dot"):
                operations += 2 * x.args[1].type.lanes
        if operations:
            self.lines.append(f"{indent}counts[0] += {operations}")

    def _text(self, e: ir.Expr) -> str:
        """An integer expression in Python; what is not known counts as 0."""
        match e:
            case ir.Const():
                return str(int(e.value)) if not e.type.dtype.is_float else "0"
            case ir.Param():
                return f"scalars[{e.slot}]"
            case ir.Axis():
                return f"{e.kind}[{e.dim}]"
            case ir.Var() if not e.type.dtype.is_float and e.type.lanes == 1:
                return self._name(e.name)
            case ir.Binary() if not e.a.type.dtype.is_float:
                a, b = self._text(e.a), self._text(e.b)
                if e.op in ("min", "max"):
                    return f"{e.op}({a}, {b})"
                if e.op in ("div", "rem"):
                    b = f"({b} or 1)"
                return f"({a} {_INFIX[e.op]} {b})"
            case ir.Select():
                return f"({self._text(e.a)} if {self._text(e.cond)} else {self._text(e.b)})"
            case ir.Unary(op="neg"):
                return f"(-{self._text(e.x)})"
            case ir.Unary(op="not"):
                return f"(not {self._text(e.x)})"
            case ir.Cast() if not e.x.type.dtype.is_float:
                return self._text(e.x)
            case ir.Vec(op="splat"):
                return self._text(e.args[0])
        return "0"
