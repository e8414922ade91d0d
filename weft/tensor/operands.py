"""The operands and results of a compiled function: arguments, captured tensors, outputs."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import as_dtype
from weft.core.errors import DeviceError, TraceError
from weft.core.trees import Tree, flatten, paths
from weft.host.foreign import is_foreign, shared_array
from weft.program.array import DeviceArray
from weft.program.device import Device
from weft.program.values import program_array
from weft.tensor import views
from weft.tensor.base import TensorBase
from weft.tensor.core import Tensor
from weft.tensor.device import StateArray, upload

LONGEST = 120  # characters of an argument's name


def content(t: Tensor) -> Any:
    """The value of a captured tensor that a Program binds: its home, or its present value."""
    return t._home if t._home is not None else t._value


def readable(value: Any, home: Device, device: Device) -> bool:
    """True if a part on `home` may bind a captured value: one in host memory or on `home`, or, for
    the host, a copy of one on the device (not of a state, which changes)."""
    if not isinstance(value, DeviceArray) or value.device is home:
        return True
    return value.device is device and not isinstance(value, StateArray)


def settle(t: Tensor, device: Device, name: str) -> None:
    """Gives a state tensor its home: a buffer of its own on the device."""
    if t._home is not None:
        return
    if isinstance(t._value, DeviceArray) and t._value.device is not device:
        raise DeviceError(
            f"state tensor {name!r} is on {t.device}, the Program on {device.info.id}; move it "
            f'with .to("{device.info.id}") before the first call'
        )
    plain = upload(device, program_array(t._host("a Program's state"), f"tensor {name!r}"))
    t._home = StateArray(plain, name)
    t._value = t._home.view() if device.is_host else t._home
    if isinstance(t._value, np.ndarray):
        t._value.flags.writeable = False


def result(array: DeviceArray, role: str) -> Tensor:
    """An output as a Tensor: on the CPU a NumPy view of the Program's output buffer."""
    if role != "output":  # an input or a state handed through: later runs may change its buffer
        host = np.array(array.numpy())
        on_host = array.device.is_host
        return Tensor(host if on_host else upload(array.device, host))
    return Tensor(array.view() if array.device.is_host else array)


def is_array(x: Any) -> bool:
    return isinstance(x, TensorBase | np.ndarray) or is_foreign(x)


def arguments(args: Any, kwargs: Any, name: str) -> tuple[list[Any], Tree]:
    """The arrays among the arguments, and how they nest."""
    return flatten((args, kwargs), is_array, f"an argument of {name}")


def argument_names(tree: Tree, fn: Any) -> list[str]:
    """A readable name for each array argument of `fn`: its keyword, its parameter's name, or its
    position."""
    parameters = _parameters(fn)
    found: list[str] = []
    taken: set[str] = set()
    for path in paths(tree):
        name = path.strip("_")
        if name.startswith("0_"):
            at, _, inner = name[2:].partition("_")
            first = parameters[int(at)] if int(at) < len(parameters) else f"arg_{at}"
            name = f"{first}_{inner}" if inner else first
        else:
            name = name.removeprefix("1_")
        if len(name) > LONGEST:
            name = f"{name[:60]}...{name[-40:]}"
        if name in taken:  # {"a_b": x, "a": {"b": y}}
            name = f"{name}.{len(found)}"
        taken.add(name)
        found.append(name)
    return found


def _parameters(fn: Any) -> list[str]:
    """The names of the parameters that take arguments by position; of a module, those of its
    forward."""
    asked = fn if hasattr(fn, "__signature__") else getattr(fn, "forward", fn)
    try:
        found = inspect.signature(asked).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def program_dtype(value: Any) -> dt.DType:
    d = as_dtype(value.dtype)
    return dt.int32 if d is dt.int64 else d  # 64-bit integers are 32-bit inside a Program


def operand(x: Any, device: Device) -> Any:
    """An argument as the Session takes it: host memory, or an array on the same device."""
    value = x._value if isinstance(x, TensorBase) else x
    if isinstance(value, np.ndarray):
        return value
    if is_foreign(value):
        return shared_array("a compiled function", value)
    if not isinstance(value, DeviceArray):
        raise TraceError("a compiled function was given a traced tensor outside of its trace")
    if value.device is not device:
        raise DeviceError(
            f"an argument is on {value.device.info.id}, but the function was compiled for "
            f'{device.info.id}; move it with .to("{device.info.id}")'
        )
    return value


def shared_arguments(
    leaves: Sequence[Any], roots: Collection[int], graded: bool
) -> list[tuple[int, Tensor]]:
    """The arguments (number, tensor) that are a tensor, or show one, whose root's id is in `roots`;
    where gradients are left behind also those that require one. A trace must meet them as the
    tensors they are, so that they change with what they share."""
    found: list[tuple[int, Tensor]] = []
    for i, x in enumerate(leaves):
        if isinstance(x, Tensor) and (id(views.root(x)) in roots or (graded and x._leaf)):
            found.append((i, x))
    return found


def apart(value: Any, written: Iterable[Tensor]) -> Any:
    """An operand; a copy of one that shows a state which the Program writes."""
    shows = isinstance(value, StateArray) or (
        isinstance(value, np.ndarray) and not value.flags.writeable
    )
    if not shows:
        return value
    if all(t._value is not value and t._home is not value for t in written):
        return value
    return np.array(value if isinstance(value, np.ndarray) else value.numpy())
