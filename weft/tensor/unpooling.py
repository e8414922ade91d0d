"""The inverse of pools of maxima: what they chose, back in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops.rules import countable, integers
from weft.tensor.base import place
from weft.tensor.convolution import Sizes, image_axes, sizes, want_image
from weft.tensor.core import Tensor
from weft.tensor.create import arange, zeros
from weft.tensor.layers import update


def _max_unpool(rank: int) -> Callable[..., Tensor]:
    name = f"max_unpool{rank}d"

    def unpool(
        x: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None,
        padding: Sizes = 0, output_size: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        want_image(name, x, rank)
        if indices.shape != x.shape:
            raise ShapeError(
                f"{name}: indices {list(indices.shape)} for x {list(x.shape)}; expected one each"
            )
        if not indices.dtype.is_int:
            raise DTypeError(f"{name}: indices are {indices.dtype.name}; expected integers")
        size = unpooled_size(name, x.shape[2:], kernel_size, stride, padding, output_size)
        return unpooled(x, indices, size)

    unpool.__name__ = unpool.__qualname__ = name
    unpool.__doc__ = f"""Each element of x{image_axes(rank)} at its index in a larger image of
    zeros: the inverse of max_pool{rank}d with return_indices, whose kernel, stride and padding
    these are. Indices count row by row in the image; one outside it is dropped, and of several at
    one place the last counts. `output_size` gives the image's size where several are possible.
    Raises ShapeError for sizes that do not fit.

    >>> y, at = F.max_pool{rank}d(weft.ones((1, 1{", 4" * rank})), 2, return_indices=True)
    >>> F.{name}(y, at, 2).shape
    (1, 1{", 4" * rank})
    """
    return unpool


max_unpool1d, max_unpool2d, max_unpool3d = map(_max_unpool, (1, 2, 3))


def unpooled_size(
    name: str, image: Sequence[int], kernel_size: Sizes, stride: Sizes | None,
    padding: Sizes | None, output_size: Sequence[int] | None,
) -> Sequence[int]:  # fmt: skip
    """The size of the larger image that a pool of maxima made `image` of."""
    rank = len(image)
    k = sizes("kernel_size", kernel_size, rank)
    steps = k if stride is None else sizes("stride", stride, rank)
    around = sizes("padding", padding or 0, rank)
    usual = [(n - 1) * s + m - 2 * p for n, s, m, p in zip(image, steps, k, around)]
    return usual if output_size is None else _wanted(name, output_size, usual, steps)


def _wanted(
    name: str, output_size: Sequence[int], usual: Sequence[int], steps: Sequence[int]
) -> tuple[int, ...]:
    """The image's axes of an output size, of which those of the batch may be part."""
    size = integers(name, "output_size", output_size)[-len(usual) :]
    near = len(size) == len(usual) and all(abs(n - m) < s for n, m, s in zip(size, usual, steps))
    if not near:
        raise ShapeError(
            f"{name}: output_size {list(output_size)}; expected {list(usual)}, or less than a "
            f"stride {list(steps)} from it"
        )
    return size


def unpooled(x: Tensor, indices: Tensor, size: Sequence[int]) -> Tensor:
    """x[N, C, ...] at indices into images of `size`, zeros elsewhere."""
    images, each = math.prod(x.shape[:2]), math.prod(size)
    countable("max_unpool", images * each)
    at = indices.cast(dt.int32).reshape(images, -1)
    first = arange(images, dtype=dt.int32, device=place(x)).reshape(-1, 1) * each
    at = ((at >= 0) & (at < each)).where(at + first, -1)
    flat = zeros((images * each,), x.dtype, place(x))
    return update(flat, at.reshape(-1), x.reshape(-1)).reshape(*x.shape[:2], *size)
