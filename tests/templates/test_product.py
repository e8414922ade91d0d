"""The contract of products, a row per tier: whoever computes x @ w, streaming few rows (matvec) or
in blocks (matmul), by vectors, matrix registers, threads, subgroups or matrix units, interpreted or
in earnest, gives NumPy's answer of float64. (The interpreter reports races and out-of-bounds
access.) Which bits it gives: test_product_order.py."""

from __future__ import annotations

import itertools

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from harness import QUICK, targets
from hypothesis import given, settings, strategies as st
from product_kit import GPUS, RUNS, TIERS, TILES, WIDE, Product, device
from rows import by_turns

from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.kernel import interp
from weft.templates import registry
from weft.templates.group import Group

BF16 = dt.bfloat16
LAYOUTS = ["NN", "NT", "TN", "TT"]
each_tier = pytest.mark.parametrize("tier", targets(*TIERS))
slow = pytest.mark.slow
each_run = pytest.mark.parametrize("tier,kind", targets(*RUNS))
# With and without matrix units, of waves of either size; and where there is no subgroup.
units = pytest.mark.parametrize("tier", ["cuda", "hip-wave64", "webgpu"])
each_width = pytest.mark.parametrize("dtype", [dt.float32, BF16], ids=repr)


# -- shapes, layouts, dtypes


@pytest.mark.parametrize(
    "tier,layout",
    [
        pytest.param(tier, layout, marks=[] if tier in QUICK or layout == "TN" else [slow])
        for tier in TIERS
        for layout in LAYOUTS
    ],
)
def test_layouts(tier: str, layout: str) -> None:
    sizes = [(20, 36, 40, BF16, (2,)), (19, 37, 21, dt.float32, (2,))]
    if tier == "cpu":
        shapes = ((70, 130, 96), (37, 64, 130), (19, 7, 5))
        sizes += [(*shape, dtype, ()) for shape, dtype in zip(shapes, WIDE)]
        wide = {"NN": WIDE[1:2], "NT": WIDE[::2]}
        sizes += [(45, 80, 1500, dtype, ()) for dtype in wide.get(layout, ())]  # blocks of K
    for m, n, k, dtype, batch in sizes:
        Product(m, n, k, dtype, layout, batch).check(tier)


@pytest.mark.parametrize(
    "shape,layout,tier",
    by_turns(
        [
            pytest.param(shape, layout, marks=[] if layout in quick else [slow])
            for shape, quick in (
                ((64, 64, 64), ("NN", "NT")),
                ((70, 45, 99), LAYOUTS),
                ((17, 33, 31), ("NN", "NT")),
                ((96, 32, 320), LAYOUTS),
            )
            for layout in LAYOUTS
        ],
        TILES,
    ),
)
def test_layouts_in_matrix_registers(tier: str, shape: tuple[int, int, int], layout: str) -> None:
    Product(*shape, BF16, layout).check(tier, config={"kc": 128})


@pytest.mark.parametrize(
    "tier,kind", [("tiles", "matmul"), *(run for run in RUNS if run[0] in ("cpu", *GPUS))]
)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_any_shape(tier: str, kind: str, data: st.DataObject) -> None:
    draw, tiles = data.draw, tier == "tiles"
    m = draw(st.integers(1, 16 if kind == "matvec" and tier != "cpu" else 70), "m")
    n = draw(st.sampled_from([1, 5, 8, 13, 16, 33, 40, 64, 90, 130]) | st.integers(1, 90), "n")
    most = 700 if kind == "matvec" else 80
    k = draw(st.sampled_from([17, 32, 64, 72, most]) | st.integers(16 if tiles else 1, most), "k")
    dtype = BF16 if tiles else draw(st.sampled_from(WIDE), "dtype")
    layout = draw(st.sampled_from(LAYOUTS if kind == "matmul" else LAYOUTS[:2]), "layout")
    batch = draw(st.sampled_from([(), (3,), (2, 2)]), "batch")
    Product(m, n, k, dtype, layout, batch).check(tier, kind)


@each_run
def test_integers_are_exact(tier: str, kind: str) -> None:
    """Sums of int8 and of uint8."""
    if not device(tier).supports(dt.int8):
        pytest.skip("no 8-bit integers in memory here")
    n, k = (50, 333) if tier == "cpu" else (17, 30)
    for layout, dtype in (("NT", dt.int8), ("NN", dt.uint8), ("NN", dt.int8)):
        p = Product(9, n, k, dtype, layout)
        arrays = p.arrays()
        np.testing.assert_array_equal(p.play(tier, kind, arrays)[0], p.truth(arrays)[0])


@each_width
@pytest.mark.parametrize("tier", ["cpu", "tiles", *GPUS[:2], "webgpu"])
def test_strided_operands(tier: str, dtype: dt.DType) -> None:
    """Every second element, a window off any alignment, one column for all, inner axes, batches."""
    x, w = source("x", (40, 66), dtype), source("w", (70, 33), dtype)
    left = f.slice_(f.slice_(x, (0, 1), (40, 66), (1, 2)), (0, 0), (40, 32), (1, 1))
    window = f.slice_(w, (3, 1), (70, 33), (1, 1))
    one = f.broadcast(f.slice_(w, (0, 4), (32, 5), (1, 1)), (32, 50))
    y, v = source("y", (40, 2, 50), dtype), source("v", (50, 3, 37), dtype)
    inner = f.reshape(f.slice_(y, (0, 1, 0), (40, 2, 50), (1, 1, 2)), (40, 25))
    other = f.reshape(f.slice_(v, (0, 2, 0), (50, 3, 37), (2, 1, 2)), (25, 19))
    z, u = source("z", (3, 5, 100), dtype), source("u", (3, 40, 100), dtype)
    part = f.slice_(z, (0, 0, 3), (3, 5, 99), (1, 1, 1))
    third = f.slice_(u, (0, 1, 2), (3, 40, 98), (1, 3, 1))
    ins = (x, w, y, v, z, u)
    arrays = dict(zip(ins, (kit.fill(n) for n in ins)))
    a, b, c, d, e, g = (arrays[n].astype(np.float64) for n in ins)
    a = a[:, 1::2][:, :32]
    for kind, given_, out, want in (
        ("matmul", (x, w), f.dot(left, f.swap_last(window), dt.float32), a @ b[3:, 1:].T),
        ("matmul", (x, w), f.dot(left, one, dt.float32), a @ np.repeat(b[:32, 4:5], 50, 1)),
        ("matmul", (y, v), f.dot(inner, other, dt.float32), c[:, 1, ::2] @ d[::2, 2, ::2]),
        ("matvec", (z, u), f.dot(part, f.swap_last(third), dt.float32),
         e[:, :, 3:99] @ g[:, 1::3, 2:98].swapaxes(1, 2)),
    ):  # fmt: skip
        got = kit.play(device(tier), kind, given_, [out], [arrays[n] for n in given_])
        kit.close(got[0], want, np.float32, 128)


@pytest.mark.parametrize("kind", ["matmul", "matvec"])
@pytest.mark.parametrize("tier", ["cpu", *GPUS[:2]])
def test_a_weight_of_another_dtype_is_read_through_its_cast(tier: str, kind: str) -> None:
    x, w = source("x", (13, 64)), source("w", (70, 64), dt.float16)
    out = f.dot(x, f.swap_last(f.cast(w, dt.float32)))
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = kit.play(device(tier), kind, [x, w], [out], arrays)
    kit.close(got, arrays[0].astype(np.float64) @ arrays[1].astype(np.float64).T, k=64)


def test_a_broadcast_weight_merges_the_batch_into_rows() -> None:
    x, w = source("x", (3, 11, 40)), source("w", (50, 40))
    y = f.dot(x, f.broadcast(f.swap_last(w), (3, 40, 50)))
    out = f.reshape(f.add(y, kit.number(1.0, y)), (33, 50))
    arrays = [kit.fill(x), kit.fill(w)]
    (got,) = kit.play(device("cpu"), "matmul", [x, w], [out], arrays)
    kit.close(got, (arrays[0].astype(np.float64) @ arrays[1].T + 1).reshape(33, 50), k=40)


@each_width
@pytest.mark.parametrize("kind,shape", [
    ("matmul", (0, 9, 16)), ("matmul", (9, 0, 16)), ("matmul", (9, 17, 0)),
    ("matvec", (0, 9, 16)), ("matvec", (3, 0, 9)), ("matvec", (3, 9, 0)),
])  # fmt: skip
@pytest.mark.parametrize("tier", [*GPUS[:2], "lavapipe", "cpu-avx2", "cpu-amx"])
def test_nothing(tier: str, kind: str, shape: tuple[int, int, int], dtype: dt.DType) -> None:
    for layout in LAYOUTS[:2]:
        p, caps = Product(*shape, dtype, layout), device(tier).caps
        kernel = registry.get(kind)(p.group(kind), caps, {})
        arrays = [np.ones(b.size, b.dtype.numpy) for b in kernel.buffers]
        interp.run(kernel, arrays, (), caps)
        assert not arrays[-1][: p.outs[0].size].any()


@pytest.mark.parametrize(
    "kind,tier,dtype",
    by_turns(
        itertools.product(["matmul", "matvec"], ["cpu", *TILES, *GPUS[:2], "webgpu"]),
        [BF16, dt.float32],
    ),
)
def test_infinities_and_nans_stay_where_they_are(tier: str, kind: str, dtype: dt.DType) -> None:
    """What lies beyond the end of rows, columns or K takes no part, not even times zero."""
    for layout in LAYOUTS[:2]:
        p = Product(37 if kind == "matmul" else 7, 34, 45, dtype, layout)
        arrays = p.arrays()
        arrays[0][-1, -1] = np.nan
        arrays[1][(-1, -1)] = np.inf
        got = p.play(tier, kind, arrays)[0]
        with np.errstate(invalid="ignore"):
            want = p.truth(arrays)[0]
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        assert np.isnan(got[-1]).all() and np.isfinite(got[:-1, :-1]).all()


# -- what follows the sums


@each_run
def test_gate_bias_and_residual(tier: str, kind: str) -> None:
    dtypes = WIDE if tier == "cpu" else [dt.float32]
    for m in (33,) if kind == "matmul" else (1, 6):
        for dtype in dtypes:
            p = Product(m, 21, 24, dtype, dots=2)
            gate, up = p.outs
            bias, res = source("bias", (21,), dtype), source("res", (m, 21), dtype)
            y = f.add(kit.silu(gate), f.broadcast(f.cast(bias, dt.float32), gate.shape))
            out = f.cast(f.add(f.cast(res, dt.float32), f.mul(y, up)), dtype)
            ins = [*p.ins, bias, res]
            arrays = [kit.fill(n) for n in ins]
            (got,) = kit.play(device(tier), kind, ins, [out], arrays)
            (g, u), (b, r) = p.truth(arrays[:3]), (v.astype(np.float64) for v in arrays[3:])
            kit.close(got, r + (g / (1 + np.exp(-g)) + b) * u, dtype, 4 * 24)


@pytest.mark.parametrize("tier,dtype,dots", [
    *((tier, BF16, dots) for tier in ("cpu-amx", "amx") for dots in (2, 3)),
    ("tiles", BF16, 2), pytest.param("tiles", BF16, 3, marks=slow),
    *((tier, x, dots) for tier in ("cpu", "cuda", "hip-wave64", "webgpu")
      for x in (dt.float32, BF16) for dots in (2, 3)),
    ("lavapipe", dt.float32, 2), ("lavapipe", dt.float32, 3),
])  # fmt: skip
def test_dots_that_meet(tier: str, dtype: dt.DType, dots: int) -> None:
    """gelu of one times the others, with a bias and a residual of the operands' dtype."""
    import torch

    p = Product(70, 72, 40, dtype, dots=dots)
    out = kit.gelu(p.outs[0])
    for w in p.outs[1:]:
        out = f.mul(out, w)
    bias, res = source("bias", (72,), dtype), source("res", (70, 72), dtype)
    out = f.add(out, f.broadcast(f.cast(bias, dt.float32), out.shape))
    out = f.cast(f.add(out, f.cast(res, dt.float32)), dtype)
    ins = [*p.ins, bias, res]
    arrays = [kit.fill(n) for n in ins]
    arrays[0] = (arrays[0].astype(np.float32) / 8).astype(dtype.numpy)
    config = {"kc": 32, "panels": 2} if tier in TILES else {}
    (got,) = kit.play(device(tier), "matmul", ins, [out], arrays, config=config)
    y, *others = p.truth(arrays[: 1 + dots])
    total = torch.nn.functional.gelu(torch.from_numpy(y)).numpy() * np.prod(others, axis=0)
    kit.close(got, total + arrays[-2].astype(np.float64) + arrays[-1].astype(np.float64), dtype, 40)


@pytest.mark.parametrize("tier, dtype", [
    *((tier, dt.float16) for tier in TIERS), *((tier, BF16) for tier in TILES)])  # fmt: skip
def test_few_rows_times_several_weights(tier: str, dtype: dt.DType) -> None:
    """Of several widths and both layouts, one of them with a bias, in one launch."""
    k = 36
    x, v = source("x", (5, k), dtype), source("v", (k, 33), dtype)
    ws = [source("w", (n, k), dtype) for n in (40, 9)]
    bias = source("bias", (9,), dtype)
    outs = [f.dot(x, f.swap_last(w), dt.float32) for w in ws] + [f.dot(x, v, dt.float32)]
    outs[1] = f.add(outs[1], f.broadcast(f.cast(bias, dt.float32), (5, 9)))
    ins = [x, *ws, v, bias]
    arrays = [kit.fill(n) for n in ins]
    a, *bs, c, d = (n.astype(np.float64) for n in arrays)
    wants = [a @ b.T for b in bs] + [a @ c]
    wants[1] += d
    for got, want in zip(kit.play(device(tier), "matvec", ins, outs, arrays), wants, strict=True):
        kit.close(got, want, np.float32, 4 * k)


@units
@each_width
def test_operands_of_the_epilogue_in_any_order(tier: str, dtype: dt.DType) -> None:
    """One turned, one value per row, one per batch, a choice, and the outputs of two dtypes."""
    x, w = source("x", (2, 20, 24), dtype), source("w", (48, 24), dtype)
    turned, rows = source("t", (48, 40)), source("r", (40, 1))
    batch, mask = source("b", (2, 1, 48), dtype), source("m", (2, 20, 48), dt.bool_)
    y = f.dot(x, f.broadcast(f.swap_last(w), (2, 24, 48)), dt.float32)
    y = f.add(y, f.reshape(f.swap_last(turned), y.shape))
    y = f.mul(y, f.reshape(f.broadcast(rows, (40, 48)), y.shape))
    y = f.where(mask, y, f.broadcast(f.cast(batch, dt.float32), y.shape))
    ins = [x, w, turned, rows, batch, mask]
    arrays = [kit.fill(n) for n in ins[:-1]] + [kit.RNG.random(mask.shape) < 0.5]
    outs = [f.reshape(y, (40, 48)), f.cast(f.neg(y), BF16)]
    got = kit.play(device(tier), "matmul", ins, outs, arrays)
    want = kit.oracle(ins, outs, arrays)
    kit.close(got[0], want[0], np.float32, 96)
    kit.close(got[1], want[1], BF16, 96)


@pytest.mark.parametrize("tier", ["cpu", "cuda"])
def test_residual_in_place(tier: str) -> None:
    x, w, res = source("x", (2, 96)), source("w", (67, 96)), source("res", (2, 67))
    out = f.add(res, f.dot(x, f.swap_last(w)))
    arrays = [kit.fill(n) for n in (x, w, res)]
    group = Group("matvec", (x, w, res), (out,), None, in_place={0: 2}, name="k")
    kernel = registry.get("matvec")(group, device(tier).caps, {})
    done = run_kernel(device(tier), kernel, arrays)
    kit.close(done[2], arrays[2] + arrays[0].astype(np.float64) @ arrays[1].T, k=96)
