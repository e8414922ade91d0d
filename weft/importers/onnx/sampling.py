"""Random numbers. Without a seed each call draws new ones, so such a node runs by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft
from weft.core.errors import UsageError
from weft.importers.onnx.table import NodeCall, Value, op
from weft.importers.onnx.values import NUMPY, numpy_dtype
from weft.tensor.core import Tensor


def _key(call: NodeCall) -> int | None:
    """The seed as a key; None takes the next one of weft's stream, outside of traces."""
    if "seed" in call.attrs:
        return int(np.float32(call.attrs["seed"]).view(np.uint32))
    call.run.alone("random numbers")
    return None


def _made(call: NodeCall, x: Tensor, like: Value = None) -> Tensor:
    """In the type that the node names, else that of its operand, else float32."""
    code = call.get("dtype", 0)
    dtype = NUMPY.get(code) or (np.dtype(np.float32) if like is None else numpy_dtype(like))
    return x.cast(call.run.device_dtype(dtype))


def _uniform(call: NodeCall, shape: Any) -> Tensor:
    low: float = call.get("low", 0.0)
    span: float = call.get("high", 1.0) - low
    return weft.rand(tuple(shape), key=_key(call)) * span + low


def _normal(call: NodeCall, shape: Any) -> Tensor:
    scale: float = call.get("scale", 1.0)
    mean: float = call.get("mean", 0.0)
    return weft.randn(tuple(shape), key=_key(call)) * scale + mean


@op("RandomUniform")
def random_uniform(call: NodeCall) -> Tensor:
    return _made(call, _uniform(call, call.need("shape")))


@op("RandomNormal")
def random_normal(call: NodeCall) -> Tensor:
    return _made(call, _normal(call, call.need("shape")))


@op("RandomUniformLike", raw=True)
def random_uniform_like(call: NodeCall, x: Value) -> Tensor:
    return _made(call, _uniform(call, x.shape), x)


@op("RandomNormalLike", raw=True)
def random_normal_like(call: NodeCall, x: Value) -> Tensor:
    return _made(call, _normal(call, x.shape), x)


@op("Multinomial")
def multinomial(call: NodeCall, x: Tensor) -> Tensor:
    """Classes drawn by unnormalised log probabilities x[N, C]: [N, samples] (Gumbel's trick)."""
    if x.ndim != 2:
        raise UsageError(f"Multinomial of {list(x.shape)}; expected [N, C]")
    n, c = x.shape
    drawn = weft.rand((n, call.get("sample_size", 1), c), key=_key(call))
    noise = -(-(drawn.maximum(math.ldexp(1, -25))).log()).log()
    return (x.cast("float32").unsqueeze(1) + noise).argmax(-1)
