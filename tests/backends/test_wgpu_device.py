"""The wgpu device: Programs, shared buffers, grids, limits, and errors that must not pass."""

import gc
import time

import numpy as np
import pytest
from wgpu_case import device

from weft.conform.harness import run_kernel
from weft.core import dtypes as dt
from weft.core.errors import CompileError, DeviceError, LimitError, OutOfMemoryError
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import const, load
from weft.program.program import BufferRef, BufferSpec, Dispatch, Fill, Program

F32 = dt.float32


def axpy(a=2.0, n=64):
    b = Builder("axpy")
    x, y = b.buffer("x", F32, n), b.buffer("y", F32, n)
    out = b.buffer("out", F32, n, "w")
    i = b.let(b.group(0) * 64 + b.thread(0), "i")
    b.store(out, i, load(x, i) * a + load(y, i))
    return b.kernel(grid=(n // 64,), threads=(64,))


def floats(n):
    return BufferSpec("f", "input", F32, (n,), 4 * n)


def program(kernels, steps, specs, scalars=()):
    return Program("p", tuple(specs), tuple(kernels), tuple(steps), scalars, (), ())


def test_few_pipelines_are_kept(monkeypatch):
    """The least recently used go; a Program that is bound keeps its own."""
    monkeypatch.setattr("weft.backends.wgpu.device.KEPT", 2)
    gpu = device()
    gpu._compiled.clear()
    steps = [Dispatch(0, tuple(BufferRef(k, 0, 256) for k in range(3)))]
    buffers = [gpu.alloc(256) for _ in range(3)]
    for buffer in buffers:
        gpu.write(buffer, np.ones(64, np.float32))
    bound = gpu.bind(program([axpy(2.0)], steps, [floats(64)] * 3), buffers)
    gpu.load([axpy(3.0), axpy(2.0), axpy(4.0)])
    assert list(gpu._compiled) == [gpu.source(axpy(2.0)), gpu.source(axpy(4.0))]
    gpu.load([axpy(5.0), axpy(6.0)])
    gc.collect()
    gpu.submit(bound, [])
    np.testing.assert_array_equal(gpu.read(buffers[2], (64,), F32), 3)


def test_operands_and_result_in_one_arena():
    """A kernel may read and write ranges of the same buffer (declared read-write for WebGPU)."""
    gpu = device()
    arena = gpu.alloc(4096)
    gpu.write(arena, np.arange(64, dtype=np.float32))
    gpu.write(arena, np.full(64, 5, np.float32), 1024)
    r = [BufferRef(0, 1024 * k, 256) for k in range(3)]
    steps = [Dispatch(0, (r[0], r[1], r[2])), Dispatch(0, (r[2], r[2], r[0]))]
    spec = BufferSpec("arena", "arena", dt.uint8, (4096,), 4096)
    bound = gpu.bind(program([axpy()], steps, [spec]), [arena])
    gpu.submit(bound, ())
    want = np.arange(64, dtype=np.float32) * 2 + 5
    np.testing.assert_array_equal(gpu.read(arena, (64,), F32, 2048), want)
    np.testing.assert_array_equal(gpu.read(arena, (64,), F32), want * 3)


def test_two_program_buffers_may_be_one_buffer():
    """Rebinding an input to the output's buffer changes how it must be declared."""
    gpu = device()
    a, b, c = (gpu.alloc(256) for _ in range(3))
    for buffer in (a, b):
        gpu.write(buffer, np.ones(64, np.float32))
    bound = gpu.bind(
        program([axpy()], [Dispatch(0, tuple(BufferRef(k, 0, 256) for k in range(3)))],
                [floats(64)] * 3), [a, b, c],
    )  # fmt: skip
    gpu.submit(bound, ())
    bound.rebind(1, c)
    gpu.submit(bound, ())
    np.testing.assert_array_equal(gpu.read(c, (64,), F32), np.full(64, 5, np.float32))
    bound.rebind(1, b)
    gpu.submit(bound, ())
    np.testing.assert_array_equal(gpu.read(c, (64,), F32), np.full(64, 3, np.float32))


@pytest.mark.parametrize(
    "groups",
    [(70_000, 1, 1), (131_071, 2, 1), (65_535, 1, 2), (1, 70_000, 1), (2, 3, 65_536), (0, 9, 9)],
)
def test_grids_longer_than_an_axis(groups):
    b = Builder("grid")
    out = b.buffer("out", dt.int32, groups[0] * groups[1] * groups[2], "w")
    g = b.let(b.group(0), "g")
    at = b.let((b.group(2) * groups[1] + b.group(1)) * groups[0] + g, "at")
    b.store(out, at, at + 1)
    for dynamic in (False, True):
        x = ir.Param("n", 0) if dynamic else const(groups[0])
        kernel = b.kernel(grid=(x, const(groups[1]), const(groups[2])))
        gpu = device()
        buffer = gpu.alloc(4 * out.size)
        spec = BufferSpec("o", "output", dt.int32, (out.size,), 4 * out.size)
        steps = [Fill(BufferRef(0, 0, 4 * out.size), 0xFF),
                 Dispatch(0, (BufferRef(0, 0, 4 * out.size),))]  # fmt: skip
        gpu.submit(gpu.bind(program([kernel], steps, [spec], ("n",)), [buffer]), (groups[0],))
        got = gpu.read(buffer, (out.size,), dt.int32)
        np.testing.assert_array_equal(got, np.arange(1, out.size + 1, dtype=np.int32))


def test_folded_groups_meet_at_barriers():
    b = Builder("fold")
    n = 300
    out = b.buffer("out", dt.int32, n * 4, "w")
    tile = b.array("tile", dt.int32, 4, "shared")
    t = b.let(b.thread(0), "t")
    b.store(tile, t, b.group(0) * 4 + t)
    b.barrier()
    b.store(out, b.group(0) * 4 + t, load(tile, 3 - t))
    kernel = b.kernel(grid=(ir.Param("n", 0),), threads=(4,))
    from weft.backends.wgpu import WgpuDevice

    device()
    gpu = WgpuDevice("vulkan", 0, max_groups=7 * 9)
    buffer = gpu.alloc(16 * n)
    spec = BufferSpec("o", "output", dt.int32, (4 * n,), 16 * n)
    steps = [Dispatch(0, (BufferRef(0, 0, 16 * n),))]
    gpu.submit(gpu.bind(program([kernel], steps, [spec], ("n",)), [buffer]), (n,))
    got = gpu.read(buffer, (n, 4), dt.int32)
    np.testing.assert_array_equal(got, np.arange(4 * n).reshape(n, 4)[:, ::-1])
    too_many = gpu.bind(program([kernel], steps, [spec], ("n",)), [buffer])
    with pytest.raises(LimitError, match="grid"):
        gpu.submit(too_many, (63 * 63 + 1,))


def test_freed_buffers_are_reused():
    gpu = device()
    first = gpu.alloc(5000)
    raw = first.raw
    del first
    assert gpu.alloc(4900).raw is raw
    before = gpu.memory.allocated
    for _ in range(200):
        gpu.alloc(100_000)
    gc.collect()
    assert gpu.memory.allocated <= before + 2 * 131072


def test_limits_name_what_was_asked_and_what_there_is():
    gpu = device()
    with pytest.raises(LimitError, match=r"\d{12,} bytes was asked for; the device holds at most"):
        gpu.alloc(1 << 40)
    b = Builder("many")
    for k in range(gpu.caps.max_bindings + 1):
        b.buffer(f"x{k}", F32, 4)
    with pytest.raises(LimitError, match="many needs"):
        gpu.load([b.kernel(grid=(1,))])
    with pytest.raises(LimitError, match="threads per group"):
        gpu.load([Builder("wide").kernel(grid=(1,), threads=(64, 64))])
    b = Builder("shared")
    b.array("tile", F32, 1 << 16, "shared")
    with pytest.raises(LimitError, match="bytes of shared memory"):
        gpu.load([b.kernel(grid=(1,))])


def test_unaligned_arguments_are_refused():
    gpu = device()
    buffers = [gpu.alloc(1024) for _ in range(3)]
    args = (BufferRef(0, 4, 256), BufferRef(1, 0, 256), BufferRef(2, 0, 256))
    with pytest.raises(DeviceError, match="byte offset 4 is not a multiple"):
        gpu.bind(program([axpy()], [Dispatch(0, args)], [floats(256)] * 3), buffers)


def test_out_of_memory_is_named(monkeypatch):
    gpu = device("packed")

    def refuse(**_):
        raise gpu.wgpu.GPUOutOfMemoryError("not enough memory left")

    monkeypatch.setattr(gpu.raw, "create_buffer", refuse, raising=False)
    with pytest.raises(OutOfMemoryError, match="not enough memory left"):
        gpu.alloc(777_777)


def test_an_error_outside_any_call_is_raised_by_the_next_read():
    """A native call that bypasses wgpu-py reports its error to the log only."""
    from wgpu.backends.wgpu_native._ffi import ffi, lib

    gpu = device()
    a = gpu.alloc(64)
    gpu.write(a, np.ones(16, np.float32))
    data = ffi.new("uint8_t[]", 8)
    lib.wgpuQueueWriteBuffer(gpu.raw.queue._internal, a.raw._internal, 1 << 20, data, 8)
    with pytest.raises(DeviceError, match="overrunning"):
        gpu.read(a, (16,), F32)
    np.testing.assert_array_equal(gpu.read(a, (16,), F32), np.ones(16, np.float32))


def test_a_bad_shader_is_a_compile_error(monkeypatch):
    from weft.backends import wgsl

    gpu = device()
    monkeypatch.setattr(wgsl, "render", lambda *_: "fn main() { oops }")
    with pytest.raises(CompileError, match="kernel axpy"):
        gpu.load([axpy(1234.5)])


HEAD = (
    "@group(0) @binding(0) var<storage, read_write> a: array<f32>;\n@compute @workgroup_size(1)\n"
)


@pytest.mark.parametrize(
    ("line", "words", "marked"),
    [
        ("a[0] = nowhere;", "no definition in scope for identifier: `nowhere`", "nowhere"),
        ("a[3] = a[-1i] + 2.0;", "via a negative index is invalid", "a[-1i]"),
        (
            "let far = " + " + ".join(["a[1]"] * 40) + " + oops + a[0];",
            "identifier: `oops`",
            "oops",
        ),
        ("a[0] = 1.0 +;", 'expected expression, found ";"', ";"),
    ],
)
def test_a_refused_shader_shows_its_line(monkeypatch, line, words, marked):
    from weft.backends import wgsl

    text = HEAD + "fn main() {\n  let x = 1i;\n  " + line + "\n}\n"
    monkeypatch.setattr(wgsl, "render", lambda *_: text)
    with pytest.raises(CompileError) as caught:
        device().load([axpy(1234.5)])
    said, shown, caret = str(caught.value).splitlines()
    assert said.startswith("vulkan:0: kernel axpy, line 5 of its WGSL: ") and words in said
    assert shown.strip() in line and max(map(len, (shown, caret))) <= 100
    assert shown[caret.index("^") : len(caret)] == marked


def test_a_refused_pipeline_says_why(monkeypatch):
    from weft.backends import wgsl

    text = HEAD + "fn other() { a[0] = 1.0; }\n"
    monkeypatch.setattr(wgsl, "render", lambda *_: text)
    with pytest.raises(CompileError, match=r"kernel axpy: .*Unable to find entry point 'main'$"):
        device().load([axpy(1234.5)])


def test_a_lost_device_says_so_for_good():
    from weft.backends.wgpu import WgpuDevice

    device()
    gpu = WgpuDevice("vulkan", 0)
    a = gpu.alloc(64)
    from wgpu.backends.wgpu_native._ffi import lib

    lib.wgpuDeviceDestroy(gpu.raw._internal)
    for act in (
        lambda: gpu.read(a, (4,), F32),
        lambda: gpu.write(a, np.zeros(4, np.float32)),
        lambda: gpu.alloc(4),
        gpu.sync,
    ):
        with pytest.raises(DeviceError, match=r"lost|gone"):
            act()
    assert gpu.lost


def test_replay_costs_few_microseconds_per_dispatch():
    gpu = device()
    n, kernel = 300, axpy()
    args = tuple(BufferRef(k, 0, 256) for k in range(3))
    bound = gpu.bind(
        program([kernel], [Dispatch(0, args)] * n, [floats(64)] * 3),
        [gpu.alloc(256) for _ in range(3)],
    )
    best = 1.0
    for _ in range(8):
        gpu.sync()
        start = time.perf_counter()
        gpu.submit(bound, ())
        best = min(best, time.perf_counter() - start)
    assert best / n < 20e-6, f"{1e6 * best / n:.1f} us"  # 2 us measured; the rest is for a busy CI


def test_rebinding_to_ever_new_buffers():
    """Bind groups are kept by buffer identity: a recycled identity must not find an old group."""
    gpu = device()
    kernel = axpy()
    args = tuple(BufferRef(k, 0, 256) for k in range(3))
    x, y, out = (gpu.alloc(256) for _ in range(3))
    gpu.write(y, np.zeros(64, np.float32))
    bound = gpu.bind(program([kernel], [Dispatch(0, args)], [floats(64)] * 3), [x, y, out])
    for k in range(60):
        fresh = gpu.alloc(256)
        gpu.memory.free.clear()  # nothing is reused: freed buffers die
        gpu.memory.allocated -= gpu.memory.pooled
        gpu.memory.pooled = 0
        gpu.write(fresh, np.full(64, k, np.float32))
        bound.rebind(0, fresh)
        gpu.submit(bound, ())
        np.testing.assert_array_equal(gpu.read(out, (64,), F32), np.full(64, 2 * k, np.float32))
        del fresh


def test_kernels_of_one_text_keep_their_sizes() -> None:
    """The text does not say how long a buffer is; what is bound of it must be all of it."""

    def picked(n: int) -> ir.Kernel:
        b = Builder("pick")
        at, x = b.buffer("at", dt.int32, 1), b.buffer("x", F32, n)
        b.store(b.buffer("out", F32, 1, "w"), const(0), load(x, load(at, const(0))))
        return b.kernel(grid=(1,))

    gpu, small, large = device(), picked(4), picked(1000)
    assert gpu.source(small) == gpu.source(large)
    values = np.arange(1000, dtype=np.float32)
    for kernel, last in ((small, 3), (large, 999), (small, 3)):
        given = [np.array([last], np.int32), values[: last + 1], np.zeros(1, np.float32)]
        assert run_kernel(gpu, kernel, given)[2] == last
