"""Runs small kernels for the tests of the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.core import dtypes as dt
from weft.kernel.builder import Builder
from weft.kernel.interp import run


def play(
    body: Callable,
    *arrays: np.ndarray,
    grid: tuple = (1,),
    threads: tuple = (1,),
    **options: object,
) -> list[np.ndarray]:
    """Runs body(b, *buffers) on copies of `arrays`, all "rw"; gives the copies back."""
    b = Builder("kern")
    buffers = [b.buffer(f"b{i}", dt.as_dtype(a.dtype), a.size, "rw") for i, a in enumerate(arrays)]
    body(b, *buffers)
    copies = [a.copy() for a in arrays]
    run(b.kernel(grid, threads), copies, **options)  # type: ignore[arg-type]
    return copies


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)
