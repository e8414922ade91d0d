"""Convolution, normalisation over channels, and resampling of images [N, C, ...]."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft
from weft.core import dtypes as dt
from weft.core.errors import ShapeError, UsageError
from weft.importers.onnx.table import NodeCall, ints, op
from weft.tensor.core import Tensor
from weft.tensor.keys import place_like

Sides = list[tuple[int, int]]


def sides_of(
    call: NodeCall, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> Sides:  # fmt: skip
    """The padding before and after each axis, from `pads` or `auto_pad`."""
    auto = call.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = call.get("pads") or [0] * (2 * len(size))
        return list(zip(pads[: len(size)], pads[len(size) :]))
    if auto == "VALID":
        return [(0, 0)] * len(size)
    found = []
    for n, k, s, d in zip(size, kernel, strides, dilations):
        more = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        low = more // 2 if auto == "SAME_UPPER" else -(-more // 2)
        found.append((low, more - low))
    return found


def steps_of(call: NodeCall, x: Tensor, weight: Tensor) -> tuple[list[int], list[int]]:
    """The strides and dilations of a convolution. Raises ShapeError for attributes that contradict
    one another, the image or the weights."""
    rank, kernel = x.ndim - 2, list(weight.shape[2:])
    if weight.ndim != x.ndim:
        raise ShapeError(f"weights {list(weight.shape)} for {list(x.shape)}; expected equal ranks")
    told = call.get("kernel_shape")
    if told is not None and list(told) != kernel:
        raise ShapeError(f"kernel_shape {list(told)} contradicts weights {list(weight.shape)}")
    if call.get("auto_pad", "NOTSET") not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise UsageError(f"auto_pad {call.get('auto_pad')!r:.40}; ONNX has NOTSET, VALID, "
                         "SAME_UPPER and SAME_LOWER")  # fmt: skip
    found = [list(call.get(name) or [1] * rank) for name in ("strides", "dilations")]
    padding = list(call.get("output_padding") or [0] * rank)
    sizes = {"strides": found[0], "dilations": found[1], "output_padding": padding}
    for name, values in sizes.items():
        if len(values) != rank or min(values, default=1) < (name != "output_padding"):
            raise ShapeError(f"{name} {values} for {rank} axes")
    pads = call.get("pads")
    if pads and len(pads) != 2 * rank:
        raise ShapeError(f"{len(pads)} pads for {rank} axes; expected {2 * rank}")
    return found[0], found[1]


@op("Conv")
def conv(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    strides, dilations = steps_of(call, x, weight)
    sides = sides_of(call, x.shape[2:], weight.shape[2:], strides, dilations)
    return convolution(x, weight, bias, strides, sides, dilations, call.get("group", 1))


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, strides: Sequence[int], sides: Sides,
    dilations: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Cross-correlation with 1 to 3 axes and any padding; a negative one takes elements away."""
    fn = _of_rank(_CONVS, x)
    x, kept = _cropped(x, sides)
    return fn(x, weight, bias, tuple(strides), kept, tuple(dilations), groups)


_CONVS = (weft.functional.conv1d, weft.functional.conv2d, weft.functional.conv3d)
_BACK = (
    weft.functional.conv_transpose1d,
    weft.functional.conv_transpose2d,
    weft.functional.conv_transpose3d,
)


def _of_rank(functions: Sequence[Callable[..., Tensor]], x: Tensor) -> Callable[..., Tensor]:
    rank = x.ndim - 2
    if rank not in (1, 2, 3):
        raise ShapeError(f"a convolution over {rank} axes; weft has 1 to 3")
    return functions[rank - 1]


def _cropped(x: Tensor, sides: Sides) -> tuple[Tensor, Sides]:
    """x without what negative padding takes away, and the padding that is left."""
    for axis, (low, high) in enumerate(sides, 2):
        if low < 0 or high < 0:
            size = x.shape[axis] + min(low, 0) + min(high, 0)
            x = x.narrow(axis, -min(low, 0), size)
    return x, [(max(a, 0), max(b, 0)) for a, b in sides]


def windows_of(
    x: Tensor, around: Tensor, kernel: Sequence[int], strides: Sequence[int], sides: Sides,
    dilations: Sequence[int],
) -> Tensor:  # fmt: skip
    """The elements that each window of x[N, C, ...] sees, [N, C, places, windows...]; `around` is
    the value around the image."""
    x, sides = _cropped(x, sides)
    if any(map(any, sides)):
        inside = np.pad(np.ones(x.shape[2:], bool), sides)
        wide = x.pad([(0, 0), (0, 0), *sides])
        x = wide._wrap(place_like(wide, inside)).where(wide, around.cast(x.dtype))
    facts = list(zip(x.shape[2:], kernel, strides, dilations))
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in facts]
    if min(counts, default=1) < 1:
        raise ShapeError(f"windows of {list(kernel)}, {dilations} apart, in {list(x.shape)}")
    parts = []
    for place in itertools.product(*map(range, kernel)):
        spans = (slice(i * d, i * d + (m - 1) * s + 1, s)
                 for i, m, (_, _, s, d) in zip(place, counts, facts))  # fmt: skip
        parts.append(x[(slice(None), slice(None), *spans)])
    return weft.stack(parts, 2)


@op("ConvTranspose")
def conv_transpose(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The gradient of a convolution; elements beyond the reach of the kernel are zeros."""
    fn, rank, groups = _of_rank(_BACK, x), x.ndim - 2, call.get("group", 1)
    strides, dilations = steps_of(call, x, weight)
    if bias is not None and bias.shape != (weight.shape[1] * groups,):
        raise ShapeError(f"bias {list(bias.shape)} for weights {list(weight.shape)}")
    more = call.get("output_padding") or [0] * rank
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, weight.shape[2:])]
    whole = [(n - 1) * s + r + m for n, s, r, m in zip(x.shape[2:], strides, reach, more)]
    sides = _transposed_sides(call, x.shape[2:], whole, strides)
    sides = [(low, high - m) for (low, high), m in zip(sides, more)]
    cut = [(max(a, 0), max(b, 0)) for a, b in sides]
    out = fn(x, weight, None, tuple(strides), cut, 0, groups, tuple(dilations))
    beyond = [(max(-a, 0), max(-b, 0)) for a, b in sides]
    out = out.pad([(0, 0), (0, 0), *beyond]) if any(map(any, beyond)) else out
    return out if bias is None else out + _column(out, bias)


def _transposed_sides(
    call: NodeCall, size: Sequence[int], whole: Sequence[int], strides: Sequence[int]
) -> Sides:
    """The sizes that are cut off before and after each axis."""
    auto, wanted = call.get("auto_pad", "NOTSET"), call.get("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(size, strides)]
    if wanted is None:
        pads = call.get("pads") or [0] * (2 * len(size))
        return list(zip(pads[: len(size)], pads[len(size) :]))
    found = []
    for n, w in zip(whole, list(wanted)[-len(size) :]):
        total = n - w
        low = total // 2 if auto == "SAME_UPPER" else total - total // 2
        found.append((low, total - low))
    return found


def spread(x: Tensor, axis: int, step: int) -> Tensor:
    """step - 1 zeros between neighbours along an axis."""
    if step == 1:
        return x
    n = x.shape[axis]
    wide = x.unsqueeze(axis + 1)
    wide = wide.pad([(0, step - 1 if i == axis + 1 else 0) for i in range(wide.ndim)])
    return wide.reshape((*x.shape[:axis], n * step, *x.shape[axis + 1 :])).narrow(
        axis, 0, (n - 1) * step + 1
    )


@op("Col2Im", host=(1, 2))
def col2im(call: NodeCall, x: Tensor, image: np.ndarray, block: np.ndarray) -> Tensor:
    """Blocks [N, C prod(block), L] added up at their positions in the image."""
    size, kernel = ints(image), ints(block)
    rank = len(size)
    strides = call.get("strides") or [1] * rank
    dilations = call.get("dilations") or [1] * rank
    pads = call.get("pads") or [0] * (2 * rank)
    whole = [n + pads[i] + pads[i + rank] for i, n in enumerate(size)]
    if min(kernel, default=0) < 1 or x.shape[1] % math.prod(kernel) or not x.shape[1]:
        raise ShapeError(f"Col2Im: {list(x.shape)} of blocks {list(kernel)}")
    count = [
        (w - d * (k - 1) - 1) // s + 1 for w, k, s, d in zip(whole, kernel, strides, dilations)
    ]
    n, c = x.shape[0], x.shape[1] // math.prod(kernel)
    parts = x.reshape(n, c, math.prod(kernel), *count)
    total: Any = None
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        part = parts[:, :, number]
        for axis, s in enumerate(strides, 2):
            part = spread(part, axis, s)
        low = [p * d for p, d in zip(place, dilations)]
        part = part.pad(
            [(0, 0), (0, 0), *((a, w - a - m) for a, w, m in zip(low, whole, part.shape[2:]))]
        )
        total = part if total is None else total + part
    key = (slice(None), slice(None), *(slice(pads[i], pads[i] + m) for i, m in enumerate(size)))
    made: Tensor = total[key]
    return made


# -- normalisation --------------------------------------------------------------------------------


@op("BatchNormalization")
def batch_normalization(
    call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Any:
    eps = call.get("epsilon", 1e-5)
    if x.ndim == 1:  # x has one channel
        out, *rest = batch_normalization(call, x.reshape(-1, 1), scale, bias, mean, var)
        return out.reshape(-1), *rest
    if not call.get("training_mode", 0):
        out = weft.functional.batch_norm(x, mean, var, scale, bias, eps=eps)
        return (out, mean, var, mean, var)[: max(len(call.outputs), 1)]
    axes = (0, *range(2, x.ndim))
    momentum = call.get("momentum", 0.9)
    now, spreads = x.mean(axes), x.var(axes)
    out = weft.functional.batch_norm(x, None, None, scale, bias, eps=eps)
    later = [
        old * momentum + new.cast(old.dtype) * (1 - momentum)
        for old, new in ((mean, now), (var, spreads))
    ]
    return (out, *later)


def _column(x: Tensor, per_channel: Tensor) -> Tensor:
    return per_channel.reshape((1, -1, *([1] * (x.ndim - 2))))


@op("InstanceNormalization")
def instance_normalization(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return weft.functional.instance_norm(x, None, None, scale, bias, eps=call.get("epsilon", 1e-5))


@op("GroupNormalization")
def group_normalization(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call.need("num_groups")
    if scale.shape[0] != x.shape[1]:  # one per group, as in opset 18
        scale, bias = (v.repeat_interleave(x.shape[1] // groups, 0) for v in (scale, bias))
    return weft.functional.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


@op("MeanVarianceNormalization")
def mean_variance_normalization(call: NodeCall, x: Tensor) -> Tensor:
    axes = tuple(call.get("axes") or (0, 2, 3))
    wide = x.cast(dt.compute_dtype(x.dtype))
    centred = wide - wide.mean(axes, keepdims=True)
    spread = (centred * centred).mean(axes, keepdims=True)._length()
    return (centred / (spread + 1e-9)).cast(x.dtype)


@op("LRN")
def lrn(call: NodeCall, x: Tensor) -> Tensor:
    size = call.need("size")
    alpha, beta, k = (call.get(k, d) for k, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    return weft.functional.local_response_norm(x, size, alpha, beta, k, (size - 1) // 2)


@op("CausalConvWithState")
def causal_conv_with_state(
    call: NodeCall,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
) -> Any:
    """A depthwise convolution over what came before (`past`, or zeros) and x; also the new past."""
    if x.ndim != 3:
        raise UsageError("a causal convolution over more than one axis")
    kept = weight.shape[-1] - 1
    before = weft.zeros((*x.shape[:2], kept), x.dtype) if past is None else past
    seen = weft.concat([before, x], axis=2)
    out = weft.functional.conv1d(seen, weight, bias, groups=x.shape[1])
    out = out.silu() if call.get("activation", "none") in ("silu", "swish") else out
    return out, seen.narrow(2, seen.shape[2] - kept, kept)
