"""The number of groups that a kernel runs: its grid, evaluated by the host as Python arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from weft.core.errors import LimitError
from weft.kernel.ir import Binary, Const, Expr, Kernel, Param
from weft.kernel.ranges import Ranges

Grid = tuple[int, int, int]
MOST_IN_ALL = (1 << 31) - 1  # groups are counted in int32
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "//", "rem": "%"}


def grid_text(kernel: Kernel) -> str:
    """The grid's entries as Python text over `s`, the scalar buffer's content."""
    return ", ".join(map(_text, kernel.grid))


def _text(e: Expr) -> str:
    if isinstance(e, Const):
        return str(int(e.value))
    if isinstance(e, Param):
        return f"s[{int(e.slot)}]"
    if isinstance(e, Binary):
        a, b = _text(e.a), _text(e.b)
        if e.op in ("min", "max"):
            return f"{e.op}({a}, {b})"
        if e.op in _INFIX:
            return f"({a} {_INFIX[e.op]} {b})"
    raise TypeError(f"a grid may hold Const, Param and Binary, not {type(e).__name__}")


@functools.lru_cache(maxsize=1024)
def grid_function(text: str) -> Callable[[Sequence[int]], Grid]:
    """Returns a function from the scalars to the grid of this text (weft's own integer
    arithmetic)."""
    found: Callable[[Sequence[int]], Grid] = eval(f"lambda s: ({text})")
    return found


def groups(kernel: Kernel, scalars: Sequence[int]) -> Grid:
    """Groups along each axis, given the scalar buffer's content; none where an axis has none."""
    x, y, z = grid_function(grid_text(kernel))([int(s) for s in scalars])
    return max(x, 0), max(y, 0), max(z, 0)


def most_groups(kernel: Kernel) -> Grid:
    """The largest number of groups along each axis that the kernel can ask for."""
    ranges = Ranges(kernel)
    x, y, z = (ranges.axis("group", dim).range[1] + 1 for dim in range(3))
    return x, y, z


def check_groups(kernel: Kernel, most: int) -> None:
    """Raises LimitError where the grid's constants ask for more groups than a target takes that
    folds all axes into two of `most` groups."""
    fixed = [int(g.value) for g in kernel.grid if isinstance(g, Const)]
    total = math.prod(max(n, 1) for n in fixed)
    if total > min(most**2, MOST_IN_ALL):
        raise LimitError(
            f"kernel {kernel.name}: {total:,} groups, this target takes "
            f"{min(most**2, MOST_IN_ALL):,}: use smaller shapes, or the CPU"
        )
