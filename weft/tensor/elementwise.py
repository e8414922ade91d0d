"""The array API's elementwise functions (Python array API standard 2024.12), as `weft.add`, ...

Operands are Tensors, NumPy arrays or Python numbers (one of two must not be a number). A function
without a primitive is a formula over primitives, given in its docstring; so it runs, compiles and
differentiates like them.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import promote
from weft.core.errors import DTypeError
from weft.ops.batching import Batched, leading, top_frame
from weft.ops.tape import peel, remember, tape_level
from weft.tensor.base import scalar_dtype
from weft.tensor.core import Tensor, tensor
from weft.tensor.create import zeros_like

Operand = Any  # a Tensor, a NumPy array or a Python number
_NUMBERS = (bool, int, float)
P = ParamSpec("P")
R = TypeVar("R")


def as_tensor(x: Operand) -> Tensor:
    """The operand as a Tensor (itself where it is one)."""
    return x if isinstance(x, Tensor) else tensor(x)


def as_tensors(*operands: Operand) -> list[Tensor]:
    """Operands as Tensors; numbers among them take the dtype and device of the first tensor, unless
    they are of a higher kind."""
    like = next((x for x in operands if isinstance(x, Tensor)), None)
    if like is None:
        like = next((as_tensor(x) for x in operands if not isinstance(x, _NUMBERS)), None)
    if like is None:
        raise DTypeError(f"expected a tensor or an array, got {operands!r:.60}")
    return [
        like._full(x, scalar_dtype("a number", x, like.dtype), ())
        if isinstance(x, _NUMBERS)
        else as_tensor(x)
        for x in operands
    ]


def reals(x: Operand) -> Tensor:
    """The operand as floats: integers and bools as float32."""
    t = as_tensor(x)
    return t if t.dtype.is_float else t.cast(dt.float32)


def two(x: Operand, y: Operand) -> tuple[Any, Any]:
    """Operands of which at least one is a Tensor, so that Python's operators mean weft's."""
    return (x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else (as_tensor(x), y)


def float_pair(x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """Both operands as floats of one dtype and shape."""
    a, b = two(x, y)
    if not isinstance(a, Tensor):
        return float_pair(b, a)[::-1]
    left, right = a._reals("div", b)
    return left, right


def wide(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A formula computed in float32 for float16 and bfloat16, and rounded once."""

    @functools.wraps(fn)
    def function(*operands: Operand) -> Tensor:
        tensors = [x if isinstance(x, _NUMBERS) else as_tensor(x) for x in operands]
        dtypes = [t.dtype for t in tensors if isinstance(t, Tensor)] or [dt.float32]
        dtype = functools.reduce(promote, dtypes)
        if not dtype.is_float or dtype == dt.compute_dtype(dtype):
            return fn(*tensors)
        wide = (t.cast(dt.float32) if isinstance(t, Tensor) else t for t in tensors)
        return fn(*wide).cast(dtype)

    return function


def shared(formula: Callable[..., Any], x: Tensor, *numbers: float) -> Tensor:
    """A formula of `weft.ops`, which models use too, of a Tensor."""
    out = x._wrap(formula(x.value, *numbers))
    out._weak = x._weak
    return out


Slope = Callable[..., Tensor]  # (gradient of the result, result, operands) -> an operand's gradient


def derivative(*slopes: Slope) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Gives a function of one or two reals its derivative, one slope per operand. The derivative of
    its formula is not used: where a formula changes form, or meets an infinity that it then
    discards, that derivative is NaN or belongs to one side only."""

    def decorate(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(fn)
        def function(*operands: Operand) -> Tensor:
            given = float_pair(*operands) if len(slopes) == 2 else (reals(*operands),)
            inputs = tuple(t.value for t in given)

            def tensors(values: Sequence[Any]) -> list[Tensor]:
                found = [t._wrap(v) for t, v in zip(given, values)]
                for old, new in zip(given, found):
                    new._weak = old._weak
                return found

            def rule(g: Any, out: Any, values: tuple[Any, ...]) -> list[Any]:
                grad, result, xs = Tensor(g), Tensor(out), tensors(values)
                return [lambda s=slope: s(grad, result, *xs).value for slope in slopes]

            if (frame := top_frame(inputs)) is not None:
                whole = function(*tensors([leading(v, frame) for v in inputs]))
                return whole._wrap(Batched(whole.value, frame))
            level = tape_level(inputs)
            out = fn(*tensors([v if level is None else peel(v, level) for v in inputs]))
            kept = out._wrap(remember(fn.__name__, out.value, inputs, rule))
            kept._weak = out._weak
            return kept

        return function

    return decorate


def _operator(name: str, symbol: str, fn: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    def function(x1: Operand, x2: Operand, /) -> Tensor:
        out: Tensor = fn(*two(x1, x2))
        return out

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"x1 {symbol} x2, element by element, broadcast and in the promoted dtype."
    return function


def method(
    of: Callable[Concatenate[Tensor, P], R], name: str = "", example: str = ""
) -> Callable[Concatenate[Operand, P], R]:
    """A method of Tensor as a function, of NumPy arrays too, with an example for its docstring."""

    @functools.wraps(of, ("__doc__",), ())
    def function(x: Operand, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return of(as_tensor(x), *args, **kwargs)

    function.__name__ = function.__qualname__ = name or of.__name__
    function.__doc__ = f"{of.__doc__}\n\n{example}\n" if example else of.__doc__
    function.__signature__ = _without_self(inspect.signature(of))  # type: ignore[attr-defined]
    return function


def _without_self(shown: inspect.Signature) -> inspect.Signature:
    """A method's signature as that of a function of its object."""
    first, *rest = shown.parameters.values()
    operand = first.replace(name="x", kind=first.POSITIONAL_ONLY, annotation="Operand")
    result = "Tensor" if shown.return_annotation == "Self" else shown.return_annotation
    return shown.replace(parameters=[operand, *rest], return_annotation=result)


add = _operator("add", "+", operator.add)
subtract = _operator("subtract", "-", operator.sub)
multiply = _operator("multiply", "*", operator.mul)
divide = _operator("divide", "/", operator.truediv)
floor_divide = _operator("floor_divide", "//", operator.floordiv)
remainder = _operator("remainder", "%", operator.mod)
pow = _operator("pow", "**", operator.pow)
equal = _operator("equal", "==", operator.eq)
not_equal = _operator("not_equal", "!=", operator.ne)
less = _operator("less", "<", operator.lt)
less_equal = _operator("less_equal", "<=", operator.le)
greater = _operator("greater", ">", operator.gt)
greater_equal = _operator("greater_equal", ">=", operator.ge)
bitwise_and = _operator("bitwise_and", "&", operator.and_)
bitwise_or = _operator("bitwise_or", "|", operator.or_)
bitwise_xor = _operator("bitwise_xor", "^", operator.xor)
bitwise_left_shift = _operator("bitwise_left_shift", "<<", operator.lshift)
bitwise_right_shift = _operator("bitwise_right_shift", ">>", operator.rshift)

abs = method(Tensor.abs)
ceil = method(Tensor.ceil)
cos = method(Tensor.cos)
exp = method(Tensor.exp)
floor = method(Tensor.floor)
isnan = method(Tensor.isnan)
log = method(Tensor.log)
reciprocal = method(Tensor.reciprocal)
round = method(Tensor.round)
rsqrt = method(Tensor.rsqrt)
sign = method(Tensor.sign)
sin = method(Tensor.sin)
sqrt = method(Tensor.sqrt)
square = method(Tensor.square)
tanh = method(Tensor.tanh, example=">>> weft.tanh(weft.tensor([0.0])).tolist()\n[0.0]")
bitwise_invert = method(Tensor.__invert__, "bitwise_invert")
negative = method(Tensor.__neg__, "negative")
positive = method(Tensor.__pos__, "positive")
erf = method(Tensor.erf)
sigmoid = method(Tensor.sigmoid, example=">>> weft.sigmoid(weft.tensor([0.0])).tolist()\n[0.5]")
clip = method(Tensor.clip)


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger of two (NaN when either is)."""
    a, b = two(x1, x2)
    return a.maximum(b) if isinstance(a, Tensor) else b.maximum(a)


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller of two (NaN when either is)."""
    a, b = two(x1, x2)
    return a.minimum(b) if isinstance(a, Tensor) else b.minimum(a)


# -- logic


def _truth(x: Operand) -> Tensor:
    return as_tensor(x).cast(dt.bool_)


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """True where both operands are true: numbers where they are not 0."""
    return _truth(x1) & _truth(x2)


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """True where at least one operand is true: numbers where they are not 0."""
    return _truth(x1) | _truth(x2)


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """True where exactly one operand is true: numbers where they are not 0."""
    return _truth(x1) ^ _truth(x2)


def logical_not(x: Operand, /) -> Tensor:
    """True where the operand is false: a number where it is 0."""
    return ~_truth(x)


def isfinite(x: Operand, /) -> Tensor:
    """True where the value is neither infinite nor NaN (bool)."""
    t = as_tensor(x)
    return t.abs() < math.inf if t.dtype.is_float else t == t


def isinf(x: Operand, /) -> Tensor:
    """True where the value is infinite (bool)."""
    t = as_tensor(x)
    return t.abs() == math.inf if t.dtype.is_float else t != t


def real(x: Operand, /) -> Tensor:
    """x itself: all numbers of weft are real. `imag` gives zeros and `conj` x itself."""
    return as_tensor(x)


conj = real


def imag(x: Operand, /) -> Tensor:
    """Zeros: all numbers of weft are real."""
    return zeros_like(as_tensor(x))


# -- exponentials and logarithms


@wide
@derivative(lambda g, out, x: g * x.exp())
def expm1(x: Operand, /) -> Tensor:
    """exp(x) - 1; near 0 its series x + x²/2! + x³/3! + ..., which loses nothing."""
    t = reals(x)
    terms = 15 if t.dtype == dt.float64 else 8
    series = t * (1.0 / math.factorial(terms)) + 1.0 / math.factorial(terms - 1)
    for n in reversed(range(1, terms - 1)):
        series = series * t + 1.0 / math.factorial(n)
    return (t.abs() < 0.5).where(series * t, t.exp() - 1.0)


@wide
@derivative(lambda g, out, x: g / (x + 1.0))
def log1p(x: Operand, /) -> Tensor:
    """log(1 + x), to the last digits near 0 too."""
    return shared(ops.log1p, reals(x))


@wide
def log2(x: Operand, /) -> Tensor:
    """The logarithm to base 2."""
    return reals(x).log() * (1 / math.log(2))


@wide
def log10(x: Operand, /) -> Tensor:
    """The logarithm to base 10."""
    return reals(x).log() * (1 / math.log(10))


@wide
@derivative(
    lambda g, out, x, y: g / ((y - x).exp() + 1.0),
    lambda g, out, x, y: g / ((x - y).exp() + 1.0),
)
def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow."""
    a, b = float_pair(x1, x2)
    top, apart = a.maximum(b), (a - b).abs()
    return (a == b).where(a + math.log(2), top + log1p((-apart).exp()))


@wide
@derivative(
    lambda g, out, x, y: g * (x / out),
    lambda g, out, x, y: g * (y / out),
)
def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1² + x2²) without overflow."""
    a, b = float_pair(x1, x2)
    a, b = a.abs(), b.abs()
    top, low = a.maximum(b), a.minimum(b)
    ratio = (low == top).where(1.0, low / (top == 0).where(1.0, top))
    ratio = (top == 0).where(0.0, ratio)
    infinite = (a == math.inf) | (b == math.inf)
    return infinite.where(math.inf, top * (ratio * ratio + 1.0).sqrt())
