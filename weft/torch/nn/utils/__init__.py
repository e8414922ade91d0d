"""torch.nn.utils: limits on gradients, and parameters as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from weft.core.errors import CallError, GradientError
from weft.host.boundary import guard_calls
from weft.optim import clip
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.torch import reductions
from weft.torch.creation import tensor
from weft.torch.joining import cat, stack
from weft.torch.nn.utils import rnn as rnn
from weft.torch.nn.utils.fusion import (
    fuse_conv_bn_eval as fuse_conv_bn_eval,
    fuse_conv_bn_weights as fuse_conv_bn_weights,
    fuse_linear_bn_eval as fuse_linear_bn_eval,
    fuse_linear_bn_weights as fuse_linear_bn_weights,
    skip_init as skip_init,
)
from weft.torch.tensor import functions, public


def _held(parameters: Any) -> list[Any]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in given if p.grad is not None]


@public
def get_total_norm(
    tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of all tensors together. With error_if_nonfinite, one that is infinite or NaN raises
    GradientError."""
    norms = [reductions.norm(t, norm_type) for t in tensors]
    total: Any = reductions.norm(stack(norms), norm_type) if norms else tensor(0.0)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise GradientError(f"the norm of all gradients is {total.item()}, not a finite number")
    return total  # type: ignore[no-any-return]


@public
def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scales all gradients so that their common norm is at most max_norm; returns the norm
    before."""
    held = _held(parameters)
    with no_grad():
        norm = get_total_norm([p.grad for p in held], norm_type, error_if_nonfinite)
        clip.shorten(held, norm, max_norm)
    return norm


@public
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Holds each element of all gradients within -clip_value .. clip_value."""
    clip_value = float(clip_value)
    clip.clip_grad_value(_held(parameters), clip_value)


@public
def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters as one vector."""
    return cat([p.reshape(-1) for p in parameters])


@public
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Writes a vector back to the parameters."""
    at = 0
    given: Sequence[Any] = list(parameters)
    if not all(isinstance(p, Tensor) for p in given):
        raise CallError("vector_to_parameters takes a vector and tensors")
    with no_grad():
        for p in given:
            n = p.numel()
            p.assign(vec[at : at + n].reshape(p.shape))
            at += n


_LATE = {  # they need the modules, which need this package
    "parametrizations": "parametrizations", "parametrize": "parametrize",
    "remove_spectral_norm": "norms", "remove_weight_norm": "norms", "spectral_norm": "norms",
    "weight_norm": "norms",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if (home := _LATE.get(name)) is not None:
        module = import_module(f"{__name__}.{home}")
        return module if home == name else getattr(module, name)
    from weft.core.missing import missing

    raise missing(__name__, name)


_FUSED = ["fuse_conv_bn_eval", "fuse_linear_bn_eval", "skip_init"]
guard_calls(globals(), _FUSED, deep=True)


def __dir__() -> list[str]:
    return sorted([*functions(globals(), "cat stack"), *_FUSED, *_LATE, "rnn"])
