"""The launch of a GPU kernel: the agreement between the code and its launcher.

A kernel takes one pointer per buffer, in order, and a last one to the runtime scalars (int32).
Every pointer is a multiple of ALIGN bytes. If grid axes 1 and 2 may exceed the hardware's limit,
they are folded into axis 0; the kernel then computes its place from the scalars. Shared arrays
beyond what the code may declare are together in memory that the launch requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import LimitError
from weft.kernel import ir
from weft.kernel.grid import groups

ALIGN = 16
_UPPER = 65535  # groups along axes 1 and 2
_FIRST = (1 << 31) - 1  # groups along axis 0


def entry(kernel: ir.Kernel) -> str:
    """The name of the kernel's function (its own name may be a word of the assembler's)."""
    return f"weft_{kernel.name}"


def folded(kernel: ir.Kernel) -> bool:
    """True if all three axes of the grid are launched as one."""
    return not all(isinstance(g, ir.Const) and int(g.value) <= _UPPER for g in kernel.grid[1:])


def shared_layout(kernel: ir.Kernel) -> tuple[dict[str, int], int]:
    """(the byte offset of each shared array by name, bytes in all) when they lie one after another
    at multiples of ALIGN, in the order of their declarations."""
    places, used = {}, 0
    for s in kernel.body.body:  # shared arrays are declared at the top level only
        if isinstance(s, ir.Array) and s.space == "shared":
            places[s.name] = used
            used += -(-max(s.size, 1) * s.dtype.itemsize // ALIGN) * ALIGN
    return places, used


def shared_bytes(kernel: ir.Kernel, static: int) -> int:
    """Returns the bytes of dynamic shared memory of a launch: all of it when the kernel takes more
    than the `static` bytes that code may declare, else 0."""
    used = shared_layout(kernel)[1]
    return used if used > static else 0


def launch_grid(
    kernel: ir.Kernel, scalars: Sequence[int], threads: int | None = None
) -> tuple[int, int, int]:
    """Returns the number of groups to launch along each axis; a zero means that there is nothing to
    do.

    At most `threads`, if given, may run along axis 0. Raises LimitError when the grid exceeds the
    limits of a GPU.
    """
    x, y, z = groups(kernel, scalars)
    wanted = (x * y * z, 1, 1) if folded(kernel) else (x, y, z)
    if wanted[0] > _FIRST:
        raise LimitError(
            f"kernel {kernel.name}: a grid of {x} x {y} x {z} groups; at most {_FIRST}"
        )
    if threads is not None and wanted[0] * kernel.threads[0] > threads:
        raise LimitError(
            f"kernel {kernel.name}: {wanted[0]} groups of {kernel.threads[0]} threads along one "
            f"axis; at most {threads} threads"
        )
    return wanted
