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

from collections.abc import Sequence

import numpy as np

from weft.core.caps import Caps
from weft.core.errors import KernelError
from weft.kernel import ir, tiles
from weft.kernel.batch import RULES as EXPRESSIONS, Batch, RunWatch, spread
from weft.kernel.grid import groups
from weft.kernel.ir import Expr, Kernel
from weft.kernel.memory import CheckedMemory, Tracker
from weft.kernel.printer import shorten, stmt_text
from weft.kernel.rules import Rules, Table
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
    watch: RunWatch | None = None,
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
        memories[spec.name] = CheckedMemory(array, spec.size, mask, tracker)
    total = grid[0] * grid[1] * grid[2]
    step = _batch_groups(kernel, threads)
    if watch is not None:
        step = min(step, watch.groups)
    with np.errstate(all="ignore"):
        for first in range(0, total, step):
            some = np.arange(first, min(first + step, total))
            batch = Batch(kernel, RULES, memories, scalars, caps, check, grid, some, watch)
            _block(batch, kernel.body)


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


# -- statements


def _block(batch: Batch, block: ir.Block) -> None:
    if batch.watch is not None:
        batch.watch.block(batch, block)
    for s in block.body:
        if not batch.anyone:
            return
        try:
            batch.rules[type(s)](batch, s)
        except KernelError as error:
            if str(error).startswith(str(batch.fail(""))):
                raise  # an inner statement has named itself already
            found = batch.fail(f"in `{shorten(stmt_text(s))}`: {error}")
            found.stmt = s
            raise found from None


def _let(batch: Batch, s: ir.Let) -> None:
    batch.vars[s.var.name] = batch.eval(s.value)


def _assign(batch: Batch, s: ir.Assign) -> None:
    value = batch.eval(s.value)
    if not batch.everyone:
        value = np.where(batch.active[:, None], value, batch.vars[s.var.name])
    batch.vars[s.var.name] = value


def _array(batch: Batch, s: ir.Array) -> None:
    shared = s.space == "shared"
    total = s.size * (batch.groups if shared else batch.n)
    undefined = np.ones(total, bool) if batch.check and not batch.kernel.clean else None
    tracker = Tracker(total) if batch.check and shared else None
    batch.memories[s.name] = CheckedMemory(
        np.zeros(total, s.dtype.numpy), s.size, undefined, tracker
    )


def _store(batch: Batch, s: ir.Store, barriers: int = 0) -> None:
    index, value = batch.eval(s.index), batch.eval(s.value)
    mask = None if s.mask is None else batch.eval(s.mask)
    lanes = s.value.type.lanes
    memory = batch.memories[s.target.name]
    chosen, at, who = batch.places(s.target, memory, index, s.index.type.lanes, lanes, mask)
    value = spread(value, (batch.n, lanes))
    value = value.reshape(-1) if chosen is None else value[chosen]
    if barriers:
        memory.write(at, value, batch.apart(who), barriers - 1)
    else:
        memory.write(at, value, who)


def _loop(batch: Batch, s: ir.For) -> None:
    start, stop = batch.eval(s.start), batch.eval(s.stop)
    if start.shape[0] == 1 and stop.shape[0] == 1:
        for i in range(int(start[0, 0]), int(stop[0, 0]), s.step):
            batch.vars[s.var.name] = np.array([[i]], np.int32)
            _block(batch, s.body)
        return
    before = batch.active
    gone = np.zeros(batch.n, bool)
    at = np.broadcast_to(start, (batch.n, 1)).astype(np.int32)
    while True:
        inside = before & ~gone & (at < stop)[:, 0]
        if not inside.any():
            break
        batch.vars[s.var.name] = at
        batch.set_active(inside)
        _block(batch, s.body)
        gone |= inside & ~batch.active
        at = at + np.int32(s.step)
    batch.set_active(before & ~gone)


def _branch(batch: Batch, s: ir.If) -> None:
    cond = batch.eval(s.cond)
    if cond.shape[0] == 1:
        if cond[0, 0]:
            _block(batch, s.then)
        elif s.other is not None:
            _block(batch, s.other)
        return
    before, taken = batch.active, cond[:, 0]
    batch.set_active(before & taken)
    _block(batch, s.then)
    after = batch.active
    batch.set_active(before & ~taken)
    if s.other is not None:
        _block(batch, s.other)
    batch.set_active(after | batch.active)


def _barrier(batch: Batch, s: ir.Barrier) -> None:
    arrived = batch.active.reshape(batch.groups, batch.threads).sum(1)
    split = (arrived != 0) & (arrived != batch.threads)
    if split.any():
        g = int(split.argmax())
        raise KernelError(
            f"divergent barrier: {arrived[g]} of {batch.threads} threads of group "
            f"{batch.group[g * batch.threads]} arrive"
        )
    batch.epoch += arrived != 0


STATEMENTS: Table = {
    ir.Block: _block, ir.Let: _let, ir.Assign: _assign, ir.Array: _array, ir.Store: _store,
    ir.AsyncCopy: lambda batch, s: _store(batch, s.store, s.barriers), ir.For: _loop,
    ir.If: _branch, ir.Barrier: _barrier, ir.Prefetch: lambda batch, s: None,
}  # fmt: skip
RULES = Rules("the interpreter", EXPRESSIONS, tiles.RULES, STATEMENTS)
