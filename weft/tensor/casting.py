"""Large host arrays in another float dtype, by weft's own kernels: NumPy's element loops for
bfloat16 and float16 take several times as long."""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np

from weft import ops
from weft.backends import registry
from weft.core.dtypes import DType, as_dtype
from weft.graph.ir import Graph
from weft.program.session import Session
from weft.tensor.program_cache import program_for

CHUNK = 1 << 18  # elements converted at a time: both sides stay in the cache
_LOCK = threading.Lock()  # a Session is for one thread


def cast_array(array: np.ndarray, dtype: DType) -> np.ndarray:
    """`array` as `dtype` (float32, float16 or bfloat16, each from any of the three), rounded to
    nearest even as `ndarray.astype` rounds; the array itself if it has that dtype. Values beyond
    the range become infinite. The result is C-contiguous. Raises the errors of compiling for the
    CPU."""
    if array.dtype == dtype.numpy:
        return array
    flat = np.ascontiguousarray(array).reshape(-1)
    out = np.empty(flat.size, dtype.numpy)
    if flat.size < CHUNK:
        with np.errstate(over="ignore"):
            out[:] = flat.astype(dtype.numpy)
        return out.reshape(array.shape)
    with _LOCK:
        session = _session(as_dtype(flat.dtype), dtype)
        # The last chunk overlaps the one before it: all have one size.
        for start in (*range(0, flat.size - CHUNK, CHUNK), flat.size - CHUNK):
            out[start : start + CHUNK] = session.run([flat[start : start + CHUNK]])[0]
    return out.reshape(array.shape)


@lru_cache(maxsize=8)
def _session(source: DType, target: DType) -> Session:
    """One chunk's conversion on the CPU."""
    device = registry.host()

    def graph() -> Graph:
        with ops.building():
            x = ops.input_node("x", (CHUNK,), source)
            return Graph((x,), (ops.cast(x, target),), (), f"cast.{source.name}.{target.name}")

    program = program_for(("cast", source.name, target.name, CHUNK), device.caps, graph)
    return Session(program, device, reuse_outputs=True)
