"""Element types of ONNX, tensors of a file, and casts between arrays of either kind."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, FileFormatError, LimitError
from weft.importers.onnx.table import NodeCall, Value, is_host
from weft.tensor.core import Tensor

INT4, UINT4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)
# TensorProto.DataType -> NumPy. Those that weft's dtypes lack live on the host alone.
NUMPY: dict[int, np.dtype] = {
    1: np.dtype(np.float32), 2: np.dtype(np.uint8), 3: np.dtype(np.int8), 4: np.dtype(np.uint16),
    5: np.dtype(np.int16), 6: np.dtype(np.int32), 7: np.dtype(np.int64), 9: np.dtype(np.bool_),
    10: np.dtype(np.float16), 11: np.dtype(np.float64), 12: np.dtype(np.uint32),
    13: np.dtype(np.uint64), 16: np.dtype(ml_dtypes.bfloat16), 21: UINT4, 22: INT4,
}  # fmt: skip
NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn", 18: "float8e4m3fnuz",
    19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1",
    24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip
HOST_ONLY = {np.dtype(t) for t in (np.int16, np.uint16, np.uint64)}
_CODES = {v: k for k, v in NUMPY.items()}
MOST = 1 << 40  # bytes of one tensor: a larger size is false, whatever the file says
MOST_PLACES = 1 << 26


def numpy_type(code: int, what: str) -> np.dtype:
    """The NumPy dtype of an element type. Raises DTypeError for one that weft lacks."""
    if code not in NUMPY:
        known = ", ".join(NAMES[c] for c in NUMPY)
        raise DTypeError(f"{what}: {NAMES.get(code, f'type {code}')}; weft reads {known}")
    return NUMPY[code]


def type_code(x: Value) -> int:
    """The element type of a value."""
    dtype = x.dtype if is_host(x) else x.dtype.numpy
    return _CODES[dtype]


def numpy_dtype(x: Value) -> np.dtype:
    """The NumPy dtype of an array of either kind."""
    found: np.dtype = x.dtype if is_host(x) else x.dtype.numpy
    return found


def is_float(x: Value) -> bool:
    """True if the elements are floats."""
    return not is_int(x) and numpy_dtype(x) != np.bool_


def is_int(x: Value) -> bool:
    """True if the elements are integers."""
    return numpy_dtype(x).kind in "iu" or numpy_dtype(x) in (INT4, UINT4)


def widened(x: Value) -> Value:
    """float16 and bfloat16 as float32, in which they are added up; others as they are."""
    if isinstance(x, Tensor):
        return x.cast(dt.compute_dtype(x.dtype))
    if is_host(x) and x.dtype in (dt.float16.numpy, dt.bfloat16.numpy):
        return x.astype(np.float32)
    return x


def cast(call: NodeCall, x: Value, dtype: np.dtype) -> Value:
    """A value as another element type: on devices int64 is int32, and what weft's dtypes lack is
    computed on the host."""
    if dtype in HOST_ONLY and not is_host(x):
        x = call.host(x, f"what becomes {dtype.name}")
    if is_host(x):
        with np.errstate(all="ignore"):
            made: np.ndarray = x.astype(dtype)
        return made
    if dtype in (INT4, UINT4):
        low, high = (-8, 7) if dtype == INT4 else (0, 15)
        return x.cast(dt.int32).clip(low, high).cast(dt.int8 if dtype == INT4 else dt.uint8)
    return x.cast(call.run.device_dtype(dtype))


def elements(dims: Any, what: str) -> int:
    """The number of elements of a shape. Raises FileFormatError for a shape that no tensor has."""
    if any(d < 0 for d in dims) or len(dims) > 32:
        raise FileFormatError(f"{what}: dims {list(dims)[:40]}; sizes are at least 0, axes 32")
    count: int = math.prod(dims)
    if count > MOST:
        raise FileFormatError(f"{what}: dims {list(dims)} hold {count} elements")
    return count


def places(count: int, what: str) -> np.ndarray:
    """0..count - 1, from which the host computes positions of elements. Raises LimitError for more
    elements than an axis can have in memory."""
    if count > MOST_PLACES:
        raise LimitError(f"{what}: {count} places; at most {MOST_PLACES}")
    return np.arange(count)


def byte_count(code: int, count: int) -> int:
    """Bytes of raw data of `count` elements."""
    dtype = NUMPY[code]
    return -(-count // 2) if dtype in (INT4, UINT4) else count * dtype.itemsize


def from_bytes(code: int, data: Any, dims: tuple[int, ...], what: str) -> np.ndarray:
    """A tensor's elements from little-endian bytes, whose number is checked."""
    count = elements(dims, what)
    if len(data) != byte_count(code, count):
        raise FileFormatError(
            f"{what}: {len(data)} bytes of data for {NAMES[code]}{list(dims)}, which takes "
            f"{byte_count(code, count)}; the file is damaged"
        )
    dtype = NUMPY[code]
    if dtype in (INT4, UINT4):
        return unpacked(np.frombuffer(data, np.uint8), count, dtype).reshape(dims)
    array = np.frombuffer(data, dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype)
    return array.astype(dtype, copy=False).reshape(dims)


def unpacked(data: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
    """4-bit numbers, two to a byte and the low ones first, as int8 or uint8."""
    both = np.stack([data & 15, data >> 4], 1).reshape(-1)[:count]
    return (both ^ 8).astype(np.int8) - 8 if dtype == INT4 else both.astype(np.uint8)


def parsed(tensor: Any, what: str, external: Any) -> np.ndarray:
    """A TensorProto as an array. Raises FileFormatError if its sizes do not agree, DTypeError for a
    type that weft lacks. `external` reads data in another file."""
    code = tensor.data_type
    dtype = numpy_type(code, what)
    dims = tuple(tensor.dims)
    count = elements(dims, what)
    if tensor.HasField("segment"):
        raise FileFormatError(f"{what}: comes in segments, which no version of ONNX defines yet")
    if tensor.data_location == 1:
        return from_bytes(code, external(tensor, byte_count(code, count), what), dims, what)
    if tensor.HasField("raw_data"):
        return from_bytes(code, tensor.raw_data, dims, what)
    if dtype in (INT4, UINT4):
        bytes_ = np.array(tensor.int32_data, np.int64).astype(np.uint8)
        return from_bytes(code, bytes_.tobytes(), dims, what)
    field = {1: "float_data", 11: "double_data", 7: "int64_data", 12: "uint64_data",
             13: "uint64_data"}.get(code, "int32_data")  # fmt: skip
    data = getattr(tensor, field)
    if len(data) != count:
        raise FileFormatError(f"{what}: {len(data)} numbers for {NAMES[code]}{list(dims)}")
    if code in (10, 16):
        return np.array(data, np.int64).astype(np.uint16).view(dtype).reshape(dims)
    return (
        np.array(data, dtype.type if field != "int32_data" else np.int64)
        .astype(dtype)
        .reshape(dims)
    )
