"""PyTorch's products of vectors and matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.tensor import folding, functional as F, linalg
from weft.tensor.core import Tensor
from weft.tensor.einsum import einsum as contracted
from weft.torch.arithmetic import div, mul
from weft.torch.expected import want, want_rank
from weft.torch.tensor import common, function_only, public, together, whole


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in the operands' dtype (8-bit integers wrap, as in PyTorch)."""
    made: Tensor = a @ b  # autocast chooses the dtype of floats
    return made if made.dtype.is_float else made.cast(a.dtype)


def _axes(name: str, a: Tensor, b: Tensor, left: int, right: int) -> None:
    if a.ndim != left or b.ndim != right:
        raise ShapeError(f"{name}: {a._known()} and {b._known()}; expected {left} and {right} axes")


@public
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The product of matrices, with NumPy's rules for vectors and batches."""
    return _product(input, other)


def _of_ranks(name: str, left: int, right: int, what: str) -> Any:
    def function(input: Tensor, other: Tensor) -> Tensor:
        _axes(name, input, other, left, right)
        return _product(input, other)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = what
    return public(function)


mm = _of_ranks("mm", 2, 2, "The product of two matrices.")
bmm = _of_ranks("bmm", 3, 3, "The products of two batches of matrices.")
mv = _of_ranks("mv", 2, 1, "A matrix times a vector.")
dot = _of_ranks("dot", 1, 1, "The sum of products of two vectors.")
vdot = _of_ranks("vdot", 1, 1, "The sum of products of two vectors.")


@public
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """All products of two vectors."""
    want_rank("outer", input, 1)
    want_rank("outer", vec2, 1)
    a, b = together(input, vec2)
    return (a.unsqueeze(1) * b).cast(a.dtype)


ger = outer


@public
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sums of products along the last axes."""
    if not input.ndim or not other.ndim:
        a, b = together(input, other)
        return (a * b).cast(a.dtype)
    return tensordot(input, other, ([-1], [-1]))


@function_only
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Products summed over the last `dims` axes of a and the first of b, or over named pairs."""
    if not isinstance(dims, int):
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
        for i, j in zip(left, right):  # an axis of size 1 is broadcast
            a = Tensor.sum(a, i, True, a.dtype) if b.shape[j] == 1 else a
            b = Tensor.sum(b, j, True, b.dtype) if a.shape[i] == 1 else b
        dims = (left, right)
    else:
        want(dims >= 0, "tensordot", f"dims {dims}", "0 or more")
    return folding.tensordot(a, b, axes=dims).cast(a.dtype)


def _plus(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    whole = not input.dtype.is_float
    scaled = product if alpha == 1 else product * (int(alpha) if whole else alpha)
    if beta == 0:
        return scaled.expand(_common(input, scaled)).cast(input.dtype)
    kept = input if beta == 1 else input * (int(beta) if whole else beta)
    return (kept + scaled).cast(input.dtype)


def _common(a: Tensor, b: Tensor) -> tuple[int, ...]:
    from weft.tensor.base import broadcast_shapes

    return broadcast_shapes("add", a.shape, b.shape)


@public
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    return _plus(input, _product(mat1, mat2), beta, alpha)


@public
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    return _plus(input, _product(mat, vec), beta, alpha)


@public
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2)."""
    given = together(input, outer(vec1, vec2))
    rounded = not given[0].dtype.is_float and any(isinstance(x, float) for x in (beta, alpha))
    want(not rounded, "addr", f"beta {beta}, alpha {alpha} for {given[0]._known()}",
         "integers where the tensors are")  # fmt: skip
    return _plus(given[0], given[1], beta, alpha)


@public
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2), of batches of matrices."""
    return _plus(input, _product(batch1, batch2), beta, alpha)


@public
def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * input + alpha * the sum over the batch of batch1 @ batch2."""
    total = _product(batch1, batch2).sum(0, dtype=batch1.dtype)
    return _plus(input, total, beta, alpha)


@function_only
def einsum(equation: str, *operands: Any) -> Tensor:
    """Einstein's sum over the axes that the equation names."""
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], Sequence) else operands
    if len(given) == 1 and given[0].dtype == dt.bool_:  # what is summed is counted
        counted: Tensor = contracted(equation, given[0].cast(whole(given[0])))
        return counted if counted.ndim < given[0].ndim else counted.cast(dt.bool_)
    made: Tensor = contracted(equation, *given)
    if made.dtype.is_float:
        return made
    summed = len(given) == 1 and made.ndim < given[0].ndim
    whole_sum = contracted(equation, given[0].cast(whole(made))) if summed else made
    return whole_sum if summed else made.cast(common(*given))


@function_only
def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices."""
    made = matrices[0]
    for m in matrices[1:]:
        made = made @ m
    return made


@public
def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker's product: each element of input times all of other."""
    a, b = together(input, other)
    rank = max(a.ndim, b.ndim)
    a = a.reshape([1] * (rank - a.ndim) + list(a.shape))
    b = b.reshape([1] * (rank - b.ndim) + list(b.shape))
    left = a.reshape([n for size in a.shape for n in (size, 1)])
    right = b.reshape([n for size in b.shape for n in (1, size)])
    return (left * right).cast(a.dtype).reshape([n * m for n, m in zip(a.shape, b.shape)])


@public
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product along an axis of 3 (by default the first such axis)."""
    a, b = together(input, other)
    shape = _common(a, b)
    a, b = a.expand(shape), b.expand(shape)
    axis = shape.index(3) if dim is None else dim
    return linalg.cross(a, b, axis=axis)


@function_only
def cdist(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist"
) -> Tensor:
    """The distances by the p-norm of the rows of x1 and x2."""
    return F.cdist(x1, x2, p)


@public
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The covariances of rows (variables), columns being observations."""
    want_rank("cov", input, 0, 1, 2)
    x = input.reshape(1, -1) if input.ndim < 2 else input
    x = x if x.dtype.is_float else x.cast(dt.float32)
    w: Any = None
    for given in (fweights, aweights):
        if given is not None:
            w = given if w is None else w * given
    n = x.shape[1]
    if w is None:
        centred = x - x.mean(1, True)
        total, weighted = float(n - correction), centred
    else:
        w = w if w.dtype.is_float else w.cast(x.dtype)
        x, w = together(x, w)
        whole = w.sum()
        centred = x - (x * w).sum(1, True) / whole
        weighted = centred * w
        part = (w * aweights.cast(w.dtype)).sum() / whole if aweights is not None else 1.0
        total = (whole - correction * part).maximum(0.0)
    made = weighted @ centred.T / total if w is not None or total > 0 else (
        weighted @ centred.T * math.nan
    )  # fmt: skip
    return made.squeeze()


@public
def corrcoef(input: Tensor) -> Tensor:
    """The correlations of rows (variables)."""
    c = cov(input)
    if not c.ndim:
        return c / c
    scale = c.diagonal().sqrt()
    return (c / scale.unsqueeze(1) / scale.unsqueeze(0)).clip(-1.0, 1.0)


@public
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices along an axis whose p-norm is above maxnorm, shortened to it."""
    want(input.ndim > 1, "renorm", f"{input._known()}", "two or more axes")
    want(p > 0 and maxnorm >= 0, "renorm", f"p {p}, maxnorm {maxnorm}", "p > 0, maxnorm >= 0")
    over = [a for a in range(input.ndim) if a != dim % input.ndim]
    length = F.vector_norm(input.cast(dt.compute_dtype(input.dtype)), p, over, True)
    factor = (length > maxnorm).where(maxnorm / (length + 1e-7), 1.0)
    return (input * factor).cast(input.dtype)


@function_only
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integral along an axis by the rule of trapezoids."""
    from weft.torch.reductions import sum

    return div(sum(_strips(y, x, dx, dim), dim), 2)


trapz = trapezoid


@function_only
def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1
) -> Tensor:
    """The integrals up to each point along an axis by the rule of trapezoids."""
    from weft.torch.ordering import cumsum

    return div(cumsum(_strips(y, x, dx, dim), dim), 2)


def _strips(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    n = y.shape[dim]
    if not n:
        raise UsageError("trapezoid: no points")
    steps: Any = dx
    if x is not None:
        points = x.shape[-1 if x.ndim == 1 else dim]
        want(points == n, "trapezoid", f"{points} points x for {n} values", "one each")
        steps = x.narrow(-1 if x.ndim == 1 else dim, 1, x.shape[-1 if x.ndim == 1 else dim] - 1)
        steps = steps - x.narrow(-1 if x.ndim == 1 else dim, 0, steps.shape[-1 if x.ndim == 1
                                                                           else dim])  # fmt: skip
        if x.ndim == 1:
            steps = steps.reshape([-1] + [1] * (y.ndim - 1 - dim % y.ndim))
    return mul(y.narrow(dim, 1, n - 1) + y.narrow(dim, 0, n - 1), steps)
