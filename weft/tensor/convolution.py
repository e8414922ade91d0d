"""Convolutions and transposed convolutions of images of one to three axes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import ShapeError, UsageError
from weft.ops.conv import Sides
from weft.ops.rules import integers
from weft.tensor.autocast import narrowed
from weft.tensor.core import Tensor

Sizes = int | Sequence[int]
Padding = Sizes | Sequence[tuple[int, int]] | str
_WORDS = {1: "one integer", 2: "one integer or two", 3: "one integer or three"}


def sizes(name: str, value: object, rank: int) -> tuple[int, ...]:
    """An integer for all axes, or one for each. Raises UsageError."""
    found = integers("a window", name, value)
    if len(found) not in (1, rank):
        raise UsageError(f"{name} is {_WORDS.get(rank, f'{rank} integers')}, not {value!r}")
    return found * rank if len(found) == 1 else found


def sides(name: str, value: object, rank: int) -> Sides:
    """Sizes as the same before and after, or a (before, after) pair per axis. Raises UsageError."""
    if isinstance(value, Sequence) and any(isinstance(v, Sequence) for v in value):
        if len(value) != rank:
            raise UsageError(f"{name} is {rank} pairs of (before, after), not {value!r}")
        return tuple((a, b) for a, b in (sizes(name, v, 2) for v in value))
    return tuple((p, p) for p in sizes(name, value, rank))


def want_image(name: str, x: Tensor, rank: int) -> None:
    """Raises ShapeError unless x is [N, C, ...] with `rank` axes more."""
    if x.ndim != rank + 2:
        raise ShapeError(f"{name}: x {list(x.shape)}; expected {image_axes(rank)}")


def image_axes(rank: int) -> str:
    """The axes of images, for messages: "[N, C, H, W]"."""
    return f"[N, C, {', '.join('DHW'[3 - rank :] if rank > 1 else 'L')}]"


# -- convolution ----------------------------------------------------------------------------------


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """conv2d for x[N, C, L] and weight[O, C / groups, K]: [N, O, L'].

    >>> F.conv1d(weft.ones((1, 3, 4)), weft.ones((5, 3, 2)), stride=2).shape
    (1, 5, 2)
    """
    return _conv(1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Cross-correlation of x[N, C, H, W] with weight[O, C / groups, KH, KW] plus bias[O]. The
    result is [N, O, H', W'] with H' = (H + 2 padding - dilation (KH - 1) - 1) // stride + 1.

    `padding`: zeros on either side, a (before, after) pair per axis, or "valid" (none) or "same"
    (H' = H, for stride 1). Accumulates in float32.

    >>> F.conv2d(weft.ones((1, 3, 4, 4)), weft.ones((5, 3, 2, 2)), stride=2).shape
    (1, 5, 2, 2)
    """
    return _conv(2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Works like conv2d, for x[N, C, D, H, W] and weight[O, C / groups, KD, KH, KW]. The result is
    [N, O, D', H', W'].

    >>> F.conv3d(weft.ones((1, 3, 4, 4, 4)), weft.ones((5, 3, 2, 2, 2)), stride=2).shape
    (1, 5, 2, 2, 2)
    """
    return _conv(3, x, weight, bias, stride, padding, dilation, groups)


def _conv(
    rank: int, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    dilation: Sizes, groups: int,
) -> Tensor:  # fmt: skip
    name = f"conv{rank}d"
    x, weight, bias = narrowed(x, weight, bias)
    steps, apart = sizes("stride", stride, rank), sizes("dilation", dilation, rank)
    _want_weight(name, x, weight, rank, int(groups))
    around = padding_sides(name, weight, padding, steps, apart)
    out = x._call("conv", weight, stride=steps, padding=around, dilation=apart, groups=int(groups))
    return _biased(name, out, weight, bias, weight.shape[0])


def _want_weight(name: str, x: Tensor, weight: Tensor, rank: int, groups: int) -> None:
    """Raises ShapeError unless the axes of x and weight, and their channels, fit."""
    want_image(name, x, rank)
    back = "transpose" in name
    first, second = weight.shape[:2] if weight.ndim == rank + 2 else (0, -1)
    inner = first if back else second * groups
    if groups < 1 or inner != x.shape[1] or first % groups or weight.dtype != x.dtype:
        axes = ", ".join("K" + a for a in "DHW"[3 - rank :])
        form = f"[C, O / groups, {axes}]" if back else f"[O, C / groups, {axes}]"
        raise ShapeError(
            f"{name}: x {x.dtype.name}{list(x.shape)}, weight {weight.dtype.name}"
            f"{list(weight.shape)}, groups {groups}; expected {image_axes(rank)} and {form} of one "
            "dtype, with groups that divide C and O"
        )


def padding_sides(
    name: str, weight: Tensor, padding: Padding, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Sides:
    """The padding's sizes, where it is a word."""
    rank = len(stride)
    if not isinstance(padding, str):
        return sides("padding", padding, rank)
    if padding not in ("valid", "same"):
        raise UsageError(f'{name}: padding is sizes, "valid" or "same", not {padding!r}')
    if padding == "valid":
        return ((0, 0),) * rank
    if any(s != 1 for s in stride):
        raise UsageError(f'{name}: padding="same" keeps the size only with a stride of 1')
    more = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
    return tuple((m // 2, m - m // 2) for m in more)


def _biased(name: str, out: Tensor, weight: Tensor, bias: Tensor | None, channels: int) -> Tensor:
    if bias is None:
        return out
    if bias.shape != (channels,):
        raise ShapeError(f"{name}: bias {list(bias.shape)} for weight {list(weight.shape)}")
    return out + bias.reshape(1, -1, *([1] * (out.ndim - 2)))


# -- transposed convolution -----------------------------------------------------------------------


def conv_transpose1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """conv_transpose2d for x[N, C, L] and weight[C, O / groups, K]: [N, O, L'].

    >>> F.conv_transpose1d(weft.ones((1, 3, 2)), weft.ones((3, 5, 2)), stride=2).shape
    (1, 5, 4)
    """
    return _transposed(1, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The gradient of conv2d with respect to its image, as a function. x[N, C, H, W] with weight[C,
    O / groups, KH, KW] plus bias[O] gives [N, O, H', W'].

    H' = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1. `padding` (sizes, or a
    (before, after) pair per axis) is cut off. `output_padding` must be less than the stride or the
    dilation.

    >>> F.conv_transpose2d(weft.ones((1, 3, 2, 2)), weft.ones((3, 5, 2, 2)), stride=2).shape
    (1, 5, 4, 4)
    """
    return _transposed(2, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """conv_transpose2d for x[N, C, D, H, W] and weight[C, O / groups, KD, KH, KW].

    >>> F.conv_transpose3d(weft.ones((1, 3, 2, 2, 2)), weft.ones((3, 5, 2, 2, 2)), stride=2).shape
    (1, 5, 4, 4, 4)
    """
    return _transposed(3, x, weight, bias, stride, padding, output_padding, groups, dilation)


def _transposed(
    rank: int, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    output_padding: Sizes, groups: int, dilation: Sizes,
) -> Tensor:  # fmt: skip
    name = f"conv_transpose{rank}d"
    x, weight, bias = narrowed(x, weight, bias)
    _want_weight(name, x, weight, rank, int(groups))
    if isinstance(padding, str):
        raise UsageError(f"{name}: padding is sizes, not {padding!r}")
    out = x._call(
        "conv_transpose", weight, stride=sizes("stride", stride, rank),
        padding=sides("padding", padding, rank), dilation=sizes("dilation", dilation, rank),
        output_padding=sizes("output_padding", output_padding, rank), groups=int(groups),
    )  # fmt: skip
    return _biased(name, out, weight, bias, weight.shape[1] * int(groups))
