"""The inputs of an imported graph: what a call passes, checked and by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import CallError, DTypeError, ShapeError
from weft.host.foreign import is_foreign
from weft.tensor.core import Tensor, tensor

INT32 = np.iinfo(np.int32)
Bounds = Mapping[str, tuple[int, int | None]]  # the least and the most of sizes, by name


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of that name, among the arguments of a Step or in a result."""

    name: str


@dataclass(frozen=True, slots=True)
class DerivedSize:
    """A size that follows from others: `of` gives it from the sizes by name, None if it cannot be
    computed."""

    text: str
    of: Callable[[Mapping[str, int]], int | None]


def _text(size: int | str | DerivedSize | None) -> str:
    return "?" if size is None else size.text if isinstance(size, DerivedSize) else label(str(size))


@dataclass(frozen=True, slots=True)
class Port:
    """An input or a result. A size is a number, the name of one that calls decide, a Size, or None
    (any). shape None is any rank, dtype None any dtype; NumPy's dtypes are those that devices may
    lack. `constant` inputs must equal `value`. `kind` names the kind of a value that is not a
    tensor."""

    name: str
    shape: tuple[int | str | DerivedSize | None, ...] | None = None
    dtype: DType | np.dtype[Any] | None = None
    constant: bool = False
    value: Any = None
    kind: str = "tensor"

    def text(self) -> str:
        """The port as errors and `weft explain` show it: "x: float32[batch, 3]"."""
        name = label(self.name)
        if self.constant:
            return f"{name} = {self.value!r}"
        if self.kind != "tensor":
            return f"{name}: {self.kind}"
        kind = "" if self.dtype is None else self.dtype.name
        if self.shape is None:
            return f"{name}: {kind}[...]" if kind else f"{name}: a tensor"
        if not kind and not self.shape:
            return f"{name}: a size"
        return f"{name}: {kind}[{', '.join(_text(s) for s in self.shape)}]"


def label(name: str) -> str:
    """A name of a file's as errors and terminals may show it."""
    return name if len(name) <= 80 and name.isprintable() else ascii(name)[:80]


def bound(
    name: str, ports: Sequence[Port], arguments: Mapping[str, Any], bounds: Bounds,
    args: Sequence[Any], kwargs: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The inputs of a call by name, checked; `name` is the module's, for errors. `arguments` and
    `bounds` are those of imported.Plan."""
    given = named(name, ports, arguments, args, kwargs)
    found = {p.name: _taken(name, p, given.get(p.name, p.value)) for p in ports}
    _check_sizes(name, ports, bounds, found)
    return found


def named(
    name: str, ports: Sequence[Port], arguments: Mapping[str, Any], args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The arguments of a call, by the names of the inputs. Raises CallError unless each input is
    passed exactly once."""
    wanted = ", ".join(p.text() for p in ports)
    arguments = arguments or {p.name: Ref(p.name) for p in ports}
    passed = dict(zip(arguments, args))
    unknown = [k for k in kwargs if k not in arguments or k in passed]
    if len(args) > len(arguments) or unknown:
        what = f"no input {unknown[0]!r:.80} is left" if unknown else f"{len(args)} inputs"
        raise CallError(f"{name}: {what}; expected ({wanted})")
    given: dict[str, Any] = {}
    for argument, value in {**passed, **kwargs}.items():
        if not _matched(arguments[argument], value, given):
            raise CallError(f"{name}: {argument} does not nest as it was; expected ({wanted})")
    missing = [p.name for p in ports if p.name not in given and not p.constant]
    if missing:
        shown = ", ".join(map(label, missing))
        raise CallError(f"{name}: input {shown} is missing; expected ({wanted})")
    return given


def _matched(nest: Any, value: Any, found: dict[str, Any]) -> bool:
    """Collects the values at the Refs of `nest`; False if they nest differently."""
    if isinstance(nest, Ref):
        found[nest.name] = value
        return True
    if isinstance(nest, dict):
        same = isinstance(value, Mapping) and set(value) == set(nest)
        return same and all(_matched(nest[k], value[k], found) for k in nest)
    same = isinstance(value, list | tuple) and len(value) == len(nest)
    return same and all(_matched(n, v, found) for n, v in zip(nest, value))


def _taken(name: str, port: Port, value: Any) -> Any:
    """One input as a Tensor of the port's dtype, or the constant that it must be."""
    if port.constant:
        if type(value) is not type(port.value) or value != port.value:
            raise CallError(
                f"{name}: {port.name} is {value!r}; the graph was made for {port.value!r} only"
            )
        return value
    if port.shape == () and port.dtype is None and isinstance(value, int):
        return value  # a size
    if not isinstance(value, Tensor):
        if not (isinstance(value, np.ndarray | bool | int | float | list) or is_foreign(value)):
            raise CallError(f"{name}: {port.name} is {type(value).__name__}, expected a tensor")
        value = tensor(value)
    taken = as_int32(value, f"{name}: {port.name}")
    if port.dtype is not None and taken.dtype != port.dtype:
        raise DTypeError(f"{name}: {port.text()}, not {value.dtype.name}; cast the value")
    return taken


def as_int32(value: Tensor, what: str) -> Tensor:
    """A tensor of int64 as int32, others as they are. Raises DTypeError, which begins with `what`,
    for values on the host that int32 does not hold."""
    if value.dtype != dt.int64:
        return value
    array = None if value.is_traced else value.numpy()
    if array is not None and array.size and not (
        INT32.min <= int(array.min()) and int(array.max()) <= INT32.max
    ):  # fmt: skip
        raise DTypeError(f"{what} holds {array.min()} to {array.max()}; int32 is what weft has")
    return value.cast(dt.int32)


def _check_sizes(
    name: str, ports: Sequence[Port], bounds: Bounds, found: Mapping[str, Any]
) -> None:
    """Raises ShapeError unless each size is the one wanted, and within its bounds."""
    sizes: dict[str, int] = {}
    ports = [p for p in ports if p.shape is not None and isinstance(found[p.name], Tensor)]
    for port in ports:
        assert port.shape is not None
        shape = found[port.name].shape
        if len(shape) != len(port.shape):
            raise ShapeError(f"{name}: {port.text()}, not {list(shape)}")
        for want, have in zip(port.shape, shape):
            known = sizes.setdefault(want, have) if isinstance(want, str) else want
            if isinstance(known, int) and known != have:
                also = f", where {want} is {known}" if isinstance(want, str) else ""
                raise ShapeError(f"{name}: {port.text()}, not {list(shape)}{also}")
    for port in ports:
        for want, have in zip(port.shape or (), found[port.name].shape):
            if isinstance(want, DerivedSize) and want.of(sizes) not in (None, have):
                raise ShapeError(f"{name}: {port.text()}: {have} for {want.text}, sizes {sizes}")
    for size, (least, most) in bounds.items():
        have = sizes.get(size, least)
        if have < least or (most is not None and have > most):
            where = next((p.text() for p in ports if size in (p.shape or ())), size)
            upper = "" if most is None else f" to {most}"
            raise ShapeError(f"{name}: {where}: {size} is {have}; exported for {least}{upper}")
