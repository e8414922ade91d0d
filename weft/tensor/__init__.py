"""Tensor and what works on it: eager on the CPU (the oracle), eager on a device, traced.

Names load when they are used: a compiled file (stored.py) runs without importing ops.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.tensor.core import Tensor as Tensor, from_dlpack as from_dlpack, tensor as tensor
    from weft.tensor.tracing import (
        Spec as Spec,
        Traced as Traced,
        trace as trace,
        trace_call as trace_call,
    )

_HOMES = {"Tensor": "core", "from_dlpack": "core", "tensor": "core"} | dict.fromkeys(
    ("Spec", "Traced", "trace", "trace_call"), "tracing"
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from weft.core.missing import missing

        raise missing(__name__, name)
    return getattr(import_module(f"weft.tensor.{_HOMES[name]}"), name)
