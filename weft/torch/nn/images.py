"""Windows and resizing of torch.nn.functional."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.tensor import functional as F
from weft.tensor.core import Tensor
from weft.torch import arithmetic
from weft.torch.expected import want, want_floats
from weft.torch.nn.batches import batched
from weft.torch.tensor import index_of, public


def _max_pool(rank: int, adaptive: bool) -> Any:
    name = f"{'adaptive_' if adaptive else ''}max_pool{rank}d"
    of = getattr(F, name)

    def found(made: Any, return_indices: bool) -> Any:
        return (made[0], index_of(made[1])) if return_indices else made

    def sized(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        given = {"input": input}
        made = batched(name, lambda input: of(input, output_size, return_indices), given)
        return found(made, return_indices)

    def windowed(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        window = (kernel_size, None if stride == () else stride, padding, dilation, ceil_mode)
        made = batched(name, lambda input: of(input, *window, return_indices), {"input": input})
        return found(made, return_indices)

    function = sized if adaptive else windowed
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The largest of windows over {rank} axes; with return_indices its places."
    return public(function)


max_pool1d, max_pool2d, max_pool3d = (_max_pool(n, False) for n in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    _max_pool(n, True) for n in (1, 2, 3)
)


def _fractional_max_pool(rank: int) -> Any:
    name = f"fractional_max_pool{rank}d"
    of = getattr(F, name)

    def function(
        input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
        return_indices: bool = False, _random_samples: Any = None,
    ) -> Any:  # fmt: skip
        def pool(input: Tensor) -> Any:
            return of(input, kernel_size, output_size, output_ratio, return_indices, samples)

        samples = _random_samples
        if samples is not None and samples.ndim == 2:
            samples = samples.unsqueeze(0)
        made = batched(name, pool, {"input": input})
        return (made[0], index_of(made[1])) if return_indices else made

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The largest of windows over {rank} axes that lie at random."
    return public(function)


fractional_max_pool2d, fractional_max_pool3d = map(_fractional_max_pool, (2, 3))


def _with_indices(pool: Any) -> Any:
    """A pool that gives its places too, whatever return_indices says."""

    @functools.wraps(pool)
    def function(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(pool).bind(*args, **kwargs).arguments
        return pool(**{**given, "return_indices": True})

    function.__name__ = function.__qualname__ = f"{pool.__name__}_with_indices"
    function.__doc__ = "The largest of windows, and their places."
    return public(function)


_POOLS = (max_pool1d, max_pool2d, max_pool3d, adaptive_max_pool1d, adaptive_max_pool2d,
          adaptive_max_pool3d, fractional_max_pool2d, fractional_max_pool3d)  # fmt: skip
(
    max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices,
    adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d_with_indices, fractional_max_pool2d_with_indices,
    fractional_max_pool3d_with_indices,
) = map(_with_indices, _POOLS)  # fmt: skip


@public
def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """`interpolate` under its older name."""
    return F.interpolate(input, size, scale_factor, mode, align_corners)


@public
def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Resized to the nearest elements."""
    return interpolate(input, size, scale_factor)


@public
def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Resized linearly, corners staying in place."""
    return interpolate(input, size, scale_factor, "bilinear", True)


@public
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """The grid [N, H, W, 2] (or [N, D, H, W, 3]) of affine maps, for `grid_sample`."""
    want(theta.ndim == 3 and tuple(size)[:1] == theta.shape[:1], "affine_grid",
         f"theta {theta._known()} for size {list(size)}", "one matrix per image")  # fmt: skip
    lines = []
    for n in list(size)[2:]:
        ends = 1.0 if align_corners else 1.0 - 1.0 / n
        lines.append(np.linspace(-ends, ends, n, dtype=np.float32) if n > 1 else np.zeros(1, "f4"))
    mesh = np.meshgrid(*lines, indexing="ij")[::-1]
    points = np.stack([*mesh, np.ones_like(mesh[0])], -1)
    base = Tensor(points.reshape(-1, points.shape[-1])).cast(theta.dtype)
    made = base @ theta.transpose(1, 2)
    return made.reshape((theta.shape[0], *list(size)[2:], theta.shape[1]))


@public
def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resized to a size or by a factor; bytes are rounded."""
    fits = "nearest" in mode or (mode in ("bicubic", "bilinear") and input.ndim != 3)
    if not (input.dtype.is_float or (input.dtype == dt.uint8 and fits)):
        want_floats("interpolate", input, f"call .float() on it for mode {mode!r}")
    how = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    if input.dtype.is_float or mode in ("nearest", "nearest-exact"):
        return F.interpolate(input, *how)
    made, rank = input.cast(dt.float32), input.ndim - 2
    sizes, factors = _each(size, rank), _each(scale_factor, rank)
    for axis in reversed(range(rank)):  # bytes are rounded after each axis
        to = sizes and [sizes[i] if i == axis else n for i, n in enumerate(made.shape[2:])]
        by = factors and [factors[i] if i == axis else 1.0 for i in range(rank)]
        made = (F.interpolate(made, to, by, *how[2:]) + 0.5).floor().clip(0.0, 255.0)
    return made.cast(input.dtype)


def _each(value: Any, rank: int) -> list[Any] | None:
    """One value per axis; None for none."""
    if value is None:
        return None
    return [value] * rank if isinstance(value, int | float) else list(value)


@public
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Divided by (k + alpha * the mean square over `size` neighbouring channels) ** beta."""
    if input.dtype.is_float or not input.size:
        return F.local_response_norm(input, size, alpha, beta, k) if input.size else input.clone()
    sides = [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (input.ndim - 2)]
    square = Tensor.pad(input * input, sides)  # integers have whole means, as in PyTorch
    n = input.shape[1]
    total: Any = sum(square.narrow(1, i, n) for i in range(size))
    return arithmetic.div(input, ((total // size).cast(dt.float32) * alpha + k) ** beta)
