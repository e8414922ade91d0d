"""Shared memory that starts as zeros, for targets that do not promise it."""

from __future__ import annotations

from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.ir import Expr, Kernel, Type
from weft.kernel.walk import declared, with_body

_WIDTH = 16  # bytes that a thread clears at once


def cleared(kernel: Kernel) -> Kernel:
    """The same kernel, whose threads first set all shared arrays to zero together."""
    top = kernel.body.body
    arrays = [s for s in top if isinstance(s, ir.Array) and s.space == "shared"]
    if not arrays:
        return kernel
    b = Builder(kernel.name, {*declared(kernel)})
    x, y, _ = kernel.threads
    count = x * y * kernel.threads[2]
    t: Expr = b.let(b.thread(0) + (b.thread(1) + b.thread(2) * y) * x, "t")
    for array in arrays:
        lanes = _WIDTH // array.dtype.itemsize
        lanes = lanes if array.size % lanes == 0 else 1
        zero = ir.Const(0 if array.dtype.is_int else 0.0, Type(array.dtype, lanes))
        if array.dtype.kind == "bool":
            zero = ir.Const(False, zero.type)
        with b.loop(array.size, t * lanes, count * lanes) as i:
            b.store(array, i, zero)
    b.barrier()
    rest = [s for s in top if s not in arrays]
    return with_body(kernel, ir.Block((*arrays, *b.statements, *rest)))
