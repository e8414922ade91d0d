"""Loads and stores in WGSL: every dtype, lanes, alignment, masks, split buffers, arrays."""

import numpy as np
import pytest
from wgpu_case import VARIANTS, device, same, sample

from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, const, iota, load, pack

N = 530  # several 1,024-byte parts for every dtype of 2 bytes or more, and an odd tail


def copy_kernel(dtype, lanes, shift, groups, how):
    """y[at:at+lanes] = x[at:at+lanes], at = shift + lanes * (index), in groups of 8 threads."""
    b = Builder("copy")
    x, y = b.buffer("x", dtype, N), b.buffer("y", dtype, N, "w")
    at = b.let((b.group(0) * 8 + b.thread(0)) * lanes + shift, "at")
    mask = None
    if how == "scalar_mask":
        mask = b.let(at < N - 2 * lanes, "mask")
    elif how == "lane_mask":
        mask = b.let((at + iota(lanes)) % 3 < 2, "mask")
    if how == "gather":
        b.store(y, b.let(at + iota(lanes), "where"), load(x, N - 1 - (at + iota(lanes))))
    else:
        b.store(y, at, load(x, at, lanes, mask), mask)
    return b.kernel(grid=(groups,), threads=(8,))


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("dtype", dt.DEVICE, ids=str)
def test_copies_touch_exactly_their_elements(variant, dtype):
    gpu = device(variant)
    x, y = sample(dtype, N, 1), sample(dtype, N, 2)
    for lanes, shift, how in [
        (1, 0, ""), (1, 3, "scalar_mask"), (2, 0, ""), (2, 1, ""), (4, 0, ""), (4, 2, ""),
        (4, 0, "scalar_mask"), (4, 0, "lane_mask"), (8, 0, ""), (8, 4, ""), (8, 0, "lane_mask"),
        (2, 0, "gather"), (4, 1, "gather"),
    ]:  # fmt: skip
        groups = (N - shift) // (8 * lanes)
        got = run_kernel(gpu, copy_kernel(dtype, lanes, shift, groups, how), [x, y])[1]
        at = shift + np.arange(groups * 8 * lanes)
        start = at - (at - shift) % lanes
        take = np.ones(len(at), bool)
        if how == "scalar_mask":
            take = start < N - 2 * lanes
        elif how == "lane_mask":
            take = at % 3 < 2
        want = y.copy()
        want[at[take]] = x[N - 1 - at[take]] if how == "gather" else x[at[take]]
        same(got, want)


@pytest.mark.parametrize("dtype", [d for d in dt.DEVICE if d.itemsize < 4], ids=str)
@pytest.mark.parametrize("variant", ["packed", "split_packed"])
def test_neighbouring_threads_share_words(variant, dtype):
    """Each thread writes its own element of words that four threads share, in any order."""
    b = Builder("neighbours")
    x, y = b.buffer("x", dtype, 512), b.buffer("y", dtype, 512, "w")
    i = b.let(b.group(0) * 64 + b.thread(0), "i")
    b.store(y, 511 - i, load(x, i))
    x_data, y_data = sample(dtype, 512, 3), sample(dtype, 512, 4)
    kernel = b.kernel(grid=(8,), threads=(64,))
    for _ in range(3):
        same(run_kernel(device(variant), kernel, [x_data, y_data])[1], x_data[::-1].copy())


@pytest.mark.parametrize("space", ["shared", "private"])
@pytest.mark.parametrize("dtype", dt.DEVICE, ids=str)
@pytest.mark.parametrize("lanes", [1, 4])
def test_arrays(space, dtype, lanes):
    b = Builder("array")
    x, y = b.buffer("x", dtype, 32), b.buffer("y", dtype, 32, "w")
    tile = b.array("tile", dtype, 32, space)
    first = b.let(b.thread(0) * 4 if space == "shared" else const(0), "first")
    with b.loop(4 if space == "shared" else 32, step=lanes, unroll=space == "private") as i:
        b.store(tile, first + i, load(x, first + i, lanes))
    if space == "shared":
        b.barrier()
    with b.loop(4 if space == "shared" else 32, step=lanes) as i:
        b.store(y, first + i, load(tile, 32 - lanes - (first + i), lanes))
    threads = 8 if space == "shared" else 1
    data = sample(dtype, 32, 6)
    kernel = b.kernel(grid=(1,), threads=(threads,))
    got = run_kernel(device(), kernel, [data, sample(dtype, 32)])[1]
    same(got, np.ascontiguousarray(data.reshape(-1, lanes)[::-1]).ravel())


@pytest.mark.parametrize("variant", ["native", "packed"])
@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16], ids=str)
@pytest.mark.parametrize("lanes", [1, 4])
def test_narrow_floats_round_to_nearest_even(variant, dtype, lanes):
    n = 4096
    bits = np.random.default_rng(7).integers(0, 1 << 32, n, np.uint32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)[::31][:500]
    data = bits.view(np.float32).copy()
    data[:500] = halves
    data[500:1000] = (halves + np.roll(halves, -1)) / 2  # ties and near ties
    data[1000:1012] = [65503, 65519.996, 65520, 65536, 1e38, -65520, -1e9, 2**-24, 2**-25,
                       2**-25 * 1.0001, np.inf, -np.inf]  # fmt: skip
    data[1012:2000] = np.ldexp(np.random.default_rng(8).standard_normal(988), -16)
    b = Builder("round")
    x, y = b.buffer("x", dt.float32, n), b.buffer("y", dtype, n, "w")
    z = b.buffer("z", dt.float32, n, "w")
    at = b.let((b.group(0) * 64 + b.thread(0)) * lanes, "at")
    value = b.let(cast(load(x, at, lanes), dtype), "value")
    b.store(y, at, value)
    b.store(z, at, cast(value, dt.float32))
    kernel = b.kernel(grid=(n // 64 // lanes,), threads=(64,))
    got = run_kernel(device(variant), kernel, [data, np.zeros(n, dtype.numpy), data])
    with np.errstate(over="ignore", invalid="ignore"):
        want = data.astype(dtype.numpy)
    # A device may flush what is subnormal in f32 (WebGPU allows it): compare above that.
    normal = ~((data != 0) & (np.abs(data) < np.finfo(np.float32).tiny))
    same(got[1][normal], want[normal])
    same(got[2][normal], want[normal].astype(np.float32))


def test_reads_of_a_buffer_that_the_kernel_writes():
    """rw with a barrier: what the group wrote is read back by its other threads."""
    b = Builder("swap")
    y = b.buffer("y", dt.float32, 64, "rw")
    t = b.let(b.thread(0), "t")
    old = b.let(load(y, t), "old")
    b.barrier()
    b.store(y, t, old + 1.0)
    b.barrier()
    new = b.let(load(y, 63 - t), "new")
    b.barrier()
    b.store(y, t, new * 2.0)
    data = np.arange(64, dtype=np.float32)
    got = run_kernel(device(), b.kernel(grid=(1,), threads=(64,)), [data])[0]
    np.testing.assert_array_equal(got, (data[::-1] + 1) * 2)


def test_split_buffer_as_an_embedding():
    """Rows of a table far larger than a binding, gathered by row number."""
    rows, width = 175, 32
    table = sample(dt.float32, rows * width, 9)
    ids = np.array([0, 174, 10, 7, 8, 43, 90, 0], np.int32)
    b = Builder("embed")
    w, i = b.buffer("w", dt.float32, rows * width), b.buffer("ids", dt.int32, 8)
    y = b.buffer("y", dt.float32, 8 * width, "w")
    row, c = b.let(load(i, b.group(0)), "row"), b.let(b.thread(0) * 4, "c")
    b.store(y, b.group(0) * width + c, load(w, row * width + c, 4))
    kernel = b.kernel(grid=(8,), threads=(width // 4,))
    gpu = device("split")
    assert len(gpu.pipeline(kernel).layout.bindings) == 22 + 2
    got = run_kernel(gpu, kernel, [table, ids, np.zeros(8 * width, np.float32)])[2]
    same(got, table.reshape(rows, width)[ids].ravel())


def test_wide_lanes_are_chunks_of_four():
    b = Builder("wide")
    x, y = b.buffer("x", dt.float32, 64), b.buffer("y", dt.float32, 64, "w")
    at = b.let(b.thread(0) * 16, "at")
    v = b.var(load(x, at, 16), "v", ir.Type(dt.float32, 16))
    b.assign(v, v * 2.0 + cast(iota(16), dt.float32))
    b.assign(v, ir.Vec("shuffle", (v,), v.type, tuple(reversed(range(16)))))
    lanes = [ir.Vec("extract", (v,), ir.F32, (k,)) for k in range(16)]
    b.store(y, at, pack(*lanes))
    data = sample(dt.int8, 64, 1).astype(np.float32)
    got = run_kernel(device(), b.kernel(grid=(1,), threads=(4,)), [data, data])[1]
    want = (data.reshape(4, 16) * 2 + np.arange(16, dtype=np.float32))[:, ::-1]
    np.testing.assert_array_equal(got, want.ravel())


@pytest.mark.slow
def test_gpt2_embedding_under_a_128_mib_binding():
    """50,257 x 768 f32 are 154 MB: two bindings of one buffer."""
    rows, width = 50257, 768
    gpu = device()
    if gpu.caps.max_binding_bytes >= rows * width * 4:
        pytest.skip("bindings here are large enough")
    table = np.repeat(np.arange(rows, dtype=np.float32), width)
    b = Builder("embed")
    w, i = b.buffer("w", dt.float32, rows * width), b.buffer("ids", dt.int32, 6)
    y = b.buffer("y", dt.float32, 6 * width, "w")
    row, c = b.let(load(i, b.group(0)), "row"), b.let(b.thread(0) * 4, "c")
    b.store(y, b.group(0) * width + c, load(w, row * width + c, 4))
    ids = np.array([0, 43690, 43691, 43689, 50256, 1], np.int32)  # 43,690 straddles the parts
    kernel = b.kernel(grid=(6,), threads=(width // 4,))
    got = run_kernel(gpu, kernel, [table, ids, np.zeros(6 * width, np.float32)])[2]
    np.testing.assert_array_equal(got.reshape(6, width), ids[:, None].repeat(width, 1))
