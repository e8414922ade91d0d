"""The form of a traced model on its way between processes and on disk: JSON, read with checks."""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import DType, as_dtype
from weft.core.errors import DTypeError, FileFormatError
from weft.importers.ports import Ref
from weft.importers.steps import refs
from weft.importers.torch_export.graph import CallNode

PLAIN = (int, float, str, bool, type(None))


def refs_of(call: CallNode) -> list[str]:
    """Returns the names of the values that a call reads."""
    return refs((call.args, call.kwargs))


def value_data(value: Any) -> Any:
    """Returns an argument as JSON holds it: {"ref": name}, {"dtype": name}, {"float": text} for
    numbers that are not finite, lists, and plain values."""
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, list | tuple):
        return [value_data(x) for x in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {"float": str(value)}
    if isinstance(value, PLAIN):
        return value
    raise TypeError(f"an argument of type {type(value).__name__}")


def value_of(data: Any) -> Any:
    """Returns the argument that `value_data` wrote. Raises FileFormatError."""
    if isinstance(data, list):
        return [value_of(x) for x in data]
    if isinstance(data, dict) and len(data) == 1:
        ((kind, text),) = data.items()
        if isinstance(text, str):
            try:
                if kind == "ref":
                    return Ref(text)
                if kind == "dtype":
                    return as_dtype(text)
                if kind == "float":
                    return float(text)
            except (DTypeError, ValueError):
                pass
    if isinstance(data, PLAIN):
        return data
    raise FileFormatError(f"a traced model with an argument {data!r:.60}")


def call_data(call: CallNode) -> list[Any]:
    """Returns a call as JSON holds it."""
    kwargs = {k: value_data(v) for k, v in call.kwargs.items()}
    out = call.out if isinstance(call.out, str) else list(call.out)
    return [call.target, value_data(call.args), kwargs, out, call.where]


def call_of(data: Any) -> CallNode:
    """Returns the call that `call_data` wrote. Raises FileFormatError."""
    try:
        target, args, kwargs, out, where = data
        named = {str(k): value_of(v) for k, v in kwargs.items()}
        outs = out if isinstance(out, str) else tuple(map(str, out))
        return CallNode(str(target), list(value_of(args)), named, outs, str(where))
    except (TypeError, ValueError, AttributeError):
        raise FileFormatError(f"a traced model with a call {data!r:.60}") from None
