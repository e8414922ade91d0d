"""Asynchronous copies from buffers to shared memory (NVIDIA's cp.async).

Copies between two barriers are a group. At a barrier a thread waits until only as many of its last
groups are in flight as the kernel's most urgent copies allow; the barrier shows all the others.

Source: NVIDIA "PTX ISA", "cp.async", "cp.async.commit_group", "cp.async.wait_group".
"""

from __future__ import annotations

from weft.backends.llvm.gpu_threads import barrier
from weft.backends.llvm.memory import address, alignment, pointer_type, store
from weft.backends.llvm.writer import LlvmWriter
from weft.kernel import ir
from weft.kernel.align import lanes_uniform
from weft.kernel.rules import Table
from weft.kernel.walk import statements

_NAME = "llvm.nvvm.cp.async"
_HOW = {4: "ca", 8: "ca", 16: "cg"}  # keyed by bytes; only 16 can bypass L1


def urgent(w: LlvmWriter) -> int:
    """The fewest barriers after which a copy of the kernel is due; 0 without copies."""
    copies = [s.barriers for s in statements(w.kernel.body) if isinstance(s, ir.AsyncCopy)]
    return min(copies, default=0)


def _async_copy(w: LlvmWriter, s: ir.AsyncCopy) -> None:
    value = s.store.value
    assert isinstance(value, ir.Load)
    nbytes = value.type.lanes * value.source.dtype.itemsize
    exact = all(alignment(w, x, value.source.dtype) >= nbytes for x in (value, s.store))
    whole = value.index.type.lanes == s.store.index.type.lanes == 1
    if nbytes not in _HOW or not (exact and whole and _single(value)):
        store(w, s.store)
        return
    mask = value.mask
    name = f"{_NAME}.{_HOW[nbytes]}.shared.global.{nbytes}"
    target = address(w, s.store.target, s.store.index)
    source = address(w, value.source, value.index, masked=mask is not None)
    args = [(pointer_type(w, s.store.target), target), (pointer_type(w, value.source), source)]
    if mask is not None:  # unread elements arrive as zeros
        one = mask.args[0] if isinstance(mask, ir.Vec) else mask
        count = w.emit(f"select i1 {w.value(one)}, i32 {nbytes}, i32 0")
        name, args = f"{name}.s", [*args, ("i32", count)]
    w.call(name, "void", args)


def _barrier(w: LlvmWriter, s: ir.Barrier) -> None:
    """Waits, before the barrier, for this thread's copies that are due."""
    if w.kept(urgent):
        w.call(f"{_NAME}.commit.group", "void", [])
        w.call(f"{_NAME}.wait.group", "void", [("i32", str(w.kept(urgent) - 1))])
    barrier(w, s)


def _single(value: ir.Load) -> bool:
    """True if one condition decides over the whole load."""
    mask = value.mask
    return lanes_uniform(mask) and not (value.type.lanes > 1 and isinstance(mask, ir.Const))


RULES: Table = {ir.AsyncCopy: _async_copy, ir.Barrier: _barrier}
