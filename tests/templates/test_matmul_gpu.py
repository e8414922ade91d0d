"""Matrix products in blocks on GPUs: every plan, layout and edge in the interpreter (which reports
races and out-of-bounds access) with the Caps of NVIDIA and AMD, against NumPy in float64."""

from __future__ import annotations

import dotkit as kit
import numpy as np
import pytest
from dotkit import f, source
from hypothesis import given, settings, strategies as st

from weft.backends.interp import InterpDevice
from weft.core import dtypes as dt
from weft.core.errors import CompileError
from weft.kernel import interp
from weft.templates import registry
from weft.templates.group import Group
from weft.templates.product import blocked_gpu, blocked_shared, blocked_units
from weft.templates.product.problem import Problem, find_dots, problem_of

GPUS = ["cuda", "hip-wave64", "hip-wave32"]
DEVICES = {name: InterpDevice(name) for name in (*GPUS, "webgpu", "webgpu-small")}


def product(m, n, k, a_t=False, b_t=False, dtype=dt.float32, batch=(), dots=1):  # type: ignore[no-untyped-def]
    """Sources, dots and NumPy's answer, as a function of the sources' content."""
    x = source("x", (*batch, k, m) if a_t else (*batch, m, k), dtype)
    ws = [source("w", (*batch, n, k) if b_t else (*batch, k, n), dtype) for _ in range(dots)]
    a = f.swap_last(x) if a_t else x
    outs = [f.dot(a, f.swap_last(w) if b_t else w, dt.float32) for w in ws]

    def want(arrays):  # type: ignore[no-untyped-def]
        left, *rights = (v.astype(np.float64) for v in arrays)
        left = left.swapaxes(-1, -2) if a_t else left
        return [left @ (r.swapaxes(-1, -2) if b_t else r) for r in rights]

    return [x, *ws], outs, want


def problem(ins, outs) -> Problem:  # type: ignore[no-untyped-def]
    group = Group("matmul", tuple(ins), tuple(outs), None, name="k")
    return problem_of(group, find_dots(group))


def check(name, ins, outs, want, **fields) -> list[np.ndarray]:  # type: ignore[no-untyped-def]
    arrays = [kit.fill(n) for n in ins]
    got = kit.play(DEVICES[name], "matmul", ins, outs, arrays, **fields)
    for g, w in zip(got, want(arrays), strict=True):
        kit.close(g, w, np.float32, 4 * max(ins[0].shape))
    return got


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(GPUS), dtype=st.sampled_from([dt.float32, dt.bfloat16, dt.float16]),
    m=st.sampled_from([1, 7, 16, 37, 64, 70]), n=st.sampled_from([1, 8, 13, 40, 64, 90]),
    k=st.sampled_from([1, 3, 8, 17, 32, 64, 72]),
    a_t=st.booleans(), b_t=st.booleans(), batch=st.sampled_from([(), (3,), (2, 2)]),
)  # fmt: skip
def test_any_shape(name, dtype, m, n, k, a_t, b_t, batch) -> None:  # type: ignore[no-untyped-def]
    check(name, *product(m, n, k, a_t, b_t, dtype, batch))


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("name", DEVICES)
def test_every_plan_gives_the_same_bits(name: str, dtype: dt.DType) -> None:
    ins, outs, want = product(70, 139, 40, False, True, dtype)
    arrays = [kit.fill(n) for n in ins]
    device = DEVICES[name]
    found = blocked_gpu.candidates(problem(ins, outs), device.caps)
    assert len(found) > (1 if name in GPUS else 0)
    first = None
    for config in found:
        (got,) = kit.play(device, "matmul", ins, outs, arrays, config=config)
        first = got if first is None else first
        np.testing.assert_array_equal(got, first)
    kit.close(first, want(arrays)[0], np.float32, 4 * 40)


@pytest.mark.parametrize("layout", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float16])
@pytest.mark.parametrize("name", GPUS[:2])
def test_large_blocks(name: str, dtype: dt.DType, layout: tuple[bool, bool]) -> None:
    """Blocks of 128 x 128, with and without edges."""
    largest = blocked_units if dtype == dt.float16 else blocked_shared
    for m, n, k in ((128, 128, 64), (136, 129, 50)):
        ins, outs, want = product(m, n, k, *layout, dtype)
        plan = largest.plans(problem(ins, outs), DEVICES[name].caps)[0]
        assert plan.rows == 128
        config = {"rows": plan.rows, "columns": plan.columns, "bk": plan.bk}
        config |= (
            {"down": plan.down, "across": plan.across}
            if dtype == dt.float16
            else {"tm": plan.tm, "tn": plan.tn}
        )
        check(name, ins, outs, want, config=config)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("name", ["cuda", "hip-wave64"])
def test_strips_of_blocks(name: str, dtype: dt.DType) -> None:
    """Groups of large problems walk strips: each block is computed once, also under a bound."""
    config = {"rows": 32, "columns": 32, "tm": 4, "tn": 4, "down": 1, "across": 2, "bk": 16}
    ins, outs, want = product(32 * 10 - 5, 32 * 9, 16, False, True, dtype)
    (full,) = check(name, ins, outs, want, config=config)
    arrays = [kit.fill(n) for n in ins]
    (full,) = kit.play(DEVICES[name], "matmul", ins, outs, arrays, config=config)
    for rows in (1, 300):
        (part,) = kit.play(
            DEVICES[name], "matmul", ins, outs, arrays, [rows], config, rows="n", slots={"n": 0}
        )
        np.testing.assert_array_equal(part[:rows], full[:rows])


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("name", GPUS[:2])
def test_rows_do_not_depend_on_how_many_there_are(name: str, dtype: dt.DType) -> None:
    ins, outs, _ = product(200, 40, 51, False, True, dtype)
    arrays = [kit.fill(n) for n in ins]
    (full,) = kit.play(DEVICES[name], "matmul", ins, outs, arrays)
    for m in (1, 17, 33, 130):
        few, one, _ = product(m, 40, 51, False, True, dtype)
        (got,) = kit.play(DEVICES[name], "matmul", few, one, [arrays[0][:m], arrays[1]])
        np.testing.assert_array_equal(got, full[:m])


@pytest.mark.parametrize("dots", [2, 3])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("name", ["cuda", "hip-wave64", "webgpu"])
def test_several_dots(name: str, dtype: dt.DType, dots: int) -> None:
    ins, outs, want = product(70, 72, 40, False, True, dtype, (), dots)
    ws, out = outs[1:], kit.gelu(outs[0])
    for w in ws:
        out = f.mul(out, w)
    bias, res = source("bias", (72,), dtype), source("res", (70, 72), dtype)
    out = f.add(out, f.broadcast(f.cast(bias, dt.float32), out.shape))
    out = f.cast(f.add(out, f.cast(res, dt.float32)), dtype)
    ins = [*ins, bias, res]
    arrays = [kit.fill(n) for n in ins]
    arrays[0] = (arrays[0].astype(np.float32) / 8).astype(dtype.numpy)
    (got,) = kit.play(DEVICES[name], "matmul", ins, [out], arrays)
    import torch

    y, *others = want(arrays[: 1 + dots])
    total = torch.nn.functional.gelu(torch.from_numpy(y)).numpy() * np.prod(others, axis=0)
    total = total + arrays[-2].astype(np.float64) + arrays[-1].astype(np.float64)
    kit.close(got, total, dtype, 40)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("name", GPUS[:2])
def test_strided_operands(name: str, dtype: dt.DType) -> None:
    """Every second element, a window that starts off any alignment, one column for all."""
    x, w = source("x", (40, 66), dtype), source("w", (70, 33), dtype)
    cut = f.slice_(x, (0, 1), (40, 66), (1, 2))
    window = f.slice_(w, (3, 1), (70, 33), (1, 1))
    left = f.slice_(cut, (0, 0), (40, 32), (1, 1))
    one = f.broadcast(f.slice_(w, (0, 4), (32, 5), (1, 1)), (32, 50))
    arrays = [kit.fill(x), kit.fill(w)]
    outs = [f.dot(left, f.swap_last(window), dt.float32), f.dot(left, one, dt.float32)]
    a, b = (v.astype(np.float64) for v in arrays)
    a = a[:, 1::2][:, :32]
    wants = [a @ b[3:, 1:].T, a @ np.broadcast_to(b[:32, 4:5], (32, 50))]
    for out, want in zip(outs, wants):
        (got,) = kit.play(DEVICES[name], "matmul", [x, w], [out], arrays)
        kit.close(got, want, np.float32, 128)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("shape", [(0, 9, 16), (9, 0, 16), (9, 17, 0)])
@pytest.mark.parametrize("name", GPUS[:2])
def test_nothing(name: str, shape: tuple[int, int, int], dtype: dt.DType) -> None:
    ins, outs, _ = product(*shape, dtype=dtype)
    group = Group("matmul", tuple(ins), tuple(outs), None, name="k")
    kernel = registry.get("matmul")(group, DEVICES[name].caps, {})
    arrays = [np.ones(b.size, b.dtype.numpy) for b in kernel.buffers]
    interp.run(kernel, arrays, (), DEVICES[name].caps)
    assert not arrays[-1][: outs[0].size].any()


def test_which_operands_the_units_take() -> None:
    caps = DEVICES["cuda"].caps

    def suits(*args, **kw) -> bool:  # type: ignore[no-untyped-def]
        ins, outs, _ = product(*args, **kw)
        return blocked_units.suits(problem(ins, outs), caps)

    assert suits(1, 8, 8, dtype=dt.bfloat16) and suits(500, 64, 64, dtype=dt.float16)
    assert not suits(64, 64, 64) and not suits(64, 64, 7, dtype=dt.float16)
    x, w = source("x", (40, 64)), source("w", (70, 64), dt.float16)
    mixed = f.dot(x, f.swap_last(f.cast(w, dt.float32)))
    assert not blocked_units.suits(problem([x, w], [mixed]), caps)
    check("cuda", [x, w], [mixed], lambda a: [a[0].astype(np.float64) @ a[1].T.astype(np.float64)])


@pytest.mark.parametrize(
    "dtype,config,why",
    [
        (dt.float32, {"rows": 1024}, "threads"),
        (dt.float32, {"tm": 3}, "fours"),
        (dt.float32, {"bk": 256}, "bytes"),
        (dt.float32, {"columns": 48}, "patches"),
        (dt.bfloat16, {"bk": 24}, "tiles of 16 x 16"),
        (dt.bfloat16, {"down": 1, "across": 64, "columns": 1024}, "threads"),
        (dt.bfloat16, {"bk": 1024}, "bytes"),
    ],
)
def test_configurations_that_do_not_fit(dtype, config, why) -> None:  # type: ignore[no-untyped-def]
    ins, outs, want = product(64, 64, 64, dtype=dtype)
    with pytest.raises(CompileError, match=why):
        check("cuda", ins, outs, want, config=config)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("name", ["cuda", "hip-wave64", "webgpu"])
def test_operands_of_the_epilogue_in_any_order(name: str, dtype: dt.DType) -> None:
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
    outs = [f.reshape(y, (40, 48)), f.cast(f.neg(y), dt.bfloat16)]
    got = kit.play(DEVICES[name], "matmul", ins, outs, arrays)
    want = kit.oracle(ins, outs, arrays)
    kit.close(got[0], want[0], np.float32, 96)
    kit.close(got[1], want[1], dt.bfloat16, 96)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16])
@pytest.mark.parametrize("name", ["cuda", "hip-wave64"])
def test_batches_bounded_at_run_time(name: str, dtype: dt.DType) -> None:
    ins, outs, _ = product(20, 24, 32, False, False, dtype, (5,))
    arrays = [kit.fill(n) for n in ins]
    (full,) = kit.play(DEVICES[name], "matmul", ins, outs, arrays)
    (part,) = kit.play(DEVICES[name], "matmul", ins, outs, arrays, [3], rows="n", slots={"n": 0})
    np.testing.assert_array_equal(part[:3], full[:3])
