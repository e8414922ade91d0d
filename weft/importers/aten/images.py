"""Convolution, pooling and resizing, of one to three axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft.core.errors import ShapeError
from weft.importers.aten.table import aten, rows
from weft.tensor import functional as F
from weft.tensor.core import Tensor

Sizes = Sequence[int]
Function = Callable[..., Any]
_CONVS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
CONV = "input weight bias stride padding dilation groups"
TRANSPOSED = "input weight bias stride padding output_padding groups dilation"
MAX = "self kernel_size stride:given padding dilation ceil_mode"
AVG = "self kernel_size stride:given padding ceil_mode count_include_pad divisor_override"


def _places(pool: Function) -> Function:
    """A pool that also gives the places of what it chose."""
    return functools.partial(pool, return_indices=True)


rows(__name__, {
    **{f"conv{i}d conv{i}d.padding": (fn, CONV) for i, fn in enumerate(_CONVS, 1)},
    "conv_transpose1d": (_TRANSPOSED[0], TRANSPOSED),
    "conv_transpose2d.input": (_TRANSPOSED[1], TRANSPOSED),
    "conv_transpose3d.input": (_TRANSPOSED[2], TRANSPOSED),
    "max_pool1d": (F.max_pool1d, MAX),
    "max_pool2d": (F.max_pool2d, MAX),
    "max_pool3d": (F.max_pool3d, MAX),
    "max_pool1d_with_indices": (_places(F.max_pool1d), MAX),
    "max_pool2d_with_indices": (_places(F.max_pool2d), MAX),
    "max_pool3d_with_indices": (_places(F.max_pool3d), MAX),
    "avg_pool1d": (F.avg_pool1d, AVG),
    "avg_pool2d": (F.avg_pool2d, AVG),
    "avg_pool3d": (F.avg_pool3d, AVG),
    "adaptive_avg_pool1d": (F.adaptive_avg_pool1d, "self output_size"),
    "adaptive_avg_pool2d _adaptive_avg_pool2d": (F.adaptive_avg_pool2d, "self output_size"),
    "adaptive_avg_pool3d _adaptive_avg_pool3d": (F.adaptive_avg_pool3d, "self output_size"),
    "adaptive_max_pool1d": (_places(F.adaptive_max_pool1d), "self output_size"),
    "adaptive_max_pool2d": (_places(F.adaptive_max_pool2d), "self output_size"),
    "adaptive_max_pool3d": (_places(F.adaptive_max_pool3d), "self output_size"),
    "im2col": (F.unfold, "self kernel_size dilation padding stride"),
    "col2im": (F.fold, "self output_size kernel_size dilation padding stride"),
    "pixel_shuffle": (F.pixel_shuffle, "self upscale_factor"),
    "pixel_unshuffle": (F.pixel_unshuffle, "self downscale_factor"),
})  # fmt: skip


@aten("convolution")
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
) -> Tensor:  # fmt: skip
    at = input.ndim - 3
    if not 0 <= at < 3:
        raise ShapeError(f"{list(input.shape)}; expected [N, C, ...] with one to three axes more")
    if transposed:
        options = (stride, padding, output_padding, groups, dilation)
        return _TRANSPOSED[at](input, weight, bias, *options)
    return _CONVS[at](input, weight, bias, stride, padding, dilation, groups)


# -- resizing


def _resize(mode: str, name: str, corners: bool) -> None:
    """`name.vec` has all factors as one list and a size or None; `name` a size and each factor."""

    def resized(
        x: Tensor, size: Sizes | None, factors: Sequence[float] | None, align: bool | None
    ) -> Tensor:
        if factors is not None:
            return F.interpolate(x, None, list(factors), mode, align)
        return F.interpolate(x, size, None, mode, align)

    if corners:

        @aten(f"{name}.vec")
        def aligned(
            input: Tensor, output_size: Sizes | None, align_corners: bool,
            scale_factors: Sequence[float] | None = None,
        ) -> Tensor:  # fmt: skip
            return resized(input, output_size, scale_factors, align_corners)

        @aten(name)
        def aligned_sized(
            self: Tensor, output_size: Sizes, align_corners: bool, *scales: float | None
        ) -> Tensor:
            return resized(self, output_size, _all_known(scales), align_corners)
    else:

        @aten(f"{name}.vec")
        def plain(
            input: Tensor, output_size: Sizes | None, scale_factors: Sequence[float] | None = None
        ) -> Tensor:
            return resized(input, output_size, scale_factors, None)

        @aten(name)
        def plain_sized(self: Tensor, output_size: Sizes, *scales: float | None) -> Tensor:
            return resized(self, output_size, _all_known(scales), None)


def _all_known(scales: Sequence[float | None]) -> list[float] | None:
    known = [s for s in scales if s is not None]
    return known if known and len(known) == len(scales) else None


for _rank, _mode in ((1, "linear"), (2, "bilinear"), (2, "bicubic"), (3, "trilinear")):
    _resize(_mode, f"upsample_{_mode}{_rank}d", corners=True)
for _rank in (1, 2, 3):
    _resize("nearest", f"upsample_nearest{_rank}d", corners=False)
    _resize("nearest-exact", f"_upsample_nearest_exact{_rank}d", corners=False)


def _antialiased(mode: str) -> None:
    name = f"_upsample_{mode}2d_aa"

    @aten(f"{name}.vec")
    def by_list(
        input: Tensor, output_size: Sizes | None, align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Tensor:  # fmt: skip
        factors = None if scale_factors is None else list(scale_factors)
        return F.interpolate(input, output_size, factors, mode, align_corners, antialias=True)

    @aten(name)
    def by_size(
        self: Tensor, output_size: Sizes, align_corners: bool, scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:  # fmt: skip
        known = _all_known((scales_h, scales_w))
        size = output_size if known is None else None
        return F.interpolate(self, size, known, mode, align_corners, antialias=True)


for _mode in ("bilinear", "bicubic"):
    _antialiased(_mode)


_SAMPLES = ("bilinear", "nearest", "bicubic")
_OUTSIDE = ("zeros", "border", "reflection")


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    names = _SAMPLES[interpolation_mode], _OUTSIDE[padding_mode]
    return F.grid_sample(input, grid, *names, align_corners)
