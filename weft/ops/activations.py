"""Activations and rotary positions: gelu sigmoid silu relu clip_low clip_high rope, with their
derivatives; and formulas that models and `weft.functional` share: log1p softplus swish.

Bodies compute in f32 and return x's dtype. gelu_grad and silu_grad are composites of their own, so
that an eager device runs each as one kernel. The shared formulas compute in x's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.core.dtypes import float64
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.composites import compute
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import same, want


def _alike(name: str):  # type: ignore[no-untyped-def]
    """The shape rule of operands that are all alike: the result is as well."""

    def abstract(*xs: Aval, **params: object) -> Aval:
        want(name, xs[0], "float")
        same(name, *xs)
        return xs[0]

    return abstract


# -- activations --------------------------------------------------------------------------------


_CUBIC, _TANH = 0.044715, math.sqrt(2.0 / math.pi)


def _gelu_falls(c: Value) -> Value:
    """exp(-2 u), u = sqrt(2 / pi) (c + 0.044715 c^3): (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)),
    which loses nothing where tanh is near -1."""
    cubic = f.mul(f.mul(f.mul(c, c), c), _CUBIC)
    return f.exp(f.mul(f.add(c, cubic), -2.0 * _TANH))


def _gelu(x: Value, *, approximate: str) -> Value:
    """x Phi(x), or its tanh approximation (Hendrycks & Gimpel 2016)."""
    c = compute(x)
    if approximate == "tanh":
        return f.cast(f.div(c, f.add(_gelu_falls(c), 1.0)), aval(x).dtype)
    if approximate != "none":
        raise DTypeError(f'gelu: approximate is "none" or "tanh", not {approximate!r}')
    return f.cast(f.mul(c, f.ndtr(c)), aval(x).dtype)


def _held(c: Value, bound: float) -> Value:
    """c within the bounds beyond which a slope is 0 or 1, so that no 0 * inf arises there."""
    return f.maximum(f.minimum(c, bound), -bound)


def _bell(c: Value) -> Value:
    """exp(-c^2 / 2), |c| <= 20, right to a few ulp: the rounding error of c^2 would count by its
    size. e^rest = 1 + rest + ..., |rest| < 0.04."""
    near = f.mul(f.round_(f.mul(c, 256.0)), 1.0 / 256.0)  # 13 bits: its square is nearly exact
    rest = f.mul(f.sub(c, near), f.mul(f.add(c, near), -0.5))
    more = f.add(f.mul(f.add(f.mul(rest, 1.0 / 6.0), 0.5), rest), 1.0)
    return f.mul(f.exp(f.mul(f.mul(near, near), -0.5)), f.add(f.mul(rest, more), 1.0))


def _gelu_grad(x: Value, g: Value, *, approximate: str) -> Value:
    """g (Phi(x) + x Phi'(x)), Phi as in gelu."""
    c = _held(compute(x), 20.0)
    if approximate == "none":
        share, slope = f.ndtr(c), f.mul(_bell(c), 1.0 / math.sqrt(2.0 * math.pi))
    else:
        square = f.mul(c, c)
        share = f.div(1.0, f.add(_gelu_falls(c), 1.0))
        rate = f.add(f.mul(square, 6.0 * _CUBIC * _TANH), 2.0 * _TANH)
        slope = f.mul(f.mul(share, f.sub(1.0, share)), rate)
    whole = f.add(share, f.mul(c, slope))
    return f.cast(f.mul(compute(g), whole), aval(x).dtype)


def _sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return f.cast(f.div(1.0, f.add(f.exp(f.neg(compute(x))), 1.0)), aval(x).dtype)


def _sigmoid_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    """sigmoid(x) sigmoid(-x), as 1 - sigmoid(x) cancels; through the body, exp(-x) may overflow."""
    return (f.mul(g, f.mul(out, f.call("sigmoid", f.neg(x)))),)


def _silu(x: Value) -> Value:
    """x / (1 + exp(-x))."""
    c = compute(x)
    return f.cast(f.div(c, f.add(f.exp(f.neg(c)), 1.0)), aval(x).dtype)


def _silu_grad(x: Value, g: Value) -> Value:
    """g s (1 + x (1 - s)), where s = 1 / (1 + exp(-x))."""
    c = _held(compute(x), 120.0)
    s = f.div(1.0, f.add(f.exp(f.neg(c)), 1.0))
    slope = f.mul(s, f.add(f.mul(c, f.sub(1.0, s)), 1.0))
    return f.cast(f.mul(compute(g), slope), aval(x).dtype)


def _relu_vjp(g: Value, out: Value, x: Value) -> Sequence[Any]:
    """Returns the gradient from the result, which is in memory anyway; a NaN passes the gradient
    on, as in PyTorch."""
    return (f.where(f.less_equal(out, 0), 0, g),)


def _clip_vjp(outside: Any, inside: Any):  # type: ignore[no-untyped-def]
    """Returns the derivative of maximum or minimum as bounds: x on a bound has the whole gradient,
    a NaN none."""

    def vjp(g: Value, out: Value, x: Value, bound: Value) -> Sequence[Any]:
        return (
            lambda: f.where(inside(x, bound), g, 0),
            lambda: f.where(outside(x, bound), g, 0),
        )

    return vjp


# -- shared formulas ------------------------------------------------------------------------------


def log1p(x: Value) -> Value:
    """log(1 + x); near 0 as 2 atanh(s), s = x / (2 + x), by the series s + s³/3 + s⁵/5 + ...
    (Gregory). No step lives by a rounding, which compilers of shaders may undo."""
    s = f.div(x, f.add(x, 2.0))
    terms = 12 if aval(x).dtype == float64 else 5
    square = f.mul(s, s)
    series = f.add(f.mul(square, 1.0 / (2 * terms + 1)), 1.0 / (2 * terms - 1))
    for n in reversed(range(1, terms - 1)):
        series = f.add(f.mul(series, square), 1.0 / (2 * n + 1))
    # 2 s = x - s x: the first term as x itself, which needs no rounding.
    near = f.sub(x, f.mul(s, f.sub(x, f.mul(f.mul(series, square), 2.0))))
    small = f.bitwise_and(f.less(-0.3, x), f.less(x, 0.5))
    return f.where(small, near, f.log(f.add(x, 1.0)))


def softplus(x: Value) -> Value:
    """log(1 + exp(x)) without overflow (Dugas et al. 2001)."""
    return f.add(f.maximum(x, 0.0), log1p(f.exp(f.neg(f.abs_(x)))))


def swish(x: Value, slope: float) -> Value:
    """x sigmoid(slope x) (Ramachandran et al., arXiv:1710.05941)."""
    return f.mul(x, f.call("sigmoid", f.mul(x, slope)))


# -- rotary positions ---------------------------------------------------------------------------


def _rope_abstract(x: Aval, cos: Aval, sin: Aval, *, interleaved: bool) -> Aval:
    for v in (x, cos, sin):
        want("rope", v, "float")
    n, d = (x.shape[0], x.shape[2]) if len(x.shape) == 3 else (0, 1)
    if len(x.shape) != 3 or d % 2 or not cos.shape == sin.shape == (n, d // 2):
        raise ShapeError(
            f"rope: x {list(x.shape)}, cos {list(cos.shape)}, sin {list(sin.shape)}; expected "
            "[N, H, D] with D even, and [N, D/2] for cos and sin"
        )
    return x


def _halves(c: Value, interleaved: bool) -> tuple[Value, Value]:
    """The first and the second entries of the pairs of c[N, H, D], each [N, H, D/2]."""
    n, h, d = aval(c).shape
    half = d // 2
    if not interleaved:
        return f.slice_(c, (0, 0, 0), (n, h, half)), f.slice_(c, (0, 0, half), (n, h, d))
    pairs = f.reshape(c, (n, h, half, 2))
    a = f.slice_(pairs, (0, 0, 0, 0), (n, h, half, 1))
    b = f.slice_(pairs, (0, 0, 0, 1), (n, h, half, 2))
    return f.reshape(a, (n, h, half)), f.reshape(b, (n, h, half))


def _rope(x: Value, cos: Value, sin: Value, *, interleaved: bool) -> Value:
    """Rotates pairs (a, b) by an angle: (a cos - b sin, b cos + a sin) (Su et al. 2021). A pair is
    (i, i + D/2), as in Hugging Face checkpoints, or (2i, 2i + 1) when interleaved."""
    n, h, d = aval(x).shape
    half = d // 2
    c = compute(x)
    cos, sin = (
        f.broadcast(f.reshape(f.cast(v, aval(c).dtype), (n, 1, half)), (n, h, half))
        for v in (cos, sin)
    )
    a, b = _halves(c, interleaved)
    left = f.sub(f.mul(a, cos), f.mul(b, sin))
    right = f.add(f.mul(b, cos), f.mul(a, sin))
    if interleaved:
        parts = [f.reshape(v, (n, h, half, 1)) for v in (left, right)]
        return f.cast(f.reshape(f.concat(parts, 3), (n, h, d)), aval(x).dtype)
    return f.cast(f.concat((left, right), 2), aval(x).dtype)


def _rope_vjp(
    g: Value, out: Value, x: Value, cos: Value, sin: Value, *, interleaved: bool
) -> Sequence[Any]:
    """Rotates x back; an angle's gradients are sums over the heads."""

    def halves() -> list[Value]:
        return [*_halves(compute(g), interleaved), *_halves(compute(x), interleaved)]

    def by_cos() -> Value:
        p, q, a, b = halves()
        return f.cast(f.sum_(f.add(f.mul(p, a), f.mul(q, b)), 1), aval(cos).dtype)

    def by_sin() -> Value:
        p, q, a, b = halves()
        return f.cast(f.sum_(f.sub(f.mul(q, a), f.mul(p, b)), 1), aval(sin).dtype)

    return (lambda: f.call("rope", g, cos, f.neg(sin), interleaved=interleaved)), by_cos, by_sin


# -- the table ------------------------------------------------------------------------------------


def _add(name: str, body: Any, vjp: Any = None, **defaults: Any) -> None:
    register_composite(Composite(name, _alike(name), body, defaults, vjp=vjp))


def _by_grad(name: str):  # type: ignore[no-untyped-def]
    """The rule of a function of x alone whose derivative is a composite of (x, g)."""
    return lambda g, out, x, **params: (f.call(name, x, g, **params),)


_add("gelu", _gelu, _by_grad("gelu_grad"), approximate="none")
_add("gelu_grad", _gelu_grad, approximate="none")
_add("sigmoid", _sigmoid, _sigmoid_vjp)
_add("silu", _silu, _by_grad("silu_grad"))
_add("silu_grad", _silu_grad)
_add("relu", lambda x: f.maximum(x, 0), _relu_vjp)
_add("clip_low", f.maximum, _clip_vjp(f.less, lambda x, low: f.less_equal(low, x)))
_add("clip_high", f.minimum, _clip_vjp(lambda x, high: f.less(high, x), f.less_equal))
register_composite(Composite("rope", _rope_abstract, _rope, {"interleaved": False}, vjp=_rope_vjp))
