"""Batches longer than an axis of a grid, on WebGPU's kind of device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from weft.backends.registry import get
from weft.backends.wgpu import WgpuDevice
from weft.core import dtypes as dt
from weft.core.errors import LimitError
from weft.kernel.builder import Builder
from weft.kernel.expr import const, minimum
from weft.kernel.grid import check_groups, most_groups
from weft.kernel.ir import Expr, Kernel, Param
from weft.tensor import Tensor, functional as F

MOST = 63  # groups along an axis of the device below
BATCH = 131


def attention(x: Tensor, w: Tensor) -> Tensor:
    q = x.reshape(BATCH, 1, 4, 8)
    return F.attention(q, q * 0.5, q, causal=True)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "products": lambda x, w: x @ x.mT,
    "products of one row": lambda x, w: x[:, :1] @ x.mT,
    "products of one matrix": lambda x, w: (x[:, :, None] @ w).tanh(),
    "attention": attention,
    "convolution": lambda x, w: F.conv2d(x.reshape(BATCH, 2, 4, 4), w[:6, :3].reshape(1, 2, 3, 3)),
    "depthwise": lambda x, w: F.conv2d(
        x.reshape(BATCH, 2, 4, 4), w[:6, :3].reshape(2, 1, 3, 3), groups=2
    ),
    "pools": lambda x, w: F.max_pool2d(x.reshape(BATCH, 2, 4, 4), 2),
    "norms": lambda x, w: F.layer_norm(x),
    "sorts": lambda x, w: weft.sort(x, axis=-1),
    "scans": lambda x, w: weft.cumulative_sum(x, axis=1),
    "sums": lambda x, w: x.sum(axis=-1),
    "columns": lambda x, w: x.sum(axis=1),
    "gathers": lambda x, w: weft.take(x, weft.tensor([2, 0, 1]), axis=1),
}


@pytest.fixture(scope="module")
def narrow() -> WgpuDevice:
    try:
        get("vulkan")
    except Exception as error:
        pytest.skip(f"no Vulkan device: {error}")
    return WgpuDevice("vulkan", 0, max_groups=MOST)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_longer_than_an_axis(name: str, narrow: WgpuDevice) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((BATCH, 4, 8), (8, 8)))
    fn = FUNCTIONS[name]
    got = weft.compile(fn, device=narrow)(x, w).numpy()
    want = fn(weft.tensor(x), weft.tensor(w)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def kernel_of(*grid: Expr) -> Kernel:
    b = Builder("k")
    out = b.buffer("out", dt.int32, 4, "w")
    b.store(out, const(0), const(1))
    return b.kernel(grid=grid)


def test_the_most_groups_that_a_grid_asks_for() -> None:
    n = Param("n", 0)
    assert most_groups(kernel_of(const(3), const(4), const(5))) == (3, 4, 5)
    bounded = kernel_of(minimum(n, 100), const(1), const(1))
    assert most_groups(bounded)[0] == 100
    assert most_groups(kernel_of(n, const(1), const(1)))[0] >= (1 << 31) - 1


def test_a_grid_beyond_all_axes_is_known_when_compiling() -> None:
    check_groups(kernel_of(const(65535), const(32768), const(1)), 65535)
    with pytest.raises(LimitError, match="4,294,836,225 groups"):
        check_groups(kernel_of(const(65535), const(65535), const(1)), 65535)
