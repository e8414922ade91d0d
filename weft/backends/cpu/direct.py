"""Programs called from Python in one step: a C function that takes the arrays themselves.

`weft_call` (runtime_call.py) reads an array's type, dtype, shape and address where CPython and
NumPy keep them. That layout has been the same in all versions of NumPy since 1.7, and `supported`
verifies it on sample arrays. Where it differs, Programs are called in another way.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.cpu.runtime_call import (
    DATA,
    DTYPE,
    FLAGS,
    HEADER,
    NDIM,
    OPERAND,
    SHAPE,
    TYPE,
)  # fmt: skip
from weft.backends.cpu.table import ProgramTable
from weft.backends.cpu.threads import Workers

_FASTCALL = 0x80  # METH_FASTCALL: called with an array of arguments


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


def caller(
    table: ProgramTable,
    functions: Mapping[str, int],
    operands: Sequence[tuple[int, tuple[int, ...], np.dtype]],
    workers: Workers,
    small: bool,
    holder: type | None = None,
    keep: object = None,
) -> Callable[..., int] | None:
    """Returns a function of one array per operand (Program buffer, shape and dtype) that runs the
    table.

    The function reads and writes the arrays in place and returns 1. It does nothing and returns 0
    if one is not a contiguous, aligned np.ndarray of exactly that shape and dtype. An argument may
    also be a `holder`, an object with such an array in a slot `_value`. A `small` Program runs
    without the workers and keeps Python's lock.
    The function owns the table and keeps `keep` alive. Returns None where this Python does not
    allow such calls.
    """
    held_at = _slot(holder) if holder is not None and supported() else 0
    if not supported() or held_at is None:
        return None
    header = {
        "count": len(operands), "table": table.address, "steps": table.steps,
        "scalars": table.scalars_address, "scratch": workers.scratch(locked=small),
        "array": id(np.ndarray), "holder": 0 if holder is None else id(holder), "held_at": held_at,
        "long": _python("PyLong_FromLong"), "pool": 0 if small else workers.pool,
        "save": 0 if small else _python("PyEval_SaveThread"),
        "restore": 0 if small else _python("PyEval_RestoreThread"),
    }  # fmt: skip
    words = [header[name] for name in HEADER]
    tail: list[int] = []  # targets of the operands' words, stored after all of them
    start = len(words) + len(OPERAND) * len(operands)
    pointers: list[int] = []  # words that point into the tail
    for buffer, shape, dtype in operands:
        uses = table.uses(buffer)
        own = {
            "dtype": id(dtype), "ndim": len(shape), "many": len(uses),
            "shape": 8 * (start + len(tail)), "uses": 8 * (start + len(tail) + len(shape)),
        }  # fmt: skip
        pointers += [len(words) + OPERAND.index(name) for name in ("shape", "uses")]
        words += [own[name] for name in OPERAND]
        tail += [*shape, *(number for use in uses for number in use)]
    known = np.array(words + tail, np.uint64).view(_Words)
    known.kept = (table, operands, holder, keep)
    known[pointers] += np.uint64(known.ctypes.data)
    made = _function(functions["weft_call"], known)
    return made if small else workers.guarded(made)


def _python(name: str) -> int:
    """The address of a function of CPython's."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


class _Words(np.ndarray):
    """The words that weft_call reads about one Program, and the objects whose addresses they
    hold."""

    kept: Any = None


_methods: dict[int, _Method] = {}  # a function's definition outlives it


def _function(address: int, words: _Words) -> Callable[..., int]:
    """A function of Python's over C code whose `self` is `words`."""
    method = _methods.setdefault(address, _Method(b"weft_call", address, _FASTCALL, None))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    made: Callable[..., int] = make(ctypes.addressof(method), words, None)
    return made


@functools.cache
def supported() -> bool:
    """True if this Python's arrays have the memory layout that weft_call reads."""
    if platform.python_implementation() != "CPython" or sys.maxsize < 1 << 32:
        return False
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # objects have another header there
        return False
    some = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    samples = (some, some[1:], some.T, some[..., ::2], some[0, 0, 0:0], np.zeros((), np.int32))
    return all(map(_as_expected, samples))


def _as_expected(a: np.ndarray) -> bool:
    """True if one array's fields are where they should be."""
    at = id(a)
    shape = (ctypes.c_int64 * a.ndim).from_address(_pointer(at + SHAPE)) if a.ndim else ()
    return (
        object.__sizeof__(a) >= FLAGS + 4
        and _pointer(at + TYPE) == id(type(a))
        and _pointer(at + DATA) == a.ctypes.data
        and _pointer(at + DTYPE) == id(a.dtype)
        and ctypes.c_int32.from_address(at + NDIM).value == a.ndim
        and ctypes.c_int32.from_address(at + FLAGS).value == a.flags.num
        and tuple(shape) == a.shape
    )


def _pointer(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


@functools.cache
def _slot(holder: type) -> int | None:
    """The byte at which objects of a class keep what is in their slot `_value`; None if unknown."""
    made: Any = object.__new__(holder)
    value = np.zeros(1)
    made._value = value
    words = range(16, holder.__basicsize__, 8)
    found = [at for at in words if _pointer(id(made) + at) == id(value)]
    return found[0] if len(found) == 1 else None
