"""Activation functions by their ATen names; weft.functional has the formulas."""

from __future__ import annotations

from weft.importers.aten.table import aten, rows
from weft.tensor import functional as F
from weft.tensor.core import Tensor

rows(__name__, {
    "relu": (Tensor.relu, "self"),
    "relu6": (F.relu6, "self"),
    "gelu": (Tensor.gelu, "self approximate"),
    "silu": (Tensor.silu, "self"),
    "mish": (F.mish, "self"),
    "hardtanh": (F.hardtanh, "self min_val max_val"),
    "hardsigmoid": (F.hardsigmoid, "self"),
    "hardswish": (F.hardswish, "self"),
    "leaky_relu": (F.leaky_relu, "self negative_slope"),
    "prelu _prelu_kernel": (F.prelu, "self weight"),
    "elu": (F.elu, "self alpha scale input_scale"),
    "celu": (F.celu, "self alpha"),
    "selu": (F.selu, "self"),
    "softplus": (F.softplus, "self beta threshold"),
    "log_sigmoid": (F.logsigmoid, "self"),
    "glu": (F.glu, "self dim"),
    "threshold": (F.threshold, "self threshold value"),
    "softshrink": (F.softshrink, "self lambd"),
    "hardshrink": (F.hardshrink, "self lambd"),
    "rrelu": (F.rrelu, "self lower upper training -generator"),
    "dropout": (F.dropout, "input p train"),
})  # fmt: skip


@aten("native_dropout", results=1)
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, None]:
    return F.dropout(input, p, bool(train)), None


@aten("rrelu_with_noise_functional", results=1, refuses=lambda x, noise, lower=0.125, upper=1 / 3,
      training=False, generator=None: "in training" if training else "")  # fmt: skip
def rrelu(
    self: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3,
    training: bool = False, generator: None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    return F.rrelu(self, lower, upper), None
