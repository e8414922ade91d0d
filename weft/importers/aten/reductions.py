"""Reductions, running folds, order, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.importers.aten.table import aten
from weft.tensor import folding
from weft.tensor.core import Tensor

Dims = int | Sequence[int] | None


def axes(dim: Dims) -> Any:
    """No axes named: all of them."""
    return None if dim is None or (not isinstance(dim, int) and not len(dim)) else dim


@aten("sum", "sum.dim_IntList")
def sum_(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.sum(axes(dim), keepdim, dtype)


@aten("mean", "mean.dim")
def mean(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.cast(dtype).mean(axes(dim), keepdim)


@aten("amax")
def amax(self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return self.max(axes(dim), keepdim)


@aten("amin")
def amin(self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return self.min(axes(dim), keepdim)


@aten("max")
def max_all(self: Tensor) -> Tensor:
    return self.max()


@aten("min")
def min_all(self: Tensor) -> Tensor:
    return self.min()


@aten("max.dim")
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return self.max(dim, keepdim), self.argmax(dim, keepdim)


@aten("min.dim")
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return self.min(dim, keepdim), self.argmin(dim, keepdim)


@aten("argmax")
def argmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return self.argmax(dim, keepdim)


@aten("argmin")
def argmin(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return self.argmin(dim, keepdim)


@aten("any", "any.dim", "any.dims")
def any_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return self.any(axes(dim), keepdim)


@aten("all", "all.dim", "all.dims")
def all_(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return self.all(axes(dim), keepdim)


@aten("prod", "prod.dim_int")
def prod(
    self: Tensor, dim: int | None = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.prod(dim, keepdim, dtype)


@aten("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Tensor, dim: Dims = None) -> Tensor:
    return folding.count_nonzero(self, axes(dim))


def _spread(name: str, of: Callable[..., Tensor]) -> None:
    """var and std; the older overloads say `unbiased` where the newer ones give a correction."""

    @aten(f"{name}.correction")
    def corrected(
        self: Tensor, dim: Dims = None, correction: float | None = 1, keepdim: bool = False
    ) -> Tensor:
        return of(self, axes(dim), keepdim, 1 if correction is None else correction)

    @aten(f"{name}.dim")
    def along(self: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Tensor:
        return of(self, axes(dim), keepdim, int(unbiased))

    @aten(name)
    def whole(self: Tensor, unbiased: bool = True) -> Tensor:
        return of(self, None, False, int(unbiased))


_spread("var", Tensor.var)
_spread("std", Tensor.std)


@aten("var_mean.correction")
def var_mean(
    self: Tensor, dim: Dims = None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    spread = self.var(axes(dim), keepdim, 1 if correction is None else correction)
    return spread, self.mean(axes(dim), keepdim)


@aten("logsumexp")
def logsumexp(self: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    x = self.cast(dt.compute_dtype(self.dtype))  # the sum may be beyond float16's range
    top = x.max(axes(dim), keepdims=True).detach()
    top = (top.abs() == float("inf")).where(0.0, top)
    total = (x - top).exp().sum(axes(dim), keepdims=True).log() + top
    return (total if keepdim else total.sum(axes(dim))).cast(self.dtype)


@aten("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def norm(
    self: Tensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False,
    dtype: DType | None = None, *, p: Any = None,
) -> Tensor:  # fmt: skip
    order = p if p is not None else 2 if ord is None else ord
    x = self.cast(dtype)
    wide = dt.compute_dtype(x.dtype)
    if wide is not x.dtype:
        return norm(x.cast(wide), order, dim, keepdim).cast(x.dtype)
    if order == 2:
        return (x * x).sum(axes(dim), keepdim)._length()
    size = x.abs()
    if order in (float("inf"), float("-inf")):
        return size.max(axes(dim), keepdim) if order > 0 else size.min(axes(dim), keepdim)
    if order == 0:
        return (x != 0).cast(x.dtype).sum(axes(dim), keepdim)
    return size.sum(axes(dim), keepdim) if order == 1 else (
        (size**order).sum(axes(dim), keepdim) ** (1.0 / order)
    )  # fmt: skip


# -- running


@aten("cumsum")
def cumsum(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return self.cumsum(dim, dtype) if self.ndim else self.cast(dtype)


@aten("cumprod")
def cumprod(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return self.cumprod(dim, dtype) if self.ndim else self.cast(dtype)


@aten("cummax")
def cummax(self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return self.cummax(dim)


@aten("cummin")
def cummin(self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return self.cummin(dim)


@aten("logcumsumexp")
def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    return self.logcumsumexp(dim)


@aten("diff")
def diff(
    self: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:  # fmt: skip
    from weft.importers.aten.movement import cat

    parts = [t for t in (prepend, self, append) if t is not None]
    x = cat(parts, dim) if len(parts) > 1 else self
    if x.dtype != dt.bool_:
        return folding.diff(x, dim, n)
    for _ in range(n):
        x = folding.diff(x.cast(dt.int32), dim) != 0
    return x


# -- order


@aten("sort", "sort.stable")
def sort(
    self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True
) -> tuple[Tensor, Tensor]:
    return self.sort(dim, descending), self.argsort(dim, descending)


@aten("argsort", "argsort.stable")
def argsort(
    self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True
) -> Tensor:
    return self.argsort(dim, descending)


@aten("topk")
def topk(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    return self.topk(k, dim, largest)


# -- softmax


@aten("softmax.int")
def softmax(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return self.cast(dtype).softmax(dim)


@aten("_softmax")
def softmax_widened(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return self.cast(dt.float32 if half_to_float else None).softmax(dim)


@aten("_safe_softmax")
def safe_softmax(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """Zeros where everything is hidden (-inf)."""
    x = self.cast(dtype)
    hidden = (x == float("-inf")).all(dim, keepdims=True)
    return hidden.where(0.0, hidden.where(0.0, x).softmax(dim))


@aten("log_softmax.int")
def log_softmax(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return self.cast(dtype).log_softmax(dim)


@aten("_log_softmax")
def log_softmax_widened(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return self.cast(dt.float32 if half_to_float else None).log_softmax(dim)
