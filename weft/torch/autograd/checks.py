"""Derivatives compared with finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import GradientError, UsageError
from weft.host.boundary import check_options
from weft.tensor.autograd import no_grad
from weft.torch.runtime import grad
from weft.torch.tensor import Tensor, public

# Checks of PyTorch's that this one lacks.
_FURTHER = """nondet_tol check_undefined_grad check_grad_dtypes check_batched_grad fast_mode masked
check_batched_forward_grad check_forward_ad check_backward_ad"""


@public
def gradcheck(
    func: Callable[..., Any], inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5,
    rtol: float = 1e-3, raise_exception: bool = True, **options: Any,
) -> bool:  # fmt: skip
    """True if the gradients of func by all float64 inputs that require them equal central
    differences of width 2 eps. Raises GradientError with the first that differs (or returns False
    with raise_exception=False), UsageError for inputs of fewer bits."""
    check_options("gradcheck", options, _FURTHER.split())
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    wanted = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise UsageError("gradcheck: no input requires gradients")
    if any(given[i].dtype != dt.float64 for i in wanted):
        raise UsageError("gradcheck: give inputs of float64; differences need its digits")
    outputs = _outputs(func, given)
    for i in wanted:
        slopes = _differences(func, given, i, eps)
        for j, y in enumerate(outputs):
            exact = _rows(y, given[i])
            if not np.allclose(exact, slopes[j], rtol, atol):
                if not raise_exception:
                    return False
                worst = np.unravel_index(np.abs(exact - slopes[j]).argmax(), exact.shape)
                raise GradientError(
                    f"gradcheck: output {j}, input {i}, element {int(worst[1])}: the gradient is "
                    f"{exact[worst]:.6g}, differences give {slopes[j][worst]:.6g}"
                )
    return True


def _outputs(func: Callable[..., Any], given: Any) -> list[Any]:
    found = func(*given)
    made = found if isinstance(found, tuple | list) else (found,)
    return [y for y in made if isinstance(y, Tensor) and y.dtype.is_float]


def _rows(y: Any, x: Any) -> np.ndarray:
    """The derivatives of each element of y by each of x: [y.numel(), x.numel()]."""
    rows = np.zeros((y.numel(), x.numel()))
    if not y.requires_grad:
        return rows
    for row, part in zip(rows, y.reshape(-1)):
        (g,) = grad(part, [x], allow_unused=True)
        if g is not None:
            row[:] = g.detach().numpy().reshape(-1)
    return rows


def _differences(
    func: Callable[..., Any], given: Any, i: int, eps: float
) -> list[np.ndarray]:  # fmt: skip
    """Central differences of each output by input i, arranged as in `_rows`."""
    x = np.array(given[i].detach().numpy())
    columns: list[list[np.ndarray]] = []
    for at in range(x.size):
        ends = []
        for step in (eps, -eps):
            moved = x.copy()
            moved.reshape(-1)[at] += step
            with no_grad():
                made = _outputs(func, [*given[:i], Tensor(moved), *given[i + 1 :]])
            ends.append([np.array(y.numpy(), np.float64).reshape(-1) for y in made])
        columns.append([(a - b) / (2 * eps) for a, b in zip(*ends)])
    return [np.stack(rows, 1) for rows in zip(*columns)]
