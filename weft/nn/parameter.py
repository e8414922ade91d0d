"""Tensors that are part of a Module: trained ones and others."""

from __future__ import annotations

import copy
from typing import Any, Self

from weft.tensor.core import Tensor, tensor


class _Part(Tensor):
    """A tensor that takes attributes of any name, as PyTorch's do; computing with it gives plain
    Tensors."""

    __slots__ = ("__dict__",)

    def _wrap(self, value: Any) -> Any:
        return Tensor(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = super().__deepcopy__(memo)
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


class Parameter(_Part):
    """A trained tensor of a Module: a leaf that requires gradients. `data` is copied; computing
    with it gives plain Tensors.

    Like PyTorch's, it takes attributes of any name.

    >>> nn.Parameter([1.0, 2.0]).requires_grad
    True
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True, name: str = ""):
        super().__init__(tensor(data).detach(), name)
        self.requires_grad_(requires_grad)


class Buffer(_Part):
    """A tensor of a Module that is not trained. A Module that gets one as an attribute registers
    it, as `register_buffer` does; with persistent=False the state dict leaves it out. `data` is
    copied.

    >>> layer = nn.Module()
    >>> layer.steps = nn.Buffer([0.0])
    >>> list(layer.state_dict())
    ['steps']
    """

    __slots__ = ()

    def __init__(self, data: Any, *, persistent: bool = True):
        super().__init__(tensor(data).detach())
        self.persistent = persistent
