"""The methods of weft.torch's Tensor: its functions, and the methods without a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, UsageError
from weft.host.boundary import check_options
from weft.tensor import autograd as tape
from weft.tensor.core import Tensor as Base
from weft.tensor.rebinding import share, turn
from weft.tensor.torch_names import written
from weft.torch import (
    arithmetic,
    creation,
    elementwise as ew,
    joining,
    picking,
    products,
    shaping,
    typed,
)
from weft.torch.gamma import polygamma
from weft.torch.placing import moved
from weft.torch.tensor import Tensor, either, function_only, public, whole

_IN_PLACE = (
    "abs acos acosh add addcdiv addcmul addmm addmv addr addbmm baddbmm asin asinh atan atan2 "
    "atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clip "
    "copysign cos cosh cumprod cumsum div divide eq erf erfc exp exp2 expm1 fill floor "
    "floor_divide fmod frac ge gt hypot index_add index_copy index_fill index_put "
    "index_reduce le lerp ldexp log log10 log1p log2 logical_and logical_not logical_or "
    "logical_xor logit lt masked_fill masked_scatter mul multiply nan_to_num ne neg negative pow "
    "put reciprocal remainder renorm round rsqrt scatter scatter_add scatter_reduce sigmoid "
    "sign sin sinh sqrt square sub subtract tan tanh tril triu trunc true_divide absolute arccos "
    "arcsin arctan bitwise_left_shift bitwise_right_shift float_power arccosh arcsinh arctan2 "
    "arctanh conj_physical deg2rad digamma erfinv fix gcd greater greater_equal heaviside i0 lcm "
    "less less_equal lgamma mvlgamma nextafter not_equal polygamma rad2deg sgn sinc xlogy"
)
_AS_FUNCTIONS = (
    "abs acos acosh addmv arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil "
    "clamp clamp_max clamp_min clip conj_physical cos cosh deg2rad detach erf erfc exp exp2 expm1 "
    "fill fix floor frac gcd i0 index_put lcm ldexp log log10 log1p log2 logit nan_to_num neg "
    "negative rad2deg reciprocal round rsqrt sigmoid sin sinc sinh sqrt square tan tanh trunc xlogy"
)  # whose in-place methods PyTorch has as functions too
_OPERATORS = {
    "add": ("+", arithmetic.add), "sub": ("-", arithmetic.sub), "mul": ("*", arithmetic.mul),
    "truediv": ("/", arithmetic.div), "floordiv": ("//", arithmetic.floor_divide),
    "mod": ("%", ew.remainder), "pow": ("**", arithmetic.pow), "matmul": ("@", products.matmul),
    "and": ("&", ew.bitwise_and), "or": ("|", ew.bitwise_or), "xor": ("^", ew.bitwise_xor),
    "lshift": ("<<", ew.bitwise_left_shift), "rshift": (">>", ew.bitwise_right_shift),
}  # fmt: skip
_COMPARED = {
    "lt": ew.lt,
    "le": ew.le,
    "gt": ew.gt,
    "ge": ew.ge,
    "eq": ew.eq,
    "ne": ew.ne,
}


_FLOATS = {
    x for d in dt.ALL if d.is_float for x in (d, d.numpy)
}  # of tensors on devices, and of arrays

# With a tensor of floats, an integer is a float in these.
_INT_IS_FLOAT = frozenset(("add", "sub", "mul", "truediv", *_COMPARED))


def functions(home: ModuleType, *kinds: str) -> dict[str, Any]:
    """The functions of a file, by kind ("function", "method", "both")."""
    return {
        name: value
        for name, value in vars(home).items()
        if getattr(value, "kind", "") in kinds and not name.startswith("_")
    }


def attach(homes: Sequence[ModuleType], more: Mapping[str, Any]) -> None:
    """Gives Tensor the functions of files, and `more`, as methods, in-place forms and operators."""
    found: dict[str, Any] = {**more, "polygamma": public(_polygamma)}
    for home in homes:
        found |= functions(home, "both", "method")
    for name, fn in found.items():
        add(name, fn)
    found["fill"] = creation.fill
    for name in _IN_PLACE.split():
        add(f"{name}_", _in_place(f"{name}_", name, found[name]))
    for name, (sign, fn) in _OPERATORS.items():
        add(f"__{name}__", _binary(name, fn))
        add(f"__r{name}__", _swapped(fn))
        if name != "matmul":
            add(f"__i{name}__", _in_place(f"{sign}=", f"x = x {sign} y", fn))
    for name, fn in _COMPARED.items():
        add(f"__{name}__", _binary(name, fn))
    add("__getitem__", picking.getitem)
    add("__setitem__", picking.setitem)
    for name, fn in _METHODS.items():
        add(name, fn)


def add(name: str, method: Any) -> None:
    """Gives Tensor a method, in addition to weft's of the same name."""
    setattr(Tensor, name, either(name, method) if hasattr(Base, name) else method)


def in_place_functions() -> dict[str, Any]:
    """The functions of torch that are in-place methods of their first argument."""
    return {f"{name}_": _called(f"{name}_") for name in _AS_FUNCTIONS.split()}


def _called(name: str) -> Any:
    method = getattr(Tensor, name)

    def function(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return method(input, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = method.__doc__
    return function_only(function)


def _binary(name: str, fn: Any) -> Any:
    plain = getattr(Base, f"__{name}__")
    numbers = (float, int) if name in _INT_IS_FLOAT else (float,)

    def method(self: Tensor, other: Any) -> Any:
        # where nothing is promoted, both libraries mean the same
        if (dtype := self._value.dtype) in _FLOATS:
            kind = type(other)
            if kind in numbers or (kind is Tensor and other._value.dtype is dtype):
                return plain(self, other)
        return fn(self, other) if _known(other) else NotImplemented

    method.__doc__ = fn.__doc__
    return method


def _swapped(fn: Any) -> Any:
    def method(self: Tensor, other: Any) -> Any:
        return fn(other, self) if _known(other) else NotImplemented

    method.__doc__ = fn.__doc__
    return method


def _known(other: Any) -> bool:
    return isinstance(other, Base | bool | int | float | np.ndarray | np.generic)


def _in_place(shown: str, instead: str, fn: Any) -> Any:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return written(self, fn(self, *args, **kwargs), shown, instead)

    method.__doc__ = f"Takes the result of `{fn.__name__}`, which views of this tensor show too."
    return method


def _polygamma(self: Tensor, n: int) -> Any:
    """The n-th derivative of digamma."""
    return polygamma(n, self)


def _where(self: Tensor, condition: Tensor, other: Any) -> Any:
    """This tensor where the condition holds, else other."""
    return arithmetic.where(condition, self, other)


_TO = ["device", "dtype", "other", "copy", "non_blocking", "memory_format"]


def _to(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    """In another dtype, on another device, or like another tensor."""
    check_options("to", kwargs, _TO)
    given = [*args, *(kwargs[k] for k in ("device", "dtype", "other") if k in kwargs)]
    made: Any = self
    for wanted in given:
        if isinstance(wanted, Base):
            made = moved(made.cast(wanted.dtype), Tensor.device.fget(wanted))  # type: ignore
        elif isinstance(wanted, dt.DType):
            made = _cast(made, wanted)
        elif isinstance(wanted, str) or hasattr(wanted, "info"):
            made = moved(made, wanted)
    return made.clone() if kwargs.get("copy") and made is self else made


def _cast(x: Any, dtype: dt.DType) -> Any:
    return x.cast(whole(x) if dtype == dt.int64 else dtype)


def _backward(
    self: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    """Adds the derivative of this tensor to the .grad of every leaf it was computed from."""
    if inputs is None:
        Base.backward(self, gradient, create_graph)
    else:
        given = [inputs] if isinstance(inputs, Base) else list(inputs)
        tape.backward(self, gradient, create_graph, given)


def _cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Any:
    """On a CUDA device."""
    return moved(self, "cuda" if device is None else f"cuda:{device}")


def _detach_(self: Tensor) -> Tensor:
    """Forgets the history of this tensor."""
    self._tape = None
    return self


def _type(self: Tensor, dtype: Any = None) -> Any:
    """PyTorch's name for dtype and place, such as "torch.FloatTensor", or the values so."""
    if dtype is None:
        return typed.name_of(self)
    wanted, place = typed.wanted(dtype)
    made = _cast(self, wanted)
    return made if place is None else moved(made, place)


def _as(name: str, dtype: dt.DType) -> Any:
    def method(self: Tensor, memory_format: Any = None) -> Any:
        return _cast(self, dtype)

    method.__name__, method.__doc__ = name, f"The values as {dtype.name}."
    return public(method)


def _numel(self: Tensor) -> int:
    """The number of elements."""
    return int(Base.numel(self))


def _reshaped(name: str, fn: Any) -> Any:
    """Becomes a view of itself, as `fn` makes it."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return turn(f"{name}_", self, lambda t: fn(t, *args, **kwargs))

    method.__name__ = f"{name}_"
    method.__doc__ = f"Becomes the result of `{name}`; views of this tensor stay as they are."
    return public(method)


def _resize(self: Tensor, *size: Any, memory_format: Any = None) -> Any:
    """Takes another shape: the first elements, and zeros after the last one."""
    return Base.resize_(self, shaping.many(size))


def _split(self: Tensor, split_size: Any, dim: int = 0) -> Any:
    """Pieces along an axis: of one size, or one size each."""
    return joining.split(self, split_size, dim)


def _set(self: Tensor, source: Any = None, storage_offset: Any = 0, *layout: Any) -> Any:
    """Takes the content of another tensor, and shares it from then on; of none, nothing."""
    if layout or storage_offset or not (source is None or isinstance(source, Base)):
        raise UsageError("set_: weft has no storages; give a tensor: x.set_(y.view(2, 3))")
    source = creation.empty(0, dtype=self.dtype) if source is None else source
    if source.dtype != self.dtype:
        raise DTypeError(f"set_: {source._known()} for {self._known()}; the dtypes must agree")
    return share("set_", self, source)


_METHODS: Mapping[str, Any] = {
    "where": public(_where), "backward": public(_backward), "cuda": public(_cuda),
    "detach_": public(_detach_), "numel": public(_numel), "nelement": public(_numel),
    "to": public(_to), "type": public(_type),
    "resize_": public(_resize), "set_": public(_set), "split": public(_split),
    **{
        f"{name}_": _reshaped(name, getattr(shaping, name))
        for name in ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze")
    },
    **{
        name: _as(name, dtype)
        for name, dtype in (
            ("long", dt.int64), ("short", dt.int16), ("int", dt.int32), ("char", dt.int8),
            ("byte", dt.uint8),
            ("bool", dt.bool_), ("half", dt.float16), ("bfloat16", dt.bfloat16),
            ("float", dt.float32), ("double", dt.float64),
        )
    },
}  # fmt: skip
