"""The lock-step interpreter: it defines what a kernel means.

All threads of a batch of groups advance together, one statement at a time, as NumPy arrays
[threads, lanes] under an active mask. Values that are the same in every thread keep one row.
It reports, as KernelError naming the kernel, the statement and the indices: out-of-bounds access,
reads of what was never stored, races between barriers (within a group, and across groups in
buffers), lanes of a scatter that collide, integer division by zero, barriers and subgroup
operations that not all threads reach, and kernels beyond the given Caps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import KernelError
from weft.kernel import ir, lanewise, tiles
from weft.kernel.ir import Expr, Kernel, host_eval
from weft.kernel.memory import SPAN, Memory, Tracker, Who
from weft.kernel.printer import expr_text, shorten, stmt_text
from weft.kernel.verify import verify
from weft.kernel.walk import statements, walk

_BATCH = 1 << 18  # threads times lanes that advance together
_PRIVATE = 1 << 23  # elements of private and shared arrays in a batch
_TRACKED = 1 << 28  # elements whose every access is remembered, in 48 bytes each


def run(
    kernel: Kernel,
    buffers: Sequence[np.ndarray],
    scalars: Sequence[int] = (),
    caps: Caps | None = None,
    check: bool = True,
    undefined: Sequence[np.ndarray | None] | None = None,
) -> None:
    """Runs `kernel` in place on 1-D C-contiguous arrays, one per Kernel.buffers entry, each with
    its buffer's dtype and at least its size. `scalars` is the scalar buffer (int32).

    `caps` gives the subgroup width and, when present, its limits are enforced. `check=False` skips
    the verifier and the tracking of races and of undefined elements (bounds are always checked).
    `undefined` may hold, per buffer, a bool mask of elements whose content is undefined: reading
    one is an error and storing clears its mark, so that it shows afterwards what was left out.
    Raises KernelError.
    """
    if check:
        verify(kernel)
    _check_arguments(kernel, buffers, caps)
    grid = [host_eval(g, tuple(scalars)) for g in kernel.grid]
    tx, ty, tz = kernel.threads
    threads = tx * ty * tz
    memories = {}
    masks = undefined or [None] * len(buffers)
    for spec, array, mask in zip(kernel.buffers, buffers, masks, strict=True):
        tracked = check and spec.access != "r"
        if tracked and spec.size > _TRACKED:
            raise KernelError(
                f"kernel {kernel.name}: {spec.name} has {spec.size} elements; races are looked for "
                f"in {_TRACKED} (check=False looks for none)"
            )
        tracker = Tracker(spec.size) if tracked else None
        memories[spec.name] = Memory(array, spec.size, mask, tracker)
    total = grid[0] * grid[1] * grid[2] if min(grid) > 0 else 0
    step = _batch_groups(kernel, threads)
    with np.errstate(all="ignore"):
        for first in range(0, total, step):
            groups = np.arange(first, min(first + step, total))
            _Batch(kernel, memories, scalars, caps, check, grid, groups).run()


def _check_arguments(kernel: Kernel, buffers: Sequence[np.ndarray], caps: Caps | None) -> None:
    where = f"kernel {kernel.name}"
    if len(buffers) != len(kernel.buffers):
        raise KernelError(f"{where}: {len(buffers)} arrays for {len(kernel.buffers)} buffers")
    for spec, array in zip(kernel.buffers, buffers, strict=True):
        if array.ndim != 1 or array.dtype != spec.dtype.numpy or array.size < spec.size:
            raise KernelError(
                f"{where}: {spec.name} needs {spec.size} elements of {spec.dtype} in one "
                f"dimension, not {array.dtype}{list(array.shape)}"
            )
    if caps is None:
        return
    threads = int(np.prod(kernel.threads))
    if threads > caps.max_threads:
        raise KernelError(f"{where}: {threads} threads, but {caps.name} has {caps.max_threads}")
    if len(buffers) > caps.max_bindings:
        raise KernelError(f"{where}: {len(buffers)} buffers, {caps.name} binds {caps.max_bindings}")
    shared = sum(a.size * a.dtype.itemsize for a in _arrays(kernel.body) if a.space == "shared")
    if shared > caps.shared_bytes:
        raise KernelError(
            f"{where}: {shared} bytes of shared arrays, but {caps.name} has {caps.shared_bytes}"
        )


def _arrays(body: ir.Block) -> list[ir.Array]:
    return [s for s in statements(body) if isinstance(s, ir.Array)]


def _batch_groups(kernel: Kernel, threads: int) -> int:
    """How many groups advance together."""
    per_thread = max([1, *(e.type.lanes for e in walk(kernel.body) if isinstance(e, Expr))])
    local = sum(a.size * (threads if a.space == "private" else 1) for a in _arrays(kernel.body))
    return max(1, min(_BATCH // (threads * per_thread), _PRIVATE // max(local, 1)))


class _Batch:
    """Some groups of one kernel, advancing together. N threads in all."""

    def __init__(
        self,
        kernel: Kernel,
        memories: dict[str, Memory],
        scalars: Sequence[int],
        caps: Caps | None,
        check: bool,
        grid: Sequence[int],
        groups: np.ndarray,
    ) -> None:
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
        self.joint = 0  # how often memory was touched by no one thread
        self.active = np.ones(self.n, bool)
        self.everyone = True  # active is all True
        self.axes = {
            ("group", 0): group % grid[0], ("group", 1): group // grid[0] % grid[1],
            ("group", 2): group // (grid[0] * grid[1]),
            ("thread", 0): thread % tx, ("thread", 1): thread // tx % ty,
            ("thread", 2): thread // (tx * ty),
        }  # fmt: skip
        self.axes = {key: v.astype(np.int32)[:, None] for key, v in self.axes.items()}

    def run(self) -> None:
        self.block(self.kernel.body)

    # -- statements

    def block(self, block: ir.Block) -> None:
        for s in block.body:
            if not self.active.any():
                return
            try:
                _STMT[type(s)](self, s)
            except KernelError as error:
                prefix = f"kernel {self.kernel.name}: "
                if str(error).startswith(prefix):
                    raise
                raise KernelError(f"{prefix}in `{shorten(stmt_text(s))}`: {error}") from None

    def set_active(self, active: np.ndarray) -> None:
        self.active = active
        self.everyone = bool(active.all())

    def let(self, s: ir.Let) -> None:
        self.vars[s.var.name] = self.eval(s.value)

    def assign(self, s: ir.Assign) -> None:
        value = self.eval(s.value)
        if not self.everyone:
            value = np.where(self.active[:, None], value, self.vars[s.var.name])
        self.vars[s.var.name] = value

    def array(self, s: ir.Array) -> None:
        shared = s.space == "shared"
        total = s.size * (self.groups if shared else self.n)
        undefined = np.ones(total, bool) if self.check and not self.kernel.clean else None
        tracker = Tracker(total) if self.check and shared else None
        self.memories[s.name] = Memory(np.zeros(total, s.dtype.numpy), s.size, undefined, tracker)

    def store(self, s: ir.Store, barriers: int = 0) -> None:
        index, value = self.eval(s.index), self.eval(s.value)
        mask = None if s.mask is None else self.eval(s.mask)
        lanes = s.value.type.lanes
        memory = self.memories[s.target.name]
        chosen, at, who = self.places(s.target, memory, index, s.index.type.lanes, lanes, mask)
        value = np.broadcast_to(value, (self.n, lanes))[chosen]
        if barriers:
            memory.write(at, value, self.apart(who), barriers - 1)
        else:
            memory.write(at, value, who)

    def loop(self, s: ir.For) -> None:
        start, stop = self.eval(s.start), self.eval(s.stop)
        if start.shape[0] == 1 and stop.shape[0] == 1:
            for i in range(int(start[0, 0]), int(stop[0, 0]), s.step):
                self.vars[s.var.name] = np.full((1, 1), i, np.int32)
                self.block(s.body)
            return
        before = self.active
        gone = np.zeros(self.n, bool)
        at = np.broadcast_to(start, (self.n, 1)).astype(np.int32)
        while True:
            inside = before & ~gone & (at < stop)[:, 0]
            if not inside.any():
                break
            self.vars[s.var.name] = at
            self.set_active(inside)
            self.block(s.body)
            gone |= inside & ~self.active
            at = at + np.int32(s.step)
        self.set_active(before & ~gone)

    def branch(self, s: ir.If) -> None:
        cond = self.eval(s.cond)
        if cond.shape[0] == 1:
            if cond[0, 0]:
                self.block(s.then)
            elif s.other is not None:
                self.block(s.other)
            return
        before, taken = self.active, cond[:, 0]
        self.set_active(before & taken)
        self.block(s.then)
        after = self.active
        self.set_active(before & ~taken)
        if s.other is not None:
            self.block(s.other)
        self.set_active(after | self.active)

    def barrier(self, s: ir.Barrier) -> None:
        arrived = self.active.reshape(self.groups, self.threads).sum(1)
        split = (arrived != 0) & (arrived != self.threads)
        if split.any():
            g = int(split.argmax())
            raise KernelError(
                f"divergent barrier: {arrived[g]} of {self.threads} threads of group "
                f"{self.group[g * self.threads]} reach it"
            )
        self.epoch += arrived != 0

    # -- memory

    def places(
        self,
        target: ir.Buffer | ir.Array,
        memory: Memory,
        index: np.ndarray,
        index_lanes: int,
        lanes: int,
        mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, Who]:
        """(chosen bool[N, lanes], flat positions int64[K], who[K]) of an access, in bounds."""
        wide = index.astype(np.int64)
        if index_lanes == 1 and lanes > 1:
            wide = wide + np.arange(lanes)
        wide = np.broadcast_to(wide, (self.n, lanes))
        chosen = np.broadcast_to(self.active[:, None], (self.n, lanes))
        if mask is not None:
            chosen = chosen & mask
        rows = np.nonzero(chosen)[0]
        who = Who(self.owner[rows], self.group[rows], self.epoch[self.local_group[rows]])
        at = wide[chosen]
        memory.check_bounds(at, who)
        if isinstance(target, ir.Array):
            copy = self.local_group[rows] if target.space == "shared" else rows
            at = at + copy * target.size
        return chosen, at, who

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
        if values.size == chosen.size:
            return values.reshape(chosen.shape)
        result = np.zeros((self.n, lanes), e.type.dtype.numpy)
        result[chosen] = values
        return result

    def is_plain(self, memory: Memory, source: ir.Buffer | ir.Array) -> bool:
        """One copy for all, with nothing to track."""
        untracked = memory.tracker is None and memory.undefined is None
        return untracked and isinstance(source, ir.Buffer)

    def uniform_load(self, e: ir.Load, memory: Memory, index: np.ndarray, lanes: int) -> np.ndarray:
        at = index[0].astype(np.int64)
        if e.index.type.lanes == 1:
            at = at[0] + np.arange(lanes)
        at = np.broadcast_to(at, (lanes,))
        first = int(self.active.argmax())
        one = np.full(lanes, first)
        who = Who(self.owner[one], self.group[one], self.epoch[self.local_group[one]])
        memory.check_bounds(at, who)
        return memory.data[at][None]

    # -- expressions

    def eval(self, e: Expr) -> np.ndarray:
        """The value as [N or 1, lanes or 1] in the NumPy dtype of its type."""
        return _EXPR[type(e)](self, e)

    def full(self, e: Expr) -> np.ndarray:
        """As `eval`, with every lane spelt out."""
        x = self.eval(e)
        return np.broadcast_to(x, (x.shape[0], e.type.lanes))

    def const(self, e: ir.Const) -> np.ndarray:
        return np.array([[e.value]]).astype(e.type.dtype.numpy)

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
        return np.ascontiguousarray(self.eval(e.x)).view(e.type.dtype.numpy)

    def vec(self, e: ir.Vec) -> np.ndarray:
        if e.op == "splat":
            return self.eval(e.args[0])
        if e.op == "iota":
            return np.arange(e.type.lanes, dtype=np.int32)[None]
        parts = [self.full(a) for a in e.args]
        if e.op == "any":
            return np.any(parts[0], axis=1, keepdims=True)
        rows = max(p.shape[0] for p in parts)
        whole = np.concatenate([np.broadcast_to(p, (rows, p.shape[1])) for p in parts], axis=1)
        return whole if e.op == "pack" else whole[:, list(e.lanes)]

    def together(self, op: str) -> int:
        """The subgroup's width, given that all threads of each active one reach `op`."""
        width = self.caps.subgroup if self.caps is not None else 0
        if width < 1 or self.threads % width:
            raise KernelError(f"{op} with {self.threads} threads and subgroups of {width}")
        arrived = self.active.reshape(-1, width).sum(1)
        if ((arrived != 0) & (arrived != width)).any():
            raise KernelError(f"divergent {op}: part of a subgroup reaches it")
        return width

    def apart(self, who: Who, width: int = 1) -> Who:
        """What the first of each `width` threads sets going, told from what any thread does itself
        and from what was set going before."""
        self.joint += 1
        subgroup = who.owner % SPAN // width + self.joint * (self.threads // width)
        return Who(
            who.owner // SPAN * SPAN + SPAN - 1 - subgroup % (SPAN // 2), who.group, who.epoch
        )

    def collective(self, e: ir.Collective) -> np.ndarray:
        if e.op in ("dot2", "dot4"):
            return lanewise.dot(*(self.full(a) for a in e.args))
        width = self.together(e.op)
        x = np.broadcast_to(self.full(e.args[0]), (self.n, e.type.lanes))
        if e.op == "subgroup_xor":
            if e.attr >= width:
                raise KernelError(f"subgroup_xor with {e.attr} in subgroups of {width}")
            return x[np.arange(self.n) ^ e.attr]
        return lanewise.butterfly(x, width, e.op.removeprefix("subgroup_"))


_STMT: dict[type, Callable[..., None]] = {
    ir.Let: _Batch.let, ir.Assign: _Batch.assign, ir.Array: _Batch.array, ir.Store: _Batch.store,
    ir.For: _Batch.loop, ir.If: _Batch.branch, ir.Barrier: _Batch.barrier,
    ir.AsyncCopy: lambda batch, s: batch.store(s.store, s.barriers),
    ir.Block: _Batch.block, ir.Prefetch: lambda batch, s: None, ir.TileOp: tiles.play,
    ir.Tile: lambda batch, s: batch.tiles.pop(s.name, None),
}  # fmt: skip
_EXPR: dict[type, Callable[..., np.ndarray]] = {
    ir.Const: _Batch.const,
    ir.Param: _Batch.param,
    ir.Var: lambda batch, e: batch.vars[e.name],
    ir.Axis: lambda batch, e: batch.axes[e.kind, e.dim],
    ir.Unary: lambda batch, e: lanewise.UNARY[e.op](batch.eval(e.x)),
    ir.Binary: _Batch.binary,
    ir.Fma: lambda batch, e: lanewise.fma(batch.eval(e.a), batch.eval(e.b), batch.eval(e.c)),
    ir.Select: _Batch.select,
    ir.Cast: lambda batch, e: lanewise.cast(batch.eval(e.x), e.type.dtype),
    ir.Bitcast: _Batch.bitcast,
    ir.Load: _Batch.load,
    ir.Vec: _Batch.vec,
    ir.Collective: _Batch.collective,
}
