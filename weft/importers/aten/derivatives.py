"""Backward operators of programs exported after autograd: each is the derivative of its forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.importers.aten import creation, images
from weft.importers.aten.table import aten
from weft.importers.imported import here
from weft.tensor import functional as F
from weft.tensor.autograd import enable_grad, grad
from weft.tensor.core import Tensor
from weft.tensor.create import arange

Sizes = Sequence[int]


def pullback(
    forward: Callable[..., Tensor], inputs: Sequence[Tensor | None], cotangent: Tensor,
    wanted: Sequence[bool] | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The derivatives of sum(forward(*inputs) * cotangent) with respect to the inputs that are
    wanted; None for the others."""
    given = [None if x is None else x.detach().requires_grad_() for x in inputs]
    asked = [
        x if x is not None and (wanted is None or wanted[i]) else None for i, x in enumerate(given)
    ]
    with enable_grad():
        out = forward(*given)
        found = iter(grad(out, [x for x in asked if x is not None], cotangent))
    return tuple(None if x is None else next(found) for x in asked)


@aten("convolution_backward")
def convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: Sizes | None, stride: Sizes,
    padding: Sizes, dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    options = (stride, padding, dilation, transposed, output_padding, groups)
    dx, dw = pullback(
        lambda x, w: images.convolution(x, w, None, *options), (input, weight), grad_output,
        output_mask,
    )  # fmt: skip
    over = (0, *range(2, grad_output.ndim))
    return dx, dw, grad_output.sum(over) if output_mask[2] else None


@aten("avg_pool2d_backward")
def avg_pool2d_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    more = {} if divisor_override is None else {"divisor_override": divisor_override}
    window = (kernel_size, stride or None, padding, ceil_mode, count_include_pad)
    return _only(pullback(lambda x: F.avg_pool2d(x, *window, **more), (self,), grad_output))


@aten("max_pool2d_with_indices_backward")
def max_pool2d_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes,
    dilation: Sizes, ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of the image: the gradient of each window goes to its largest element, at
    `indices`."""
    planes, size = math.prod(self.shape[:-2]), self.shape[-2] * self.shape[-1]
    first = arange(planes, device=here()).reshape(planes, 1) * size
    at = (indices.reshape(planes, math.prod(indices.shape[-2:])) + first).reshape(-1)
    flat = creation.zeros([planes * size], self.dtype)
    return F.scatter_add(flat, at, grad_output.reshape(-1)).reshape(self.shape)


@aten("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    size = grad_output.shape[-2:]
    return _only(pullback(lambda x: F.adaptive_avg_pool2d(x, size), (self,), grad_output))


@aten("embedding_dense_backward")
def embedding_backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    width = grad_output.shape[-1]
    at = indices.reshape(-1)
    if padding_idx >= 0:
        at = (at == padding_idx).where(-1, at)  # dropped
    table = creation.zeros([num_weights, width], grad_output.dtype)
    return F.scatter_add(table, at, grad_output.reshape(-1, width))


@aten("native_layer_norm_backward")
def layer_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: Sizes, mean: Tensor, rstd: Tensor,
    weight: Tensor | None, bias: Tensor | None, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    lead = tuple(range(input.ndim - len(normalized_shape)))
    unit = (input - mean) * rstd
    down = grad_out if weight is None else grad_out * weight
    dx = _through_norm(down, unit, rstd, tuple(range(len(lead), input.ndim)))
    found = (dx, (grad_out * unit).sum(lead), grad_out.sum(lead))
    return tuple(x if asked else None for x, asked in zip(found, output_mask))


@aten("native_group_norm_backward")
def group_norm_backward(
    grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: int,
    C: int, HxW: int, group: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    split = (N, group, C // group, HxW)
    mean, rstd = (x.reshape(N, group, 1, 1) for x in (mean, rstd))
    g = grad_out.reshape(split)
    unit = (input.reshape(split) - mean) * rstd
    down = g if weight is None else g * weight.reshape(group, C // group, 1)
    dx = _through_norm(down, unit, rstd, (2, 3)).reshape(input.shape)
    found = (dx, (g * unit).sum((0, 3)).reshape(C), g.sum((0, 3)).reshape(C))
    return tuple(x if asked else None for x, asked in zip(found, output_mask))


def _through_norm(down: Tensor, unit: Tensor, rstd: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The derivative with respect to what was normalised along `axes` to `unit` (Ba et al.,
    arXiv:1607.06450)."""
    straight = down - down.mean(axes, keepdims=True)
    return rstd * (straight - unit * (down * unit).mean(axes, keepdims=True))


def _only(found: tuple[Tensor | None, ...]) -> Tensor:
    (one,) = found
    assert one is not None
    return one
