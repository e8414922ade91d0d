"""Convolution, pooling and resizing, of one to three axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.errors import ShapeError
from weft.importers.aten.table import aten
from weft.tensor import functional as F
from weft.tensor.core import Tensor

Sizes = Sequence[int]
Function = Callable[..., Any]
_CONVS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def _conv(run: Function, *names: str) -> None:
    @aten(*names)
    def conv(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        made: Tensor = run(input, weight, bias, stride, padding, dilation, groups)
        return made


def _transposed(run: Function, name: str) -> None:
    @aten(name)
    def transposed(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
        padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    ) -> Tensor:  # fmt: skip
        options = (stride, padding, output_padding, groups, dilation)
        made: Tensor = run(input, weight, bias, *options)
        return made


for _rank in (1, 2, 3):
    _conv(_CONVS[_rank - 1], f"conv{_rank}d", f"conv{_rank}d.padding")
_transposed(_TRANSPOSED[0], "conv_transpose1d")
_transposed(_TRANSPOSED[1], "conv_transpose2d.input")
_transposed(_TRANSPOSED[2], "conv_transpose3d.input")


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


# -- pooling


def _max_pool(run: Function, rank: int) -> None:
    @aten(f"max_pool{rank}d")
    def pool(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Tensor:  # fmt: skip
        made: Tensor = run(self, kernel_size, stride or None, padding, dilation, ceil_mode)
        return made

    @aten(f"max_pool{rank}d_with_indices")
    def both(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        window = (kernel_size, stride or None, padding, dilation, ceil_mode)
        made: tuple[Tensor, Tensor] = run(self, *window, return_indices=True)
        return made


def _avg_pool(run: Function, rank: int) -> None:
    @aten(f"avg_pool{rank}d")
    def pool(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, *divisor: int | None,
        divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        by = divisor[0] if divisor else divisor_override
        more = {} if by is None else {"divisor_override": by}
        window = (kernel_size, stride or None, padding, ceil_mode, count_include_pad)
        made: Tensor = run(self, *window, **more)
        return made


def _adaptive(run: Function, *names: str) -> None:
    @aten(*names)
    def pool(self: Tensor, output_size: Sizes) -> Tensor:
        made: Tensor = run(self, output_size)
        return made


def _adaptive_max(run: Function, rank: int) -> None:
    @aten(f"adaptive_max_pool{rank}d")
    def pool(self: Tensor, output_size: Sizes) -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = run(self, output_size, return_indices=True)
        return made


for _rank, _pools in enumerate(
    (
        (F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d, F.adaptive_max_pool1d),
        (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
        (F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d, F.adaptive_max_pool3d),
    ),
    1,
):
    _max_pool(_pools[0], _rank)
    _avg_pool(_pools[1], _rank)
    _adaptive_max(_pools[3], _rank)
    _core = () if _rank == 1 else (f"_adaptive_avg_pool{_rank}d",)
    _adaptive(_pools[2], f"adaptive_avg_pool{_rank}d", *_core)


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
        self: Tensor, output_size: Sizes, align_corners: bool, *scales: float | None
    ) -> Tensor:
        known = _all_known(scales)
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


@aten("im2col")
def im2col(
    self: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    return F.unfold(self, kernel_size, dilation, padding, stride)


@aten("col2im")
def col2im(
    self: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes,
    stride: Sizes,
) -> Tensor:  # fmt: skip
    return F.fold(self, output_size, kernel_size, dilation, padding, stride)


@aten("pixel_shuffle")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    return F.pixel_shuffle(self, upscale_factor)


@aten("pixel_unshuffle")
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    return F.pixel_unshuffle(self, downscale_factor)
