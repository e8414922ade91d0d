"""Processes that fork while other threads are at work: the child works, or says at once why not.

Each scene runs in a process of its own, under a time limit: what fails here hangs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from robust_kit import tiny

from weft.backends import registry

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PROLOGUE = """
import os, sys, threading, time, warnings
import numpy as np
import weft
from weft.errors import DeviceError, WeftError
warnings.simplefilter("ignore")

def in_child(work):
    '''What `work` returns in a forked child, or the error that it raises.'''
    reading, writing = os.pipe()
    if not os.fork():
        try:
            text = repr(work())
        except WeftError as error:
            text = f"{type(error).__name__}: {error}"
        except BaseException as error:
            text = f"NOT OURS {type(error).__name__}: {error}"
        os.write(writing, text.encode())
        sys.exit(0)
    os.close(writing)
    return os.fdopen(reading, "rb").read().decode()
"""


def play(scene: str, tmp_path: Path, *args: str, cache: bool = False) -> str:
    """The output of a script; a hang fails."""
    env = {**os.environ, "WEFT_CACHE": str(tmp_path / "cache") if cache else ""}
    script = PROLOGUE + textwrap.dedent(scene)
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_while_another_thread_compiles(tmp_path: Path) -> None:
    """LLVM's locks and llvmlite's are free in the child, and its own compiling goes on."""
    scene = """
        def endless():
            n = 0
            while True:
                n += 1
                fn = weft.compile(lambda x: ((x + float(n)) * 2.0).exp().sum(), device="cpu")
                fn(np.ones((8, 16 + n % 64), np.float32))
        for _ in range(2):
            threading.Thread(target=endless, daemon=True).start()
        time.sleep(1.0)
        x = np.ones((3, 5), np.float32)
        for i in range(3):
            got = in_child(lambda: float(weft.compile(
                lambda x: (x * float(i)).sum(), device="cpu")(x).numpy()))
            assert got == repr(15.0 * i), got
            time.sleep(0.037)
        print("done")
        sys.stdout.flush()
        os._exit(0)
    """
    assert play(scene, tmp_path) == "done\n"


def test_while_another_thread_generates(tmp_path: Path) -> None:
    """That model is refused by name in the child; the file loads again, with the same answer."""
    folder = tiny(tmp_path / "model")
    scene = """
        model = weft.load(sys.argv[1], device="cpu")
        want = model.generate([1, 2, 3], max_new_tokens=8).ids
        def endless():
            while True:
                model.generate([1, 2, 3], max_new_tokens=30)
        thread = threading.Thread(target=endless, daemon=True)
        thread.start()
        time.sleep(0.3)
        refused = 0
        for _ in range(5):
            got = in_child(lambda: model.generate([1, 2, 3], max_new_tokens=8).ids)
            torn = got.startswith("DeviceError") and "load it again" in got
            assert torn or got == repr(want), got
            refused += torn
            again = in_child(lambda: weft.load(sys.argv[1], device="cpu").generate(
                [1, 2, 3], max_new_tokens=8).ids)
            assert again == repr(want), again
            if refused:
                break
            time.sleep(0.013)
        assert refused
        print("done")
        sys.stdout.flush()
        os._exit(0)
    """
    assert play(scene, tmp_path, str(folder), cache=True) == "done\n"


def test_while_another_thread_runs_a_compiled_function(tmp_path: Path) -> None:
    scene = """
        state = weft.zeros(1 << 16)
        def bump():
            state.assign(state + 1.0)
            return state.sum()
        bump = weft.compile(bump, device="cpu")
        bump()
        def endless():
            while True:
                bump()
        threading.Thread(target=endless, daemon=True).start()
        time.sleep(0.2)
        refused = 0
        for _ in range(5):
            got = in_child(lambda: float(bump().numpy()))
            torn = got.startswith("DeviceError") and "compile it again" in got
            assert torn or float(got) % (1 << 16) == 0, got
            refused += torn
            fresh = in_child(lambda: float(weft.compile(
                lambda x: (x * 2.0).sum(), device="cpu")(np.ones(10, np.float32)).numpy()))
            assert fresh == "20.0", fresh
            if refused:
                break
        assert refused
        print("done")
        sys.stdout.flush()
        os._exit(0)
    """
    assert play(scene, tmp_path) == "done\n"


def test_a_fork_in_the_midst_of_a_stream(tmp_path: Path) -> None:
    """The thread that forks goes on in both processes."""
    folder = tiny(tmp_path / "model")
    scene = """
        model = weft.load(sys.argv[1], device="cpu")
        want = model.generate([1, 2, 3], max_new_tokens=8).ids
        stream = model.generate([1, 2, 3], max_new_tokens=8, stream=True)
        begun = list(next(stream).ids)
        rest = lambda: tuple(begun + [i for piece in stream for i in piece.ids])
        got = in_child(rest)
        assert got == repr(want) and rest() == want, (got, want)
        print("done")
    """
    assert play(scene, tmp_path, str(folder)) == "done\n"


def test_a_gpu_says_so_at_once(tmp_path: Path) -> None:
    line = registry.probe("vulkan")[0]
    if not line.available:
        pytest.skip(line.reason)
    scene = """
        x = weft.ones((4, 4)).to("vulkan")
        twice = weft.compile(lambda x: x * 2.0, device="vulkan")
        twice(x).numpy()
        scenes = {
            "read": lambda: x.numpy(),
            "eager": lambda: (x + 1.0).numpy(),
            "compiled": lambda: twice(x).numpy(),
            "open": lambda: weft.ones((2, 2)).to("vulkan"),
        }
        for name, work in scenes.items():
            got = in_child(work)
            assert got.startswith("DeviceError") and "forked" in got and "spawn" in got, (name, got)
        got = in_child(lambda: [d.reason for d in weft.devices() if d.kind == "vulkan"])
        assert "forked" in got, got
        got = in_child(lambda: weft.compile(lambda x: x * 2.0, device="cpu")(
            np.ones(3, np.float32)).numpy().tolist())
        assert got == "[2.0, 2.0, 2.0]", got
        assert twice(x).numpy().sum() == 32.0  # the parent's goes on
        print("done")
    """
    assert play(scene, tmp_path) == "done\n"


def test_a_child_may_open_a_gpu_that_its_parent_never_looked_at(tmp_path: Path) -> None:
    line = registry.probe("vulkan")[0]
    if not line.available:
        pytest.skip(line.reason)
    scene = """
        got = in_child(lambda: weft.ones((2, 2)).to("vulkan").sum().numpy().tolist())
        assert got == "4.0", got
        print("done")
    """
    assert play(scene, tmp_path) == "done\n"
