"""The fixed binary form in which an array travels: a header of 12 int64, then its bytes.

    MAGIC, FORM, dtype (its place in DTYPES), number of axes, 8 sizes (0 for a missing axis)

A rank of the other byte order, or of another form, does not find MAGIC and FORM there.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from weft.core.errors import RankError, UsageError

MAGIC, FORM = 0x7766_7472_616E_6B73, 1
AXES = 8
HEADER = 4 + AXES  # int64
DTYPES = tuple(
    np.dtype(t)
    for t in (
        np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
        np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
    )
)  # fmt: skip


def header(array: np.ndarray) -> np.ndarray:
    """int64 [HEADER] of an array. Raises UsageError for one that has no such form."""
    if array.dtype not in DTYPES or array.ndim > AXES or not array.flags.c_contiguous:
        raise UsageError(
            f"{array.dtype}{list(array.shape)} cannot travel: give a C-ordered array of numbers "
            f"with at most {AXES} axes"
        )
    made = np.zeros(HEADER, np.int64)
    made[:4] = MAGIC, FORM, DTYPES.index(array.dtype), array.ndim
    made[4 : 4 + array.ndim] = array.shape
    return made


def announced(found: np.ndarray, most: int, source: str) -> np.ndarray:
    """An empty array as a header (int64 [HEADER]) announces it, of at most `most` bytes. Raises
    RankError, which names the source."""
    magic, form, code, axes, *sizes = (int(v) for v in found)
    if magic != MAGIC or form != FORM:
        raise RankError(f"{source} sent no frame of this weft's; start the same version everywhere")
    if not 0 <= code < len(DTYPES) or not 0 <= axes <= AXES or min(sizes) < 0 or any(sizes[axes:]):
        raise RankError(f"{source} sent a frame that is damaged: {found[2:].tolist()}")
    nbytes = math.prod(sizes[:axes]) * DTYPES[code].itemsize
    if nbytes > most:
        raise RankError(f"{source} sent {nbytes:,} bytes; at most {most:,} were expected")
    return np.empty(sizes[:axes], DTYPES[code])


def raw(array: np.ndarray) -> np.ndarray:
    """The bytes of a C-ordered array, uint8 [nbytes], as a view."""
    return array.reshape(-1).view(np.uint8)
