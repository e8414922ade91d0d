"""Tensor: the class users meet. Its methods come from the mixins, by kind: arith.py (elementwise),
shapes.py (movement), reductions.py (sums, matmul, sorting), indexing.py; here are the ways out."""

from __future__ import annotations

import copy
from copy import deepcopy as copy_of
from importlib import import_module
from typing import Any, Self

import numpy as np

from weft import ops
from weft.core import dtypes as dt
from weft.core.arrays import aligned_copy
from weft.core.errors import (
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
    TraceError,
    UsageError,
)  # fmt: skip
from weft.core.trees import flatten, unflatten
from weft.host.boundary import guard_methods
from weft.host.foreign import is_foreign, shared_array
from weft.ops.tape import plain
from weft.program.array import DeviceArray
from weft.program.device import HOST
from weft.tensor import views
from weft.tensor.autograd import Autograd
from weft.tensor.base import CURRENT, TensorBase, place
from weft.tensor.guards import changed
from weft.tensor.played import play_methods
from weft.tensor.torch_shapes import TorchNames


class Tensor(TorchNames, Autograd):
    """An n-dimensional array on the CPU, on a device, or (while tracing) yet to be computed.

    `assign`, `x[...] = v`, `x += v` and methods whose names end in _ change a tensor in place.
    Indexing with integers and slices, reshape, transpose, permute, expand, narrow, split and detach
    give views, as in PyTorch: a write to one is a write to the other.
    """

    __slots__ = ()

    def numpy(self) -> np.ndarray:
        """The content as a NumPy array that cannot be written: the tensor's own memory on the CPU,
        a copy from a device. `np.array(t)` gives a copy to write to. Raises TraceError while
        tracing."""
        return self._fixed("numpy()")

    def _fixed(self, use: str) -> np.ndarray:
        """The content on the host, read-only; a copy of a state, which Programs change."""
        array = self._host(use)
        shown = array.copy() if self._home is not None else array.view()
        shown.flags.writeable = False
        return shown

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._fixed("conversion to NumPy")
        out = array if dtype is None else array.astype(dtype, copy=False)
        return out.copy() if copy and out is array else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions of tensors (np.sum(x), np.stack([x, y])) take them as arrays."""
        return func(*_on_host(args), **_on_host(kwargs))

    def item(self) -> bool | int | float:
        """The only element as a Python number."""
        if self.size != 1:
            raise ShapeError(f"item: {self._known()} has {self.size} elements, expected 1")
        found: bool | int | float = pythonic(self._host("item()")).item()
        return found

    def tolist(self) -> Any:
        """The content as nested Python lists (a number for a 0-d tensor)."""
        return pythonic(self._host("tolist()")).tolist()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                f"the truth of {self._known()} is ambiguous; reduce it with any() or all()"
            )
        return bool(self._host("control flow (if, while, and, or, not)").item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_int:
            raise DTypeError(f"a {self.dtype.name} tensor is not an index; cast it to int32")
        return int(self.item())

    def __len__(self) -> int:
        if not self.ndim:
            raise DTypeError("the length of a 0-d tensor is undefined; use size or item()")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        facts = "" if self.dtype == dt.float32 else f", dtype={self.dtype.name}"
        if self.is_traced or CURRENT.trace is not None:
            return f"Tensor(traced, shape={list(self.shape)}{facts})"
        if place(self) is not None:
            facts += f", device={self.device}"
        body = np.array2string(pythonic(self._host("repr")), prefix="Tensor(", separator=", ")
        return f"Tensor({body}{facts})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and not self.ndim else format(str(self), spec)

    # -- place

    def to(self, target: Any) -> Self:
        """On another device ("cpu", "vulkan", a Device, ...), or as another dtype. Gradients do not
        flow from one device to another: what was moved starts without history. Raises
        DeviceError for a device that is missing, DTypeError for a dtype that it cannot hold."""
        if isinstance(target, dt.DType):
            return self.cast(target)
        if self.is_traced:
            raise TraceError(
                "to(device) inside a traced function: a Program runs on one device; move inputs "
                "and outputs outside"
            )
        from weft.tensor.device import open_device, upload

        device = open_device(target)
        if device is None:
            return self._wrap(self._host("to()")) if place(self) else self
        if isinstance(self._value, DeviceArray) and self._value.device is device:
            return self
        return self._wrap(upload(device, self._host("to()")))

    def to_(self, target: Any) -> Self:
        """Moves (or casts) this tensor itself as `to` does; it stays a leaf. Returns it."""
        moved = self._wrap(plain(self.value)).to(target)
        if moved.dtype != self.dtype or place(moved) is not place(self):
            views.part_from(self)
            self._value, self._home = moved._value, None
            changed()
        return self

    def to_device(self, device: Any, /, *, stream: None = None) -> Self:
        """On another device, as `to` (array API standard). weft lacks streams: raises UsageError
        for one."""
        if stream is not None:
            raise UsageError(
                f"to_device: stream={stream!r}; weft orders its work itself: leave it out"
            )
        return self.to(device)

    def cpu(self) -> Self:
        """On the CPU."""
        return self.to(HOST)

    def sync(self) -> Self:
        """Waits until the content is computed; returns self."""
        if isinstance(self._value, DeviceArray):
            self._value.device.sync()
        return self

    def __copy__(self) -> Self:
        """Another tensor that shares this one's content; a leaf of its own where this is one."""
        made = object.__new__(type(self))
        TensorBase.__init__(made, plain(self.value) if self._leaf else self.value, self.name)
        made._leaf, made._weak = self._leaf, self._weak
        take: views.Take = plain if self._leaf else lambda v: v
        views.link(made, self, take, lambda _, v: v, views.strides(self), self._leaf)
        return made

    def __reduce__(self) -> Any:
        """Pickles for processes of one's own: the content, and what else a deep copy has."""
        made: Any = copy.deepcopy(self)
        return _restored, (
            type(self), made._host("pickle"), self.device, self.name, self._leaf, made._grad,
        )  # fmt: skip

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A leaf of its own, with a copy of the content where this one is, and of the gradient.
        Raises GradientError for a tensor that was computed, TraceError while tracing."""
        if self._tape is not None:
            raise GradientError(
                f"deepcopy: {self._known()} was computed from tensors that require gradients, and "
                "its history belongs to them; detach() it first"
            )
        copied: Any = np.array(self._host("deepcopy"))
        if isinstance(self._value, DeviceArray):
            from weft.tensor.device import upload

            copied = upload(self._value.device, copied)
        made = object.__new__(type(self))
        memo[id(self)] = made
        TensorBase.__init__(made, copied, self.name)
        made._leaf, made._weak = self._leaf, self._weak
        made._grad = copy.deepcopy(self._grad, memo)
        return made

    # -- exchange

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """The module `weft`, whose functions are the array API standard's. Raises UsageError for a
        version of the standard that weft does not have."""
        if api_version not in (None, "2022.12", "2023.12", "2024.12"):
            raise UsageError(f"array API {api_version!r:.40}; weft has 2022.12, 2023.12, 2024.12")
        return import_module("weft")

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        array = self._host("DLPack export")
        if place(self) is not None:
            raise DeviceError(
                f"DLPack shares CPU tensors; this one is on {self.device}: use .cpu()"
            )
        if self.dtype == dt.bfloat16:
            raise DTypeError("NumPy cannot export bfloat16 through DLPack; cast to float32 first")
        if copy is False and self._home is not None:
            raise DeviceError(
                "a Program's state changes: DLPack exports a copy; leave out copy=False"
            )
        options: Any = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
        return (array if copy is False else np.array(array)).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU


def _restored(
    cls: type[Tensor], array: np.ndarray, device: str, name: str, leaf: bool, grad: Tensor | None
) -> Tensor:
    """The pickled tensor, on its device."""
    made = object.__new__(cls)
    TensorBase.__init__(made, Tensor(array).to(device).value, name)
    made._leaf, made._grad = leaf, grad
    return made


guard_methods(Tensor, but=("__init__",))  # made by the thousand, never by users
play_methods(Tensor)


def _on_host(x: Any) -> Any:
    """Arguments of a NumPy function, with arrays instead of tensors."""
    leaves, tree = flatten(x, lambda v: isinstance(v, Tensor), "NumPy's arguments")
    return unflatten(tree, [np.asarray(t) for t in leaves])


def pythonic(array: np.ndarray) -> np.ndarray:
    """bfloat16 as float32, which NumPy can print and turn into Python numbers."""
    return array.astype(np.float32) if array.dtype == dt.bfloat16.numpy else array


def tensor(
    data: Any, dtype: Any = None, device: Any = None, name: str = "", requires_grad: bool = False
) -> Tensor:
    """A Tensor from a number, nested lists, a NumPy array, a Tensor or a DLPack object.

    The content is copied, without the history that a tensor of PyTorch may have. Python integers
    give int32 and floats float32 unless `dtype` says otherwise; arrays keep their dtype. Raises
    DTypeError for other types, UsageError for what cannot be shared, ShapeError for ragged
    lists. With `requires_grad`, what is computed from it can be differentiated.

    >>> x = weft.tensor([[1, 2], [3, 4]])
    >>> x.shape, x.dtype.name
    ((2, 2), 'int32')
    """
    out = _tensor(data, dtype, device, name)
    return _named(Tensor(plain(out.value)), out.name).requires_grad_() if requires_grad else out


def _tensor(data: Any, dtype: Any, device: Any, name: str) -> Tensor:
    wanted = None if dtype is None else dt.as_dtype(dtype)
    if isinstance(data, Tensor):
        out = data if wanted is None else data.cast(wanted)
    elif is_foreign(data):
        out = Tensor(np.array(shared_array("tensor", data))).cast(wanted)
    else:
        out = Tensor(_array(data, wanted))
    out = Tensor(out.value, name) if name or out is data else out
    return out if device is None else _named(out.to(device), name)


def _named(t: Tensor, name: str) -> Tensor:
    t.name = name
    return t


def host_array(data: Any) -> np.ndarray:
    """A number, nested lists or an array as a new array of numbers. Raises ShapeError for ragged
    lists, DTypeError for an element that is not a number."""
    try:
        plain = isinstance(data, np.ndarray) and not data.dtype.hasobject
        array = aligned_copy(data) if plain else np.array(data)
    except ValueError as error:
        raise ShapeError(
            f"tensor: the lists are ragged or too deep ({error}); make all rows equally long"
        ) from None
    if array.dtype.kind not in "biuf" and array.dtype != dt.bfloat16.numpy:
        raise DTypeError(
            f"tensor: cannot take {type(data).__name__} of {array.dtype}; give numbers or an array"
        )
    return array


def _array(data: Any, wanted: dt.DType | None) -> np.ndarray:
    typed, array = isinstance(data, np.ndarray | np.generic), host_array(data)
    if wanted is None and not typed and array.dtype.kind in "iuf":
        wanted = dt.float32 if array.dtype.kind == "f" or not array.size else dt.int32
    if wanted is None:
        return array
    if not typed and wanted.is_int and array.size and array.dtype.kind in "iu":
        info = np.iinfo(wanted.numpy)
        if int(array.min()) < info.min or int(array.max()) > info.max:
            raise DTypeError(f"tensor: values do not fit {wanted.name}; give a wider dtype")
    with np.errstate(all="ignore"):
        if array.dtype.kind in "iub" or array.dtype == np.float64:
            return (
                array.astype(wanted.numpy)
                if not wanted.is_int or array.dtype.kind != "f"
                else (ops.cast(array, wanted))
            )
    cast: np.ndarray = ops.cast(array, wanted)
    return cast


def from_dlpack(data: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A Tensor sharing the memory of a CPU array from another library, without its gradients. Do
    not write to it there while weft uses it. With `copy`, or on another device, it is a copy.
    Raises UsageError for what cannot be shared, DTypeError for its dtype.

    >>> weft.from_dlpack(np.arange(3, dtype=np.float32)).tolist()
    [0.0, 1.0, 2.0]
    """
    made = data.detach() if isinstance(data, Tensor) else Tensor(shared_array("from_dlpack", data))
    made = copy_of(made) if copy else made
    if copy is False and device is not None and made.to(device) is not made:
        raise UsageError(f"from_dlpack: copy=False, but {device} takes a copy; leave copy out")
    return made if device is None else made.to(device)
