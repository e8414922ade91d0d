"""The safetensors format for a Program's constants: an 8-byte length, a JSON header, raw data.

Source: https://github.com/huggingface/safetensors (format section of its README).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import as_dtype
from weft.core.errors import FileFormatError

_NAMES = {
    **{d: f"{d.kind[0].upper()}{8 * d.itemsize}" for d in dt.INTS},
    dt.bool_: "BOOL", dt.float16: "F16", dt.bfloat16: "BF16", dt.float32: "F32", dt.float64: "F64",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dumps(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays as one safetensors file; data starts and stays 8-byte aligned."""
    header: dict[str, object] = {}
    chunks: list[bytes] = []
    at = 0
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        dtype = _NAMES[as_dtype(array.dtype)]
        header[name] = {
            "dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(raw)],
        }  # fmt: skip
        chunks.append(raw + b"\0" * (-len(raw) % 8))
        at += len(chunks[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *chunks])


def loads(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of `dumps` (read-only views of `data`). Raises FileFormatError."""
    if len(data) < 8:
        raise FileFormatError("the constants are truncated")
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise FileFormatError(f"the constants' header has {length} of {len(data) - 8} bytes")
    try:
        header = json.loads(data[8 : 8 + length])
        if not isinstance(header, dict):
            raise FileFormatError("the constants' header is not an object")
        body = memoryview(data)[8 + length :]
        return {name: _array(name, entry, body) for name, entry in header.items()}
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"the constants are damaged: {error}") from error


def _array(name: str, entry: dict[str, Any], body: memoryview) -> np.ndarray:
    dtype, shape = entry["dtype"], entry["shape"]
    start, stop = entry["data_offsets"]
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    numbers = [start, stop, *shape]
    if found is None or not all(type(n) is int and n >= 0 for n in numbers):
        raise FileFormatError(f"constant {name!r} has dtype {dtype!r}, shape {shape!r}")
    nbytes = math.prod(shape) * found.itemsize
    if stop - start != nbytes or stop > len(body):
        raise FileFormatError(f"constant {name!r}: bytes {start}..{stop} do not hold {shape}")
    values = np.frombuffer(body[start:stop], found.numpy)
    return values.reshape(shape)
