"""Activation functions by ONNX's names; weft.functional has the formulas. KINDS are those that
other nodes also name: LSTM and similar ones, and the fused nodes of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.importers.onnx.table import MICROSOFT, NodeCall, op, rows
from weft.tensor import functional as F
from weft.tensor.core import Tensor

Act = Callable[[Tensor], Tensor]


def _affine(x: Tensor, alpha: float, beta: float) -> Tensor:
    return x * alpha + beta


def _thresholded(x: Tensor, alpha: float) -> Tensor:
    return F.threshold(x, alpha, 0.0)


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=math.inf)


# name -> its function of x, alpha and beta, and the defaults of the parameters that it takes
KINDS: dict[str, tuple[Callable[..., Tensor], Mapping[str, Any]]] = {
    "Relu": (Tensor.relu, {}),
    "Sigmoid": (Tensor.sigmoid, {}),
    "Tanh": (Tensor.tanh, {}),
    "Softsign": (F.softsign, {}),
    "Softplus": (_softplus, {}),
    "Affine": (_affine, {"alpha": 1.0, "beta": 0.0}),
    "LeakyRelu": (F.leaky_relu, {"alpha": 0.01}),
    "ThresholdedRelu": (_thresholded, {"alpha": 1.0}),
    "ScaledTanh": (F.scaled_tanh, {"alpha": 1.0, "beta": 1.0}),
    "HardSigmoid": (F.ramp, {"alpha": 0.2, "beta": 0.5}),
    "Elu": (F.elu, {"alpha": 1.0}),
}
_BY_KEY = {name.lower(): name for name in KINDS}
rows({name: row for name, row in KINDS.items() if name not in ("Tanh", "Affine", "ScaledTanh")})
rows({
    "Celu": (F.celu, {"alpha": 1.0}),
    "Selu": (F.selu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "HardSwish": (F.hardswish, {}),
    "Mish": (F.mish, {}),
    "Swish": (F.swish, {"alpha": 1.0}),
    "Gelu": (Tensor.gelu, {"approximate": "none"}),
})  # fmt: skip
rows({"Gelu": (Tensor.gelu, {}), "QuickGelu": (F.swish, {"alpha": 1.702})}, domain=MICROSOFT)


def activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Act]:
    """The named activations. Each takes the parameters that it has from the front of the lists,
    and its defaults once they are used up. Raises UsageError for an unknown name."""
    left = [list(alphas), list(betas)]
    made: list[Act] = []
    for name in names:
        known = _BY_KEY.get(name.lower())
        if known is None:
            raise UsageError(f"the activation {name!r:.40}; ONNX has {', '.join(KINDS)}")
        function, defaults = KINDS[known]
        given = [
            found.pop(0) if found else default for found, default in zip(left, defaults.values())
        ]
        made.append(lambda x, f=function, p=given: f(x, *p))  # type: ignore[misc]
    return made


@op("PRelu")
def prelu(call: NodeCall, x: Tensor, slope: Tensor) -> Tensor:
    return F.prelu(x, slope.reshape((*[1] * (x.ndim - slope.ndim), *slope.shape)))


@op("BiasGelu", domain=MICROSOFT)
def bias_gelu(call: NodeCall, x: Tensor, bias: Tensor) -> Tensor:
    return (x + bias).gelu()


@op("FastGelu", domain=MICROSOFT)
def fast_gelu(call: NodeCall, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return (x if bias is None else x + bias).gelu("tanh")


@op("Shrink")
def shrink(call: NodeCall, x: Tensor) -> Tensor:
    """ONNX has 0 for NaN, unlike PyTorch."""
    real = x if x.dtype.is_float else x.cast(dt.float32)
    made = F.shrink(real, call.get("lambd", 0.5), call.get("bias", 0.0))
    return real.isnan().where(0.0, made).cast(x.dtype)


def fused(x: Tensor, kind: str, alphas: Sequence[float], betas: Sequence[float]) -> Tensor:
    """The activation that a fused node names ("": none), with the parameters that it gives."""
    if not kind:
        return x
    if kind == "Clip":
        return x.clip(alphas[0], betas[0])
    (run,) = activations([kind], alphas, betas)
    return run(x)
