"""Functions of images [N, C, H, W]: convolution, pooling, batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.ops.conv import channels_first, channels_last, taps
from weft.tensor.autocast import narrowed, widened
from weft.tensor.autograd import no_grad, once
from weft.tensor.core import Tensor

Sizes = int | Sequence[int]


def _two(name: str, value: Sizes) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(isinstance(v, int) for v in pair):
        raise UsageError(f"{name} is one integer or two, not {value!r}")
    return pair[0], pair[1]


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Cross-correlation of x[N, C, H, W] with weight[O, C / groups, KH, KW] plus bias[O]:
    [N, O, H', W'] with H' = (H + 2 padding - dilation (KH - 1) - 1) // stride + 1. padding: zeros
    on either side, or "valid" (none) or "same" (H' = H, for stride 1). Accumulates in float32."""
    x, weight, bias = narrowed(x, weight, bias)
    strides, apart = _two("stride", stride), _two("dilation", dilation)
    if isinstance(padding, str):
        x, sides = _named_padding(x, weight, padding, strides, apart), (0, 0)
    else:
        sides = _two("padding", padding)
    out = x._call(
        "conv2d", weight, stride=strides, padding=sides, dilation=apart, groups=int(groups)
    )
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)


def _named_padding(
    x: Tensor, weight: Tensor, padding: str, stride: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    if padding not in ("valid", "same"):
        raise UsageError(f'conv2d: padding is sizes, "valid" or "same", not {padding!r}')
    if padding == "valid":
        return x
    if stride != (1, 1):
        raise UsageError('conv2d: padding="same" keeps the size only with a stride of 1')
    more = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
    return x.pad([(0, 0), (0, 0), *((m // 2, m - m // 2) for m in more)])


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1,
    padding: int | str = 0, dilation: int = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """As conv2d, for x[N, C, L] and weight[O, C / groups, K]: [N, O, L']."""
    sides: Sizes | str = padding if isinstance(padding, str) else (0, padding)
    wide, kernel = x.unsqueeze(2), weight.unsqueeze(2)
    return conv2d(wide, kernel, bias, (1, stride), sides, (1, dilation), groups).squeeze(2)


def max_pool2d(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """The largest in each window of x[N, C, H, W]; stride defaults to the kernel. The first of
    equals gets the gradient."""
    kernel = _two("kernel_size", kernel_size)
    return x._call(
        "max_pool2d", kernel=kernel, stride=kernel if stride is None else _two("stride", stride),
        padding=_two("padding", padding), dilation=_two("dilation", dilation),
    )  # fmt: skip


def avg_pool2d(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The average of each window of x[N, C, H, W]; stride defaults to the kernel. Padding zeros
    count as elements unless count_include_pad=False."""
    kernel = _two("kernel_size", kernel_size)
    steps, sides = kernel if stride is None else _two("stride", stride), _two("padding", padding)
    if x.ndim != 4 or any(2 * p > k for p, k in zip(sides, kernel)):
        raise ShapeError(
            f"avg_pool2d: x {list(x.shape)}, kernel {kernel}, padding {sides}; expected "
            "[N, C, H, W] and a padding of at most half the kernel"
        )
    wide = x.cast(dt.compute_dtype(x.dtype))
    if count_include_pad or not any(sides):
        return _window_sum(wide, kernel, steps, sides, 1.0 / (kernel[0] * kernel[1])).cast(x.dtype)
    ones = x._wrap(ops.full_like(wide.detach().value, 1.0))
    total, count = (_window_sum(t, kernel, steps, sides, 1.0) for t in (wide, ones))
    return (total / count).cast(x.dtype)


def _window_sum(
    x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    factor: float,
) -> Tensor:  # fmt: skip
    total, *rest = taps(channels_last(x.value), kernel, stride, padding, (1, 1))
    for tap in rest:
        total = ops.add(total, tap)
    return x._wrap(channels_first(ops.mul(total, factor)))


def adaptive_avg_pool2d(x: Tensor, output_size: Sizes) -> Tensor:
    """x[N, C, H, W] averaged to H', W' windows of equal size. Raises ShapeError unless H' divides H
    and W' divides W."""
    size = _two("output_size", output_size)
    if x.ndim != 4 or min(size) < 1 or any(n % m for n, m in zip(x.shape[2:], size)):
        raise ShapeError(f"adaptive_avg_pool2d: {list(x.shape)} does not divide into {list(size)}")
    n, c, h, w = x.shape
    parts = x.reshape(n, c, size[0], h // size[0], size[1], w // size[1])
    return parts.mean((3, 5))


def batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float | Tensor = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of x[N, C, ...]; all others [C].

    In training (or without running statistics) mean and variance are those of the batch, and the
    running ones, where given, are assigned (1 - momentum) old + momentum new, the variance with
    n - 1 (Ioffe and Szegedy 2015, as PyTorch does it); else the running ones are used."""
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: x {list(x.shape)}; expected [N, C, ...]")
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
        mean, var = running_mean, running_var
        centred = wide - mean.reshape(column)
    scale = (var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    out = centred * scale.reshape(column)
    out = out if bias is None else out + bias.reshape(column)
    return out.cast(dtype)


def _settle(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor, momentum: float | Tensor
) -> None:
    """Moves the running statistics towards those of a batch."""
    with no_grad():
        running_mean.assign(running_mean + (mean - running_mean) * momentum)
        running_var.assign(running_var + (var - running_var) * momentum)
