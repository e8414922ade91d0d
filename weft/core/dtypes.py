"""Data types and the casting rules between them.

Every dtype knows its NumPy counterpart, so the oracle (NumPy) and the devices agree on what a value
is. Promotion follows the Python array API standard (2024.12, "Type promotion rules"). bfloat16
ranks with float16: the two promote to float32.
"""

from __future__ import annotations

from typing import Literal

import ml_dtypes
import numpy as np

from weft.core.errors import DTypeError
from weft.core.records import dataclass

Kind = Literal["bool", "uint", "int", "float"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name, size in bytes and kind."""

    name: str
    itemsize: int
    kind: Kind

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype with the same values (bfloat16 comes from ml_dtypes)."""
        return _TO_NUMPY[self.name]

    @property
    def is_float(self) -> bool:
        """True for floats of any width."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """True for signed and unsigned integers; a bool is not one."""
        return self.kind in ("int", "uint")

    @property
    def is_floating_point(self) -> bool:
        """`is_float` by PyTorch's name."""
        return self.is_float

    @property
    def is_signed(self) -> bool:
        """True for floats and signed integers."""
        return self.kind in ("int", "float")

    is_complex = False

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, DType) and self.name == other.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __deepcopy__(self, memo: object) -> DType:
        return self  # there is one of each: dtypes are compared by identity


bool_ = DType("bool", 1, "bool")
int8 = DType("int8", 1, "int")
uint8 = DType("uint8", 1, "uint")
int16 = DType("int16", 2, "int")  # host only, as are uint16 and uint64
uint16 = DType("uint16", 2, "uint")
int32 = DType("int32", 4, "int")
uint32 = DType("uint32", 4, "uint")
int64 = DType("int64", 8, "int")  # host only: token ids and indices at the edges
uint64 = DType("uint64", 8, "uint")
float16 = DType("float16", 2, "float")
bfloat16 = DType("bfloat16", 2, "float")
float32 = DType("float32", 4, "float")
float64 = DType("float64", 8, "float")  # host only: the oracle's finite differences

INTS = (int8, uint8, int16, uint16, int32, uint32, int64, uint64)
ALL = (bool_, *INTS, float16, bfloat16, float32, float64)
DEVICE = (bool_, int8, uint8, int32, uint32, float16, bfloat16, float32)

_BY_NAME = {d.name: d for d in ALL}
_BY_NAME |= {"f16": float16, "bf16": bfloat16, "f32": float32, "f64": float64, "bool_": bool_}
_BY_NAME |= {f"{d.kind[0]}{8 * d.itemsize}": d for d in INTS}  # "i8", "u32", ...
_TO_NUMPY = {d.name: np.dtype(d.name) for d in ALL if d is not bfloat16}
_TO_NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
_FROM_NUMPY = {v: _BY_NAME[k] for k, v in _TO_NUMPY.items()}


def as_dtype(value: object) -> DType:
    """The DType meant by a DType, a name ("float32", "bf16") or a NumPy dtype.

    Raises DTypeError for anything else, naming the supported types.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, np.dtype) and (known := _FROM_NUMPY.get(value)) is not None:
        return known
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    try:  # np.dtype(None) is float64
        found = None if value is None else _FROM_NUMPY.get(np.dtype(value))  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError):  # NumPy parses a string with a comma as Python
        found = None
    if found is None:
        names = ", ".join(d.name for d in ALL)
        raise DTypeError(f"unsupported dtype {value!r:.60}; use one of {names}")
    return found


def promote(a: DType, b: DType) -> DType:
    """Returns the dtype that holds both (array API promotion).

    bool + x = x; int + float = the float; a signed with an unsigned integer gives the next wider
    signed one. Raises DTypeError for uint64 with a signed integer, which no integer dtype holds.
    """
    if a is b:
        return a
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.is_float and b.is_float:
        if a.itemsize == b.itemsize:
            return float32  # float16 with bfloat16
        return a if a.itemsize > b.itemsize else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.kind == b.kind:
        return a if a.itemsize > b.itemsize else b
    unsigned, signed = (a, b) if a.kind == "uint" else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    wider = {uint8: int16, uint16: int32, uint32: int64}.get(unsigned)
    if wider is None:
        raise DTypeError(f"uint64 with {signed.name}: no integer dtype holds both; cast one first")
    return wider


def compute_dtype(dtype: DType) -> DType:
    """The dtype that arithmetic on `dtype` is done in: f32 for f16 and bf16, else itself."""
    return float32 if dtype in (float16, bfloat16) else dtype
