"""Dataclasses and named tuples as JSON values and back, each field checked against its declaration.

Only fields that differ from their defaults are written, so that a later version, which has more of
them, reads what an earlier one wrote.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, FileFormatError

Record = TypeVar("Record")
_REQUIRED = object()
_DEEPEST = 8  # nesting of records and tuples
_PLAIN: dict[Any, Callable[[Any], bool]] = {
    bool: lambda v: type(v) is bool,
    int: lambda v: type(v) is int and -(1 << 63) <= v < 1 << 63,
    float: lambda v: type(v) in (int, float) and math.isfinite(v),
    str: lambda v: type(v) is str and len(v) <= 1 << 16,
    NoneType: lambda v: v is None,
}


def to_data(value: Any) -> Any:
    """A dataclass or named tuple, and whatever `from_data` reads within one, as a JSON value."""
    if isinstance(value, DType):
        return value.name
    if is_dataclass(value) or hasattr(value, "_fields"):
        kind: Any = type(value)
        defaults = _defaults(kind)
        given = {name: getattr(value, name) for name in defaults}
        return {n: to_data(v) for n, v in given.items() if v != defaults[n]}
    if isinstance(value, frozenset):
        return sorted(map(to_data, value))
    if isinstance(value, tuple | list):
        return [to_data(v) for v in value]
    if isinstance(value, dict):
        return {k: to_data(v) for k, v in value.items()}
    return value


def from_data(kind: type[Record], data: Any, where: str) -> Record:
    """Returns the `kind` from which `to_data` made `data`. Raises FileFormatError, which names
    `where` and the field, for other data."""
    made: Record = _read(kind, data, where, 0)
    return made


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Field -> default, or _REQUIRED."""
    if not is_dataclass(kind):
        defaults: dict[str, Any] = kind._field_defaults
        return dict.fromkeys(kind._fields, _REQUIRED) | defaults
    made = {}
    for f in fields(kind):
        made[f.name] = f.default
        if f.default_factory is not MISSING:
            made[f.name] = f.default_factory()
    return {name: _REQUIRED if d is MISSING else d for name, d in made.items()}


_hints = functools.cache(get_type_hints)


def _read(kind: Any, data: Any, where: str, depth: int) -> Any:
    if kind in _PLAIN:
        if _PLAIN[kind](data):
            return float(data) if kind is float else data
    elif depth >= _DEEPEST:
        pass
    elif kind is DType:
        if isinstance(data, str):
            try:
                return as_dtype(data)
            except DTypeError:
                pass
    elif get_origin(kind) is Literal:
        if any(data == v and type(data) is type(v) for v in get_args(kind)):
            return data
    elif get_origin(kind) in (Union, UnionType):
        return _either(get_args(kind), data, where, depth)
    elif get_origin(kind) in (tuple, frozenset, list):
        if isinstance(data, list):
            return _several(kind, data, where, depth + 1)
    elif get_origin(kind) is dict:
        if isinstance(data, dict):
            inner = get_args(kind)[1]
            return {k: _read(inner, v, f"{where}.{k[:60]}", depth + 1) for k, v in data.items()}
    elif isinstance(data, dict):
        return _record(kind, data, where, depth + 1)
    elif isinstance(data, list) and hasattr(kind, "_fields") and len(data) == len(kind._fields):
        return _record(kind, dict(zip(kind._fields, data)), where, depth + 1)
    raise FileFormatError(f"{where} is {str(data)[:60]!r}; expected {_said(kind)}")


def _either(kinds: tuple[Any, ...], data: Any, where: str, depth: int) -> Any:
    """Reads a field whose declared type is one type or None."""
    if data is None and NoneType in kinds:
        return None
    kind = next(k for k in kinds if k is not NoneType)
    return _read(kind, data, where, depth)


def _several(kind: Any, data: list[Any], where: str, depth: int) -> Any:
    given, made = get_args(kind), get_origin(kind)
    if made is not tuple or given[-1] is ...:
        given = (given[0],) * len(data)
    if len(given) != len(data):
        raise FileFormatError(f"{where} has {len(data)} entries; expected {len(given)}")
    parts = (_read(k, v, f"{where}[{i}]", depth) for i, (k, v) in enumerate(zip(given, data)))
    return made(parts)


def _record(kind: Any, data: dict[str, Any], where: str, depth: int) -> Any:
    defaults, hints = _defaults(kind), _hints(kind)
    unknown = min(data.keys() - defaults.keys(), default=None)
    if unknown is not None:
        raise FileFormatError(f"{where} has a field {unknown[:60]!r} that this weft does not know")
    missing = [n for n, d in defaults.items() if d is _REQUIRED and n not in data]
    if missing:
        raise FileFormatError(f"{where} lacks {missing[0]!r}")
    given = {n: _read(hints[n], v, f"{where}.{n}", depth) for n, v in data.items()}
    return kind(**given)


def _said(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
