"""Machines that an emulator runs: the contract, what differs between them, faults."""

import importlib
import os
import signal

import numpy as np
import pytest
from rows import few

import weft
from weft.backends import registry
from weft.backends.emulated import EmulatedDevice, build
from weft.backends.emulated.device import ALIGN, AddressRange
from weft.backends.emulated.machines import MACHINES
from weft.conform.check import check_device
from weft.conform.harness import program_of, run_kernel
from weft.conform.report import Skip
from weft.core import dtypes as dt
from weft.core.errors import CompileError, DeviceError, OutOfMemoryError
from weft.host.cache import DiskCache
from weft.kernel.builder import Builder
from weft.kernel.expr import binary, const, load, unary

FEW = ("riscv64-v256", "aarch64-sve256", "ppc64")  # the others with the slow tests
NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in MACHINES]


def opened(name):
    if why := build.missing(MACHINES[name]):
        pytest.skip(why)
    return registry.get(name)


def cases(device, level, *names):
    """Runs the checks of a level whose names begin as one of these; how many there were."""
    count = 0
    for name, thunk in importlib.import_module(f"weft.conform.{level}").checks(device):
        if name.startswith(names):
            try:
                thunk()
            except Skip:
                continue
            count += 1
    return count


@pytest.mark.parametrize("name", few(MACHINES, "ppc64"))
def test_the_contract_of_a_device(name):
    report = check_device(opened(name), ["device"])
    assert report.ok, [case for case in report.cases if case.status == "fail"]


@pytest.mark.parametrize("name", NAMES)
def test_what_machines_do_in_their_own_ways(name):
    """Conversions, rounding, the order of bytes in lanes, sums of products, division."""
    device = opened(name)
    found = cases(device, "kernels", "trunc", "floor", "rint", "sqrt", "Bitcast", "dot", "rem",
                  "Cast float32", "Cast int8", "Cast float16 to", "Load and Store")  # fmt: skip
    assert found > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_product_in_blocks(name):
    """On a big-endian machine some of its floats look like signalling NaNs while their bytes are
    still those of the buffer."""
    assert cases(opened(name), "primitives", "dot float32 70x130x50", "dot int8 5x33x7") > 0


@pytest.mark.parametrize(
    "m, n, k, turned", [(70, 50, 130, "none"), (33, 40, 2400, "left"), (100, 70, 600, "right")]
)
def test_outer_products_have_the_bits_of_vectors(m, n, k, turned):
    """SME's sums are chains of multiply-adds in ascending k, as everywhere."""
    device = opened("aarch64-sme512")
    rng = np.random.default_rng(0)
    a = rng.standard_normal((k, m) if turned == "left" else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if turned == "right" else (k, n)).astype(np.float32)

    def product(a, b):
        return (a.T if turned == "left" else a) @ (b.T if turned == "right" else b) + 1.0

    here, there = (
        weft.compile(product, device=d)(weft.tensor(a), weft.tensor(b)).numpy()
        for d in ("cpu", device)
    )
    assert (here.view(np.uint32) == there.view(np.uint32)).all()


def test_a_product_is_added_up_by_the_matrix_unit(monkeypatch):
    """The template asks for outer products, and the machine's code has them and nothing of NEON's
    that streaming mode lacks."""
    device = opened("aarch64-sme512")
    seen = []
    kernel = device._builder.kernel
    monkeypatch.setattr(device._builder, "kernel", lambda k: seen.append(k) or kernel(k))
    x = weft.tensor(np.ones((32, 40), np.float32))
    assert (weft.compile(lambda a: a @ a.T, device=device)(x).numpy() == 40).all()
    text = device._builder.render(seen[-1])
    assert text.count("call void @llvm.aarch64.sme.mopa.nxv4f32") == 4 and "neon" not in text


@pytest.mark.slow
@pytest.mark.parametrize("level", ["kernels", "primitives", "templates", "models", "stress"])
@pytest.mark.parametrize("name", [*MACHINES])
@pytest.mark.timeout(7200)
def test_every_level(name, level):
    report = check_device(opened(name), [level])
    assert report.ok, [case for case in report.cases if case.status == "fail"]


@pytest.mark.parametrize(
    "name",
    ["aarch64", *(pytest.param(n, marks=pytest.mark.slow) for n in MACHINES if n != "aarch64")],
)
@pytest.mark.timeout(1800)
def test_the_model_in_the_box_says_what_it_says_on_the_cpu(name):
    from weft.hub.box import box_folder

    texts = []
    for device in ("cpu", opened(name)):
        model = weft.load(box_folder(), device=device, context=64)
        texts.append(list(model.generate("def fibonacci(n):", max_new_tokens=8).ids))
    assert texts[0] == texts[1]


# -- faults ---------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    """A machine that a test may break."""
    opened("riscv64")
    device = EmulatedDevice(MACHINES["riscv64"], DiskCache(tmp_path))
    yield device
    device.process.close()


def test_what_llvm_dies_of_is_an_error_that_names_the_kernel(tmp_path):
    """At an instruction of another machine LLVM ends its process; the next kernel compiles."""
    if why := build.missing(MACHINES["riscv64"]):
        pytest.skip(why)
    builder = build.TargetBuilder(MACHINES["riscv64"], DiskCache(tmp_path))
    name = "llvm.x86.sse2.pmadd.wd"
    kinds = "<4 x i32> @f(<8 x i16> %a)", f"<4 x i32> @{name}(<8 x i16>, <8 x i16>)"
    call = f"%c = call <4 x i32> @{name}(<8 x i16> %a, <8 x i16> %a)"
    foreign = f"declare {kinds[1]}\ndefine {kinds[0]} {{ {call}\n ret <4 x i32> %c }}"
    with pytest.raises(CompileError, match=r"kernel foreign: LLVM, .* riscv64, crashed"):
        builder.module(foreign, "foreign")
    with pytest.raises(CompileError, match="kernel broken: LLVM refuses the code"):
        builder.module("define void @f() { ret i32 0 }", "broken")
    assert builder.module("define void @f() { ret void }", "good")[:4] == b"\x7fELF"


def wild(device):
    """A kernel that reads far outside, and a Program of it."""
    b = Builder("wild")
    out, x = b.buffer("out", dt.float32, 4, "w"), b.buffer("x", dt.float32, 4)
    b.store(out, 0, load(x, const(1 << 30) * 1))
    program, sizes = program_of(b.kernel(grid=(const(1),)))
    return device.bind(program, [device.alloc(n) for n in sizes])


def test_a_fault_names_the_kernel_and_the_signal(own):
    own._places = AddressRange(own.machine.memory - (1 << 20), own.machine.memory)  # near the end
    bound = wild(own)
    with pytest.raises(DeviceError, match=r"(?s)SIGSEGV.*wild ran kernel wild \(step 0\)"):
        own.submit(bound, ())
    assert own.lost
    with pytest.raises(DeviceError, match=r"riscv64 is gone .*open it again"):
        own.submit(bound, ())


def test_a_process_that_is_killed_is_an_error_and_opened_again(monkeypatch):
    device = opened("riscv64")
    os.kill(device.process.pid, signal.SIGKILL)
    x = weft.tensor(np.ones(4, np.float32))
    with pytest.raises(DeviceError, match="SIGKILL"):
        weft.compile(lambda a: a + 1, device=device)(x)
    again = registry.get("riscv64")
    assert again is not device
    assert (weft.compile(lambda a: a + 1, device="riscv64")(x).numpy() == 2).all()


def test_what_is_not_installed_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="qemu-riscv64 is not there: apt install qemu-user"):
        EmulatedDevice(MACHINES["riscv64"])
    (line,) = registry.probe("emulated")
    assert not line.available and "apt install" in line.reason
    assert not registry.probe("hexagon")[0].available


def test_the_group_of_machines_is_no_machine():
    with pytest.raises(DeviceError, match="by their names: riscv64, "):
        registry.get("emulated")


def test_a_fork_does_not_use_its_parents_machine(own):
    buffer = own.alloc(4)
    child = os.fork()
    if not child:
        try:
            own.read(buffer, (1,), dt.float32)
        except DeviceError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    own.write(buffer, np.ones(1, np.float32))
    assert own.read(buffer, (1,), dt.float32) == 1


def test_memory_is_given_back(own):
    """Offsets come again, and pages of large buffers leave memory."""
    first = own.alloc(8 << 20)
    own.write(first, np.ones(8 << 20, np.uint8))
    offset = first.offset
    del first
    again = own.alloc(8 << 20)
    assert again.offset == offset
    assert not own.read(again, (8 << 20,), dt.uint8).any()


def test_places_are_joined_when_given_back():
    places = AddressRange(0, 10 * ALIGN)
    taken = [places.take(2 * ALIGN) for _ in range(5)]
    assert None not in taken and places.take(1) is None
    for start in (taken[1], taken[3], taken[2]):
        places.give(start)
    assert places.take(6 * ALIGN) == taken[1]
    rng = np.random.default_rng(0)
    held = {}
    places = AddressRange(0, 1000 * ALIGN)
    for _ in range(2000):
        if held and rng.integers(2):
            start = list(held)[rng.integers(len(held))]
            assert places.give(start) == held.pop(start)
        else:
            size = int(rng.integers(1, 40)) * ALIGN
            start = places.take(size)
            if start is not None:
                assert all(start >= s + n or start + size <= s for s, n in held.items())
                held[start] = size
    for start in list(held):
        places.give(start)
    assert places.take(1000 * ALIGN) == 0


def test_a_buffer_larger_than_memory(own):
    with pytest.raises(OutOfMemoryError):
        own.alloc(own.machine.memory)


# -- what instructions are missing ----------------------------------------------------------------


def test_functions_in_place_of_instructions():
    """Hexagon has no square root, no rounding and no division of integers."""
    device = opened("hexagon")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 4000, dtype=np.uint64).astype(np.uint32)
    edges = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        8388607.5,
        8388608.0,
        1e-45,
        1.2e-38,
        np.inf,
        3.4e38,
    ]
    x = np.concatenate([bits.view(np.float32), np.array(edges, np.float32)])
    with np.errstate(all="ignore"):
        for op, truth in (("sqrt", np.sqrt), ("floor", np.floor), ("ceil", np.ceil),
                          ("trunc", np.trunc), ("rint", np.rint)):  # fmt: skip
            b = Builder(op)
            source, out = (
                b.buffer("x", dt.float32, x.size),
                b.buffer("out", dt.float32, x.size, "w"),
            )
            b.store(out, b.group(0), unary(op, load(source, b.group(0))))
            kernel = b.kernel(grid=(const(x.size),))
            got, want = run_kernel(device, kernel, [x, np.zeros_like(x)])[1], truth(x)
            number = ~np.isnan(want)
            assert (np.isnan(got) == ~number).all()
            assert (got.view(np.uint32) == want.view(np.uint32))[number].all(), op


def test_integer_division_without_instructions():
    device = opened("hexagon")
    rng = np.random.default_rng(1)
    for dtype in (dt.int32, dt.uint32):
        info = np.iinfo(dtype.numpy)
        x = rng.integers(info.min, info.max, 2000, dtype=dtype.numpy)
        y = rng.integers(info.min, info.max, 2000, dtype=dtype.numpy)
        y >>= rng.integers(0, 31, 2000).astype(dtype.numpy)
        y[y == 0] = 1
        x[:4], y[:4] = [info.max, info.max, info.min, 7], [info.max, 1, 1, info.max]
        for op in ("div", "rem"):
            b = Builder(op)
            p, q = b.buffer("x", dtype, 2000), b.buffer("y", dtype, 2000)
            out, i = b.buffer("out", dtype, 2000, "w"), b.group(0)
            b.store(out, i, binary(op, load(p, i), load(q, i)))
            got = run_kernel(device, b.kernel(grid=(const(2000),)), [x, y, np.zeros_like(x)])[2]
            assert got.tolist() == [toward_zero(op, *ab) for ab in zip(x.tolist(), y.tolist())]


def toward_zero(op, a, b):
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient if op == "div" else a - quotient * b


@pytest.mark.slow
def test_a_convolution_of_codes_on_hvx():
    """The bits of the CPU's, by sums of four products in 32 lanes: 64 outputs are two such sums for
    each place of a tile."""
    from weft.ops.codes import DEQUANTIZE, QUANTIZE

    device, rng = opened("hexagon-hvx"), np.random.default_rng(0)

    def number(value, dtype):
        return weft.full((), value, dtype)

    weights = weft.tensor(rng.integers(-127, 128, (64, 16, 3, 3)).astype(np.int8))

    def net(x):
        x = x._call(DEQUANTIZE, number(0.02, dt.float32), number(3, dt.uint8))
        w = weights._call(DEQUANTIZE, number(1e-3, dt.float32), number(0, dt.int8))
        y = weft.functional.conv2d(x, w, padding=1).relu()
        return y._call(QUANTIZE, number(0.05, dt.float32), number(0, dt.uint8))

    x = weft.tensor(rng.integers(0, 256, (1, 16, 9, 9)).astype(np.uint8))
    compiled = weft.compile(net, device=device, frozen=True)
    truth = weft.compile(net, device="cpu", frozen=True)(x).numpy()
    assert (compiled(x).numpy() == truth).all() and truth.std() > 1
    code = device.process.memory[: device._code].view("<u4")
    assert ((code & 0xFFE020E0) == 0x1C002020).sum() >= 2  # Vx.w += vrmpy(Vu.b, Vv.b)
