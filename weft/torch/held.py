"""Facts of a tensor's memory, which scripts ask for before they choose a way."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.torch import creation
from weft.torch.runtime import strided
from weft.torch.tensor import Tensor, function_only, method_only, public


@function_only
def detach(input: Tensor) -> Any:
    """The same content without its history."""
    return input.detach()


@public
def is_signed(input: Tensor) -> bool:
    """True if the dtype has negative numbers."""
    return input.dtype.is_float or input.dtype.name.startswith("int")


@public
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """True if both have one shape."""
    return tuple(input.shape) == tuple(other.shape)


@method_only
def get_device(input: Tensor) -> int:
    """The number of the device among those of its kind; -1 for the CPU."""
    return -1 if input.device.type == "cpu" else input.device.index or 0


@method_only
def pin_memory(input: Tensor, device: Any = None) -> Tensor:
    """The tensor itself: weft copies to devices without pinned memory."""
    return input


@method_only
def is_pinned(input: Tensor, device: Any = None) -> bool:
    """False: weft has no pinned memory."""
    return False


@method_only
def is_shared(input: Tensor) -> bool:
    """False: each process has its own tensors."""
    return False


@method_only
def record_stream(input: Tensor, stream: Any) -> None:
    """Changes nothing: weft keeps a tensor's memory until the device has used it."""


@method_only
def to_dense(input: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Any:
    """The tensor itself, in another dtype if one is given: every tensor is dense."""
    return input if dtype is None else input.to(dtype)


@method_only
def new(input: Tensor, *data: Any) -> Any:
    """A tensor of this dtype: of sizes, with undefined content, or of one list."""
    if len(data) == 1 and isinstance(data[0], list | tuple | np.ndarray):
        return creation.tensor(data[0], dtype=input.dtype)
    return creation.empty(*data or (0,), dtype=input.dtype)


@method_only
def apply_(input: Tensor, callable: Any) -> Any:
    """Takes `callable` of each element, on the host."""
    values = [callable(x) for x in input.flatten().tolist()]
    return input.copy_(creation.tensor(values, dtype=input.dtype).reshape(input.shape))


def _of_kind(kind: str) -> property:
    return property(lambda self: self.device.type == kind, doc=f"True on a device of kind {kind}.")


def _never(what: str) -> property:
    return property(lambda self: False, doc=f"False: weft has no {what} tensors.")


_PROPERTIES = {
    "is_cpu": _of_kind("cpu"), "is_mps": _of_kind("mps"), "is_xpu": _of_kind("xpu"),
    "is_meta": _never("empty"), "is_nested": _never("nested"), "is_quantized": _never("quantised"),
    "is_sparse": _never("sparse"), "is_sparse_csr": _never("sparse"),
    "layout": property(lambda self: strided, doc="torch.strided."),
}  # fmt: skip
for _name, _value in _PROPERTIES.items():
    setattr(Tensor, _name, _value)
