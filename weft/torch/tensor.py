"""The Tensor of weft.torch: weft's, whose methods and operators mean what PyTorch's mean.

A method that means something else there (`max`, `sort`, `where`, `+` of a 0-d tensor, ...) has both
meanings. The calling code decides: weft's own modules, which compute with these tensors too, get
weft's, all other code PyTorch's.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import CallError, DTypeError, GradientError, UsageError
from weft.core.missing import nearest
from weft.host.boundary import guarded
from weft.importers.aten import numbers
from weft.nn import parameter as nn
from weft.program.array import DeviceArray
from weft.program.values import program_array
from weft.tensor import views
from weft.tensor.base import CURRENT, Value
from weft.tensor.core import Tensor as Base, host_array, pythonic, tensor as make
from weft.tensor.played import played
from weft.torch import absent, agreement, placing, printing
from weft.torch.placing import Device as Device

P = ParamSpec("P")
R = TypeVar("R")
_OURS = "weft."


class Size(tuple[int, ...]):
    """Sizes of axes."""

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"


class Tensor(Base):
    """An n-dimensional array with PyTorch's methods and operators.

    Integers are int64 on the host, as in PyTorch, and int32 on devices and in compiled functions.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        why = "" if name.startswith("_") else absent.reason(f"torch.Tensor.{name}")
        near = nearest(name, dir(Tensor)) if not why and not name.startswith("_") else ""
        hint = f": {why}" if why else f"; did you mean {near}?" if near else ""
        raise AttributeError(f"'Tensor' object has no attribute {name!r}{hint}")

    def __init__(self, *data: Any) -> None:
        """A tensor of sizes holds zeros, one of numbers these, both in float32; see `tensor`."""
        data = data or ([],)
        if isinstance(data[0], list | tuple | int):
            sizes = bool(data) and all(isinstance(n, int) for n in data)
            array = np.zeros(data) if sizes else host_array(data[0])
            data = (array.astype(np.float32),)
        super().__init__(*data)

    @property
    def shape(self) -> Size:
        """The size of each axis."""
        return Size(self._value.shape)

    @property
    def device(self) -> Device:
        """The place of the content."""
        return Device(super().device)

    @property
    def requires_grad(self) -> bool:
        """True if computations from this tensor are recorded; may be set."""
        return super().requires_grad

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None:
        self.requires_grad_(on)

    @property
    def grad_fn(self) -> Any:
        """The operation that computed this tensor, if it is recorded; None for a leaf."""
        if self._tape is None:
            return None
        from weft.torch.autograd.graph import Node

        return Node(self._tape)

    def __repr__(self) -> str:
        if self.is_traced or CURRENT.trace is not None:
            return super().__repr__()
        from weft.torch.creation import get_default_dtype

        return printing.shown(self, pythonic(self._host("repr")), get_default_dtype())

    def __format__(self, spec: str) -> str:
        if self.ndim and spec:
            raise CallError(f"format {spec!r}: {self._known()} is not one number; take .item()")
        return format(str(self) if self.ndim else self.item(), spec)

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any().item())

    def __reversed__(self) -> Any:
        return self.flip(0) if self.ndim else self

    @property
    def H(self) -> Base:
        """A matrix transposed."""
        return self.t()

    @property
    def mH(self) -> Base:
        """The last two axes exchanged."""
        return self.mT

    @property
    def is_cuda(self) -> bool:
        """True if a CUDA device holds the content."""
        return self.device.type == "cuda"


class Parameter(nn.Parameter, Tensor):
    """A trained tensor of a Module: a leaf that requires gradients."""

    __slots__ = ()

    def _wrap(self, value: Value) -> Any:
        return Tensor(value)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Buffer(nn.Buffer, Tensor):
    """A tensor that a Module registers as a buffer when it gets it as an attribute."""

    __slots__ = ()

    def _wrap(self, value: Value) -> Any:
        return Tensor(value)


_KINDS: dict[type, type] = {Base: Tensor, nn.Parameter: Parameter, nn.Buffer: Buffer}


def own(found: Any) -> Any:
    """A result of weft's, whose new tensors become weft.torch's."""
    kind = _KINDS.get(type(found))
    if kind is not None:
        found.__class__ = kind
    elif isinstance(found, tuple | list):
        parts = [own(x) for x in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    elif isinstance(found, dict):
        return {k: own(v) for k, v in found.items()}
    return found


def adopt(x: Any) -> Any:
    """A tensor of weft's as one of weft.torch's, with its history."""
    return Tensor(x.value) if type(x) is Base else x


def public(
    fn: Callable[P, R], short: Callable[..., Any] | None = None, count: int = 1
) -> Callable[P, R]:
    """A function of weft.torch: its errors are weft's, its results tensors of weft.torch. `short`
    is tried first, see `played`."""
    parameters = inspect.signature(fn).parameters
    call, takes_out = guarded(fn), "out" in parameters
    name = agreement.name_of(fn)
    typed_alike = name in agreement.NAMES
    constructs = fn.__name__ in placing.CONSTRUCTORS
    first = next(iter(parameters.values()), None)
    takes_tensor = first is not None and first.annotation == "Tensor"
    sizes = next((n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL), "")

    @functools.wraps(fn)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        if sizes in kwargs:  # PyTorch takes `size=(2, 3)` for `*size` too
            args = (*args, kwargs.pop(sizes))  # type: ignore[assignment]
        args = tuple(map(adopt, args))  # type: ignore[assignment]
        if takes_tensor and args and isinstance(args[0], int | float | str | list | None):
            kind = type(args[0]).__name__
            raise CallError(f"{fn.__name__}: {kind} is not a Tensor; give torch.tensor(...) of it")
        given = kwargs.pop("out", None) if not takes_out else None
        place = placing.taken(kwargs) if constructs else None
        if typed_alike:
            args = agreement.agreed(name, args, kwargs)  # type: ignore[assignment]
        found: R = own(call(*args, **kwargs))
        if place is not None:
            found = place(found)
        views.own_alone(found, (*args, *kwargs.values()))
        return found if given is None else _written(fn.__name__, given, found)

    made = played(function, short, count)
    made.kind = "both"  # type: ignore[attr-defined]
    return made


def _written(name: str, out: Any, found: Any) -> Any:
    """Writes a result to the tensor given as `out`, which takes its shape too."""
    several = isinstance(found, tuple)
    given, made = (tuple(out), tuple(found)) if several else ((out,), (found,))
    if len(given) != len(made) or not all(isinstance(x, Base) for x in (*given, *made)):
        raise UsageError(f"{name}: out= is not for this result; leave it out")
    for to, new in zip(given, made):
        if to.requires_grad or new.requires_grad:
            raise GradientError(f"{name}: out= records no gradients; assign the result instead")
        if to.dtype.is_float < new.dtype.is_float:
            raise DTypeError(f"{name}: out= is {to._known()}, the result {new._known()}")
        if to.shape != new.shape:
            to.resize_(new.shape)
        to.assign(new.cast(to.dtype))
    return type(found)(*given) if hasattr(found, "_fields") else given if several else out


class _Mark(Protocol):
    def __call__(
        self, fn: Callable[P, R], short: Callable[..., Any] | None = None, count: int = 1
    ) -> Callable[P, R]: ...


def _kind(name: str) -> _Mark:
    def mark(
        fn: Callable[P, R], short: Callable[..., Any] | None = None, count: int = 1
    ) -> Callable[P, R]:
        made = public(fn, short, count)
        made.kind = name  # type: ignore[attr-defined]
        return made

    return mark


function_only, method_only = _kind("function"), _kind("method")
unlisted = _kind("unlisted")


def functions(namespace: dict[str, Any], but: str = "") -> list[str]:
    """The names of weft.torch's functions in a module's namespace, except for those in `but`."""
    names = (n for n, v in namespace.items() if getattr(v, "kind", None) and n[0] != "_")
    return sorted(n for n in names if n not in but.split())


def either(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """The method that is `theirs` for all code but weft's own, for which it is the one that `name`
    has in weft."""
    mine = getattr(Base, name)

    @functools.wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return (mine if caller.startswith(_OURS) else theirs)(self, *args, **kwargs)

    return method


def as_tensor(x: Any) -> Base:
    """An operand as a tensor: numbers in PyTorch's dtypes."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Base):
        return Tensor(x.value)
    if isinstance(x, bool | int | float):
        return Tensor(np.asarray(x, numbers.number_dtype(x, whole()).numpy))
    return Tensor(make(x).value)


def whole(*tensors: Any) -> DType:
    """The dtype of PyTorch's 64-bit integers: int32 where a device lacks them."""
    if CURRENT.trace is not None:
        return dt.int32
    far = any(isinstance(getattr(t, "_value", None), DeviceArray) for t in tensors)
    return dt.int32 if far else dt.int64


def index_of(x: Any) -> Any:
    """A tensor of indices in PyTorch's dtype for them."""
    return x.cast(whole(x))


def common(*operands: Any) -> DType:
    """PyTorch's common dtype of tensors, arrays and numbers."""
    if any(isinstance(x, np.ndarray) for x in operands):
        operands = tuple(as_tensor(x) if isinstance(x, np.ndarray) else x for x in operands)
    return numbers.common(*operands, whole=whole(*operands))


def together(*operands: Any) -> list[Base]:
    """The operands as tensors in their common dtype."""
    dtype = common(*operands)
    return [x.cast(dtype) if isinstance(x, Base) else typed(x, dtype) for x in operands]


def check_traced(x: Any, dtype: DType) -> None:
    """Raises DTypeError for integers beyond int32 in a trace, where int64 is computed in int32."""
    if CURRENT.trace is not None and dtype is dt.int32:
        if isinstance(x, np.ndarray):
            program_array(x, "a constant")
        elif isinstance(x, int):
            numbers.fitting(x, dtype)


def typed(x: Any, dtype: DType) -> Any:
    """A number or array as a tensor of a dtype, wrapped as in C if it does not fit. Raises
    CallError for what is neither."""
    if x is None or isinstance(x, str):
        raise CallError(f"an operand is {x!r}; expected a tensor or a number")
    check_traced(x, dtype)
    made = Tensor(np.asarray(x).astype(dtype.numpy))
    made._weak = True
    return made


def floats(*operands: Any) -> list[Base]:
    """The operands as tensors in their common float dtype; integers become float32."""
    dtype = common(*operands)
    dtype = dtype if dtype.is_float else dt.float32
    return [x.cast(dtype) if isinstance(x, Base) else typed(x, dtype) for x in operands]


def real(x: Any) -> Base:
    """The operand as floats; integers become float32."""
    (made,) = floats(x)
    return made
