"""What spans processes: the object cache, lazy imports, fork, exit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from cpu_case import device, program_of

from weft.backends.cpu import CpuDevice, host
from weft.core import dtypes as dt
from weft.kernel import ir
from weft.kernel.builder import Builder
from weft.kernel.expr import load

SCRIPT = """
import sys
import numpy as np
from weft.backends.cpu import CpuDevice
from weft.core import dtypes as dt
from weft.kernel.builder import Builder
from weft.kernel.expr import load
from weft.program.program import BufferRef, BufferSpec, Dispatch, Program
b = Builder("k")
x = b.buffer("x", dt.float32, 4096, "rw")
with b.loop(64) as i:
    b.store(x, b.group(0) * 64 + i, load(x, b.group(0) * 64 + i) * 2.0)
kernel = b.kernel((64,))
assert "llvmlite" not in sys.modules
d = CpuDevice(cache=sys.argv[1], threads=2)
spec = BufferSpec("x", "input", dt.float32, (4096,), 16384)
steps = (Dispatch(0, (BufferRef(0, 0, 16384),)),) * 5
program = Program("p", (spec,), (kernel,), steps, (), (0,), (0,))
buffer = d.alloc(16384)
d.write(buffer, np.ones(4096, np.float32))
d.submit(d.bind(program, [buffer]), ())
assert (d.read(buffer, (4096,), dt.float32) == 32).all()
print(d.loader.compiled, "llvmlite" in sys.modules)
"""


def run_script(cache: Path, *options: str) -> str:
    command = [sys.executable, *options, "-c", SCRIPT, str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_second_process_neither_compiles_nor_imports_llvmlite(tmp_path: Path) -> None:
    assert run_script(tmp_path) == "2 True"
    second = run_script(tmp_path)
    assert second.startswith("0 ")
    if sys.platform == "linux" and device().host.arch == "x86_64":
        assert second == "0 False"


def test_a_damaged_cache_is_rebuilt(tmp_path: Path) -> None:
    run_script(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-7])
    assert run_script(tmp_path) == "2 True"
    assert run_script(tmp_path).startswith("0 ")


def test_without_a_cache(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run_script(blocked / "below") == "2 True"


def counting(n: int) -> ir.Kernel:
    b = Builder("count")
    x = b.buffer("x", dt.int32, n, "rw")
    at = b.let(b.group(0) * 64, "at")
    with b.loop(64) as i:
        b.store(x, at + i, load(x, at + i) + 1)
    return b.kernel((n // 64,))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_runs_programs_too() -> None:
    n = 1 << 18
    d = device()
    buffer = d.alloc(4 * n)
    d.write(buffer, np.zeros(n, np.int32))
    bound = d.bind(program_of(counting(n)), [buffer])
    d.submit(bound, ())
    child = os.fork()
    if not child:
        status = 1
        try:
            for _ in range(20):
                d.submit(bound, ())
            status = 0 if (d.read(buffer, (n,), dt.int32) == 21).all() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    d.submit(bound, ())
    assert (d.read(buffer, (n,), dt.int32) == 2).all()


def test_stopped_workers_start_again() -> None:
    n = 1 << 18
    d = CpuDevice(threads=1)
    d.threads = 4
    buffer = d.alloc(4 * n)
    d.write(buffer, np.zeros(n, np.int32))
    bound = d.bind(program_of(counting(n)), [buffer])
    for i in range(4):
        d.submit(bound, ())
        started = list(d.workers._started)
        d.workers.stop()
        assert not any(t.is_alive() for t in started)
        assert (d.read(buffer, (n,), dt.int32) == i + 1).all()


def test_llvm_links_what_the_own_linker_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.backends.cpu import link

    def refuse(*_: object) -> None:
        raise link.NeedsLinker("a test")

    from weft.backends.cpu import loader

    monkeypatch.setattr(link, "link", refuse)
    monkeypatch.setattr(loader, "_linked", OrderedDict())
    d = CpuDevice(threads=1)
    buffer = d.alloc(4 * 640)
    d.write(buffer, np.zeros(640, np.int32))
    d.submit(d.bind(program_of(counting(640)), [buffer]), ())
    assert (d.read(buffer, (640,), dt.int32) == 1).all()
    assert len(loader._linked) == 2


def test_devices_of_one_process_share_code() -> None:
    from weft.backends.cpu import loader

    kernel = counting(640)
    first = CpuDevice(threads=1).load([kernel])
    count = len(loader._linked)
    assert CpuDevice(threads=2).load([kernel]) == first
    assert len(loader._linked) == count


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu"])
def test_other_processors_compile(triple: str) -> None:
    """The code for AArch64 is accepted by LLVM's AArch64 back end (it is not run here)."""
    llvm = pytest.importorskip("llvmlite.binding")
    from weft.backends.cpu import runtime
    from weft.backends.llvm import cpu_target, render
    from weft.core.caps import PRESETS

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine()
    texts = [
        render(counting(640), PRESETS["cpu-neon"], cpu_target(triple, frozenset())),
        runtime.source(triple.split("-")[0]),
    ]
    for text in texts:
        module = llvm.parse_assembly(text)
        module.triple = triple
        module.verify()
        assert len(machine.emit_object(module)) > 100


def test_refused_tile_registers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known = host.Host(
        "x86_64-linux", "sapphirerapids", "+avx2,+amx-tile,+amx-bf16,+amx-int8,-sse4a", "1"
    )
    assert host.without_tiles(known).features == "+avx2,-sse4a"
    wide = "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx512bf16"
    full = host.Host("x86_64-linux", "sapphirerapids", f"{wide},+amx-tile,+amx-bf16,+amx-int8", "1")
    assert "mma_bf16" in host.caps_of(full, 1).features
    assert "mma_bf16" not in host.caps_of(host.without_tiles(full), 1).features
    monkeypatch.setattr(host, "tiles_allowed", lambda: False)
    refused = CpuDevice(threads=1)
    assert not refused.host.enabled & host.AMX
    assert "mma_bf16" not in refused.caps.features


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_tile_registers_work_in_every_worker_and_after_a_fork() -> None:
    d = device()
    if "mma_bf16" not in d.caps.features:
        pytest.skip("this CPU has no AMX, or the system refuses its use")
    b = Builder("squares")
    x = b.buffer("x", dt.bfloat16, 64 * 512)
    out = b.buffer("out", dt.float32, 64 * 256, "w")
    c = b.tile("c", dt.float32, 16, 16)
    left, right = b.tile("left", dt.bfloat16, 16, 32), b.tile("right", dt.bfloat16, 16, 32)
    b.tile_load(left, x, b.group(0) * 512, 32)
    b.tile_load(right, x, b.group(0) * 512, 32)
    b.tile_zero(c)
    with b.loop(1000):
        b.mma(c, left, right)
    b.tile_store(out, b.group(0) * 256, 16, c)
    data = np.random.default_rng(0).integers(-3, 4, x.size).astype(dt.bfloat16.numpy)
    tiles = data.astype(np.float32).reshape(64, 16, 32)
    pairs = tiles.reshape(64, 16, 16, 2).swapaxes(2, 3).reshape(64, 32, 16)
    want = (1000 * (tiles @ pairs)).ravel()
    buffers = [d.alloc(data.nbytes), d.alloc(4 * out.size)]
    d.write(buffers[0], data)
    bound = d.bind(program_of(b.kernel((64,))), buffers)

    def right_answers() -> bool:
        d.write(buffers[1], np.zeros(out.size, np.float32))
        d.submit(bound, ())
        return bool((d.read(buffers[1], (out.size,), dt.float32) == want).all())

    assert right_answers()
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if right_answers() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert right_answers()


TRACED = """
import sys
import weft
x = weft.ones((8, 8))
def fn(x):
    for i in range(40):
        x = (x @ x).tanh() + i
    return x.sum()
print(weft.compile(fn, "cpu")(x).item())
print("weft.compile.passes" in sys.modules, "weft.templates" in sys.modules)
"""


def test_a_traced_function_that_is_on_the_disk_runs_without_the_compiler(tmp_path: Path) -> None:
    env = {**os.environ, "WEFT_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", TRACED]
    runs = [
        subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=True)
        for _ in range(2)
    ]
    first, second = (run.stdout.split("\n") for run in runs)
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("True True", "False False")


def test_nothing_is_said_at_exit() -> None:
    """Code goes while the interpreter shuts down, modules before or after it."""
    script = (
        "import numpy as np, weft\n"
        "fn = weft.compile(lambda x: (x * 3.25).sum(), device='cpu')\n"
        "fn(np.ones(100, np.float32))\n"
    )
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, timeout=240, check=True)
    assert done.stderr == ""
