"""Makes a Program from an untrusted source harmless before a device sees it.

Its kernels can touch only their arguments (kernel.guard ensures that), are small enough to compile
and to hold, and come to an end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from weft.core.errors import FileFormatError, KernelError
from weft.kernel import ir
from weft.kernel.guard import guard
from weft.kernel.ir import Kernel
from weft.kernel.sums import Range
from weft.kernel.walk import walk
from weft.program.program import Dispatch, Program

# A kernel's: nodes, and statements once loops are unrolled; lanes of a value; sides of a tile; the
# threads of a group; bytes of shared arrays, and of private ones in all threads of a group.
MAX_NODES, MAX_CODE = 1 << 17, 1 << 17
MAX_LANES, MAX_TILE = 256, 256
MAX_THREADS, MAX_SHARED, MAX_PRIVATE = 1024, 1 << 18, 1 << 24
MAX_GRID_NODES = 64
# Statements that all threads together may come to execute: in a step, in a run. The product of
# [4096, 8192] and [8192, 131072] on a GPU without matrix units takes 2^43.
MAX_STEP, MAX_RUN = 1 << 45, 1 << 49


def harmless(program: Program) -> Program:
    """The Program with guarded kernels, marked as foreign. Raises FileFormatError, naming the
    kernel or the step, for what no guard can mend."""
    ranges = program.scalar_ranges
    scalars = {n: ranges[name] for n, name in enumerate(program.scalars) if name in ranges}
    found = [_guarded(kernel, scalars) for kernel in program.kernels]
    total = 0
    for number, step in enumerate(program.steps):
        if isinstance(step, Dispatch):
            steps = found[step.kernel][1]
            total += steps
            if steps > MAX_STEP or total > MAX_RUN:
                raise FileFormatError(
                    f"step {number}: its kernel may execute {steps:.3g} statements ({total:.3g} in "
                    f"the run so far); at most 2^{MAX_STEP.bit_length() - 1} are allowed in a step "
                    f"and 2^{MAX_RUN.bit_length() - 1} in a run"
                )
    kernels = tuple(kernel for kernel, _ in found)
    return replace(program, kernels=kernels, meta={**program.meta, "foreign": True})


def _guarded(kernel: Kernel, scalars: Mapping[int, Range]) -> tuple[Kernel, int]:
    """The kernel and how many statements a run of it may come to."""
    check_sizes(kernel)
    try:
        found = guard(kernel, scalars)
    except KernelError as error:
        raise FileFormatError(str(error)) from error
    _want(kernel, found.code, MAX_CODE, "statements once its loops are unrolled")
    return found.kernel, found.steps


def check_sizes(kernel: Kernel) -> None:
    """Raises FileFormatError for a kernel that is too large to compile or to hold."""
    nodes, lanes, tile, local = 0, 1, 0, {"shared": 0, "private": 0}
    for node in walk(kernel.body):
        nodes += 1
        if isinstance(node, ir.Expr):
            lanes = max(lanes, node.type.lanes)
        elif isinstance(node, ir.Array):
            local[node.space] += node.size * node.dtype.itemsize
        elif isinstance(node, ir.Tile):
            tile = max(tile, node.rows, node.cols)
            local["private"] += node.rows * node.cols * node.dtype.itemsize
    threads = math.prod(kernel.threads)
    _want(kernel, nodes, MAX_NODES, "nodes")
    _want(kernel, lanes, MAX_LANES, "lanes")
    _want(kernel, tile, MAX_TILE, "rows or columns of a tile")
    _want(kernel, threads, MAX_THREADS, "threads in a group")
    _want(kernel, local["shared"], MAX_SHARED, "bytes of shared arrays")
    _want(kernel, local["private"] * threads, MAX_PRIVATE, "bytes of private arrays in a group")
    size = sum(1 for entry in kernel.grid for _ in walk(entry))
    _want(kernel, size, MAX_GRID_NODES, "nodes in its grid")


def _want(kernel: Kernel, count: int, most: int, what: str) -> None:
    if count > most:
        raise FileFormatError(f"kernel {kernel.name}: {count} {what}; at most {most} are allowed")
