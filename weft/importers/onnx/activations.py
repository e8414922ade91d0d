"""Activation functions by ONNX's names; weft/tensor/activations.py has the formulas. KINDS are
those that other nodes also name: LSTM and similar ones, and the fused nodes of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.importers.onnx.table import MICROSOFT, Call, op
from weft.tensor import activations as act
from weft.tensor.core import Tensor

Act = Callable[[Tensor], Tensor]

# name -> its function of x, alpha and beta, and the defaults of the parameters that it takes
KINDS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "Relu": (Tensor.relu, ()),
    "Sigmoid": (Tensor.sigmoid, ()),
    "Tanh": (Tensor.tanh, ()),
    "Softsign": (act.softsign, ()),
    "Softplus": (lambda x: act.softplus(x, threshold=math.inf), ()),
    "Affine": (lambda x, alpha, beta: x * alpha + beta, (1.0, 0.0)),
    "LeakyRelu": (act.leaky_relu, (0.01,)),
    "ThresholdedRelu": (lambda x, alpha: act.threshold(x, alpha, 0.0), (1.0,)),
    "ScaledTanh": (act.scaled_tanh, (1.0, 1.0)),
    "HardSigmoid": (act.ramp, (0.2, 0.5)),
    "Elu": (act.elu, (1.0,)),
}
_BY_KEY = {name.lower(): name for name in KINDS}


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
        given = [found.pop(0) if found else default for found, default in zip(left, defaults)]
        made.append(lambda x, f=function, p=given: f(x, *p))  # type: ignore[misc]
    return made


def _plain(name: str) -> None:
    function, defaults = KINDS[name]

    def run(call: Call, x: Tensor) -> Tensor:
        given = (call.get(key, default) for key, default in zip(("alpha", "beta"), defaults))
        return function(x, *given)

    op(name)(run)


for _name in KINDS.keys() - {"Tanh", "Affine", "ScaledTanh"}:
    _plain(_name)


@op("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    return act.prelu(x, slope.reshape((*[1] * (x.ndim - slope.ndim), *slope.shape)))


@op("Celu")
def celu(call: Call, x: Tensor) -> Tensor:
    return act.celu(x, call.get("alpha", 1.0))


@op("Selu")
def selu(call: Call, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.67326319217681884765625)
    return act.selu(x, alpha, call.get("gamma", 1.05070102214813232421875))


@op("HardSwish")
def hard_swish(call: Call, x: Tensor) -> Tensor:
    return act.hardswish(x)


@op("Mish")
def mish(call: Call, x: Tensor) -> Tensor:
    return act.mish(x)


@op("Swish")
def swish(call: Call, x: Tensor) -> Tensor:
    return act.swish(x, call.get("alpha", 1.0))


@op("QuickGelu", domain=MICROSOFT)
def quick_gelu(call: Call, x: Tensor) -> Tensor:
    return act.swish(x, call.get("alpha", 1.702))


@op("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    return x.gelu(call.get("approximate", "none"))


@op("Gelu", domain=MICROSOFT)
def gelu_ms(call: Call, x: Tensor) -> Tensor:
    return x.gelu()


@op("BiasGelu", domain=MICROSOFT)
def bias_gelu(call: Call, x: Tensor, bias: Tensor) -> Tensor:
    return (x + bias).gelu()


@op("FastGelu", domain=MICROSOFT)
def fast_gelu(call: Call, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return (x if bias is None else x + bias).gelu("tanh")


@op("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    """ONNX has 0 for NaN, unlike PyTorch."""
    real = x if x.dtype.is_float else x.cast(dt.float32)
    made = act.shrink(real, call.get("lambd", 0.5), call.get("bias", 0.0))
    return real.isnan().where(0.0, made).cast(x.dtype)


def fused(x: Tensor, kind: str, alphas: Sequence[float], betas: Sequence[float]) -> Tensor:
    """The activation that a fused node names ("": none), with the parameters that it gives."""
    if not kind:
        return x
    if kind == "Clip":
        return x.clip(alphas[0], betas[0])
    (run,) = activations([kind], alphas, betas)
    return run(x)
