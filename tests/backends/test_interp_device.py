"""The interpreter as a device, for any Caps, and the example backend built on it."""

import numpy as np
import pytest

from weft.backends.interp import InterpDevice
from weft.backends.null import NullDevice
from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.errors import DeviceError, KernelError
from weft.kernel.builder import Builder
from weft.kernel.expr import load


def shift(beyond):
    b = Builder("shift")
    x, y = b.buffer("x", dt.float32, 8), b.buffer("y", dt.float32, 8, "w")
    i = b.let(b.thread(0), "i")
    b.store(y, i, load(x, i + beyond))
    return b.kernel(grid=(1,), threads=(8,))


def test_out_of_bounds_is_found():
    data = np.arange(8, dtype=np.float32)
    got = run_kernel(InterpDevice("cuda"), shift(0), [data, data * 0])[1]
    np.testing.assert_array_equal(got, data)
    with pytest.raises(KernelError, match="shift"):
        run_kernel(InterpDevice("cuda"), shift(1), [data, data * 0])


def test_a_race_is_found_by_interp_and_not_by_null():
    b = Builder("race")
    y = b.buffer("y", dt.int32, 8, "w")
    b.store(y, 0, b.thread(0))
    kernel = b.kernel(grid=(1,), threads=(8,))
    with pytest.raises(KernelError, match="race"):
        run_kernel(InterpDevice("hip-wave64"), kernel, [np.zeros(8, np.int32)])
    run_kernel(NullDevice(), kernel, [np.zeros(8, np.int32)])


def test_a_preset_that_is_none():
    with pytest.raises(DeviceError, match="no preset"):
        InterpDevice("abacus")
