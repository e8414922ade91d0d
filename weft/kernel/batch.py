"""The interpreter's threads: what an expression is in each, and the memory that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import KernelError
from weft.kernel import ir, lanewise
from weft.kernel.ir import Expr, Kernel
from weft.kernel.memory import SPAN, CheckedMemory, Who
from weft.kernel.printer import expr_text, shorten
from weft.kernel.rules import Rules, Table

# the result of a dot4 whose promise is broken; it shows in all later results
BROKEN = np.int32(0x5A5A5A5A)


def spread(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x, broadcast where it does not have the shape."""
    return x if x.shape == shape else np.broadcast_to(x, shape)


class RunWatch(Protocol):
    """Is told what a run does, to count it (`interp.run`). `groups` is how many may advance
    together."""

    groups: int

    def block(self, batch: Batch, block: ir.Block) -> None:
        """The active threads of `batch` are about to run the statements of `block` once."""

    def access(self, batch: Batch, buffer: ir.Buffer, at: np.ndarray, rows: np.ndarray) -> None:
        """Records that thread `rows[i]` of the batch reads or writes element `at[i]` of `buffer`.
        Accesses of one thread by one node are adjacent."""


class Batch:
    """Some groups of one kernel, advancing together by the rules of interp. N threads in all."""

    def __init__(
        self,
        kernel: Kernel,
        rules: Rules,
        memories: dict[str, CheckedMemory],
        scalars: Sequence[int],
        caps: Caps | None,
        check: bool,
        grid: Sequence[int],
        groups: np.ndarray,
        watch: RunWatch | None = None,
    ) -> None:
        self.rules, self.watch = rules, watch
        self.kernel, self.scalars, self.caps, self.check = kernel, scalars, caps, check
        self.memories = dict(memories)
        tx, ty, tz = kernel.threads
        self.threads = tx * ty * tz
        self.groups = len(groups)
        self.n = self.groups * self.threads
        group = np.repeat(groups, self.threads)
        thread = np.tile(np.arange(self.threads), self.groups)
        self.group, self.owner = group, group * SPAN + thread
        self.local_group = np.repeat(np.arange(len(groups)), self.threads)
        self.epoch = np.zeros(self.groups, np.int64)
        self.vars: dict[str, np.ndarray] = {}
        self.tiles: dict[str, np.ndarray] = {}  # name -> [subgroups, rows, cols]
        self.joint = 0  # the number of accesses to memory so far that belong to no single thread
        self.set_active(np.ones(self.n, bool))
        self.known: dict[int | tuple[str, int], np.ndarray] = {}  # constants, by their nodes' ids
        self.axes = {
            ("group", 0): group % grid[0], ("group", 1): group // grid[0] % grid[1],
            ("group", 2): group // (grid[0] * grid[1]),
            ("thread", 0): thread % tx, ("thread", 1): thread // tx % ty,
            ("thread", 2): thread // (tx * ty),
        }  # fmt: skip
        self.axes = {key: v.astype(np.int32)[:, None] for key, v in self.axes.items()}

    def set_active(self, active: np.ndarray) -> None:
        self.active = active
        self.everyone, self.anyone = bool(active.all()), bool(active.any())

    def fail(self, why: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}: {why}")

    # -- memory

    def places(
        self,
        target: ir.Buffer | ir.Array,
        memory: CheckedMemory,
        index: np.ndarray,
        index_lanes: int,
        lanes: int,
        mask: np.ndarray | None,
    ) -> tuple[np.ndarray | None, np.ndarray, Who]:
        """(chosen bool[N, lanes], or None for all; flat positions int64[K]; who[K]) of an access,
        in bounds."""
        wide = index.astype(np.int64)
        if index_lanes == 1 and lanes > 1:
            wide = wide + self.counted(lanes)
        wide = spread(wide, (self.n, lanes))
        if mask is None and self.everyone:
            chosen, at, rows = None, wide.reshape(-1), self.rows(lanes)
        else:
            chosen = spread(self.active[:, None], (self.n, lanes))
            if mask is not None:
                chosen = chosen & mask
            at, rows = wide[chosen], np.nonzero(chosen)[0]
        who = self.who(rows)
        memory.check_bounds(at, who)
        if isinstance(target, ir.Array):
            copy = self.local_group[rows] if target.space == "shared" else rows
            at = at + copy * target.size
        elif self.watch is not None:
            self.watch.access(self, target, at, rows)
        return chosen, at, who

    def who(self, rows: np.ndarray) -> Who:
        """Threads that make accesses."""
        return Who(lambda: (self.owner[rows], self.group[rows], self.epoch[self.local_group[rows]]))

    def counted(self, lanes: int) -> np.ndarray:
        """0, 1, 2, ... for each lane."""
        found = self.known.get(("lanes", lanes))
        if found is None:
            found = self.known["lanes", lanes] = np.arange(lanes)
        return found

    def rows(self, lanes: int) -> np.ndarray:
        """The thread of each of [N, lanes]."""
        found = self.known.get(("rows", lanes))
        if found is None:
            found = self.known["rows", lanes] = np.repeat(np.arange(self.n), lanes)
        return found

    def load(self, e: ir.Load) -> np.ndarray:
        index = self.eval(e.index)
        mask = None if e.mask is None else self.eval(e.mask)
        memory, lanes = self.memories[e.source.name], e.type.lanes
        if self.is_plain(memory, e.source) and index.shape[0] == 1 and mask is None:
            return self.uniform_load(e, memory, index, lanes)
        chosen, at, who = self.places(e.source, memory, index, e.index.type.lanes, lanes, mask)
        try:
            values = memory.read(at, who)
        except KernelError as error:
            raise KernelError(f"{e.source.name}: {error}") from None
        if chosen is None or values.size == chosen.size:
            return values.reshape(self.n, lanes)
        result = np.zeros((self.n, lanes), e.type.dtype.numpy)
        result[chosen] = values
        return result

    def is_plain(self, memory: CheckedMemory, source: ir.Buffer | ir.Array) -> bool:
        """One copy for all, with nothing to track."""
        untracked = memory.tracker is None and memory.undefined is None
        return untracked and isinstance(source, ir.Buffer)

    def uniform_load(
        self, e: ir.Load, memory: CheckedMemory, index: np.ndarray, lanes: int
    ) -> np.ndarray:
        at = index[0].astype(np.int64)
        if e.index.type.lanes == 1 and lanes > 1:
            at = at + self.counted(lanes)
        at = spread(at, (lanes,))
        memory.check_bounds(at, self.who(np.full(lanes, self.active.argmax())))
        if self.watch is not None and isinstance(e.source, ir.Buffer):
            rows = np.nonzero(self.active)[0]
            self.watch.access(self, e.source, np.tile(at, len(rows)), np.repeat(rows, lanes))
        row: np.ndarray = memory.data[at][None]
        return row

    # -- expressions

    def eval(self, e: Expr) -> np.ndarray:
        """The value as [N or 1, lanes or 1] in the NumPy dtype of its type."""
        value: np.ndarray = self.rules[type(e)](self, e)
        return value

    def full(self, e: Expr) -> np.ndarray:
        """Evaluates `e` and expands the result to all lanes."""
        x = self.eval(e)
        return spread(x, (x.shape[0], e.type.lanes))

    def const(self, e: ir.Const) -> np.ndarray:
        found = self.known.get(id(e))
        if found is None:
            found = self.known[id(e)] = np.array([[e.value]]).astype(e.type.dtype.numpy)
        return found

    def param(self, e: ir.Param) -> np.ndarray:
        if e.slot >= len(self.scalars):
            raise KernelError(f"scalar {e.name} is slot {e.slot} of {len(self.scalars)}")
        return np.array([[self.scalars[e.slot]]], np.int32)

    def binary(self, e: ir.Binary) -> np.ndarray:
        a, b = self.eval(e.a), self.eval(e.b)
        if e.op in ("div", "rem") and b.dtype.kind != "f":
            zero = (b == 0).any(1) & self.active
            if zero.any():
                raise KernelError(f"division by zero in {shorten(expr_text(e))}")
        return lanewise.BINARY[e.op](a, b)

    def select(self, e: ir.Select) -> np.ndarray:
        return np.where(self.eval(e.cond), self.eval(e.a), self.eval(e.b))

    def bitcast(self, e: ir.Bitcast) -> np.ndarray:
        return np.ascontiguousarray(self.full(e.x)).view(e.type.dtype.numpy)

    def vec(self, e: ir.Vec) -> np.ndarray:
        if e.op == "splat":
            return self.eval(e.args[0])
        if e.op == "iota":
            return np.arange(e.type.lanes, dtype=np.int32)[None]
        parts = [self.full(a) for a in e.args]
        if e.op == "any":
            some: np.ndarray = np.any(parts[0], axis=1, keepdims=True)
            return some
        rows = max(p.shape[0] for p in parts)
        if e.op == "lookup":
            table, index = (spread(p, (rows, p.shape[1])) for p in parts)
            return np.take_along_axis(table, index % table.shape[1], 1)
        whole = np.concatenate([spread(p, (rows, p.shape[1])) for p in parts], axis=1)
        return whole if e.op == "pack" else whole[:, list(e.lanes)]

    def together(self, op: str) -> int:
        """The subgroup's width, given that all threads of each active one reach `op`."""
        width = self.caps.subgroup if self.caps is not None else 0
        if width < 1 or self.threads % width:
            raise KernelError(f"{op} with {self.threads} threads and subgroups of {width}")
        arrived = self.active.reshape(-1, width).sum(1)
        if ((arrived != 0) & (arrived != width)).any():
            raise KernelError(f"divergent {op}: only part of a subgroup reaches the operation")
        return width

    def apart(self, who: Who, width: int = 1) -> Who:
        """Returns an owner for work that the first of each `width` threads starts. It differs from
        every thread and from work started before."""
        self.joint += 1
        subgroup = who.owner % SPAN // width + self.joint * (self.threads // width)
        owner = who.owner // SPAN * SPAN + SPAN - 1 - subgroup % (SPAN // 2)
        return Who(lambda: (owner, who.group, who.epoch))

    def collective(self, e: ir.Collective) -> np.ndarray:
        if e.op.startswith("dot"):
            acc, a, b = (self.full(a) for a in e.args)
            if e.op == "dot2_int16":
                a, b = (np.ascontiguousarray(x).view(np.int16) for x in (a, b))
            found = lanewise.dot(acc, a, b)
            broken = (b == -128) | ((a.dtype == np.uint8) & (a > 127)) if e.attr else None
            if broken is None or not broken.any():
                return found
            # Not an error yet: rows outside the result hold junk, and their results are dropped.
            return np.where(broken.reshape(*found.shape, 4).any(-1), BROKEN, found)
        width = self.together(e.op)
        x = spread(self.full(e.args[0]), (self.n, e.type.lanes))
        if e.op == "subgroup_xor":
            if e.attr >= width:
                raise KernelError(f"subgroup_xor with {e.attr} in subgroups of {width}")
            moved: np.ndarray = x[np.arange(self.n) ^ e.attr]
            return moved
        return lanewise.butterfly(x, width, e.op.removeprefix("subgroup_"))


RULES: Table = {
    ir.Const: Batch.const,
    ir.Param: Batch.param,
    ir.Var: lambda batch, e: batch.vars[e.name],
    ir.Axis: lambda batch, e: batch.axes[e.kind, e.dim],
    ir.Unary: lambda batch, e: lanewise.UNARY[e.op](batch.eval(e.x)),
    ir.Binary: Batch.binary,
    ir.Fma: lambda batch, e: lanewise.fma(batch.eval(e.a), batch.eval(e.b), batch.eval(e.c)),
    ir.Select: Batch.select,
    ir.Cast: lambda batch, e: lanewise.cast(batch.eval(e.x), e.type.dtype),
    ir.Bitcast: Batch.bitcast,
    ir.Load: Batch.load,
    ir.Vec: Batch.vec,
    ir.Collective: Batch.collective,
}
