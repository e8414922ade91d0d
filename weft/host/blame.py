"""Tells a caller's mistake from a fault in weft, by a Python error out of a public function.

The caller is, if the error's subject can have come with the call: a lookup of one of the arguments,
of its type or dtype, or an attribute or operation that an argument's type lacks. Otherwise weft
looked up or computed something of its own, and no other arguments would help. Errors about numbers,
sizes and positions may always follow from an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

MOST = 200  # values of the arguments that are looked at; beyond them the caller is to blame
_ABOUT = re.compile(r"'([\w.]+)' object is not")
# Types whose values weft makes of other arguments: sizes, names, dtypes.
_NUMBERS = re.compile(r"(builtins\.)?(int|float|bool|complex|str)$|numpy\.")
_PASSED_ON = 0x04 | 0x08  # of a code's co_flags: the function takes *args or **kwargs
_SIGNATURE = re.compile(r"[\w>]\(\) (got an unexpected|got multiple|missing \d|takes )")


def is_internal(error: BaseException, given: Any) -> bool:
    """True if `error`, which a function raised, cannot be due to `given`, its arguments."""
    if isinstance(error, AssertionError | NameError):
        return True
    if not isinstance(error, KeyError | AttributeError | TypeError):
        return False
    found = list(_values(given))
    if len(found) >= MOST or any(callable(x) and not isinstance(x, type) for x in found):
        return False  # an argument is a function or module: the error may be inside of it
    if isinstance(error, KeyError):
        return not any(_is_of(part, found) for part in _parts(error.args))
    kinds = {type(x).__name__ for x in found}
    if isinstance(error, AttributeError):
        known = error.obj is not None or "NoneType" in str(error)
        kind = type(error.obj)
        return (
            known
            and not _NUMBERS.match(f"{kind.__module__}.{kind.__name__}")
            and (kind.__name__ not in kinds)
        )
    if _SIGNATURE.search(str(error)):
        return _own_call(error)
    about = _ABOUT.search(str(error))
    if about is None or _NUMBERS.match(about[1]):
        return False
    return about[1].rpartition(".")[2] not in kinds


def _values(given: Any, depth: int = 4) -> Iterator[Any]:
    """The values in nested arguments, containers included, at most MOST of them."""
    left, stack = MOST, [(given, depth)]
    while stack and left:
        value, below = stack.pop()
        left -= 1
        yield value
        if below and isinstance(value, Mapping):
            stack += [(x, below - 1) for pair in list(value.items())[:MOST] for x in pair]
        elif below and isinstance(value, list | tuple | set | frozenset):
            stack += [(x, below - 1) for x in list(value)[:MOST]]
        elif isinstance(value, np.ndarray) and value.dtype == object:
            stack += [(x, below - 1) for x in value.flat[:MOST]]


def _parts(key: Any) -> Iterator[Any]:
    if isinstance(key, tuple):
        for part in key:
            yield from _parts(part)
    else:
        yield key


def _is_of(key: Any, found: list[Any]) -> bool:
    """True if a key is an argument, part of its text, or its type, dtype, kind or rank."""
    for x in found:
        if key is x or key is type(x) or key == getattr(x, "ndim", None):
            return True
        if isinstance(x, str | int | float | bytes) and key == x:
            return True
        dtype = getattr(x, "dtype", x)
        if key is dtype or key in (getattr(dtype, "name", dtype), getattr(dtype, "kind", "")):
            return True
        if isinstance(x, str) and isinstance(key, str) and key and key.lower() in x.lower():
            return True
    return False


def _own_call(error: BaseException) -> bool:
    """True if a call that does not fit was written in weft: not by the caller, and not passed on
    with *args or **kwargs."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    ours = str(trace.tb_frame.f_globals.get("__name__")).startswith("weft.")
    return ours and not trace.tb_frame.f_code.co_flags & _PASSED_ON
