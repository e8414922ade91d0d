"""Asynchronous copies from buffers to shared memory (NVIDIA's cp.async).

Copies between two barriers are a group. At a barrier a thread waits until only as many of its last
groups are in flight as the kernel's most urgent copies allow; the barrier shows all the others.

Source: NVIDIA "PTX ISA", "cp.async", "cp.async.commit_group", "cp.async.wait_group".
"""

from __future__ import annotations

from weft.backends.llvm.gpu_target import GpuTarget
from weft.backends.llvm.gpu_tiles import GpuTiles
from weft.kernel import ir
from weft.kernel.align import lanes_uniform
from weft.kernel.walk import statements

_NAME = "llvm.nvvm.cp.async"
_HOW = {4: "ca", 8: "ca", 16: "cg"}  # by bytes: only 16 can bypass L1


class GpuCopies(GpuTiles):
    """Adds asynchronous copies to the emitter of a GPU's kernel."""

    def __init__(self, kernel: ir.Kernel, target: GpuTarget) -> None:
        super().__init__(kernel, target)
        copies = [s.barriers for s in statements(kernel.body) if isinstance(s, ir.AsyncCopy)]
        self._urgent = min(copies, default=0) if target.copies else 0

    def async_copy(self, s: ir.AsyncCopy) -> None:
        value = s.store.value
        assert isinstance(value, ir.Load)
        nbytes = value.type.lanes * value.source.dtype.itemsize
        exact = all(self._align(x, value.source.dtype) >= nbytes for x in (value, s.store))
        whole = value.index.type.lanes == s.store.index.type.lanes == 1
        if not self._urgent or nbytes not in _HOW or not (exact and whole and _single(value)):
            self.store(s.store)
            return
        mask = value.mask
        name = f"{_NAME}.{_HOW[nbytes]}.shared.global.{nbytes}"
        target = self.address(s.store.target, s.store.index)
        source = self.address(value.source, value.index, masked=mask is not None)
        args = [(self.pointer(s.store.target), target), (self.pointer(value.source), source)]
        if mask is not None:  # unread elements arrive as zeros
            one = mask.args[0] if isinstance(mask, ir.Vec) else mask
            count = self.emit(f"select i1 {self.value(one)}, i32 {nbytes}, i32 0")
            name, args = f"{name}.s", [*args, ("i32", count)]
        self.call(name, "void", args)

    def arrive(self) -> None:
        """Waits, before a barrier, for this thread's copies that are due."""
        if self._urgent:
            self.call(f"{_NAME}.commit.group", "void", [])
            self.call(f"{_NAME}.wait.group", "void", [("i32", str(self._urgent - 1))])


def _single(value: ir.Load) -> bool:
    """True if one condition decides over the whole load."""
    mask = value.mask
    return lanes_uniform(mask) and not (value.type.lanes > 1 and isinstance(mask, ir.Const))
