"""Methods of Tensor under PyTorch's names, by those that the array API names. Each computes what
PyTorch's does, but indices are int32 and `long()` is the integer that devices have, int32."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Self

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.host.boundary import guarded
from weft.tensor.base import TensorBase
from weft.tensor.indexing import Indexing
from weft.tensor.rebinding import share


def function(name: str, home: str = "elementwise") -> Any:
    """A function of weft as a method; its module is imported when it is called."""

    @cache
    def found() -> Any:
        return guarded(getattr(import_module(f"weft.tensor.{home}"), name))

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return found()(self, *args, **kwargs)

    method.__doc__ = f"`weft.{name}` of this tensor; see help(weft.{name})."
    return method


def _cast(dtype: DType, name: str) -> Any:
    def method(self: Any) -> Any:
        return self.cast(dtype)

    method.__doc__ = f"The values as {name} (see `cast`)."
    return method


def _operator(sign: str, of: Callable[[Any, Any], Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        return of(self, other)

    method.__doc__ = f"self {sign} other."
    return method


def in_place(name: str, sign: str = "") -> Any:
    """The method `name`, whose result this tensor takes: a write that its views see. Errors call it
    `sign`, if given."""
    shown, other = sign or f"{name}_", f"x = x {sign[:-1]} y" if sign else name

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return written(self, getattr(self, name)(*args, **kwargs), shown, other)

    method.__doc__ = f"Takes the result of `{name}`, which views of this tensor show too."
    return method


def written(to: Any, made: Any, shown: str, other: str) -> Any:
    """`to`, which takes the result `made` of the method `shown`. Raises DTypeError for a result of
    a later kind, ShapeError for one of another shape, advising `other`."""
    kind = _order(made.dtype) > _order(to.dtype)
    if kind or made.shape != to.shape:
        raise (DTypeError if kind else ShapeError)(
            f"{shown}: the result is {made._known()}, this tensor {to._known()}; use {other}"
        )
    return to.assign(made.cast(to.dtype))


def _order(dtype: DType) -> int:
    """Bools, integers and floats in PyTorch's order: a tensor takes no result of a later kind."""
    return 0 if dtype == dt.bool_ else 2 if dtype.is_float else 1


class Casts(Indexing):
    """The dtypes, in a class of their own, so that here these names are not types."""

    __slots__ = ()

    float = _cast(dt.float32, "float32")
    double = _cast(dt.float64, "float64")
    half = _cast(dt.float16, "float16")
    bfloat16 = _cast(dt.bfloat16, "bfloat16")
    int = long = _cast(dt.int32, "int32")
    char = _cast(dt.int8, "int8")
    byte = _cast(dt.uint8, "uint8")
    bool = _cast(dt.bool_, "bool")


class Named(Casts):
    """Facts about a tensor, and arithmetic."""

    __slots__ = ()

    # -- facts

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    ndimension = dim

    def numel(self) -> int:
        """The number of elements."""
        return self.size

    nelement = numel

    def element_size(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """True for floats."""
        return self.dtype.is_float

    @property
    def is_leaf(self) -> bool:
        """True unless the tensor was computed from others that require gradients."""
        return self._tape is None

    @property
    def data(self) -> Self:
        """This tensor without its history, as `detach` gives it. Set, it takes the content of
        another tensor, with its shape and dtype, and shares it from then on."""
        return self.detach()  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, value: TensorBase) -> None:
        if not isinstance(value, TensorBase):
            raise UsageError(f"data: {type(value).__name__}; expected a tensor")
        share("data", self, value)

    def type_as(self, other: TensorBase) -> Self:
        """The values as another tensor's dtype."""
        return self.cast(other.dtype)

    # -- arithmetic

    mul = multiply = _operator("*", operator.mul)
    floor_divide = _operator("//", operator.floordiv)
    pow = _operator("**", operator.pow)
    eq = _operator("==", operator.eq)
    ne = not_equal = _operator("!=", operator.ne)
    lt = less = _operator("<", operator.lt)
    le = less_equal = _operator("<=", operator.le)
    gt = greater = _operator(">", operator.gt)
    ge = greater_equal = _operator(">=", operator.ge)

    def add(self, other: Any, alpha: Any = 1) -> Self:
        """self + alpha * other."""
        made: Self = self + (other if alpha == 1 else other * alpha)
        return made

    def sub(self, other: Any, alpha: Any = 1) -> Self:
        """self - alpha * other."""
        made: Self = self - (other if alpha == 1 else other * alpha)
        return made

    subtract = sub

    def div(self, other: Any, rounding_mode: str | None = None) -> Self:
        """self / other; rounded as `rounding_mode` says: None, "trunc" or "floor"."""
        if rounding_mode is None:
            quotient: Self = self / other
            return quotient
        if rounding_mode not in ("trunc", "floor"):
            raise UsageError(f'div: rounding_mode {rounding_mode!r}; None, "trunc" or "floor"')
        floor: Self = self // other
        if rounding_mode == "floor":
            return floor
        if floor.dtype.is_float:
            floor = (self / other).trunc()
            return floor
        up = (self % other != 0) & ((self < 0) != (other < 0))
        floor = floor + up.cast(floor.dtype)  # exact, also where floats are not
        return floor

    divide = true_divide = div

    def addcmul(self, a: Any, b: Any, value: Any = 1) -> Self:
        """self + value * a * b."""
        made: Self = self + a * b * value
        return made

    def addcdiv(self, a: Any, b: Any, value: Any = 1) -> Self:
        """self + value * a / b."""
        made: Self = self + a / b * value
        return made

    def neg(self) -> Self:
        """-self."""
        return -self

    negative = neg

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """`clip` under PyTorch's name."""
        return self.clip(min, max)

    def clamp_min(self, min: Any) -> Self:
        """At least `min`."""
        return self.clip(min)

    def clamp_max(self, max: Any) -> Self:
        """At most `max`."""
        return self.clip(None, max)

    # -- functions of weft

    acos = function("acos", "angles")
    acosh = function("acosh", "angles")
    asin = function("asin", "angles")
    asinh = function("asinh", "angles")
    atan = function("atan", "angles")
    atan2 = function("atan2", "angles")
    atanh = function("atanh", "angles")
    cosh = function("cosh", "angles")
    sinh = function("sinh", "angles")
    tan = function("tan", "angles")
    copysign = function("copysign", "signs")
    expm1 = function("expm1")
    hypot = function("hypot")
    isfinite = function("isfinite")
    isinf = function("isinf")
    log10 = function("log10")
    log1p = function("log1p")
    log2 = function("log2")
    logaddexp = function("logaddexp")
    logical_and = function("logical_and")
    logical_not = function("logical_not")
    logical_or = function("logical_or")
    logical_xor = function("logical_xor")
    bitwise_and = function("bitwise_and")
    bitwise_or = function("bitwise_or")
    bitwise_xor = function("bitwise_xor")
    remainder = function("remainder")
    signbit = function("signbit", "signs")
    trunc = function("trunc", "signs")
    erfc = function("erfc", "special")
    exp2 = function("exp2", "special")
    fmax = function("fmax", "special")
    fmin = function("fmin", "special")
    lerp = function("lerp", "special")
    logit = function("logit", "special")
    nan_to_num = function("nan_to_num", "special")
    bitwise_not = function("bitwise_invert")

    # -- in place

    add_ = in_place("add")
    sub_ = in_place("sub")
    mul_ = in_place("mul")
    div_ = in_place("div")
    floor_divide_ = in_place("floor_divide")
    remainder_ = in_place("remainder")
    pow_ = in_place("pow")
    neg_ = in_place("neg")
    addcmul_ = in_place("addcmul")
    addcdiv_ = in_place("addcdiv")
    clamp_ = in_place("clamp")
    clamp_min_ = in_place("clamp_min")
    clamp_max_ = in_place("clamp_max")
    clip_ = in_place("clip")
    abs_ = in_place("abs")
    exp_ = in_place("exp")
    expm1_ = in_place("expm1")
    log_ = in_place("log")
    log1p_ = in_place("log1p")
    sqrt_ = in_place("sqrt")
    rsqrt_ = in_place("rsqrt")
    square_ = in_place("square")
    reciprocal_ = in_place("reciprocal")
    sigmoid_ = in_place("sigmoid")
    tanh_ = in_place("tanh")
    relu_ = in_place("relu")
    floor_ = in_place("floor")
    ceil_ = in_place("ceil")
    round_ = in_place("round")
    trunc_ = in_place("trunc")
    sin_ = in_place("sin")
    cos_ = in_place("cos")
    tan_ = in_place("tan")
    erf_ = in_place("erf")
    lerp_ = in_place("lerp")
    nan_to_num_ = in_place("nan_to_num")
    logical_not_ = in_place("logical_not")
    bitwise_not_ = in_place("bitwise_not")

    __iadd__ = in_place("add", "+=")
    __isub__ = in_place("sub", "-=")
    __imul__ = in_place("mul", "*=")
    __itruediv__ = in_place("div", "/=")
    __ifloordiv__ = in_place("floor_divide", "//=")
    __imod__ = in_place("remainder", "%=")
    __ipow__ = in_place("pow", "**=")
    __iand__ = in_place("bitwise_and", "&=")
    __ior__ = in_place("bitwise_or", "|=")
    __ixor__ = in_place("bitwise_xor", "^=")

    def fill_(self, value: Any) -> Self:
        """`value` everywhere."""
        self[...] = value
        return self

    def zero_(self) -> Self:
        """0 everywhere."""
        return self.fill_(0)

    def copy_(self, source: Any) -> Self:
        """The content of `source`, cast to this tensor's dtype and broadcast to its shape."""
        self[...] = source.cast(self.dtype) if isinstance(source, Indexing) else source
        return self
