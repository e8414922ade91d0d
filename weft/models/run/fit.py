"""Computes a model's use of device memory, and what would fit, for the out-of-memory message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from weft.core.dtypes import float32
from weft.core.errors import OutOfMemoryError
from weft.program.program import Program


def too_large(program: Program, context: int, slots: int, free: int, fixed: int = 0) -> str:
    """Returns a message for a decoder whose weights or caches do not fit. `free` is the number of
    free bytes before the attempt (0: unknown), `fixed` of the bytes of the cache do not grow with
    the context."""
    taken = {"weight": 0, "state": 0}
    wide = False
    for b in program.buffers:
        if b.role in taken:
            taken[b.role] += b.nbytes
            wide |= b.role == "weight" and b.dtype is float32 and len(b.shape) > 1
    rest = sum(b.nbytes for b in program.buffers) - sum(taken.values())
    said = (
        f"{program.name}: the weights take {taken['weight']:,} bytes, the cache of {context:,} "
        f"positions x {slots} takes {taken['state']:,}, the rest {rest:,}"
    )
    return f"{said}; {_advice(taken, rest, context, free, wide, fixed)}"


def _advice(
    taken: dict[str, int], rest: int, context: int, free: int, wide: bool, fixed: int
) -> str:
    weights, cache = taken["weight"], taken["state"]
    grows, left = cache - fixed, free - weights - rest - fixed
    if left >= grows:
        return "they fit, so something else lacked memory"
    if grows and left >= grows // context:
        return f"context={min(left * context // grows, context - 1):,} would fit"
    if wide and (weights + cache) // 2 + rest <= free:
        return 'dtype="bfloat16" would fit'
    return "a smaller dtype, context or max_batch takes less"


def pages_in(free: int, taken: Callable[[int], int], most: int) -> int:
    """Returns how many pages to make in `free` bytes, 1 .. most, of which n take taken(n) bytes:
    rounded down to four binary digits unless all fit. Raises OutOfMemoryError if not even one
    fits."""
    count = bisect_right(range(1, most + 1), free, key=taken)
    if count < 1:
        raise OutOfMemoryError(f"a page takes {taken(1):,} bytes, and {max(free, 0):,} are free")
    if count >= most:
        return most
    unit = 1 << max(count.bit_length() - 4, 0)
    return count // unit * unit
