"""The mapping of a kernel's buffers to bindings, shared by dialect and devices.

A buffer larger than the largest binding is split into parts of a power of two bytes, so that an
index finds its part by comparison. The scalar buffer, when a kernel uses it, is the last binding.
It is a uniform buffer, so all storage bindings are for the kernel's own buffers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from weft.core.caps import Caps
from weft.core.errors import CompileError, LimitError
from weft.kernel import ir
from weft.kernel.grid import most_groups
from weft.kernel.walk import walk

SCALARS = -1


@dataclass(frozen=True, slots=True)
class Binding:
    """Bytes `offset` .. `offset + nbytes` of kernel buffer number `buffer` (or of the scalars).
    `writable` is None for a uniform buffer."""

    buffer: int
    offset: int
    nbytes: int
    writable: bool | None


@dataclass(frozen=True, slots=True)
class BindingLayout:
    """Bindings in order (binding number = position, all in group 0). `fold`: an axis of the grid
    may be longer than the device's limit, so all groups are counted through x and y. `scalars`:
    the last binding is the scalar buffer."""

    bindings: tuple[Binding, ...]
    fold: bool
    scalars: bool


def parts(nbytes: int, caps: Caps) -> list[tuple[int, int]]:
    """(offset, size) of each binding that a buffer of `nbytes` needs; sizes are padded to 16."""
    padded = max(-(-nbytes // 16) * 16, 16)
    if caps.bindings(padded) == 1:
        return [(0, padded)]
    step = caps.part_bytes
    return [(at, min(step, padded - at)) for at in range(0, padded, step)]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts about a kernel: its local arrays, and how many of the runtime scalars its body needs,
    up to the last one that it reads."""

    arrays: tuple[ir.Array, ...]
    scalars: int


@functools.lru_cache(maxsize=64)
def facts(kernel: ir.Kernel) -> KernelFacts:
    """One walk over the kernel, remembered while it is being compiled."""
    nodes = [*walk(kernel.body)]
    arrays = tuple(node for node in nodes if isinstance(node, ir.Array))
    return KernelFacts(arrays, _scalars(nodes))


def _scalars(nodes: Iterable[object]) -> int:
    return max((node.slot + 1 for node in nodes if isinstance(node, ir.Param)), default=0)


def folds(kernel: ir.Kernel, caps: Caps) -> bool:
    """True if an axis of the grid may need more groups than one axis takes."""
    return max(most_groups(kernel)) > caps.max_groups


def plan(kernel: ir.Kernel, caps: Caps, writable: frozenset[int] = frozenset()) -> BindingLayout:
    """Returns the bindings of `kernel`.

    `writable` names "r" buffers to declare read-write. WebGPU forbids binding one buffer as
    read-only and as writable in one dispatch. So an operand in the buffer that the kernel writes
    (the arena) is declared like its result. Raises LimitError when the kernel needs more bindings
    than `caps.max_bindings`.
    """
    bindings = [
        Binding(n, at, size, buffer.access != "r" or n in writable)
        for n, buffer in enumerate(kernel.buffers)
        for at, size in parts(buffer.size * buffer.dtype.itemsize, caps)
    ]
    fold = folds(kernel, caps)
    scalars = facts(kernel).scalars
    if fold:
        scalars = max(scalars, *(_scalars(walk(axis)) for axis in kernel.grid))
    if len(bindings) > caps.max_bindings:
        raise LimitError(
            f"kernel {kernel.name} needs {len(bindings)} storage bindings "
            f"({len(kernel.buffers)} buffers); {caps.name} takes {caps.max_bindings}"
        )
    if scalars:
        bindings.append(Binding(SCALARS, 0, -(-scalars // 4) * 16, None))
    return BindingLayout(tuple(bindings), fold, bool(scalars))


def fold_grid(
    grid: tuple[int, int, int], fold: bool, caps: Caps, name: str
) -> tuple[int, int, int]:
    """The group counts to dispatch for a grid: those of a folded one go through x, then y.

    Raises LimitError when even that does not fit.
    """
    x, y, z = grid
    most = caps.max_groups
    if fold:
        rows = -(-(x * y * z) // most)
        x, y, z = -(-(x * y * z) // rows), rows, 1
    if max(x, y, z) > most:
        raise LimitError(
            f"kernel {name}: a grid of {grid} groups; {caps.name} takes {most} per axis"
        )
    return x, y, z


def check(kernel: ir.Kernel, caps: Caps) -> None:
    """Raises CompileError or LimitError when `caps` cannot take the kernel's group shape."""
    threads = kernel.threads[0] * kernel.threads[1] * kernel.threads[2]
    if threads > caps.max_threads:
        raise LimitError(
            f"kernel {kernel.name}: {threads} threads per group; {caps.name} takes "
            f"{caps.max_threads}"
        )
    shared = sum(
        a.size * max(4, a.dtype.itemsize) for a in facts(kernel).arrays if a.space == "shared"
    )
    if shared > caps.shared_bytes:
        raise LimitError(
            f"kernel {kernel.name}: {shared} bytes of shared memory; {caps.name} has "
            f"{caps.shared_bytes}"
        )
    for buffer in kernel.buffers:
        if buffer.dtype not in caps.dtypes:
            raise CompileError(f"kernel {kernel.name}: {caps.name} does not store {buffer.dtype}")
