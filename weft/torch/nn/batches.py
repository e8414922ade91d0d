"""Further inputs and results of torch.nn.functional: an image without a batch, and
results in the dtype of their operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.tensor.core import Tensor
from weft.torch.tensor import common, real

_IMAGES = ("conv", "avg_pool", "lp_pool", "max_pool", "dropout1d", "max_unpool", "adaptive",
           "fractional", "instance_norm")  # fmt: skip
_KEPT = ("hardtanh", "relu6", "linear", "bilinear", "threshold", "relu")  # integers stay integers
_REAL = ("pdist",)
_OF_INPUT = ("group_norm", "instance_norm", "huber_loss", "soft_margin_loss")  # their result


def batched(name: str, call: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A call with an image [C, ...] as a batch of one."""
    if given.get("stride") == ():
        given = {k: v for k, v in given.items() if k != "stride"}
    if name in _REAL:
        given = {k: real(v) if isinstance(v, Tensor) else v for k, v in given.items()}
    x = given.get("input")
    if name.startswith(("conv", "avg_pool")) and x is not None and not x.dtype.is_float:
        exact = {k: _as_double(v) for k, v in given.items()}
        return batched(name, call, exact).trunc().cast(x.dtype)
    if name in ("dropout2d", "dropout3d") and x is not None:
        return call(**{**given, "input": x.reshape(_channels(name, x))}).reshape(x.shape)
    rank = next((int(name[-2]) for kind in _IMAGES if kind in name and name[-1] == "d"), None)
    if x is None or rank is None or x.ndim != rank + 1:
        return call(**given)
    one = {**given, "input": x.unsqueeze(0)}
    if "indices" in one:
        one["indices"] = one["indices"].unsqueeze(0)
    made = call(**one)
    return tuple(m.squeeze(0) for m in made) if isinstance(made, tuple) else made.squeeze(0)


def _channels(name: str, x: Tensor) -> tuple[int, ...]:
    """The form [N, C, ...] of what a dropout of channels takes: any rank from 2, where that of 3
    axes takes anything but a batch of volumes for one volume."""
    if x.ndim < 2 and name == "dropout2d":
        raise ShapeError(f"{name}: x {list(x.shape)}; expected [N, C, ...]")
    sizes = x.shape if name == "dropout2d" or x.ndim == 5 else (1, *x.shape)
    ones = (1,) * (int(name[-2]) - 1)
    return (*sizes[:2], math.prod(sizes[2:]), *ones)


def _as_double(x: Any) -> Any:
    return x.cast(dt.float64) if isinstance(x, Tensor) else x


def in_dtype(name: str, made: Any, given: dict[str, Any]) -> Any:
    """A result in the dtype of what it was computed from; weft's losses are float32."""
    if not isinstance(made, Tensor):
        return made
    tensors = [x for x in given.values() if isinstance(x, Tensor)]
    if name in _OF_INPUT:
        tensors = tensors[:1]
    floats = [x for x in tensors if x.dtype.is_float]
    if not floats:
        return made.cast(common(*tensors)) if name in _KEPT else made
    return made.cast(common(*floats)) if made.dtype.is_float else made
