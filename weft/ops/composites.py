"""The composites: softmax log_softmax layer_norm rms_norm gelu silu rope attention
cached_attention. Each body accumulates in f32 and returns x's dtype.
"""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError
from weft.ops import functions as f
from weft.ops.composite import Composite, register_composite
from weft.ops.functions import Value
from weft.ops.primitive import Aval, aval
from weft.ops.rules import want

MASKED = -1e30  # a large finite score: exp(MASKED - max) is 0, and no infinity meets another


def keep_last(x: Value, like: Value) -> Value:
    """A reduction of `like` over its last axis, repeated along that axis again."""
    shape = aval(like).shape
    return f.broadcast(f.reshape(x, (*shape[:-1], 1)), shape)


def _floats(name: str, x: Aval) -> None:
    want(name, x, "float")
    if not x.shape:
        raise ShapeError(f"{name}: a 0-d value has no last axis; reshape it to [1]")


def _same_as_x(name: str):  # type: ignore[no-untyped-def]
    def abstract(x: Aval, **params: object) -> Aval:
        want(name, x, "float")
        return x

    return abstract


# -- row statistics -----------------------------------------------------------------------------


def _row_abstract(name: str):  # type: ignore[no-untyped-def]
    def abstract(x: Aval, *weights: Aval, **params: object) -> Aval:
        _floats(name, x)
        for w in weights:
            want(name, w, "float")
            if w.shape != x.shape[-1:]:
                raise ShapeError(
                    f"{name}: weight {list(w.shape)} for rows of {x.shape[-1]} elements; expected "
                    f"{list(x.shape[-1:])}"
                )
        return x

    return abstract


def shifted(x: Value) -> Value:
    """x - max(x) over the last axis, in x's dtype."""
    return f.sub(x, keep_last(f.max_(x, -1), x))


def compute(x: Value) -> Value:
    """x in the dtype that arithmetic on it is done in."""
    return f.cast(x, dt.compute_dtype(aval(x).dtype))


def _no_columns(x: Value) -> bool:
    return aval(x).shape[-1] == 0


def _softmax(x: Value) -> Value:
    """exp(x - max) / sum, over the last axis."""
    if _no_columns(x):
        return x
    e = f.exp(shifted(compute(x)))
    return f.cast(f.div(e, keep_last(f.sum_(e, -1), e)), aval(x).dtype)


def _log_softmax(x: Value) -> Value:
    """x - max - log(sum(exp(x - max))), over the last axis."""
    if _no_columns(x):
        return x
    s = shifted(compute(x))
    return f.cast(f.sub(s, keep_last(f.log(f.sum_(f.exp(s), -1)), s)), aval(x).dtype)


def _mean_last(x: Value) -> Value:
    return f.mul(f.sum_(x, -1), 1.0 / max(aval(x).shape[-1], 1))


def _rsqrt(x: Value) -> Value:
    return f.div(1.0, f.sqrt(x))


def _row(w: Value, like: Value) -> Value:
    known = aval(like)
    return f.broadcast(f.cast(w, known.dtype), known.shape)


def _layer_norm(x: Value, w: Value, b: Value, *, eps: float) -> Value:
    """(x - mean) / sqrt(var + eps) * w + b over the last axis (Ba et al. 2016); var is the mean of
    squared deviations."""
    c = compute(x)
    d = f.sub(c, keep_last(_mean_last(c), c))
    r = _rsqrt(f.add(_mean_last(f.mul(d, d)), eps))
    y = f.add(f.mul(f.mul(d, keep_last(r, d)), _row(w, d)), _row(b, d))
    return f.cast(y, aval(x).dtype)


def _rms_norm(x: Value, w: Value, *, eps: float, offset: float) -> Value:
    """x / sqrt(mean(x^2) + eps) * (offset + w) over the last axis (Zhang & Sennrich 2019); Gemma
    stores w - 1, hence the offset."""
    c = compute(x)
    r = _rsqrt(f.add(_mean_last(f.mul(c, c)), eps))
    scale = _row(w, c) if offset == 0.0 else f.add(_row(w, c), offset)
    return f.cast(f.mul(f.mul(c, keep_last(r, c)), scale), aval(x).dtype)


# -- activations --------------------------------------------------------------------------------


def _gelu(x: Value, *, approximate: str) -> Value:
    """x Phi(x) by erf, or its tanh approximation (Hendrycks & Gimpel 2016)."""
    if approximate not in ("none", "tanh"):
        raise DTypeError(f'gelu: approximate is "none" or "tanh", not {approximate!r}')
    c = compute(x)
    if approximate == "none":
        inner = f.erf(f.mul(c, math.sqrt(0.5)))
    else:
        cubic = f.mul(f.mul(f.mul(c, c), c), 0.044715)
        inner = f.tanh(f.mul(f.add(c, cubic), math.sqrt(2.0 / math.pi)))
    return f.cast(f.mul(f.mul(c, 0.5), f.add(inner, 1.0)), aval(x).dtype)


def _silu(x: Value) -> Value:
    """x / (1 + exp(-x))."""
    c = compute(x)
    return f.cast(f.div(c, f.add(f.exp(f.neg(c)), 1.0)), aval(x).dtype)


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


def _rope(x: Value, cos: Value, sin: Value, *, interleaved: bool) -> Value:
    """Pairs (a, b) turned by an angle: (a cos - b sin, b cos + a sin) (Su et al. 2021). A pair is
    (i, i + D/2), as in Hugging Face checkpoints, or (2i, 2i + 1) when interleaved."""
    n, h, d = aval(x).shape
    half = d // 2
    c = compute(x)
    cos, sin = (
        f.broadcast(f.reshape(f.cast(v, aval(c).dtype), (n, 1, half)), (n, h, half))
        for v in (cos, sin)
    )
    if interleaved:
        pairs = f.reshape(c, (n, h, half, 2))
        a = f.reshape(f.slice_(pairs, (0, 0, 0, 0), (n, h, half, 1)), (n, h, half))
        b = f.reshape(f.slice_(pairs, (0, 0, 0, 1), (n, h, half, 2)), (n, h, half))
    else:
        a = f.slice_(c, (0, 0, 0), (n, h, half))
        b = f.slice_(c, (0, 0, half), (n, h, d))
    left = f.sub(f.mul(a, cos), f.mul(b, sin))
    right = f.add(f.mul(b, cos), f.mul(a, sin))
    if interleaved:
        parts = [f.reshape(v, (n, h, half, 1)) for v in (left, right)]
        return f.cast(f.reshape(f.concat(parts, 3), (n, h, d)), aval(x).dtype)
    return f.cast(f.concat((left, right), 2), aval(x).dtype)


# -- the table ----------------------------------------------------------------------------------


def _add(name: str, abstract: object, body: object, **defaults: object) -> None:
    register_composite(Composite(name, abstract, body, defaults))  # type: ignore[arg-type]


_add("softmax", _row_abstract("softmax"), _softmax)
_add("log_softmax", _row_abstract("log_softmax"), _log_softmax)
_add("layer_norm", _row_abstract("layer_norm"), _layer_norm, eps=1e-5)
_add("rms_norm", _row_abstract("rms_norm"), _rms_norm, eps=1e-6, offset=0.0)
_add("gelu", _same_as_x("gelu"), _gelu, approximate="none")
_add("silu", _same_as_x("silu"), _silu)
_add("rope", _rope_abstract, _rope, interleaved=False)
