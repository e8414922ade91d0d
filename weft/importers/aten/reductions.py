"""Reductions, running folds, order, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.importers.aten.table import HOW, aten, rows
from weft.tensor import folding, functional as F, special
from weft.tensor.core import Tensor

Dims = int | Sequence[int] | None


axes = HOW["axes"]
rows(__name__, {
    "amax": (Tensor.max, "self dim:axes keepdim"),
    "amin": (Tensor.min, "self dim:axes keepdim"),
    "max": (Tensor.max, "self"),
    "min": (Tensor.min, "self"),
    "argmax": (Tensor.argmax, "self dim keepdim"),
    "argmin": (Tensor.argmin, "self dim keepdim"),
    "any any.dim any.dims": (Tensor.any, "self dim:axes keepdim"),
    "all all.dim all.dims": (Tensor.all, "self dim:axes keepdim"),
    "count_nonzero count_nonzero.dim_IntList": (folding.count_nonzero, "self dim:axes"),
    "logsumexp": (special.logsumexp, "self dim:axes keepdim"),
    "cummax": (Tensor.cummax, "self dim"),
    "cummin": (Tensor.cummin, "self dim"),
    "logcumsumexp": (Tensor.logcumsumexp, "self dim"),
    "argsort argsort.stable": (Tensor.argsort, "self dim descending -stable"),
    "topk": (Tensor.topk, "self k dim largest -sorted"),
})  # fmt: skip


def _whole(x: Tensor) -> Tensor:
    """Small unsigned integers as int32: PyTorch adds them in int64, for which int32 stands here."""
    return x.cast(dt.int32) if x.dtype.kind == "uint" and x.dtype.itemsize < 4 else x


@aten("sum", "sum.dim_IntList")
def sum_(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return _whole(self).sum(axes(dim), keepdim, dtype)


@aten("prod", "prod.dim_int")
def prod(
    self: Tensor, dim: int | None = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return _whole(self).prod(dim, keepdim, dtype)


@aten("mean", "mean.dim")
def mean(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.cast(dtype).mean(axes(dim), keepdim)


@aten("max.dim")
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return self.max(dim, keepdim), self.argmax(dim, keepdim)


@aten("min.dim")
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return self.min(dim, keepdim), self.argmin(dim, keepdim)


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


@aten("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def norm(
    self: Tensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False,
    dtype: DType | None = None, *, p: Any = None,
) -> Tensor:  # fmt: skip
    order = p if p is not None else 2 if ord is None else ord
    return F.vector_norm(self.cast(dtype), order, axes(dim), keepdim)


# -- running


@aten("cumsum")
def cumsum(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return _whole(self).cumsum(dim, dtype) if self.ndim else self.cast(dtype)


@aten("cumprod")
def cumprod(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return _whole(self).cumprod(dim, dtype) if self.ndim else self.cast(dtype)


@aten("diff")
def diff(
    self: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:  # fmt: skip
    from weft.importers.aten.movement import cat

    parts = [t for t in (prepend, self, append) if t is not None]
    x = cat(parts, dim) if len(parts) > 1 else self
    if x.dtype != dt.bool_:
        return folding.diff(x, n, dim)
    for _ in range(min(n, x.shape[dim])):  # then nothing is left
        x = folding.diff(x.cast(dt.int32), 1, dim) != 0
    return x


# -- order


@aten("sort", "sort.stable")
def sort(
    self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True
) -> tuple[Tensor, Tensor]:
    return self.sort(dim, descending), self.argsort(dim, descending)


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
