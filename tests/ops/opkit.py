"""Data and comparisons shared by the op tests."""

from __future__ import annotations

import numpy as np
import torch

from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.tolerance import compare

FLOATS = (dt.float32, dt.float16, dt.bfloat16)
INTS = (dt.int8, dt.uint8, dt.int32, dt.uint32)
TORCH = {
    dt.float32: torch.float32, dt.float16: torch.float16, dt.bfloat16: torch.bfloat16,
    dt.float64: torch.float64, dt.int8: torch.int8, dt.uint8: torch.uint8, dt.int32: torch.int32,
    dt.int64: torch.int64, dt.bool_: torch.bool,
}  # fmt: skip

_FLOAT_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-3, 88.0, -88.0, np.inf, -np.inf, np.nan)


def values(dtype: DType, n: int, seed: int = 0) -> np.ndarray:
    """n values: the awkward ones of the dtype first, then random ones."""
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        edges = np.roll(np.array(_FLOAT_EDGES), seed)
        plain = rng.standard_normal(max(n - len(edges), 0)) * 4
        with np.errstate(over="ignore"):
            return np.concatenate([edges, plain])[:n].astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, n).astype(bool)
    info = np.iinfo(dtype.numpy)
    edges = np.roll(np.array([info.min, info.max, 0, 1, info.max // 2, 7, 100]), seed)
    if dtype.kind == "int":
        edges = np.append(edges, [-1, -7])
    plain = rng.integers(info.min, info.max, max(n - len(edges), 0), endpoint=True)
    return np.concatenate([edges, plain])[:n].astype(dtype.numpy)


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The same values in PyTorch (bf16 by way of f32, exactly)."""
    if array.dtype == dt.bfloat16.numpy:
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def from_torch(t: torch.Tensor) -> np.ndarray:
    if t.dtype == torch.bfloat16:
        return t.to(torch.float32).numpy().astype(dt.bfloat16.numpy)
    return t.numpy()


def agree(got: np.ndarray, want: np.ndarray, kind: str, dtype: DType | None = None) -> None:
    """Fails with the worst element unless the two agree under the tolerance table."""
    assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
    outcome = compare(got, want, kind, dtype)
    assert outcome.ok, outcome.message
