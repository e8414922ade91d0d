"""einops for weft.torch: its functions, and the modules of einops.layers.torch.

The package einops does the work. Importing this file teaches it weft.torch's tensors, so that its
own functions take them too.
"""

from __future__ import annotations

from typing import Any

from einops import (
    EinopsError as EinopsError,
    asnumpy as asnumpy,
    einsum as einsum,
    pack as pack,
    parse_shape as parse_shape,
    rearrange as rearrange,
    reduce as reduce,
    repeat as repeat,
    unpack as unpack,
)
from einops._backends import TorchBackend
from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from weft.torch import nn
from weft.torch.creation import zeros
from weft.torch.products import einsum as contracted
from weft.torch.tensor import Tensor


class WeftBackend(TorchBackend):
    """The backend of einops for tensors of weft.torch, with the methods of PyTorch's."""

    framework_name = "weft.torch"

    def __init__(self) -> None:
        import weft.torch

        self.torch = weft.torch

    def is_appropriate_type(self, tensor: Any) -> bool:
        """True for tensors of weft.torch."""
        return isinstance(tensor, Tensor)


class Rearrange(RearrangeMixin, nn.Module):
    """`rearrange` by a pattern, as a module."""

    def forward(self, input: Any) -> Any:
        return self._apply_recipe(input)  # type: ignore[no-untyped-call]


class Reduce(ReduceMixin, nn.Module):
    """`reduce` by a pattern and an operation, as a module."""

    def forward(self, input: Any) -> Any:
        return self._apply_recipe(input)  # type: ignore[no-untyped-call]


class EinMix(_EinmixMixin, nn.Module):
    """A linear map between the axes that a pattern names."""

    def _create_parameters(
        self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float
    ) -> None:
        for name, shape, bound in (
            ("weight", weight_shape, weight_bound), ("bias", bias_shape, bias_bound),
        ):  # fmt: skip
            made = None if shape is None else zeros(shape).uniform_(-bound, bound)
            setattr(self, name, None if made is None else nn.Parameter(made))

    def _create_rearrange_layers(self, before: Any, sizes: Any, after: Any, others: Any) -> None:
        self.pre_rearrange = Rearrange(before, **sizes) if before is not None else None
        self.post_rearrange = Rearrange(after, **others) if after is not None else None

    def forward(self, input: Any) -> Any:
        x = input if self.pre_rearrange is None else self.pre_rearrange(input)
        made = contracted(self.einsum_pattern, x, self.weight)
        made = made if self.bias is None else made + self.bias
        return made if self.post_rearrange is None else self.post_rearrange(made)
