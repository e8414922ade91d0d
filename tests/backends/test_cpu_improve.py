"""Kernels that run with few of LLVM's passes until their code with all of them is there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.backends.cpu import improve, jit, loader
from weft.backends.cpu.device import CpuBound, CpuDevice
from weft.core.errors import CompileError

COMPILE = jit.compile_object
X = np.random.default_rng(0).standard_normal((64, 1 << 13), np.float32)  # not a small Program


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """All kernels are large ones. Code with all passes is made once the event is set."""
    gate = threading.Event()

    def compiled(text: str, host: object, name: str, quick: bool = False) -> bytes:
        assert quick or name == "weft runtime" or gate.wait(60)
        return COMPILE(text, host, name, quick)  # type: ignore[arg-type]

    monkeypatch.setenv("WEFT_LLVM", "")
    monkeypatch.setattr(loader, "HEAVY", 0)
    monkeypatch.setattr(improve, "_QUIET", 0.0)
    monkeypatch.setattr(loader, "_linked", OrderedDict())
    monkeypatch.setattr(jit, "compile_object", compiled)
    return gate


def net(factor: float) -> Callable[[weft.Tensor], weft.Tensor]:
    return lambda x: (x @ x.T * factor).softmax(-1)


def called(bound: CpuBound) -> list[list[int]]:
    """The addresses that each table of a Program calls."""
    return [table._entries["fn"].tolist() for table in (bound._table, *bound._direct)]


def noted(monkeypatch: pytest.MonkeyPatch) -> list[CpuBound]:
    """The Programs that are bound from now on."""
    found: list[CpuBound] = []
    bind = CpuDevice.bind

    def noting(device: CpuDevice, *args: object) -> CpuBound:
        found.append(bind(device, *args))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(CpuDevice, "bind", noting)
    return found


def test_better_code_takes_over_with_the_same_bits(
    held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = noted(monkeypatch)
    d = CpuDevice(threads=2, cache=tmp_path)
    fn = weft.compile(net(301.5), device=d)
    first = [fn(X).numpy().tobytes() for _ in range(4)]  # the last ones by the short way of calls
    assert bounds[0]._direct
    before = called(bounds[0])
    held.set()
    d.settle()
    after = called(bounds[0])
    assert len(after) == 2 and after[0] == after[1]
    assert not {*before[0]} & {*after[0]}
    assert {fn(X).numpy().tobytes() for _ in range(2)} == {*first}
    monkeypatch.setattr(loader, "_linked", OrderedDict())
    again = CpuDevice(threads=2, cache=tmp_path)
    assert weft.compile(net(301.5), device=again)(X).numpy().tobytes() == first[0]
    assert again.loader.compiled == 0 and again.loader._improver is None


def test_a_program_that_is_bound_meanwhile_gets_it_too(
    held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = noted(monkeypatch)
    d = CpuDevice(threads=2, cache=tmp_path)
    for _ in range(2):
        weft.compile(net(303.5), device=d)(X)
    held.set()
    d.settle()
    weft.compile(net(303.5), device=d)(X)
    assert len(bounds) == 3 and len({str(called(bound)[0]) for bound in bounds}) == 1


def test_loading_waits_for_final_code(held: threading.Event, tmp_path: Path) -> None:
    held.set()
    d = CpuDevice(threads=2, cache=tmp_path)
    weft.compile(net(305.5), device=d)(X[:4, :4])  # a small Program
    assert not loader._improving or not {*loader._improving} & {*loader._linked}


def test_what_llvm_refuses_later_is_said(
    held: threading.Event,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:

    def refused(text: str, host: object, name: str, quick: bool = False) -> bytes:
        if not quick and name != "weft runtime":
            raise CompileError(f"kernel {name}: LLVM refuses the code")
        return COMPILE(text, host, name, quick)  # type: ignore[arg-type]

    monkeypatch.setattr(jit, "compile_object", refused)
    d = CpuDevice(threads=2, cache=tmp_path)
    fn = weft.compile(net(307.5), device=d)
    first = fn(X).numpy().tobytes()
    d.settle()
    assert "a kernel keeps its slower first code: kernel " in capfd.readouterr().err
    assert fn(X).numpy().tobytes() == first
    with pytest.raises(CompileError, match="refuses"):
        weft.compile(net(308.5), device=d)(X[:4, :4])  # a small Program has no first version


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_improves_on_its_own(
    held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = noted(monkeypatch)
    d = CpuDevice(threads=2, cache=tmp_path)
    first = weft.compile(net(309.5), device=d)(X).numpy().tobytes()
    before = called(bounds[0])[0]
    child = os.fork()
    if not child:
        status = 1
        try:
            monkeypatch.setattr(jit, "compile_object", COMPILE)
            got = weft.compile(net(309.5), device=d)(X).numpy().tobytes()
            d.settle()
            better = [not {*before} & {*called(bound)[0]} for bound in bounds]
            status = 0 if got == first and better == [True, True] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.set()


def test_a_process_that_ends_waits_for_one_kernel_at_most(tmp_path: Path) -> None:
    script = """
import sys, numpy as np, weft
from weft.backends.cpu import jit
made, full = jit.compile_object, []
def compiled(text, host, name, quick=False):
    if not quick and len(text) >= 40_000:
        full.append(name)
    return made(text, host, name, quick)
jit.compile_object = compiled
x = np.ones((64, 1 << 13), np.float32)
net = weft.compile(lambda x: [x[:, :k] @ x[:, :k].T for k in (8192, 8160, 8128, 8064)])
net(x)
import atexit
atexit.register(lambda: print(len(full)))
"""
    env = {**os.environ, "WEFT_LLVM": "", "WEFT_CACHE": str(tmp_path), "WEFT_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 1 and not done.stderr
