"""The spelling of types and constants in LLVM IR."""

from __future__ import annotations

import struct

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.kernel.ir import Type

# In registers: bfloat16 travels as its 16 bits, bool as i1. In memory a bool is one byte.
REGISTER = {
    dt.float32: "float", dt.float16: "half", dt.bfloat16: "i16", dt.int32: "i32",
    dt.uint32: "i32", dt.int8: "i8", dt.uint8: "i8", dt.bool_: "i1",
}  # fmt: skip
MEMORY = {**REGISTER, dt.bool_: "i8"}
_SUFFIX = {"float": "f32", "half": "f16"}


def register(type_: Type) -> str:
    """The LLVM type that a value of this Type has in registers."""
    return vector(REGISTER[type_.dtype], type_.lanes)


def memory(type_: Type) -> str:
    """The LLVM type that a value of this Type has in memory."""
    return vector(MEMORY[type_.dtype], type_.lanes)


def vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def pointer(space: int) -> str:
    """The LLVM type of a pointer into an address space."""
    return f"ptr addrspace({space})" if space else "ptr"


def mangle(element: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic's name: f32, v16f32, v8i1, ..."""
    name = _SUFFIX.get(element, element)
    return name if lanes == 1 else f"v{lanes}{name}"


def constant(value: float | int | bool, type_: Type) -> str:
    """The operand text of a constant (a vector constant has the value in every lane)."""
    text = _scalar(value, type_.dtype)
    return text if type_.lanes == 1 else f"splat ({REGISTER[type_.dtype]} {text})"


def _scalar(value: float | int | bool, dtype: DType) -> str:
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_int:
        bits = dtype.itemsize * 8
        wrapped = int(value) & ((1 << bits) - 1)
        return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
    with np.errstate(over="ignore"):
        if dtype == dt.float16:
            return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
        if dtype == dt.bfloat16:
            bits16 = int(np.array([value], np.float32).astype(dtype.numpy).view(np.int16)[0])
            return str(bits16)
        return f"0x{struct.pack('>d', float(np.float32(value))).hex().upper()}"
