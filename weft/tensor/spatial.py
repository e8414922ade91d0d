"""Functions of images [N, C, H, W]: convolution, pooling, batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ml_dtypes import finfo

from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.ops.rules import integers
from weft.tensor.autocast import autocast, narrowed, widened
from weft.tensor.autograd import no_grad, once
from weft.tensor.core import Tensor
from weft.tensor.keys import place_like

Sizes = int | Sequence[int]


def _two(name: str, value: Sizes) -> tuple[int, int]:
    sizes = integers("a window", name, value)
    if len(sizes) not in (1, 2):
        raise UsageError(f"{name} is one integer or two, not {value!r}")
    return sizes[0], sizes[-1]


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
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"conv2d: bias {list(bias.shape)} for weight {list(weight.shape)}")
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
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """As conv2d, for x[N, C, L] and weight[O, C / groups, K]: [N, O, L']."""
    sides = padding if isinstance(padding, str) else (0, _one("padding", padding))
    step, apart = (1, _one("stride", stride)), (1, _one("dilation", dilation))
    wide, kernel = x.unsqueeze(2), weight.unsqueeze(2)
    return conv2d(wide, kernel, bias, step, sides, apart, groups).squeeze(2)


def _one(name: str, value: Sizes) -> int:
    sizes = integers("a window", name, value)
    if len(sizes) != 1:
        raise UsageError(f"{name} is one integer, not {value!r}")
    return sizes[0]


def max_pool2d(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """The largest in each window of x[N, C, H, W]; stride defaults to the kernel. The first of
    equals gets the gradient. With ceil_mode the last window may reach beyond the padding."""
    kernel, sides = _two("kernel_size", kernel_size), _two("padding", padding)
    steps = kernel if stride is None else _two("stride", stride)
    apart = _two("dilation", dilation)
    if ceil_mode and x.ndim == 4:
        more = _beyond(x.shape[2:], kernel, steps, sides, apart)
        lowest = float(finfo(np.dtype(x.dtype.numpy)).min)
        x = x.pad([(0, 0), (0, 0), *((0, m) for m in more)], lowest) if any(more) else x
    return x._call("max_pool2d", kernel=kernel, stride=steps, padding=sides, dilation=apart)


def _beyond(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """How far the last window of ceil_mode reaches beyond the padding of each axis: it counts
    when it starts inside (PyTorch's rule)."""
    out = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation):
        reach = d * (k - 1) + 1
        last = max(-(-(n + 2 * p - reach) // s), 0) * s
        last -= s if last >= n + p else 0
        out.append(max(last + reach - n - 2 * p, 0))
    return out


def avg_pool2d(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The average of each window of x[N, C, H, W]; stride defaults to the kernel. Padding zeros
    count as elements unless count_include_pad=False; `divisor_override` is divided by instead of
    the count. With ceil_mode the last window may reach beyond the padding; that part never
    counts."""
    kernel = _two("kernel_size", kernel_size)
    steps, sides = kernel if stride is None else _two("stride", stride), _two("padding", padding)
    if divisor_override == 0:
        raise UsageError("avg_pool2d: a divisor_override of 0")
    if x.ndim != 4 or any(2 * p > k for p, k in zip(sides, kernel)):
        raise ShapeError(
            f"avg_pool2d: x {list(x.shape)}, kernel {kernel}, padding {sides}; expected "
            "[N, C, H, W] and a padding of at most half the kernel"
        )
    wide = x.cast(dt.compute_dtype(x.dtype))
    more = _beyond(x.shape[2:], kernel, steps, sides, (1, 1)) if ceil_mode else (0, 0)
    around = [(0, 0), (0, 0), *((0, m) for m in more)]
    seen = wide.pad(around) if any(more) else wide
    if divisor_override is not None or not (any(more) or (any(sides) and not count_include_pad)):
        count = divisor_override or kernel[0] * kernel[1]
        return _window_sum(seen, kernel, steps, sides, 1.0 / count).cast(x.dtype)
    ones = np.ones((1, 1, *x.shape[2:]), wide.dtype.numpy)
    rim = [(0, 0), (0, 0), *((p, p) for p in sides)]
    inside = np.pad(np.pad(ones, rim, constant_values=float(count_include_pad)), around)
    counts = ops.call("sum_pool2d", inside, kernel=kernel, stride=steps, padding=(0, 0))
    total = _window_sum(seen, kernel, steps, sides, 1.0)
    return (total / wide._wrap(place_like(wide, counts))).cast(x.dtype)


def _window_sum(
    x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    factor: float,
) -> Tensor:  # fmt: skip
    return x._call("sum_pool2d", kernel=kernel, stride=stride, padding=padding) * factor


def adaptive_avg_pool2d(x: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """x[N, C, H, W] averaged to H' x W' windows: window i of H covers rows floor(i H / H') to
    ceil((i + 1) H / H'). A size of None keeps that of x."""
    given = (output_size,) * 2 if output_size is None else output_size
    both = given if not isinstance(given, Sequence) else [
        n if m is None else m for n, m in zip(x.shape[2:], given)
    ]  # fmt: skip
    size = _two("output_size", both)
    if x.ndim != 4 or min(size) < 1:
        raise ShapeError(f"adaptive_avg_pool2d: {list(x.shape)} to {list(size)} windows")
    n, c, h, w = x.shape
    if h % size[0] == w % size[1] == 0:
        return x.reshape(n, c, size[0], h // size[0], size[1], w // size[1]).mean((3, 5))
    wide = x.cast(dt.compute_dtype(x.dtype))
    shares = (_shares(a, b).astype(wide.dtype.numpy) for a, b in zip((h, w), size))
    rows, columns = (wide._wrap(place_like(wide, a)) for a in shares)
    with autocast(enabled=False):  # an average, not a layer's product
        return (rows @ wide @ columns.mT).cast(x.dtype)


def _shares(n: int, windows: int) -> np.ndarray:
    """[windows, n]: what each element counts for in each window's average."""
    out = np.zeros((windows, n), np.float32)
    for i in range(windows):
        start, stop = i * n // windows, -(-(i + 1) * n // windows)
        out[i, start:stop] = 1.0 / (stop - start)
    return out


def batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float | Tensor = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of x[N, C, ...]; all others [C].

    In training (or without running statistics) mean and variance are those of the batch, and the
    running ones, where given, are assigned (1 - momentum) old + momentum new, the variance with
    n - 1 (Ioffe and Szegedy 2015, as PyTorch does it); else the running ones are used. Computed in
    float32 for narrow operands, and rounded once; the result has x's dtype."""
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
        centred = wide - mean.reshape(column)
    scale = (var + eps).rsqrt()
    scale = scale if weight is None else scale * weight.cast(wide.dtype)
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
