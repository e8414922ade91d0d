"""Tensor and what works on it: eager on the CPU (the oracle), eager on a device, traced."""

from weft.tensor.core import Tensor, from_dlpack, tensor
from weft.tensor.trace import Spec, Traced, trace, trace_call

__all__ = ["Spec", "Tensor", "Traced", "from_dlpack", "tensor", "trace", "trace_call"]
