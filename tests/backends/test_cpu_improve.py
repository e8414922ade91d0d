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


def run(factor: float, d: CpuDevice, x: np.ndarray = X) -> bytes:
    """What a new Program with first versions gives."""
    with d.soon():
        return weft.compile(net(factor), device=d)(x).numpy().tobytes()


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
    with d.soon():
        first = [fn(X).numpy().tobytes() for _ in range(4)]  # the last by the short way of calls
    assert bounds[0]._direct
    before = called(bounds[0])
    held.set()
    d.loader.settle()
    after = called(bounds[0])
    assert len(after) == 2 and after[0] == after[1]
    assert not {*before[0]} & {*after[0]}
    assert {fn(X).numpy().tobytes() for _ in range(2)} == {*first}
    monkeypatch.setattr(loader, "_linked", OrderedDict())
    again = CpuDevice(threads=2, cache=tmp_path)
    assert run(301.5, again) == first[0]
    assert again.loader.compiled == 0 and again.loader._improver is None


def test_a_program_that_is_bound_meanwhile_gets_it_too(
    held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = noted(monkeypatch)
    d = CpuDevice(threads=2, cache=tmp_path)
    for _ in range(2):
        run(303.5, d)
    held.set()
    weft.compile(net(303.5), device=d)(X)  # has no first versions, so it waits
    assert len(bounds) == 3 and len({str(called(bound)[0]) for bound in bounds}) == 1


def test_programs_whose_runs_are_timed_have_final_code(
    held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.set()
    d = CpuDevice(threads=2, cache=tmp_path)
    bounds = noted(monkeypatch)
    run(305.5, d, X[:4, :4])
    assert bounds[0]._code.unfinished and not d.loader._improver._waiting  # type: ignore[union-attr]
    assert not {*called(bounds[0])[0]} & {*bounds[0]._code._newer}


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
    with d.soon():
        first = fn(X).numpy().tobytes()
    d.loader.settle()
    assert "a kernel keeps its slower first code: kernel " in capfd.readouterr().err
    assert fn(X).numpy().tobytes() == first
    for x in (X, X[:4, :4]):
        with pytest.raises(CompileError, match="refuses"):
            weft.compile(net(307.5), device=d)(x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_improves_on_its_own(
    held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = noted(monkeypatch)
    d = CpuDevice(threads=2, cache=tmp_path)
    first = run(309.5, d)
    before = called(bounds[0])[0]
    child = os.fork()
    if not child:
        status = 1
        try:
            monkeypatch.setattr(jit, "compile_object", COMPILE)
            got = run(309.5, d)
            d.loader.settle()
            better = [not {*before} & {*called(bound)[0]} for bound in bounds]
            status = 0 if got == first and better == [True, True] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.set()


def test_a_process_that_ends_leaves_final_code(tmp_path: Path) -> None:
    script = """
import sys, numpy as np, weft
from weft.backends import registry
from weft.backends.cpu import loader
loader.HEAVY = 0
d = registry.get("cpu")
with d.soon():
    print(float(weft.compile(lambda x: (x @ x.T).sum())(np.ones((64, 1 << 13), np.float32))))
print(len(loader._improving), d.loader.compiled, "llvmlite" in sys.modules)
"""
    env = {**os.environ, "WEFT_LLVM": "", "WEFT_CACHE": str(tmp_path), "WEFT_NUM_THREADS": "2"}
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        )
        assert not done.stderr
        said.append(done.stdout.split())
    assert int(said[0][1]) > 0 and said[1] == [said[0][0], "0", "0", "False"]
