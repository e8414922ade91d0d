"""How many groups a kernel runs: its grid, evaluated by the host as Python arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from weft.kernel.ir import Binary, Const, Expr, Kernel, Param

Grid = tuple[int, int, int]
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
    """What computes the grid of this text (our own arithmetic over integers) from the scalars."""
    found: Callable[[Sequence[int]], Grid] = eval(f"lambda s: ({text})")
    return found


def groups(kernel: Kernel, scalars: Sequence[int]) -> Grid:
    """Groups along each axis, given the scalar buffer's content; none where an axis has none."""
    x, y, z = grid_function(grid_text(kernel))([int(s) for s in scalars])
    return max(x, 0), max(y, 0), max(z, 0)
