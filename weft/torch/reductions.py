"""PyTorch's reductions, running folds and orders, with its defaults and named results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.ops.rules import axes_of, axis_of
from weft.tensor import folding, functional as F, special
from weft.tensor.core import Tensor
from weft.torch import arithmetic, elementwise as ew
from weft.torch.expected import want
from weft.torch.results import Extremes, Picked as Picked
from weft.torch.tensor import function_only, index_of, public, real, whole

Dims = int | Sequence[int] | None


def dims(input: Tensor, dim: Dims) -> Any:
    """The axes that `dim` names: all for None and for an empty sequence."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return None
    return axes_of("dim", dim, max_(input.ndim, 1)) if input.ndim else None


max_, min_, sum_, all_ = max, min, sum, all


def summed(input: Tensor, dtype: Any) -> Tensor:
    """The tensor in the dtype of its sums: integers in 64 bits."""
    if dtype is not None:
        return input.cast(dtype)
    return input if input.dtype.is_float else input.cast(whole(input))


@public
def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over axes (all by default); integers are summed in int64."""
    x = summed(input, dtype)
    return Tensor.sum(x, dims(input, dim), keepdim, x.dtype)


@public
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over axes, NaN counting as 0."""
    x = input if not input.dtype.is_float else ew.isnan(input).where(0.0, input)
    return sum(x, dim, keepdim, dtype=dtype)


@public
def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The average over axes (all by default), of floats."""
    x = input.cast(dtype)
    if not x.dtype.is_float:
        raise UsageError(f"mean: {x.dtype.name} is not a float; use x.float().mean()")
    return Tensor.mean(x, dims(input, dim), keepdim)


@public
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The average of what is not NaN."""
    x = input.cast(dtype)
    held = ~ew.isnan(x)
    count = Tensor.sum(held.cast(dt.compute_dtype(x.dtype)), dims(input, dim), keepdim)
    return (nansum(x, dim, keepdim) / count).cast(x.dtype)


@public
def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The product over an axis (all by default); integers in int64."""
    want(dim is None or isinstance(dim, int), "prod", f"dim {dim!r}", "one axis; call it for each")
    if dtype == dt.bool_:
        return prod(input.cast(dt.bool_), dim, keepdim).cast(dt.bool_)
    x = summed(input, dtype)
    return Tensor.prod(x, dims(input, dim), keepdim, x.dtype)


def _correction(unbiased: Any, correction: Any) -> float:
    if correction is not None:
        return float(correction)
    return 0.0 if unbiased is False else 1.0


def _spread(name: str) -> Any:
    def function(
        input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
        correction: float | None = None,
    ) -> Tensor:  # fmt: skip
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        want(unbiased is None or correction is None, name, "unbiased and correction", "one of them")
        by = _correction(unbiased, correction)
        found: Tensor = getattr(Tensor, name)(input, dims(input, dim), keepdim, by)
        return found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The {'variance' if name == 'var' else 'standard deviation'} over axes (all by default),"
        " divided by n - correction (1)."
    )
    return public(function)


var, std = _spread("var"), _spread("std")


@function_only
def var_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The variance and the mean."""
    spread = var(input, dim, unbiased, keepdim, correction=correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


@function_only
def std_mean(
    input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The standard deviation and the mean."""
    spread = std(input, dim, unbiased, keepdim, correction=correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


# -- extremes


def at_index(input: Tensor, index: Tensor, dim: int, keepdim: bool) -> Picked:
    """The elements at an index of one entry along an axis."""
    if not input.ndim:
        return Picked(input.clone(), index_of(index.reshape(())))
    found = input._along(index.cast(dt.int32), axis_of("dim", dim, input.ndim))
    pair = (found, index_of(index))
    return Picked(*(pair if keepdim else (x.squeeze(dim) for x in pair)))


def _extreme(name: str) -> Any:
    other = ew.maximum if name == "max" else ew.minimum

    def function(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Tensor):
            want(keepdim is False, name, "two tensors and keepdim", "one tensor with a dim")
            return other(input, dim)
        if dim is None:
            return getattr(Tensor, name)(input)
        flat = input if input.ndim else input.reshape(1)
        index = getattr(Tensor, f"arg{name}")(flat, dim, True)
        return at_index(input, index, dim, keepdim)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The {'larg' if name == 'max' else 'small'}est of all; along an axis also its index; of "
        "two tensors element by element."
    )

    def named(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if "other" in kwargs:
            return other(input, kwargs["other"])
        return function(input, *args, **kwargs)

    named.__name__, named.__doc__ = name, function.__doc__
    return public(named)


max, min = _extreme("max"), _extreme("min")


@public
def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The largest over axes (all by default); equal ones share the gradient."""
    return Tensor.max(input, dims(input, dim), keepdim)


@public
def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The smallest over axes (all by default); equal ones share the gradient."""
    return Tensor.min(input, dims(input, dim), keepdim)


@public
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    """The smallest and the largest, of all or along an axis."""
    axes = () if dim is None else dim
    return Extremes(amin(input, axes, keepdim), amax(input, axes, keepdim))


def _arg(name: str) -> Any:
    def function(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        x = input if input.ndim else input.reshape(1)
        found = getattr(Tensor, name)(x, dim, keepdim)
        return index_of(found if input.ndim else found.reshape(()))  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The first index of the {name[3:]}imum, of all elements or along an axis."
    return public(function)


argmax, argmin = _arg("argmax"), _arg("argmin")


def _truth(name: str) -> Any:
    def function(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        found: Tensor = getattr(Tensor, name)(input, dims(input, dim), keepdim)
        return found.cast(dt.uint8) if input.dtype == dt.uint8 else found

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"True if {name} element over the axes is not zero."
    return public(function)


all, any = _truth("all"), _truth("any")


@public
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """The number of elements that are not zero."""
    return index_of(folding.count_nonzero(input, dims(input, dim)))  # type: ignore[no-any-return]


@public
def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))) over axes, without overflow."""
    return special.logsumexp(real(input), dims(input, dim), keepdim)


@public
def norm(
    input: Tensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """(sum of |input|^p)^(1 / p) over axes; "fro" is 2."""
    order = 2.0 if p in ("fro", None) else p
    if isinstance(order, str):
        from weft.torch.linalg import matrix_norm

        axes: Any = dim or (-2, -1)
        return matrix_norm(input, order, axes, keepdim, dtype=dtype)
    return F.vector_norm(real(input.cast(dtype)), order, dims(input, dim), keepdim)


@public
def softmax(input: Tensor, dim: int | None, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along an axis."""
    x = real(input.cast(dtype))
    return Tensor.softmax(x, _implicit(x) if dim is None else dim) if x.ndim else x * 0 + 1


@public
def log_softmax(input: Tensor, dim: int | None, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along an axis."""
    x = real(input.cast(dtype))
    return Tensor.log_softmax(x, _implicit(x) if dim is None else dim) if x.ndim else x * 0


def _implicit(input: Tensor) -> int:
    """The axis that PyTorch takes where none is named."""
    return 0 if input.ndim in (0, 1, 3) else 1


@public
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference."""
    return norm(arithmetic.sub(input, other), p)
