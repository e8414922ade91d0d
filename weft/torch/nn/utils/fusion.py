"""A layer and the batch norm behind it as one layer, for inference."""

from __future__ import annotations

import copy
from typing import Any

from weft.core.errors import UsageError
from weft.tensor.autograd import no_grad
from weft.torch.creation import zeros
from weft.torch.tensor import Parameter, public


@public
def fuse_conv_bn_weights(
    conv_w: Any, conv_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any,
    transpose: bool = False,
) -> Any:  # fmt: skip
    """The weight and the bias of a convolution that also does what a batch norm of these running
    statistics, weight and bias does. `transpose`: its weight has the outputs on axis 1."""
    axis = 1 if transpose else 0
    with no_grad():
        scale = (bn_rv + bn_eps).rsqrt()
        scale = scale if bn_w is None else scale * bn_w
        shape = [-1 if i == axis else 1 for i in range(conv_w.ndim)]
        bias = (0 if conv_b is None else conv_b) - bn_rm
        bias = bias * scale + (0 if bn_b is None else bn_b)
        kept = conv_w.requires_grad
        return (
            Parameter((conv_w * scale.reshape(shape)).to(conv_w.dtype), kept),
            Parameter(bias.to(conv_w.dtype), kept),
        )


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of a convolution that also does what the batch norm behind it does. Raises UsageError
    for modules in training."""
    if conv.training or bn.training:
        raise UsageError("fuse_conv_bn_eval: statistics change in training; call eval() on both")
    made = copy.deepcopy(conv)
    made.weight, made.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias,
        transpose,
    )  # fmt: skip
    return made


def fuse_linear_bn_weights(
    linear_w: Any, linear_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any
) -> Any:
    """`fuse_conv_bn_weights` for a linear layer."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """`fuse_conv_bn_eval` for a linear layer."""
    return fuse_conv_bn_eval(linear, bn)


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """A module whose parameters are zeros: weft has no memory without content."""
    made = module_cls(*args, **kwargs)
    with no_grad():
        for p in made.parameters():
            p.copy_(zeros(p.shape, dtype=p.dtype))
    return made
