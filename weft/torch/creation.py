"""PyTorch's functions that make tensors: float32 of floats, int64 of integers by default."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import CallError, DTypeError, UsageError
from weft.importers.aten import numbers
from weft.tensor import create
from weft.tensor.base import place
from weft.tensor.core import Tensor, from_dlpack as shared, host_array, tensor as make
from weft.tensor.played import forget
from weft.torch import placing
from weft.torch.expected import fitted, want, want_rank
from weft.torch.shaping import many
from weft.torch.tensor import Device, function_only, method_only, own, whole


class _Default:
    """The dtype of floats that name none."""

    float: DType = dt.float32


def get_default_dtype() -> DType:
    """The dtype of new floats."""
    return _Default.float


def set_default_dtype(d: DType) -> None:
    """Makes `d` the dtype of new floats."""
    if not d.is_float:
        raise UsageError(f"set_default_dtype: {d.name} is not a float")
    _Default.float = d
    forget()


def _dtype(dtype: Any, value: Any = 0.0) -> DType:
    """The dtype named, or that of a number."""
    if dtype is not None:
        return whole() if dtype == dt.int64 else dtype
    if isinstance(value, float):
        return _Default.float
    return numbers.number_dtype(value, whole())


def _finished(made: Any, requires_grad: bool = False) -> Tensor:
    found: Tensor = own(made)
    return found.requires_grad_() if requires_grad else found


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A copy of numbers, nested lists, an array or a tensor, without history."""
    if dtype is None and isinstance(data, bool | int | float | list | tuple):
        array = host_array(_plain(data))
        if array.dtype.kind == "f" and not isinstance(
            _first(data), Tensor | np.ndarray | np.generic
        ):
            dtype = _Default.float
        elif array.dtype.kind in "iu":
            if array.dtype == np.uint64 and array.size and array.max() >= 1 << 63:
                raise DTypeError(f"tensor: {array.max()} does not fit int64; give dtype=uint64")
            array = array.astype(np.int64)
        data = array if array.size else array.astype(np.float32)
    made = make(data, dtype).detach()
    made = Tensor(np.array(made._value)) if isinstance(made._value, np.ndarray) else made
    device = placing.chosen() if device is None else device
    found = own(made)
    return _finished(found if device is None else placing.moved(found, device), requires_grad)


def _plain(data: Any) -> Any:
    """Lists with numbers in the place of tensors."""
    if isinstance(data, list | tuple):
        return [_plain(x) for x in data]
    return data.numpy() if isinstance(data, Tensor) else data


def _first(data: Any) -> Any:
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return data


@function_only
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The data as a tensor; a tensor that fits already is returned."""
    if isinstance(data, Tensor):
        made = data.cast(dtype)
        return made if device is None else made.to(str(device))
    return tensor(data, dtype=dtype, device=device)


asarray = as_tensor


@function_only
def from_numpy(ndarray: np.ndarray) -> Tensor:
    """An array as a tensor. Raises CallError for anything else."""
    if not isinstance(ndarray, np.ndarray):
        kind = type(ndarray).__name__
        raise CallError(f"from_numpy: {kind} is not an array; torch.tensor takes lists and numbers")
    return Tensor(make(ndarray).value)


@function_only
def from_dlpack(ext_tensor: Any) -> Tensor:
    """A tensor that shares another library's CPU array."""
    return Tensor(shared(ext_tensor).value)


def _filled(size: Any, value: Any, dtype: DType, device: Any, requires_grad: bool) -> Tensor:
    where = None if device is None else str(device)
    return _finished(create.full(size, value, dtype, where), requires_grad)


def _of(name: str, value: int) -> Any:
    def function(
        *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
        layout: Any = None, pin_memory: bool = False, memory_format: Any = None,
        names: Any = None,
    ) -> Tensor:  # fmt: skip
        return _filled(many(size), value, _dtype(dtype), device, requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"A tensor of {'ones' if value else 'zeros'} of a size."
    return function_only(function)


zeros, ones, empty = _of("zeros", 0), _of("ones", 1), _of("empty", 0)


@function_only
def full(
    size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """One value everywhere."""
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    wanted = _dtype(dtype, value)
    value = fitted("full", value, wanted)
    return _filled(many((size,)), value, wanted, device, requires_grad)


def _like(name: str, value: int) -> Any:
    def function(
        input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
        layout: Any = None, memory_format: Any = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        return full_like(input, value, dtype=dtype, device=device, requires_grad=requires_grad)

    function.__name__ = function.__qualname__ = f"{name}_like"
    function.__doc__ = f"A tensor of {name} with the shape, dtype and place of another."
    return function_only(function)


@function_only
def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, memory_format: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """One value with the shape, dtype and place of another tensor."""
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    at = place(input) if device is None else str(device)
    wanted = input.dtype if dtype is None else dtype
    value = fitted("full_like", value, wanted)
    return _finished(create.full(input.shape, value, wanted, at), requires_grad)


zeros_like, ones_like, empty_like = _like("zeros", 0), _like("ones", 1), _like("empty", 0)


@function_only
def empty_strided(size: Any, stride: Any, **options: Any) -> Tensor:
    """A tensor of zeros; weft does not choose strides."""
    return zeros(*size, **options)  # type: ignore[no-any-return]


@function_only
def empty_permuted(size: Any, physical_layout: Any, **options: Any) -> Tensor:
    """A tensor of zeros; weft has one layout."""
    return zeros(*size, **options)  # type: ignore[no-any-return]


@function_only
def scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    """A number as a tensor without axes, float32 by default."""
    return full((), s, dtype=dtype or _Default.float, device=device, **options)


@function_only
def arange(
    start: Any = None, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """start, start + step, ... before end; int64 when all are integers."""
    if start is None and end is None:
        raise CallError("arange: the end is missing; give one number at least")
    begin, stop = (0, start) if end is None else (start or 0, end)
    begin, stop, step = (x.item() if isinstance(x, Tensor) else x for x in (begin, stop, step))
    if (stop - begin) * step < 0:
        raise UsageError(f"arange: from {begin} to {stop} by {step} leads away from the end")
    exact = all(isinstance(v, int) for v in (begin, stop, step))
    wanted = _dtype(dtype, 0 if exact else 0.0)
    want(wanted != dt.bool_, "arange", "dtype bool", "a dtype of numbers")
    where = None if device is None else str(device)
    if wanted.is_int:
        if wanted == dt.int64:  # in PyTorch too, only this dtype counts in integers
            begin, stop, step = int(begin), int(stop), int(step)
        n = max(0, math.ceil((stop - begin) / step))
        begin, step = int(begin), int(step)
        made = create.arange(begin, begin + n * step, step, whole(), where)
        return _finished(made.cast(wanted), requires_grad)
    return _finished(create.arange(begin, stop, step, wanted, where), requires_grad)


@function_only
def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """`steps` numbers evenly spaced from start to end."""
    a, b = (x.item() if isinstance(x, Tensor) else x for x in (start, end))
    wanted = _dtype(dtype)
    if wanted.is_int:
        a, b = int(a), int(b)
        step = (b - a) / max(steps - 1, 1)
        half = steps // 2
        half = 1 if steps == 1 else half
        at = [a + step * i if i < half else b - step * (steps - 1 - i) for i in range(steps)]
        return Tensor(np.trunc(np.array(at)).astype(wanted.numpy))
    work = dt.float64 if device is None and whole() != dt.int32 else None
    made = create.linspace(a, b, steps, work or wanted, None if device is None else str(device))
    return _finished(made.cast(wanted), requires_grad)


@function_only
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None,
    device: Any = None, requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """`base` to the power of `steps` numbers evenly spaced from start to end."""
    wanted = _dtype(dtype)
    if wanted.is_int:
        first, last = (int(x.item() if isinstance(x, Tensor) else x) for x in (start, end))
        exact = base ** np.linspace(float(first), float(last), steps)
        return Tensor(np.trunc(exact).astype(wanted.numpy))
    at = linspace(start, end, steps, dtype=dt.float64 if device is None else dt.float32,
                  device="cpu" if device is None else device)  # fmt: skip
    made = Tensor(np.full(at.shape, base)).to(at.dtype) ** at if device is None else base**at
    return _finished(made.cast(wanted), requires_grad)


@function_only
def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Ones on the diagonal, zeros elsewhere."""
    where = None if device is None else str(device)
    return _finished(create.eye(n, m, _dtype(dtype), where), requires_grad)


def _triangle(name: str, of: Any) -> Any:
    def function(
        row: int, col: int, offset: int = 0, *, dtype: Any = dt.int64, device: Any = None,
        layout: Any = None,
    ) -> Tensor:  # fmt: skip
        want(dtype.is_int, name, f"dtype {dtype.name}", "a dtype of integers")
        want(row >= 0 and col >= 0, name, f"row {row}, col {col}", "0 or more each")
        at = np.stack(of(row, offset, col)).astype(np.int64)
        return Tensor(at).cast(_dtype(dtype))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Rows and columns [2, K] of a triangle's elements."
    return function_only(function)


tril_indices = _triangle("tril_indices", np.tril_indices)
triu_indices = _triangle("triu_indices", np.triu_indices)


def _sized(name: str, fill: Any) -> Any:
    def function(
        input: Tensor, *size: Any, dtype: Any = None, device: Any = None,
        requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        at = place(input) if device is None else str(device)
        made = create.full(many(size), fill, dtype or input.dtype, at)
        return _finished(made, requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "A new tensor of a size, with this tensor's dtype and place."
    return method_only(function)


new_zeros, new_ones, new_empty = (_sized(f"new_{n}", v) for n, v in
                                  (("zeros", 0), ("ones", 1), ("empty", 0)))  # fmt: skip


@method_only
def new_full(input: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """A new tensor with one value, with this tensor's dtype and place."""
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    made: Tensor = new_zeros(input, *many((size,)), **options)
    return full_like(made, value)


@method_only
def new_empty_strided(input: Tensor, size: Any, stride: Any, **options: Any) -> Tensor:
    """A new tensor of zeros; weft does not choose strides."""
    return new_zeros(input, *many((size,)), **options)  # type: ignore[no-any-return]


@method_only
def new_tensor(input: Tensor, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A new tensor of data, with this tensor's dtype."""
    return tensor(data, dtype=dtype or input.dtype, device=device)


@function_only
def fill(input: Tensor, value: Any) -> Tensor:
    """One value everywhere, in this tensor's shape."""
    if not isinstance(value, Tensor):
        return full_like(input, value)
    want_rank("fill", value, 0)
    return value.cast(input.dtype).expand(input.shape).clone()


@function_only
def zero_(input: Tensor) -> Tensor:
    """Zeros in place."""
    return input.zero_()


def device(type: str, index: int | None = None) -> Device:
    """A device by its kind, and its number if there are several."""
    return Device(type if index is None else f"{type}:{index}")
