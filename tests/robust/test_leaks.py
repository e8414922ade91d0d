"""Long use: memory, file descriptors and threads stay where they were.

The short runs are in the default suite, the thousands that the issue demands are marked slow.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.program.session import Session

slow = pytest.mark.slow
KIB = 1024


def rss() -> int:
    """Resident bytes of this process."""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("memory is read from /proc")
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measures() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def steady(cycle: Callable[[int], Any], runs: int, allowed: int, warm: int = 30) -> None:
    """Plays `cycle` `runs` times: resident memory may grow by `allowed` bytes (allocators keep
    some), file descriptors and threads not at all."""
    for i in range(warm):
        cycle(i)
    gc.collect()
    counts = measures()
    for _ in range(3):  # a heap that other tests have torn settles; a leak grows every time
        before = rss()
        for i in range(runs):
            cycle(i)
        gc.collect()
        grown = rss() - before
        assert measures() == counts
        if grown <= allowed:
            return
    raise AssertionError(f"{grown / KIB:.0f} KiB more after {runs} runs, the third time in a row")


def counts(short: int, long: int) -> Any:
    return pytest.mark.parametrize("runs", [short, pytest.param(long, marks=slow)])


@counts(100, 1000)
def test_generations(llama: Path, runs: int) -> None:
    model = weft.load(llama, device="cpu")

    def cycle(i: int) -> None:
        options = {"max_new_tokens": 1 + i % 9, "seed": i, "stop": "zz"}
        model.generate([1, 2, i % 200], temperature=i % 2 * 0.8, **options)
        if i % 10 == 0:
            model.generate(["some", "text", "x" * (i % 40 + 1)], **options)
            next(model.generate("left unfinished", stream=True))
            model.logits([1, 2, 3])

    steady(cycle, runs, 1024 * KIB)


@counts(50, 1000)
def test_loading_and_unloading(llama: Path, bert: Path, runs: int) -> None:
    def cycle(i: int) -> None:
        weft.load(llama, device="cpu").generate([1, 2], max_new_tokens=3)
        weft.load(bert, device="cpu").embed_ids([[1, 2, 3]])

    steady(cycle, runs, min(runs * 20, 2048) * KIB)


@counts(50, 1000)
def test_loading_with_tokenizers(llama: Path, runs: int) -> None:
    """The tokenizers library itself keeps up to 2 KiB for each tokenizer that ever encoded."""
    steady(
        lambda i: weft.load(llama, device="cpu").generate("hi", max_new_tokens=3),
        runs,
        2048 * KIB + runs * 2 * KIB,
    )


@counts(100, 1000)
def test_loads_that_fail(llama: Path, tmp_path: Path, runs: int) -> None:
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    raw = (llama / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(raw[:-3])

    def cycle(i: int) -> None:
        with pytest.raises(weft.errors.FileFormatError):
            weft.load(tmp_path, device="cpu")

    steady(cycle, runs, 1024 * KIB)


@counts(50, 1000)
def test_texts_of_many_lengths(bert: Path, runs: int) -> None:
    model = weft.load(bert, device="cpu")
    rng = np.random.default_rng(0)
    for texts in (1, 2, 4, 8, 16):  # every shape there is, so that nothing is compiled later
        for length in (3, 30):
            model.embed(["x" * length] * texts)

    def cycle(i: int) -> None:
        model.embed(["x" * int(n) for n in rng.integers(1, 40, rng.integers(1, 20))])

    steady(cycle, runs, min(runs * 20, 2048) * KIB)


@counts(100, 1000)
def test_sessions_of_one_program(llama: Path, runs: int) -> None:
    model = weft.load(llama, device="cpu")
    program = model.programs()["decode"]
    runner = model.runner()

    def cycle(i: int) -> None:
        Session(program, model.device, runner.weight_buffers)

    steady(cycle, runs, 1024 * KIB)


@counts(30, 300)
def test_compiling(llama: Path, runs: int) -> None:
    """llvmlite 0.50 keeps about 75 KiB for each pass manager that ran; weft adds nothing to it.
    A kernel is compiled once in a process, and read from the cache ever after."""
    jit = pytest.importorskip("weft.backends.cpu.jit")
    model = weft.load(llama, device="cpu")
    device: Any = model.device
    texts = [device.source(k) for k in model.programs()["decode"].kernels[:3]]

    def cycle(i: int) -> None:
        jit.compile_object(texts[i % len(texts)], device.host, "k")

    steady(cycle, runs, 2048 * KIB + runs * 90 * KIB, warm=10)


@counts(40, 400)
def test_eager_ops_of_ever_new_shapes(runs: int) -> None:
    """The caches of one-op Programs are bounded; machine code of new shapes stays (4 KiB pages)."""

    def cycle(i: int) -> None:
        x = weft.tensor(np.ones((2, i % 7 + 1), np.float32)).to("cpu:0")
        (x + 1.0).numpy()

    steady(cycle, runs, 4096 * KIB)


def vulkan() -> Any:
    lines = registry.probe("vulkan")
    if not lines[0].available:
        pytest.skip(lines[0].reason)
    return registry.get("vulkan")


def test_runs_on_vulkan(llama: Path) -> None:
    model = weft.load(llama, device=vulkan())
    steady(lambda i: model.generate([1, 2, i], max_new_tokens=2), 200, 2048 * KIB, warm=20)


@counts(15, 50)
def test_loading_and_unloading_on_vulkan(llama: Path, runs: int) -> None:
    device = vulkan()

    def cycle(i: int) -> None:
        weft.load(llama, device=device).generate([1, 2], max_new_tokens=2)

    steady(cycle, runs, runs * 80 * KIB, warm=10)


NEW_SHAPES = """
import gc, sys
import numpy as np
import weft
from test_leaks import rss
runs = int(sys.argv[1])
fn = weft.compile(lambda x: ((x * 2.0).exp() + 1.0).sum(-1), device="cpu", cache_size=4)
def shapes(first):
    for n in range(first, first + runs):
        fn(np.ones((3, n), np.float32))
    gc.collect()
shapes(5)
before = rss()
shapes(5 + runs)
shapes(5 + 2 * runs)
print(rss() - before)
"""


@counts(15, 100)
def test_new_shapes_do_not_grow_the_process(runs: int) -> None:
    """A compiled function that sees ever new shapes: compiling leaves nothing behind. In a process
    of its own, whose allocators hold nothing of other tests."""
    environ = {**os.environ, "WEFT_CACHE": "off", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", NEW_SHAPES, str(runs)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * runs * 40 * KIB  # a hundred KiB each, once
