"""The device on which tensors are made where a call names none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from weft.core import dtypes as dt
from weft.core.errors import DeviceError
from weft.program.values import program_array
from weft.tensor.base import CURRENT
from weft.tensor.core import Tensor
from weft.tensor.played import forget

# the functions that PyTorch makes on it; those named `..._like` follow their argument
_NAMES = """arange as_tensor asarray empty empty_permuted empty_strided eye full linspace logspace
normal ones rand randint randn randperm scalar_tensor tensor tril_indices triu_indices zeros"""
CONSTRUCTORS = frozenset(_NAMES.split())


class Device(str):
    """A device's name, with PyTorch's `type` and `index`. Inside a `with` of it, calls that name no
    device make tensors there."""

    __slots__ = ()

    def __enter__(self) -> Self:
        enter(self)
        return self

    def __exit__(self, *error: Any) -> None:
        leave()

    @property
    def type(self) -> str:
        """The kind of device."""
        return str(self).partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
        """The number of the device among those of its kind, if it is named."""
        number = self.partition(":")[2]
        return int(number) if number else None


class _Chosen(threading.local):
    """The devices chosen in this thread, the last one counts; None is the host."""

    names: tuple[str | None, ...] = (None,)


_CHOSEN = _Chosen()


def chosen() -> str | None:
    """The name of the device for calls that name none; None for the host."""
    return _CHOSEN.names[-1]


def set_default_device(device: Any) -> None:
    """Makes tensors on `device` where a call names none; None means the CPU. Raises DeviceError if
    the device is not there."""
    _CHOSEN.names = (*_CHOSEN.names[:-1], _checked(device))
    forget()


def get_default_device() -> Device:
    """The device of tensors where a call names none."""
    return Device(chosen() or "cpu")


def enter(name: Any) -> None:
    """Sets the default device until `leave`."""
    _CHOSEN.names = (*_CHOSEN.names, _checked(name))
    forget()


def leave() -> None:
    """Returns to the device before the last `enter`."""
    _CHOSEN.names = _CHOSEN.names[:-1]
    forget()


def _checked(name: Any) -> str | None:
    from weft.backends.registry import check

    found = None if name is None else str(name)
    if found == "meta":
        raise DeviceError('device "meta": weft has no tensors without content; leave it out')
    if found in (None, "cpu"):
        return None
    check(found)
    return found


def taken(options: dict[str, Any]) -> Callable[[Any], Any] | None:
    """Takes the device out of the options of a call that makes a tensor: what moves the result
    there, if it is not the host."""
    device = options.get("device")
    device = chosen() if device is None else device
    if device is None or str(device).partition(":")[0] == "cpu" or CURRENT.trace is not None:
        return None
    options["device"] = None
    leaf = bool(options.pop("requires_grad", False))

    def move(made: Any) -> Any:
        found = moved(made, device)
        return found.requires_grad_() if leaf else found

    return move


def moved(x: Any, device: Any) -> Any:
    """On a device; 64-bit integers are int32 there."""
    device = str(device) if isinstance(device, Device) else device
    far = not isinstance(device, str) or device.partition(":")[0] != "cpu"
    if far and x.dtype == dt.int64:
        x = x._wrap(program_array(x._host("to()"), "to"))
    return Tensor.to(x, device)
