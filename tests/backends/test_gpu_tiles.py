"""Tiles in the matrix units of GPUs: the code that is written for each, executed by the emulator
against NumPy in float64, and taken by ptxas and the linker."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable

import gpu_case as case
import gpu_emulator
import numpy as np
import pytest
from rows import few

from weft.backends.llvm import gpu_copies, gpu_target, matrix_units, offline, ptxas
from weft.core import dtypes as dt
from weft.core.errors import CompileError, KernelError
from weft.kernel import interp, ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, load, splat
from weft.kernel.ir import Expr
from weft.kernel.verify import verify

emulated = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")
ARCHES = ("sm_80", "gfx90a", "gfx942", "gfx1100")  # one of each kind of unit
BF16, F16, F32, I8 = dt.bfloat16, dt.float16, dt.float32, dt.int8


@dataclasses.dataclass(frozen=True)
class Case:
    """`pad` elements follow each row in memory, `skip` stand before the first."""

    dtype: dt.DType = BF16
    nt: bool = True
    shared: bool = True
    pad: int = 8
    skip: int = 0
    threads: tuple[int, ...] = (0,)  # 0: two subgroups

    @property
    def k(self) -> int:
        """Two steps."""
        return 2 * self.deep

    @property
    def deep(self) -> int:
        return 32 // self.dtype.itemsize

    @property
    def sums(self) -> dt.DType:
        return dt.int32 if self.dtype == I8 else F32


CASES = {
    "ldmatrix": Case(),
    "ldmatrix, turned": Case(nt=False),
    "half": Case(F16),
    "half, turned": Case(F16, nt=False),
    "pairs": Case(pad=2),
    "pairs, turned": Case(F16, nt=False, pad=2),
    "odd": Case(pad=1, skip=3),
    "odd, turned": Case(nt=False, pad=1, skip=3),
    "buffers": Case(shared=False, pad=0),
    "buffers, turned": Case(F16, nt=False, shared=False, pad=0),
    "buffers, odd": Case(F16, shared=False, pad=1, skip=5),
    "threads in three axes": Case(threads=(8, 4, 4)),
    "bytes": Case(I8, pad=16),
    "bytes, fours": Case(I8, pad=4),
    "bytes, odd": Case(I8, pad=1, skip=3),
    "bytes in buffers": Case(I8, shared=False, pad=0),
}


def kernel_of(c: Case, wave: int) -> ir.Kernel:
    """out = factors * (start + x . y + start) per subgroup: x [16, K] and y [16, K] (nt) or [K, 16]
    of its own, moved to shared memory where asked for; rows of factors 3 apart. Sums of integers
    have no factors."""
    b = Builder("tiles")
    threads = (2 * wave,) if c.threads == (0,) else c.threads
    count = int(np.prod(threads))
    waves = count // wave
    wide = {"x": c.k + c.pad, "y": (c.k if c.nt else 16) + c.pad}
    high = {"x": 16, "y": 16 if c.nt else c.k}
    sizes = {n: c.skip + high[n] * wide[n] for n in "xy"}
    given = {n: b.buffer(n, c.dtype, waves * sizes[n]) for n in "xy"}
    start, factors = b.buffer("start", c.sums, waves * 256), b.buffer("factors", F32, waves * 48)
    out = b.buffer("out", c.sums, waves * 256, "w")
    me = b.let(b.thread(0) + (b.thread(1) + b.thread(2) * (*threads, 1, 1)[1]) * threads[0], "me")
    subgroup = b.let(me // wave, "subgroup")
    memory: dict[str, ir.Buffer | ir.Array] = dict(given)
    if c.shared:
        for n in "xy":
            memory[n] = b.array(f"s{n}", c.dtype, waves * sizes[n], "shared")
            with b.loop(waves * sizes[n], me, count, name="i") as i:
                b.store(memory[n], i, load(given[n], i))
        b.barrier()
    left, right = b.tile("left", c.dtype, 16, c.deep), b.tile("right", c.dtype, 16, c.deep)
    sums = b.tile("sums", c.sums, 16, 16)
    b.tile_load(sums, start, subgroup * 256, 16)
    with b.loop(c.k, step=c.deep, name="k") as k:
        at = {n: b.let(subgroup * sizes[n] + c.skip, f"at_{n}") for n in "xy"}
        b.tile_load(left, memory["x"], at["x"] + k, wide["x"])
        b.tile_load(right, memory["y"], at["y"] + (k if c.nt else k * wide["y"]), wide["y"])
        (b.mma_nt if c.nt else b.mma)(sums, left, right)
    again = b.tile("again", c.sums, 16, 16)
    b.tile_load(again, start, subgroup * 256, 16)
    b.tile_add(sums, again)
    if c.sums == F32:
        b.tile_scale(sums, factors, subgroup * 48 + 1, 3)
    b.tile_store(out, subgroup * 256, 16, sums)
    return b.kernel((1,), threads)


def arrays_of(kernel: ir.Kernel, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-128, 128, b.size).astype(b.dtype.numpy)
        if b.dtype.is_int
        else rng.standard_normal(b.size).astype(b.dtype.numpy)
        for b in kernel.buffers
    ]


def want_of(c: Case, arrays: list[np.ndarray]) -> np.ndarray:
    x, y, start, factors, _ = (a.astype(np.float64) for a in arrays)
    waves = start.size // 256
    x = x.reshape(waves, -1)[:, c.skip :].reshape(waves, 16, c.k + c.pad)[..., : c.k]
    y = y.reshape(waves, -1)[:, c.skip :]
    y = (
        y.reshape(waves, 16, -1)[..., : c.k].swapaxes(1, 2)
        if c.nt
        else y.reshape(waves, c.k, -1)[..., :16]
    )
    if c.dtype == I8:
        factors = np.ones_like(factors)
    scaled = factors.reshape(waves, 16, 3)[..., 1:2]
    return ((2 * start.reshape(waves, 16, 16) + x @ y) * scaled).reshape(-1)


@emulated
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("arch", ARCHES)
def test_products(arch: str, name: str) -> None:
    target, c = gpu_target(arch), CASES[name]
    kernel = kernel_of(c, target.wave)
    verify(kernel)
    arrays = arrays_of(kernel)
    want = want_of(c, arrays)
    gpu_emulator.play(kernel, target, arrays, [])
    np.testing.assert_allclose(arrays[-1], want, rtol=1e-5, atol=1e-4)
    arrays[-1][:] = 0
    interp.run(kernel, arrays, caps=target.caps)
    np.testing.assert_allclose(arrays[-1], want, rtol=1e-5, atol=1e-4)


def piped(stages: int, lanes: int, masked: bool = False, n: int = 6) -> ir.Kernel:
    """out[k, t] = x[k, t] + x[k, t ^ 1], through shared memory, with x[k] asked for `stages` - 1
    steps before it is used."""
    b = Builder("piped")
    width = 64 * lanes
    x, out = b.buffer("x", F32, n * width), b.buffer("out", F32, n * width, "w")
    ring = b.array("ring", F32, stages * width, "shared")
    t = b.let(b.thread(0), "t")

    def ask(k: Expr) -> None:
        at = b.let(k * width + t * lanes, "at")
        mask = splat(t < 63, lanes) if masked else None
        to = b.let(k % stages * width + t * lanes, "to")
        b.copy_async(ring, to, x, at, lanes, mask, stages - 1)

    for k in range(stages - 1):
        ask(const(k))
        b.barrier()
    with b.loop(n, name="k") as k:
        with b.when(k + (stages - 1) < n):
            ask(b.let(k + (stages - 1)))
        for lane in range(lanes):
            at = b.let(k % stages * width, "base")
            own, other = load(ring, at + t * lanes + lane), load(ring, at + (t ^ 1) * lanes + lane)
            b.store(out, k * width + t * lanes + lane, own + other)
        b.barrier()
    return b.kernel((1,), (64,))


@emulated
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("stages,lanes", [(2, 4), (3, 4), (4, 2), (3, 1)])
def test_copies_arrive_when_they_are_due(stages: int, lanes: int, masked: bool) -> None:
    kernel = piped(stages, lanes, masked)
    verify(kernel)
    x = np.arange(1.0, 1 + 6 * 64 * lanes, dtype=np.float32)
    rows = x.reshape(6, 64, lanes).copy()
    if masked:
        rows[:, 63] = 0
    want = (rows + rows[:, np.arange(64) ^ 1]).reshape(-1)
    for arch in ("sm_80", "gfx1100"):
        target, out = gpu_target(arch), np.zeros_like(x)
        interp.run(kernel, [x, out], caps=target.caps)
        np.testing.assert_array_equal(out, want)
        out[:] = 0
        gpu_emulator.play(kernel, target, [x, out], [])
        np.testing.assert_array_equal(out, want)
    text = offline.source(kernel, gpu_target("sm_80"))
    assert f"cp.async.wait_group \t{stages - 2};" in text and f"], {4 * lanes}" in text
    assert "st.shared" not in text and "cp.async" not in offline.source(
        kernel, gpu_target("gfx90a")
    )


@emulated
def test_the_emulator_sees_a_copy_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    urgent = gpu_copies.urgent
    monkeypatch.setattr(gpu_copies, "urgent", lambda w: urgent(w) + 1)
    x, out = np.arange(1.0, 1537, dtype=np.float32), np.zeros(1536, np.float32)
    with pytest.raises(AssertionError, match="depend on what memory or registers held before"):
        gpu_emulator.play(piped(3, 4), gpu_target("sm_80"), [x, out], [])


@pytest.mark.parametrize("due,passed", [(1, 0), (2, 1), (3, 2), (2, 2)])
def test_a_copy_that_is_used_too_early_is_a_race(due: int, passed: int) -> None:
    b = Builder("early")
    x, out = b.buffer("x", F32, 64), b.buffer("out", F32, 64, "w")
    tmp, t = b.array("tmp", F32, 64, "shared"), b.let(b.thread(0), "t")
    b.copy_async(tmp, t, x, t, barriers=due)
    for _ in range(passed):
        b.barrier()
    b.store(out, t, load(tmp, t))
    given = np.zeros((2, 64), np.float32)
    message = "race: .* was touched by group 0, a tile or async copy"
    with contextlib.nullcontext() if due <= passed else pytest.raises(KernelError, match=message):
        interp.run(b.kernel((1,), (64,)), [*given])


def test_what_async_copies_may_be() -> None:
    def check(message: str, change: Callable[[ir.Store, Builder], ir.AsyncCopy]) -> None:
        b = Builder("async_copy")
        x, tmp = b.buffer("x", F32, 64), b.array("tmp", F32, 64, "shared")
        b.emit(change(ir.Store(tmp, const(0), load(x, 0)), b))
        with pytest.raises(KernelError, match=message):
            verify(b.kernel((1,), (64,)))

    check("a barrier or more", lambda s, b: ir.AsyncCopy(s, 0))
    check(
        "without a mask",
        lambda s, b: ir.AsyncCopy(dataclasses.replace(s, mask=const(True, ir.BOOL))),
    )
    sums = "from a buffer to shared memory as it is"
    check(sums, lambda s, b: ir.AsyncCopy(dataclasses.replace(s, value=const(1.0, ir.F32))))
    check(sums, lambda s, b: ir.AsyncCopy(dataclasses.replace(s, target=b.array("own", F32, 9))))


@pytest.mark.parametrize("arch", few([*case.NVIDIA, *case.AMD], case.NVIDIA[0], case.AMD[0]))
def test_every_case_compiles(arch: str) -> None:
    """And takes no memory of a thread's own: tiles stay in registers."""
    target = gpu_target(arch)
    if target.code == "ptx" and ptxas.find() is None:
        pytest.skip("ptxas was not found")
    kernels = [
        dataclasses.replace(kernel_of(c, target.wave), name=f"tiles{n}")
        for n, c in enumerate(CASES.values())
    ]
    found = offline.resources(kernels, target)
    assert len(found) == len(CASES)
    assert not any(r.spills or r.stack for r in found.values()), found


@pytest.mark.parametrize(
    "arch,name,words",
    [
        ("sm_80", "ldmatrix", {"mma.sync.aligned.m16n8k16": 4, "ldmatrix": 4, ".trans": 0}),
        ("sm_90", "half, turned", {"f32.f16.f16.f32": 4, "ldmatrix": 4, ".trans": 2}),
        ("sm_120", "pairs", {"mma.sync": 4, "ldmatrix": 0, "ld.shared.b32": 16}),
        ("gfx90a", "ldmatrix", {"v_mfma_f32_16x16x16bf16_1k": 2, "ds_read2_b64": 2}),
        ("gfx942", "half", {"v_mfma_f32_16x16x16_f16": 2, "ds_read2_b64": 2}),
        ("gfx1100", "ldmatrix", {"v_wmma_f32_16x16x16_bf16": 2, "ds_load_b128": 8}),
        ("sm_90", "bytes", {"m16n8k32.row.col.s32.s8.s8.s32": 4, "ldmatrix": 4}),
        ("sm_120", "bytes, fours", {"mma.sync": 4, "ldmatrix": 0, "ld.shared.b32": 16}),
        ("gfx90a", "bytes", {"v_mfma_i32_16x16x16i8": 4}),
        ("gfx942", "bytes", {"v_mfma_i32_16x16x32_i8": 2}),
        ("gfx1100", "bytes", {"v_wmma_i32_16x16x16_iu8": 4, "ds_load_b128": 8}),
    ],
)
def test_instructions(arch: str, name: str, words: dict[str, int]) -> None:
    """Of both steps along k: the loop is unrolled."""
    target = gpu_target(arch)
    text = offline.source(kernel_of(CASES[name], target.wave), target)
    assert {w: text.count(w) for w in words} == words


@emulated
@pytest.mark.parametrize("arch,kind", [*zip(ARCHES, ("mma", "mfma", "mfma3", "wmma"))])
@pytest.mark.parametrize("field", ["operand", "bytes", "result"])
def test_the_emulator_sees_a_wrong_layout(
    arch: str, kind: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "bytes, fours" if field == "bytes" else "pairs"
    unit, target, c = matrix_units.UNITS[kind], gpu_target(arch), CASES[name]
    right = getattr(unit, field)
    places = tuple(tuple((c, r) for r, c in held) for held in right.registers)
    wrong = matrix_units.LaneLayout(right.col, right.row, places)  # transposed
    monkeypatch.setitem(matrix_units.UNITS, kind, dataclasses.replace(unit, **{field: wrong}))
    arrays = arrays_of(kernel_of(c, target.wave))
    with pytest.raises(AssertionError):  # here, or because the lanes of WMMA differ
        gpu_emulator.play(kernel_of(c, target.wave), target, arrays, [])
        np.testing.assert_allclose(arrays[-1], want_of(c, arrays), rtol=1e-5, atol=1e-4)


def refused(body, dtype: dt.DType = BF16, threads: int = 64) -> ir.Kernel:  # type: ignore[no-untyped-def]
    b = Builder("refused")
    body(b, dtype)
    return b.kernel((1,), (threads,))


def f32_product(b: Builder, dtype: dt.DType) -> None:
    tiles = [b.tile(n, F32, 16, 16) for n in "cab"]
    for tile in tiles:
        b.tile_zero(tile)
    b.mma_nt(*tiles)


def one_tile(cols: int) -> Callable[[Builder, dt.DType], object]:
    return lambda b, dtype: b.tile("c", dtype, 16, cols)


REFUSED = {
    "shape": (one_tile(32), BF16, 64, "tile c of 16 x 32 bfloat16: sm_80 takes 16 x 16 of bfl"),
    "dtype": (
        one_tile(16),
        dt.uint8,
        64,
        "of 16 x 16 uint8: sm_80 takes 16 x 16 .* 16 x 32 of int8",
    ),
    "bytes": (one_tile(16), I8, 64, "of 16 x 16 int8: sm_80 takes 16 x 16"),
    "threads": (one_tile(16), BF16, 48, "of 48 threads: sm_80 multiplies"),
    "product": (f32_product, F32, 64, "no products of tiles of float32 on sm_80"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_unit_refuses(name: str) -> None:
    body, dtype, threads, message = REFUSED[name]
    with pytest.raises(CompileError, match=f"kernel refused: .*{message}"):
        offline.code(refused(body, dtype, threads), gpu_target("sm_80"))


def test_a_tile_has_one_role() -> None:
    def both(b: Builder, dtype: dt.DType) -> None:
        c, a, right = (
            b.tile("c", F32, 16, 16),
            b.tile("a", dtype, 16, 16),
            b.tile("r", dtype, 16, 16),
        )
        for tile in (c, a, right):
            b.tile_zero(tile)
        b.mma(c, a, right)
        b.mma_nt(c, a, right)

    with pytest.raises(KernelError, match="kernel refused: tile r is both turned and operand"):
        verify(refused(both))
