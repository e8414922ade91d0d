"""Functions of matrices by NumPy (LAPACK) on the host, with derivatives.

They read the values of their operands (so never inside weft.compile), compute in float32 or
float64, and put their results on the operands' device. Gradients are formulas over matrix products,
for one output at a time: those of several outputs add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import GradientError, ShapeError, UsageError
from weft.ops.batching import Batched, leading, top_frame
from weft.ops.tape import is_tracked, peel, remember, tape_level
from weft.tensor.core import Tensor
from weft.tensor.create import eye, tril
from weft.tensor.elementwise import reals
from weft.tensor.keys import place_like

Operand = Any  # a Tensor or a NumPy array
# (gradient of one output, all outputs, operands) -> the gradients of the operands
Slope = Callable[[Tensor, list[Tensor], list[Tensor]], Sequence[Tensor]]


def matrices(name: str, x: Operand, square: bool = False) -> Tensor:
    """The operand as floats. Raises ShapeError unless it is a (square) matrix, or a stack."""
    t = reals(x)
    if t.ndim < 2 or (square and t.shape[-1] != t.shape[-2]):
        kind = "square matrices [..., n, n]" if square else "matrices [..., m, n]"
        raise ShapeError(f"linalg.{name}: {t._known()}; expected {kind}")
    return t


def by_numpy(
    name: str, of: Callable[..., Any], given: Sequence[Tensor], *slopes: Slope
) -> list[Tensor]:
    """The outputs of NumPy's function `of`, which takes stacks, each with its slope. Raises
    UsageError where NumPy finds a matrix singular, not positive definite or without convergence."""
    inputs = tuple(t.value for t in given)
    frame, level = top_frame(inputs), tape_level(inputs)
    if frame is not None:  # in a mapped function: all examples at once
        stacks = [Tensor(leading(v, frame)) for v in inputs]
        return [Tensor(Batched(t.value, frame)) for t in by_numpy(name, of, stacks, *slopes)]
    if level is None:
        return [Tensor(place_like(given[0], a)) for a in _arrays(name, of, given)]
    bare = [Tensor(peel(v, level)) for v in inputs]
    values = [t.value for t in by_numpy(name, of, bare, *slopes)]

    def kept(value: Any, slope: Slope) -> Tensor:
        def rule(g: Any, out: Any, operands: tuple[Any, ...]) -> list[Any]:
            xs = [Tensor(v) for v in operands]
            again = is_tracked(operands, level)  # a derivative of derivatives
            outs = by_numpy(name, of, xs, *slopes) if again else [Tensor(v) for v in values]
            return [t.value for t in slope(Tensor(g), outs, xs)]

        return Tensor(remember(f"linalg.{name}", value, inputs, rule))

    return [kept(value, slope) for value, slope in zip(values, slopes, strict=True)]


def _arrays(name: str, of: Callable[..., Any], given: Sequence[Tensor]) -> list[np.ndarray]:
    dtype = given[0].dtype
    wide = dt.compute_dtype(dtype).numpy
    try:
        found = of(*(t._host(f"linalg.{name}").astype(wide, copy=False) for t in given))
    except np.linalg.LinAlgError as error:
        shown = ", ".join(t._known() for t in given)
        raise UsageError(f"linalg.{name}({shown}): {error}") from None
    arrays = found if isinstance(found, tuple) else (found,)
    return [np.asarray(a).astype(dtype.numpy) for a in arrays]


def refused(why: str) -> Slope:
    def slope(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
        raise GradientError(f"linalg.{why}")

    return slope


def still(g: Tensor, out: list[Tensor], given: list[Tensor]) -> Sequence[Tensor]:
    """An output that does not change."""
    return [given[0] * 0.0]


def column(x: Tensor) -> Tensor:
    """Numbers [...] as [..., 1, 1]."""
    return x.unsqueeze(-1).unsqueeze(-1)


def row(x: Tensor) -> Tensor:
    """Vectors [..., n] as [..., 1, n]: times a matrix, they scale its columns."""
    return x.unsqueeze(-2)


def half_of_diagonal(x: Tensor) -> Tensor:
    """The lower triangle with half of the diagonal."""
    return tril(x) - eye(x.shape[-1], dtype=x.dtype, device=place_of(x)) * x * 0.5


def place_of(x: Tensor) -> Any:
    return None if x.is_traced else x.device
