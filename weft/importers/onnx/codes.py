"""Operators of com.microsoft from codes to codes, computed on the reals that the codes encode."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import weft
from weft.core import dtypes as dt
from weft.importers.onnx.pooling import average_pool
from weft.importers.onnx.quantised import codes, integer_product, qlinear_conv, reals, zero_of
from weft.importers.onnx.table import MICROSOFT, NodeCall, op
from weft.tensor.activations import leaky_relu
from weft.tensor.core import Tensor


def _of_two(name: str, join: Callable[[Tensor, Tensor], Tensor]) -> None:
    def run(
        call: NodeCall, a: Tensor, sa: Tensor, za: Any, b: Tensor, sb: Tensor, zb: Any, sy: Tensor,
        zy: Any = None,
    ) -> Tensor:  # fmt: skip
        return codes(join(reals(a, sa, za), reals(b, sb, zb)), sy, zero_of(call, zy, a))

    op(name, domain=MICROSOFT)(run)


_of_two("QLinearAdd", operator.add)
_of_two("QLinearMul", operator.mul)


@op("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    call: NodeCall, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None
) -> Tensor:
    return codes(reals(x, sx, zx).sigmoid(), sy, zero_of(call, zy, x))


@op("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    call: NodeCall, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None
) -> Tensor:
    made = leaky_relu(reals(x, sx, zx), call.get("alpha", 0.01))
    return codes(made, sy, zero_of(call, zy, x))


def _channels_first(call: NodeCall, x: Tensor) -> Tensor:
    return weft.moveaxis(x, -1, 1) if call.get("channels_last", 0) else x


def _channels_last(call: NodeCall, x: Tensor) -> Tensor:
    return weft.moveaxis(x, 1, -1) if call.get("channels_last", 0) else x


@op("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(
    call: NodeCall, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None
) -> Tensor:
    made = average_pool(call, _channels_first(call, reals(x, sx, zx)))
    return codes(_channels_last(call, made), sy, zero_of(call, zy, x))


@op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    call: NodeCall, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None
) -> Tensor:
    axes = tuple(range(1, x.ndim - 1)) if call.get("channels_last", 0) else tuple(range(2, x.ndim))
    return codes(reals(x, sx, zx).mean(axes, keepdims=True), sy, zero_of(call, zy, x))


@op("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    call: NodeCall, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None
) -> Tensor:
    """Over one axis, or, as before opset 13, over all axes from that one on."""
    axis = call.get("axis", -1) % x.ndim
    wide = reals(x, sx, zx)
    if call.get("opset", 13) >= 13:
        made = wide.softmax(axis)
    else:
        made = wide.flatten(axis).softmax(-1).reshape(x.shape)
    return codes(made, sy, zero_of(call, zy, x))


@op("QLinearWhere", domain=MICROSOFT)
def qlinear_where(
    call: NodeCall, condition: Tensor, x: Tensor, sx: Tensor, zx: Any, y: Tensor, sy: Tensor,
    zy: Any, scale: Tensor, zero: Any,
) -> Tensor:  # fmt: skip
    return codes(condition.where(reals(x, sx, zx), reals(y, sy, zy)), scale, zero)


@op("QGemm", domain=MICROSOFT)
def qgemm(
    call: NodeCall, a: Tensor, sa: Tensor, za: Tensor, b: Tensor, sb: Tensor, zb: Tensor,
    bias: Tensor | None = None, sy: Tensor | None = None, zy: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """alpha (A - za) sa (B - zb) sb, with a bias of integers in units of alpha sa sb: reals, or
    codes where the result has a scale. B may have a scale and zero point per column."""
    a = a.T if call.get("transA", 0) else a
    b = b.T if call.get("transB", 0) else b
    total = integer_product(a, b, za, zb)
    total = total if bias is None else total + bias
    wide = total.cast(dt.float32) * (sa * sb * call.get("alpha", 1.0))
    return wide if sy is None else codes(wide, sy, zero_of(call, zy, a))


@op("QLinearConv", domain=MICROSOFT)
def qlinear_conv_ms(call: NodeCall, x: Tensor, *rest: Any) -> Tensor:
    """ONNX's qlinear_conv, but the channels may be last."""
    made: Tensor = qlinear_conv(call, _channels_first(call, x), *rest)
    return _channels_last(call, made)


@op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(call: NodeCall, sy: Tensor, zy: Tensor, *parts: Tensor) -> Tensor:
    wide = [reals(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return codes(weft.concat(wide, axis=call.need("axis")), sy, zy)
