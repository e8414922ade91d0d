"""The simulated NPU of examples/npu: the contract, its results, and its cycles against counts by
hand and against SCALE-Sim."""

import importlib
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import weft
from weft.backends.interp import InterpDevice
from weft.conform.check import check_device
from weft.conform.harness import program_of, run_kernel
from weft.core import dtypes as dt
from weft.core.errors import LimitError
from weft.kernel.builder import Builder
from weft.kernel.expr import cast, fma, iota, load

NPU = Path(__file__).resolve().parents[2] / "examples" / "npu"
BF16 = ml_dtypes.bfloat16


@pytest.fixture(scope="module")
def npu():
    """The package, from its folder: nothing is installed."""
    sys.path.insert(0, str(NPU))
    yield importlib.import_module("weft_npu")
    sys.path.remove(str(NPU))


def spent(device, kernel, arrays):
    """The cost of one run of a kernel whose buffers begin at groups of channels, and what the
    buffers become."""
    device.records.clear()
    results = run_kernel(device, kernel, arrays)
    (record,) = device.records.values()
    assert record.runs == 1 and record.cycles == record.cost.cycles
    return record.cost, results


def product(dtype, k, out):
    """The kernel c[16, 16] = a[16, k] . b[k, 16], b in groups of as many k as four bytes hold, a
    tile of 64 bytes of k at a time."""
    b, size = Builder("product"), dtype.itemsize
    step, group = 64 // size, max(4 // size, 1)
    x, y = b.buffer("x", dtype, 16 * k), b.buffer("y", dtype, 16 * k)
    to = b.buffer("to", out, 256, "w")
    c = b.tile("c", out, 16, 16)
    left = b.tile("left", dtype, 16, step)
    right = b.tile("right", dtype, step // group, 16 * group)
    b.tile_zero(c)
    with b.loop(k, step=step, name="at") as at:
        b.tile_load(left, x, at, k)
        b.tile_load(right, y, at * 16, 16 * group)
        b.mma(c, left, right)
    b.tile_store(to, 0, 16, c)
    return b.kernel((1,)), group


def operands(dtype, k, group):
    """a[16, k], b[k, 16], and b as the array reads it: k / group rows of groups."""
    rng = np.random.default_rng(0)  # small integers: every sum is exact
    a, b = (rng.integers(-8, 9, s).astype(dtype.numpy) for s in ((16, k), (k, 16)))
    return a, b, b.reshape(k // group, group, 16).swapaxes(1, 2)


# -- the contract ---------------------------------------------------------------------------------


def test_it_passes_what_a_device_must(npu):
    report = check_device(npu.NpuDevice(), ["device", "kernels"])
    assert report.ok, [case for case in report.cases if case.status == "fail"]
    passed = [case.name for case in report.cases if case.status == "ok"]
    assert len(passed) > 140 and any("TileOp" in name for name in passed)


def test_its_package_names_it(npu):
    project = tomllib.loads((NPU / "pyproject.toml").read_text())["project"]
    (point,) = project["entry-points"]["weft.backends"].items()
    assert metadata.EntryPoint(*point, "weft.backends").load() is npu.NpuDevice
    (line,) = npu.NpuDevice.probe()
    assert line.id == "npu:0" and line.software and "emulated" in line.name


def test_results_are_the_interpreters_bit_for_bit(npu):
    """And its kernels break no rule: the interpreter looks for races and undefined elements."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(BF16) for s in ((40, 72), (72, 50)))
    device = npu.NpuDevice()
    results = []
    for one in (device, InterpDevice(device.caps)):
        results.append(weft.compile(lambda a, b: weft.tanh(a @ b), device=one)(x, w).numpy())
    assert device.records and any(r.cost.array for r in device.records.values())
    assert results[0].tobytes() == results[1].tobytes()
    want = np.tanh(x.astype(np.float64) @ w.astype(np.float64))
    assert np.abs(results[0].astype(np.float64) - want).max() < 1 / 128  # half a step of bf16 and
    # what rounding the sums before tanh adds


# -- cycles by hand -------------------------------------------------------------------------------


def test_a_product_of_one_tile(npu):
    """[16, 16] = [16, 96] . [96, 16] on 16 x 16 cells. Cell (i, j) begins i + j cycles after cell
    (0, 0), which is given a pair of operands in each of 96 cycles; the last begins 15 + 15 late and
    ends in cycle 96 + 30 = 126. Then sums shift down and out, a row a cycle: 142.

    The DMA moves 16 rows of 192 bytes, 96 rows of 32 bytes and 16 of 64: 48 + 48 + 16 groups of 64
    bytes, 32 bytes a cycle: 224. It is the busiest, and waits 100 cycles for the first and for the
    last: 424. The scalar unit enters the kernel once, the loop three times, and multiplies an index
    in each: 1 + 3 + 3."""
    kernel, group = product(dt.bfloat16, 96, dt.float32)
    a, b, right = operands(dt.bfloat16, 96, group)
    out = np.zeros((16, 16), np.float32)
    cost, results = spent(npu.NpuDevice(), kernel, [a.ravel(), right.ravel(), out])
    assert np.array_equal(results[2], a.astype(np.float32) @ b.astype(np.float32))
    assert cost.array == 96 + 15 + 15 + 16
    assert cost.nbytes == (48 + 48 + 16) * 64 and cost.dma == 224
    assert (cost.scalar, cost.vector, cost.cycles) == (1 + 3 + 3, 0, 224 + 100 + 100)
    assert cost.products == 2 * 16 * 16 * 96 and cost.busiest == "dma"


@pytest.mark.parametrize(("dtype", "out", "cycles"), [
    (dt.int8, dt.int32, 64), (dt.bfloat16, dt.float32, 128), (dt.float32, dt.float32, 256),
])  # fmt: skip
def test_a_cell_takes_two_bytes_of_either_operand(npu, dtype, out, cycles):
    """Of 128 k: two of int8 a cycle, one of bf16, half a one of f32."""
    kernel, group = product(dtype, 128, out)
    a, b, right = operands(dtype, 128, group)
    zeros = np.zeros((16, 16), out.numpy)
    cost, results = spent(npu.NpuDevice(), kernel, [a.ravel(), right.ravel(), zeros])
    assert np.array_equal(results[2], a.astype(np.float64) @ b.astype(np.float64))
    assert cost.array == cycles + 15 + 15 + 16


def test_outer_products_are_the_arrays(npu):
    """Two rows of [16] and of [16] of f32: two k, each a cycle for either half, and the way out."""
    b = Builder("outer")
    x, y, to = (b.buffer(n, dt.float32, s, a) for n, s, a in
                (("x", 32, "r"), ("y", 32, "r"), ("to", 256, "w")))  # fmt: skip
    c = b.tile("c", dt.float32, 16, 16)
    left, right = (b.tile(name, dt.float32, 2, 16) for name in ("left", "right"))
    b.tile_zero(c)
    b.tile_load(left, x, 0, 16)
    b.tile_load(right, y, 0, 16)
    b.mma_tn(c, left, right)
    b.tile_store(to, 0, 16, c)
    data = [np.arange(32, dtype=np.float32), np.ones(32, np.float32), np.zeros(256, np.float32)]
    cost, results = spent(npu.NpuDevice(), b.kernel((1,)), data)
    assert np.array_equal(results[2].reshape(16, 16)[:, 0], np.arange(16, 48, 2))
    assert cost.array == 2 * 2 + 15 + 15 + 16 and cost.products == 2 * 16 * 16 * 2


# (M, N, K) -> cycles of SCALE-Sim 3.0.0, 16 x 16 cells, output stationary, memory of its CALC mode
SCALESIM = {
    (16, 16, 32): 61, (16, 16, 96): 125, (16, 16, 256): 285, (32, 32, 64): 375,
    (64, 64, 256): 4575, (32, 32, 512): 2167,
}  # fmt: skip


@pytest.mark.parametrize("shape", SCALESIM)
def test_products_of_templates_against_scalesim(npu, shape):
    """SCALE-Sim's cycles are those of the last product, counted from 0: for each tile of 16 x 16
    sums K + 15 + 15, one after the other. Ours: as many, 16 more to shift each tile out (its paper
    has these: 2 R + C + K - 2), and 46 + 16 where a tile is stored and loaded again after 256 k."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, k), (k, n)))
    device = npu.NpuDevice()
    weft.compile(lambda x, y: x @ y, device=device)(a, b).numpy()
    tiles, again = (m // 16) * (n // 16), -(-k // 256) - 1
    (record,) = device.records.values()
    assert record.cost.array == SCALESIM[shape] + 1 + tiles * (16 + again * (30 + 16 + 16))
    assert record.cost.products == 2 * m * n * k


def streaming(turns, lanes=16, start=0, size=512):
    """The kernel that reads 128 f32 from `start`, `lanes` at a time, `turns` times over."""
    b = Builder("streaming")
    x, to = b.buffer("x", dt.float32, size), b.buffer("to", dt.float32, lanes, "w")
    total = b.var(load(x, start, lanes), "total")
    with b.loop(turns, name="turn"), b.loop(128, step=lanes, name="at") as at:
        b.assign(total, fma(total, load(x, at + start, lanes), total))
    b.store(to, 0, total)
    return b.kernel((1,))


def test_channels_are_moved_in_whole_groups(npu):
    """512 bytes are 8 groups of 64; begun 4 bytes late they lie in 9. A result of 64 bytes: one."""
    arrays = [np.zeros(512, np.float32), np.zeros(16, np.float32)]
    for start, groups in ((0, 8), (1, 9), (16, 8)):
        cost, _ = spent(npu.NpuDevice(), streaming(1, start=start), arrays)
        assert cost.nbytes == 64 * (groups + 1)


def test_a_window_keeps_what_fits(npu):
    """Two buffers share the scratchpad; half of a window is being filled. 8 groups read three times
    are moved once where 8 fit, and three times where 4 do, each in the place of the one before."""
    arrays = [np.zeros(512, np.float32), np.zeros(16, np.float32)]
    for groups, moves in ((8, 8), (4, 24)):
        machine = npu.Machine(scratchpad=2 * 2 * 64 * groups)
        cost, _ = spent(npu.NpuDevice(machine=machine), streaming(3), arrays)
        assert cost.nbytes == 64 * (moves + 1)


def test_the_vector_unit(npu):
    """32 lanes are two cycles an operation: a load and a store outside, 4 turns of a load and an
    fma. The scalar unit: into the kernel, the outer loop and 4 turns, an addition in each."""
    arrays = [np.zeros(512, np.float32), np.zeros(32, np.float32)]
    cost, _ = spent(npu.NpuDevice(), streaming(1, lanes=32, start=16), arrays)
    assert cost.vector == 2 * (1 + 1 + 4 * 2) and cost.scalar == 1 + 1 + 4 * 2
    assert cost.others == 4 * 2 * 32 and cost.array == 0


def test_registers_are_as_wide_as_they_are(npu):
    """32 of bf16 are one register, and two once they are f32: a cycle to load them, two to widen
    and two to add them, two to narrow them, one to store them; the constants cost nothing."""
    b = Builder("narrow")
    x, to = b.buffer("x", dt.bfloat16, 32), b.buffer("to", dt.bfloat16, 32, "w")
    b.store(to, 0, cast(cast(load(x, 0, 32), dt.float32) + 1.0, dt.bfloat16))
    data = np.arange(32).astype(BF16)
    cost, results = spent(npu.NpuDevice(), b.kernel((1,)), [data, np.zeros_like(data)])
    assert np.array_equal(results[1], data + BF16(1))
    assert cost.vector == 1 + 2 + 2 + 2 + 1 and cost.others == 32 and cost.scalar == 1


def test_what_takes_longer(npu):
    """A multiplication of indices, a gather of 16 lanes, a division, a store: 1 + 16 + 8 + 1."""
    b = Builder("longer")
    x, to = b.buffer("x", dt.float32, 32), b.buffer("to", dt.float32, 16, "w")
    b.store(to, 0, load(x, iota(16) * 2) / 4.0)
    data = np.arange(32, dtype=np.float32)
    cost, results = spent(npu.NpuDevice(), b.kernel((1,)), [data, np.zeros(16, np.float32)])
    assert np.array_equal(results[1], data[::2] / 4) and cost.vector == 1 + 16 + 8 + 1


def test_what_the_scratchpad_cannot_hold_is_refused(npu):
    b = Builder("wide")
    to = b.buffer("to", dt.float32, 16, "w")
    wide = b.array("wide", dt.float32, 1 << 17)
    b.store(wide, 0, 1.0)
    b.store(to, 0, load(wide, 0))
    program, _ = program_of(b.kernel((1,)))
    with pytest.raises(LimitError, match=r"wide keeps 524,288 bytes in arrays.* has 524,288 bytes"):
        npu.NpuDevice().load(program.kernels)


# -- a model, and its report ----------------------------------------------------------------------


def test_the_model_in_the_box_and_its_report(npu, tmp_path):
    from weft.hub.box import box_folder

    device = npu.NpuDevice()
    texts = []
    for one in (device, "cpu"):
        model = weft.load(box_folder(), device=one, dtype="bfloat16", context=32)
        texts.append(list(model.generate("def f", max_new_tokens=2).ids))
    assert texts[0] == texts[1] and len(texts[0]) == 2
    names = {r.place for r in device.records.values() if r.cost.array}
    assert {f"{i}.down.w" for i in range(6)} <= names  # a record per layer
    whole = npu.table(device, most=1000, each=True).splitlines()
    assert len(whole) == 1 + len(device.records) + 1
    assert sum("0.down.w" in line for line in whole) == 2  # of prefill, of decode
    alike = npu.table(device, most=1000).splitlines()
    assert len(alike) < len(whole) and alike[-1] == whole[-1]
    cycles = sum(r.cycles for r in device.records.values())
    assert f"{cycles:,}" in whole[-1]
    for name in ("roof.png", "roof.svg"):
        npu.draw(device, tmp_path / name)
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "roof.svg").read_bytes()
