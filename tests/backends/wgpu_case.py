"""Shared by the wgpu tests: small devices on whatever Vulkan there is, and sample values."""

import functools

import numpy as np
import pytest

from weft.core import dtypes as dt
from weft.core.errors import DeviceError

VARIANTS = {
    "native": {},  # with shader-f16 where the adapter has it
    "packed": {"features": frozenset()},
    "split": {"max_binding_bytes": 1024, "features": frozenset({"shader-f16"})},
    "split_packed": {"max_binding_bytes": 1024, "features": frozenset()},
}


@functools.cache
def device(variant="native"):
    """The first Vulkan adapter with the limits of a variant; skips the test without one."""
    from weft.backends.wgpu import WgpuDevice

    try:
        return WgpuDevice("vulkan", 0, **VARIANTS[variant])
    except DeviceError as error:
        pytest.skip(str(error))


def sample(dtype, n, seed=0):
    """Values of any dtype; floats include both zeros, infinities, subnormals and NaN."""
    rng = np.random.default_rng(seed)
    if dtype is dt.bool_:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max, n, endpoint=True).astype(dtype.numpy)
    values = rng.standard_normal(n).astype(np.float32) * 100
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, -3e-6]
    values[: min(n, 7)] = special[: min(n, 7)]
    return values.astype(dtype.numpy)


def same(got, want):
    """Equal bits, any NaN equal to any other."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    if got.dtype.kind in "fV" or got.dtype.name == "bfloat16":
        nan = np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
        got, want = got[~nan], want[~nan]
    kind = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(kind), want.view(kind))
