"""Tiny calls of functions of elements, and of reductions."""

import math

import numpy as np
from tiny_public import case

from weft.core import dtypes as dt

I32, F32 = dt.int32, dt.float32


def unary(names, kinds="f", low=-2, high=2):
    @case(names)
    def make(d, f):
        return f, [d.some(kinds, low, high)]


def binary(names, kinds="n", low=-2, high=2, second=(-2, 2)):
    @case(names)
    def make(d, f):
        shape, dtype = d.shape(least=0), d.dtype(kinds)
        cut = shape[d.between(0, len(shape)) :]
        if d.between(0, 1):
            cut = tuple(d.pick(1, n) for n in cut)
        return f, [d.array(shape, dtype, low, high), d.array(cut, dtype, *second)]


unary("ceil cos cosh erf exp expm1 floor isfinite isinf isnan round signbit sin sinh square tan "
      "tanh trunc conj real imag "
      "gelu silu sigmoid relu asinh atan hardsigmoid hardswish hardtanh relu6 "
      "leaky_relu softshrink hardshrink elu celu selu softplus logsigmoid softsign mish "
      "tanhshrink swish rrelu erfc exp2")  # fmt: skip
binary("prelu", "f")


binary("nextafter", "f", 0.5, 2, (0.5, 2))


@case("threshold")
def _(d, f):
    return lambda t: f(t, 0.5, -1.5), [d.some("f", -2, 2)]


@case("shrink ramp scaled_tanh")
def _(d, f):
    a, b = d.pick(0.5, 1.5), d.pick(0.25, 0.5)
    return lambda t: f(t, a, b), [d.some("f", -3, 3)]


@case("logit")
def _(d, f):
    eps = d.pick(None, 0.125)
    x = d.some("f", 0.25, 0.75) if eps is None else d.some("f", -1, 2)
    return lambda t: f(t, eps), [x]


@case("lerp")
def _(d, f):
    shape, dtype, weight = d.shape(least=0), d.dtype("f"), d.pick(None, 0.25, 0.75)
    arrays = [d.array(shape, dtype) for _ in range(2)]
    if weight is None:
        return f, [*arrays, d.array(shape, dtype, 0, 1)]
    return lambda x, end: f(x, end, weight), arrays


def _strange(x):
    """x with NaN for -1 and infinities for 2 and -2, where its dtype has them."""
    if not dt.as_dtype(x.dtype).is_float:
        return x
    for at, value in ((-1, math.nan), (2, math.inf), (-2, -math.inf)):
        x = np.where(x == at, np.asarray(value, x.dtype), x)
    return x


@case("fmax fmin")
def _(d, f):
    shape, dtype = d.shape(least=0), d.dtype("n")
    return f, [_strange(d.array(shape, dtype)) for _ in range(2)]


@case("nan_to_num")
def _(d, f):
    options = d.pick({}, {"nan": 0.5, "posinf": 3.0, "neginf": -3.0})
    return lambda t: f(t, **options), [_strange(d.some("n"))]


@case("glu")
def _(d, f):
    return lambda t: f(t, -1), [d.array((*d.shape(0, 2), 2 * d.between(1, 2)), d.dtype("f"))]


unary("asin acos atanh", low=-0.75, high=0.75)
unary("log log10 log1p log2 sqrt rsqrt reciprocal", low=0.25, high=6)
unary("acosh", low=1.25, high=6)
unary("abs negative positive sign __abs__ __neg__ __pos__", "s", -3, 3)
unary("logical_not", "l")
unary("bitwise_invert __invert__", "b", -3, 3)
binary("add subtract multiply maximum minimum __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__")
binary("equal not_equal less less_equal greater greater_equal __eq__ __ne__ __lt__ __le__ __gt__ "
       "__ge__")  # fmt: skip
binary("divide hypot logaddexp atan2 copysign __truediv__", "f", second=(0.25, 3))
binary("__rtruediv__", "f", 0.25, 3)
binary("floor_divide remainder __floordiv__ __mod__", "n", -5, 5, second=(1, 3))
binary("__rfloordiv__ __rmod__", "n", 1, 3, second=(-5, 5))
binary("pow __pow__", "f", 0.25, 3)
binary("__rpow__", "f", second=(0.25, 3))
binary("logical_and logical_or logical_xor", "l")
binary("bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ __rand__ __ror__ __rxor__", "b")
binary("bitwise_left_shift bitwise_right_shift __lshift__ __rshift__", "i", -4, 4, second=(0, 3))
binary("__rlshift__ __rrshift__", "i", 0, 3, second=(0, 4))


# -- reductions


@case("sum max min mean prod all any count_nonzero var std")
def _(d, f):
    floats = f.__name__ in ("mean", "var", "std", "prod")
    empty = f.__name__ in ("sum", "all", "any", "prod", "count_nonzero")
    kinds = "f" if floats else "a" if f.__name__ in ("all", "any", "count_nonzero") else "n"
    x = d.some(kinds, least=0 if empty else 1)
    axis = None if not x.ndim or d.between(0, 2) == 0 else d.axis(x.shape)
    if x.ndim > 1 and d.between(0, 2) == 0:
        axis = (0, x.ndim - 1)
    keep = d.pick(False, True)
    return lambda t: f(t, axis=axis, keepdims=keep), [x]


@case("logsumexp")
def _(d, f):
    x = d.some("f", rank=(1, 3))
    axis, keep = d.pick(None, d.axis(x.shape)), d.pick(False, True)
    return lambda t: f(t, axis, keep), [x]


@case("argmax argmin")
def _(d, f):
    x = d.some("n", rank=(1, 3), least=1)
    axis = d.pick(None, d.axis(x.shape))
    return lambda t: f(t, axis=axis), [x]


@case("sort argsort")
def _(d, f):
    x = d.some("n", rank=(1, 3))
    axis, down = d.axis(x.shape), d.pick(False, True)
    return lambda t: f(t, axis=axis, descending=down), [x]


@case("topk")
def _(d, f):
    x = d.some("n", rank=(1, 3), least=1)
    axis, largest = d.axis(x.shape), d.pick(False, True)
    k = d.between(1, x.shape[axis])
    return lambda t: f(t, k, axis=axis, largest=largest), [x]


@case("cumulative_sum cumulative_prod cumsum cumprod cummax cummin logcumsumexp")
def _(d, f):
    plain = "cumulative" not in f.__name__
    kinds = "f" if f.__name__ == "logcumsumexp" else "n"
    x = d.some(kinds, rank=(1, 3), least=1)
    axis = d.axis(x.shape)
    first = {} if plain else {"include_initial": d.pick(False, True)}
    return lambda t: f(t, axis=axis, **first), [x]


@case("diff")
def _(d, f):
    x = d.some("n", rank=(1, 3))
    axis, n = d.axis(x.shape), d.between(0, 2)
    return lambda t: f(t, axis=axis, n=n), [x]


@case("matmul __matmul__ __rmatmul__")
def _(d, f):
    m, k, n = d.extent(), d.extent(), d.extent()
    dtype, batch = d.dtype("f"), d.shape(0, 1)
    x, y = d.array((*batch, m, k), dtype), d.array((*d.pick(batch, ()), k, n), dtype)
    if d.between(0, 3) == 0:
        x, y = d.array((k,), dtype), d.pick(d.array((k,), dtype), y)
    return f, [y, x] if f.__name__ == "__rmatmul__" else [x, y]


@case("tensordot")
def _(d, f):
    shared, dtype = d.shape(0, 2), d.dtype("f")
    x, y = (*d.shape(0, 2), *shared), (*shared, *d.shape(0, 1))
    return lambda a, b: f(a, b, axes=len(shared)), [d.array(x, dtype), d.array(y, dtype)]


@case("vecdot")
def _(d, f):
    shape, dtype = d.shape(1, 3), d.dtype("f")
    return f, [d.array(shape, dtype), d.array(shape[-d.between(1, len(shape)) :], dtype)]


@case("einsum")
def _(d, f):
    i, j, k = d.extent(), d.extent(), d.extent()
    text, *shapes = d.pick(
        ("ij,jk->ik", (i, j), (j, k)), ("ij->ji", (i, j)), ("ii->i", (i, i)), ("ij->", (i, j)),
        ("bij,bj->bi", (k, i, j), (k, j)), ("i,j->ij", (i,), (j,)), ("ij,ij->i", (i, j), (i, j)),
    )  # fmt: skip
    dtype = d.dtype("f")
    return lambda *ts: f(text, *ts), [d.array(s, dtype) for s in shapes]
