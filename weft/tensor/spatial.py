"""Normalisation per channel, and channels turned into space: functions of images [N, C, ...]."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.errors import LimitError, ShapeError
from weft.ops.rules import integers
from weft.tensor.autocast import widened
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.tensor.layers import layer_norm
from weft.tensor.recomputing import once


def batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float | Tensor = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of x[N, C, ...]; all others [C].

    In training (or without running statistics) mean and variance come from the batch. In training,
    running statistics, where given, become (1 - momentum) old + momentum new, the variance with n -
    1 (Ioffe and Szegedy 2015, as PyTorch does it). Otherwise the running ones are used. Narrow
    operands are computed in float32 and rounded once; the result has x's dtype.

    >>> x = weft.tensor([[1.0], [3.0]])
    >>> F.batch_norm(x, None, None, eps=0.0).tolist()
    [[-1.0], [1.0]]
    """
    columns = [t for t in (running_mean, running_var, weight, bias) if t is not None]
    if x.ndim < 2 or any(t.shape != x.shape[1:2] for t in columns):
        shapes = ", ".join(str(list(t.shape)) for t in columns)
        raise ShapeError(f"batch_norm: x {list(x.shape)}, {shapes}; expected [N, C, ...] and [C]")
    wide = widened(x)
    dtype = wide.dtype
    wide = wide.cast(dt.compute_dtype(dtype))
    axes = (0, *range(2, x.ndim))
    column = (1, -1, *([1] * (x.ndim - 2)))
    if training or running_mean is None or running_var is None:
        n = x.size // x.shape[1] if x.shape[1] else 0
        if training and n < 2:
            raise ShapeError(f"batch_norm: {list(x.shape)} has {n} values per channel to train on")
        mean = wide.mean(axes)
        centred = wide - mean.reshape(column)
        var = centred.square().mean(axes)
        if training and running_mean is not None and running_var is not None:
            kept = (running_mean, running_var)
            once(lambda: _settle(*kept, mean.detach(), var.detach() * (n / (n - 1)), momentum))
    else:
        mean, var = running_mean.cast(wide.dtype), running_var.cast(wide.dtype)
        centred = None
    scale = (var + eps).rsqrt()
    scale = scale if weight is None else scale * weight.cast(wide.dtype)
    if centred is None:  # one multiplication and one addition per element, as in PyTorch
        shift = -mean * scale if bias is None else bias - mean * scale
        return (wide * scale.reshape(column) + shift.reshape(column)).cast(dtype)
    out = centred * scale.reshape(column)
    out = out if bias is None else out + bias.reshape(column)
    return out.cast(dtype)


def _settle(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor, momentum: float | Tensor
) -> None:
    """Moves the running statistics towards those of a batch, in the batch's dtype."""
    with no_grad():
        for kept, new in ((running_mean, mean), (running_var, var)):
            old = kept.cast(new.dtype)
            kept.assign((old + (new - old) * momentum).cast(kept.dtype))


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Group normalisation of x[N, C, ...]: (x - mean) / sqrt(var + eps) * weight + bias, with
    weight and bias [C]. The mean and the variance are over each of num_groups runs of channels of
    each image (Wu and He 2018). Narrow
    operands are computed in float32 and rounded once.

    >>> F.group_norm(weft.tensor([[1.0, 3.0]]), 1, eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    columns = [t for t in (weight, bias) if t is not None]
    c = x.shape[1] if x.ndim > 1 else 0
    if x.ndim < 2 or num_groups < 1 or c % num_groups or any(t.shape != (c,) for t in columns):
        shapes = "".join(f", {list(t.shape)}" for t in columns)
        raise ShapeError(
            f"group_norm: x {list(x.shape)}{shapes}, {num_groups} groups; expected [N, C, ...], "
            "[C] and groups that divide C"
        )
    wide = widened(x)
    part = c // num_groups * math.prod(x.shape[2:])  # counted by sizes, since a batch may be empty
    rows = wide.cast(dt.compute_dtype(wide.dtype)).reshape(x.shape[0], num_groups, part)
    out = layer_norm(rows, eps=eps)

    def spread(t: Tensor) -> Tensor:  # to the shape of the rows, whose kernel then applies it
        each = t.cast(out.dtype).reshape(1, num_groups, -1, 1)
        whole = each.expand(x.shape[0], num_groups, c // num_groups, math.prod(x.shape[2:]))
        return whole.reshape(rows.shape)

    out = out if weight is None else out * spread(weight)
    out = out if bias is None else out + spread(bias)
    return out.reshape(x.shape).cast(wide.dtype)


def instance_norm(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of each image of x[N, C, ...], or by
    the running statistics [C] where use_input_stats is False (Ulyanov et al. 2016). Running
    statistics are read, never moved.

    >>> F.instance_norm(weft.tensor([[[1.0, 3.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0]]]
    """
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ShapeError("instance_norm: use_input_stats=False wants the running statistics")
        return batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
    return group_norm(x, max(x.shape[1] if x.ndim > 1 else 1, 1), weight, bias, eps)


MOST_NEIGHBOURS = 1024  # channels that one element of local_response_norm may read


def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0,
    before: int | None = None,
) -> Tensor:  # fmt: skip
    """x / (k + alpha mean)^beta for x[N, C, ...], with the mean of the squares of `size` channels
    around each, zeros beyond the ends (Krizhevsky et al. 2012). `before` of them come before the
    channel: size // 2 as in PyTorch by default, (size - 1) // 2 in ONNX. Narrow floats are computed
    in float32. Raises ShapeError for x without channels, LimitError for over 1,024 of them.

    >>> F.local_response_norm(weft.ones((1, 2, 1)), 1, alpha=1.0, beta=1.0).tolist()
    [[[0.5], [0.5]]]
    """
    (size,) = integers("local_response_norm", "size", size)
    if not 0 < size <= MOST_NEIGHBOURS:
        raise LimitError(f"local_response_norm over {size} channels; at most {MOST_NEIGHBOURS}")
    if x.ndim < 3:
        raise ShapeError(f"local_response_norm: x {x._known()}; expected [N, C, ...]")
    low = size // 2 if before is None else before
    wide = x.cast(dt.compute_dtype(x.dtype))
    squares = (wide * wide).pad([(0, 0), (low, size - 1 - low), *([(0, 0)] * (x.ndim - 2))])
    total = squares.narrow(1, 0, x.shape[1])
    for i in range(1, size):
        total = total + squares.narrow(1, i, x.shape[1])
    return (wide / (total * (alpha / size) + k) ** beta).cast(x.dtype)


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """x[..., C r r, H, W] as [..., C, H r, W r]: channels become places (Shi et al. 2016).

    >>> F.pixel_shuffle(weft.arange(4.0).reshape(4, 1, 1), 2).tolist()
    [[[0.0, 1.0], [2.0, 3.0]]]
    """
    (r,) = integers("pixel_shuffle", "upscale_factor", upscale_factor)
    if x.ndim < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle: x {list(x.shape)} by {r}; expected [..., C r r, H, W] and r >= 1"
        )
    *lead, c, h, w = x.shape
    split = x.reshape(math.prod(lead), c // (r * r), r, r, h, w).permute(0, 1, 4, 2, 5, 3)
    return split.reshape(*lead, c // (r * r), h * r, w * r)


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """The inverse of pixel_shuffle: x[..., C, H r, W r] as [..., C r r, H, W].

    >>> F.pixel_unshuffle(weft.ones((1, 2, 4)), 2).shape
    (4, 1, 2)
    """
    (r,) = integers("pixel_unshuffle", "downscale_factor", downscale_factor)
    if x.ndim < 3 or r < 1 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(
            f"pixel_unshuffle: x {list(x.shape)} by {r}; expected [..., C, H r, W r] and r >= 1"
        )
    *lead, c, h, w = x.shape
    split = x.reshape(math.prod(lead), c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4)
    return split.reshape(*lead, c * r * r, h // r, w // r)


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """x[N, C, ...] with the channels of `groups` runs dealt in turn (Zhang et al.,
    arXiv:1707.01083). Raises ShapeError for groups that do not divide C.

    >>> F.channel_shuffle(weft.arange(4.0).reshape(1, 4, 1), 2).flatten().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    (count,) = integers("channel_shuffle", "groups", groups)
    if x.ndim < 3 or count < 1 or x.shape[1] % count:
        raise ShapeError(
            f"channel_shuffle: x {list(x.shape)}, {count} groups; expected [N, C, ...] and groups "
            "that divide C"
        )
    n, c, *rest = x.shape
    return x.reshape(n, count, c // count, math.prod(rest)).transpose(1, 2).reshape(x.shape)
