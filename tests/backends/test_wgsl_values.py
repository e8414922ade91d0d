"""Literals of WGSL, and what it refuses (see test_node_values for expressions)."""

import numpy as np
import pytest
from wgpu_case import device, same

from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.errors import CompileError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, load

SPECIAL = [0.0, -0.0, 1.0, -1.5, 0.1, 3.4028235e38, 1.17549435e-38, 1e-30, np.inf, -np.inf,
           np.nan, 16777217.0, 0.044715, 2.0**-126, 1e10]  # fmt: skip


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.bfloat16], ids=str)
def test_float_literals_are_exact(dtype):
    b = Builder("literals")
    out = b.buffer("out", dtype, len(SPECIAL), "w")
    for k, value in enumerate(SPECIAL):
        b.store(out, k, cast(const(value, ir.F32), dtype))
    got = run_kernel(device(), b.kernel(grid=(1,)), [np.ones(len(SPECIAL), dtype.numpy)])[0]
    with np.errstate(over="ignore"):
        same(got, np.array(SPECIAL, np.float32).astype(dtype.numpy))


def test_integer_literals_are_exact():
    ints = [0, -1, 2**31 - 1, -(2**31), 42]
    b = Builder("literals")
    out, wide = b.buffer("out", dt.int32, 5, "w"), b.buffer("wide", dt.uint32, 2, "w")
    for k, value in enumerate(ints):
        b.store(out, k, const(value))
    for k, value in enumerate((2**32 - 1, 2**31)):
        b.store(wide, k, const(value, ir.U32))
    kernel = b.kernel(grid=(1,))
    got = run_kernel(device(), kernel, [np.ones(5, np.int32), np.ones(2, np.uint32)])
    assert got[0].tolist() == ints
    assert got[1].tolist() == [2**32 - 1, 2**31]


def test_subgroups_need_a_promised_width():
    b = Builder("subgroup")
    x = b.buffer("x", dt.float32, 32, "rw")
    t = b.let(b.thread(0), "t")
    b.store(x, t, ir.Collective("subgroup_add", (load(x, t),), ir.F32))
    with pytest.raises(CompileError, match="no subgroup width"):
        run_kernel(device(), b.kernel(grid=(1,), threads=(32,)), [np.zeros(32, np.float32)])
