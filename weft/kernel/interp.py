"""The lock-step interpreter: it defines the meaning of a kernel.

All threads of a batch of groups advance together, one statement at a time, as NumPy arrays
[threads, lanes] under an active mask. Values that are the same in every thread keep one row.

It reports errors as KernelError naming the kernel, the statement and the indices. It finds
out-of-bounds access, reads of elements never stored, integer division by zero, and lanes of a
scatter that collide. It finds races between barriers, within a group and, in buffers, across
groups. It finds barriers and subgroup operations that some threads miss, and kernels beyond the
given Caps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import KernelError
from weft.kernel import ir, tiles
from weft.kernel.batch import Batch, Watch, spread
from weft.kernel.grid import groups
from weft.kernel.ir import Expr, Kernel
from weft.kernel.memory import Memory, Tracker
from weft.kernel.printer import shorten, stmt_text
from weft.kernel.verify import verify
from weft.kernel.walk import statements, walk

_BATCH = 1 << 18  # threads times lanes that advance together
_PRIVATE = 1 << 23  # elements of private and shared arrays in a batch
_TRACKED = 1 << 28  # elements whose every access is recorded, in 48 bytes each


def run(
    kernel: Kernel,
    buffers: Sequence[np.ndarray],
    scalars: Sequence[int] = (),
    caps: Caps | None = None,
    check: bool = True,
    undefined: Sequence[np.ndarray | None] | None = None,
    watch: Watch | None = None,
) -> None:
    """Runs `kernel` in place on 1-D C-contiguous arrays, one per Kernel.buffers entry.

    Each array has its buffer's dtype and at least its size. `scalars` is the scalar buffer (int32).
    `caps` gives the subgroup width, and its limits are enforced. `check=False` skips the verifier
    and the tracking of races and of undefined elements (bounds are always checked).
    `undefined` may hold, per buffer, a bool mask of elements whose content is undefined. Reading
    one is an error and storing clears its mark, so the mask afterwards shows the elements never
    stored. `watch` sees every block and access, for counting. Raises KernelError.
    """
    if check:
        verify(kernel)
    _check_arguments(kernel, buffers, caps)
    grid = groups(kernel, scalars)
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
    total = grid[0] * grid[1] * grid[2]
    step = _batch_groups(kernel, threads)
    if watch is not None:
        step = min(step, watch.groups)
    with np.errstate(all="ignore"):
        for first in range(0, total, step):
            batch = np.arange(first, min(first + step, total))
            _Player(kernel, memories, scalars, caps, check, grid, batch, watch).run()


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
    """Returns the number of groups that advance together."""
    per_thread = max([1, *(e.type.lanes for e in walk(kernel.body) if isinstance(e, Expr))])
    local = sum(a.size * (threads if a.space == "private" else 1) for a in _arrays(kernel.body))
    return max(1, min(_BATCH // (threads * per_thread), _PRIVATE // max(local, 1)))


class _Player(Batch):
    """Executes statements, one at a time."""

    def run(self) -> None:
        self.block(self.kernel.body)

    # -- statements

    def block(self, block: ir.Block) -> None:
        if self.watch is not None:
            self.watch.block(self, block)
        for s in block.body:
            if not self.anyone:
                return
            try:
                _STMT[type(s)](self, s)
            except KernelError as error:
                prefix = f"kernel {self.kernel.name}: "
                if str(error).startswith(prefix):
                    raise
                raise KernelError(f"{prefix}in `{shorten(stmt_text(s))}`: {error}") from None

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
        value = spread(value, (self.n, lanes))
        value = value.reshape(-1) if chosen is None else value[chosen]
        if barriers:
            memory.write(at, value, self.apart(who), barriers - 1)
        else:
            memory.write(at, value, who)

    def loop(self, s: ir.For) -> None:
        start, stop = self.eval(s.start), self.eval(s.stop)
        if start.shape[0] == 1 and stop.shape[0] == 1:
            for i in range(int(start[0, 0]), int(stop[0, 0]), s.step):
                self.vars[s.var.name] = np.array([[i]], np.int32)
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


_STMT: dict[type, Callable[..., None]] = {
    ir.Let: _Player.let, ir.Assign: _Player.assign, ir.Array: _Player.array,
    ir.Store: _Player.store, ir.For: _Player.loop, ir.If: _Player.branch,
    ir.Barrier: _Player.barrier,
    ir.AsyncCopy: lambda batch, s: batch.store(s.store, s.barriers),
    ir.Block: _Player.block, ir.Prefetch: lambda batch, s: None, ir.TileOp: tiles.play,
    ir.Tile: lambda batch, s: batch.tiles.pop(s.name, None),
}  # fmt: skip
