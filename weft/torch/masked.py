"""torch.masked: reductions and normalisations of the elements that a mask holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.core import dtypes as dt
from weft.tensor.core import Tensor
from weft.tensor.namespace import iinfo
from weft.torch import elementwise, ordering, reductions
from weft.torch.nn import functional as F
from weft.torch.tensor import function_only, functions, real


def _held(input: Tensor, mask: Tensor | None, value: Any) -> Tensor:
    """`value` where the mask does not hold."""
    if mask is None:
        return input
    made: Tensor = mask.cast(dt.bool_).where(input, value).cast(input.dtype)
    return made


def _bound(dtype: dt.DType, top: bool) -> Any:
    """The value that no maximum (`top`: minimum) picks."""
    if dtype == dt.bool_:
        return top
    if dtype.is_float:
        return math.inf if top else -math.inf
    info = iinfo(dtype)
    return int(info.max if top else info.min)


def _reduction(name: str, of: Callable[..., Any], neutral: Callable[[dt.DType], Any]) -> Any:
    def function(
        input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None,
        mask: Tensor | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        x = input.cast(dtype)
        axes = () if dim is None else dim
        return of(_held(x, mask, neutral(x.dtype)), axes, keepdim, **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of the elements that the mask holds."
    return function_only(function)


def _products(x: Tensor, axes: Any, keepdim: bool) -> Tensor:
    named = reductions.dims(x, axes)
    for a in sorted(named if named is not None else range(x.ndim), reverse=True):
        x = reductions.prod(x, a, True)
    x = x if x.dtype.is_float else reductions.prod(x.unsqueeze(0), 0)
    if keepdim or not x.ndim:
        return x
    made: Tensor = x.squeeze(named if named is not None else tuple(range(x.ndim)))
    return made


sum = _reduction("sum", reductions.sum, lambda d: 0)
prod = _reduction("prod", _products, lambda d: 1)
amax = _reduction("amax", reductions.amax, lambda d: _bound(d, False))
amin = _reduction("amin", reductions.amin, lambda d: _bound(d, True))
logsumexp = _reduction(
    "logsumexp", lambda x, *how: reductions.logsumexp(x, *how).cast(x.dtype),
    lambda d: _bound(d, False),
)  # fmt: skip


def _index(name: str, top: bool) -> Any:
    of = getattr(reductions, name)

    def function(
        input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None,
        mask: Tensor | None = None,
    ) -> Any:  # fmt: skip
        x = input.cast(dtype)
        return of(_held(x, mask, _bound(x.dtype, top)), dim, keepdim).cast(x.dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of the elements that the mask holds."
    return function_only(function)


argmax, argmin = _index("argmax", False), _index("argmin", True)


def _ones(x: Tensor, mask: Tensor | None) -> Tensor:
    from weft.torch.creation import ones_like

    wide = dt.compute_dtype(x.dtype)
    if mask is None:
        return ones_like(x, dtype=wide)  # type: ignore[no-any-return]
    return mask.cast(dt.bool_).expand(x.shape).cast(wide)


@function_only
def mean(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The average of the elements that the mask holds."""
    x = real(input.cast(dtype))
    axes = () if dim is None else dim
    wide = x.cast(dt.compute_dtype(x.dtype))
    total = reductions.sum(_held(wide, mask, 0), axes, keepdim)
    return (total / reductions.sum(_ones(x, mask), axes, keepdim)).cast(x.dtype)


def _spread(name: str) -> Any:
    def function(
        input: Tensor, dim: Any = None, unbiased: bool | None = None, *, correction: Any = None,
        keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        x = real(input.cast(dtype))
        axes = () if dim is None else dim
        less = correction if correction is not None else float(unbiased is not False)
        wide = x.cast(dt.compute_dtype(x.dtype))
        count = reductions.sum(_ones(x, mask), axes, True)
        centre = reductions.sum(_held(wide, mask, 0), axes, True) / count
        apart = _held(wide - centre, mask, 0)
        total = reductions.sum(apart * apart, axes, keepdim)
        n = reductions.sum(_ones(x, mask), axes, keepdim) - less
        made = total / n.maximum(0.0)
        return (made._length() if name == "std" else made).cast(x.dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` of the elements that the mask holds."
    return function_only(function)


var, std = _spread("var"), _spread("std")


@function_only
def norm(
    input: Tensor, ord: float | None = 2.0, dim: Any = None, *, keepdim: bool = False,
    dtype: Any = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The norm of the elements that the mask holds."""
    x = real(input.cast(dtype))
    order = 2.0 if ord is None else ord
    return reductions.norm(_held(x, mask, math.inf if order == -math.inf else 0), order,
                           () if dim is None else dim, keepdim)  # fmt: skip


@function_only
def median(
    input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The lower of two in the middle of the elements that the mask holds."""
    x = input.cast(dtype)
    found = ordering.nanmedian(_held(x, mask, math.nan), dim, keepdim)
    return found.values  # type: ignore[no-any-return]


def _running(name: str, value: int) -> Any:
    of = getattr(ordering, name)

    def function(
        input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        x = input.cast(dtype)
        made: Tensor = of(_held(x, mask, value), dim, dtype=x.dtype)
        return made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}`, passing over what the mask does not hold."
    return function_only(function)


cumsum, cumprod = _running("cumsum", 0), _running("cumprod", 1)


def _normal(name: str, value: float) -> Any:
    of = getattr(F, name)

    def function(
        input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        made: Tensor = of(_held(real(input.cast(dtype)), mask, value), dim)
        return made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name}` over the elements that the mask holds."
    return function_only(function)


softmax, log_softmax = _normal("softmax", -math.inf), _normal("log_softmax", -math.inf)
softmin = _normal("softmin", math.inf)


@function_only
def normalize(
    input: Tensor, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Divided by the norm of the elements that the mask holds."""
    x = real(input.cast(dtype))
    length = norm(x, ord, dim, keepdim=True, mask=mask)
    return x / length.maximum(eps)


@function_only
def logaddexp(
    input: Tensor, other: Tensor, *, dtype: Any = None, input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """log(exp(input) + exp(other)) of what the masks hold."""
    x, y = real(input.cast(dtype)), real(other.cast(dtype))
    x, y = _held(x, input_mask, -math.inf), _held(y, other_mask, -math.inf)
    made: Tensor = elementwise.logaddexp(x, y)
    return made


def __dir__() -> list[str]:
    return functions(globals())
