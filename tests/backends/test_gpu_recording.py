"""Kernels, marks and recordings of the drivers of CUDA and HIP, on stand-ins for their bindings."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from gpu_bindings import STREAM, Bindings, named, opened, pointer, shown

from weft.core.errors import DeviceError, OutOfMemoryError


def test_recording(gpu: Bindings) -> None:
    """Memory freed while recording is freed after it: else each replay would free it."""
    driver = opened(gpu)
    a, b = driver.alloc(8), driver.alloc(8)
    gpu.take()
    driver.record()
    driver.fill(a, 0, 8)
    driver.free(b)
    graph = driver.recorded()
    driver.replay(graph)
    driver.forget(graph)
    assert shown(gpu.take()) == [
        (named(gpu, "begin")[0], STREAM, 1),
        (named(gpu, "fill")[0], a, 0, 8, STREAM),
        (named(gpu, "end")[0], STREAM),
        (named(gpu, "free_async")[0], b, STREAM),
        (named(gpu, "instantiate")[0], "graph", 0),
        (named(gpu, "graph_end")[0], "graph"),
        (named(gpu, "replay")[0], "exec", STREAM),
        (named(gpu, "exec_end")[0], "exec"),
    ]


def test_garbage_at_the_edges_of_a_recording(gpu: Bindings) -> None:
    """Python may free at any moment: between two calls, or as one of them begins."""
    driver = opened(gpu)
    driver.record()
    old = driver.recorded()
    gifts = [driver.alloc(8) for _ in range(3)]
    for short in ("begin", "end"):
        real = getattr(gpu, f"do_{short}")

        def collecting(*args: Any, real: Any = real) -> Any:
            driver.free(gifts.pop())
            got = real(*args)
            driver.free(gifts.pop()) if gifts else driver.forget(old)
            return got

        setattr(gpu, f"do_{short}", collecting)
    driver.record()
    graph = driver.recorded()
    assert graph.data == [] and gifts == []  # nothing of it was noted
    driver.sync()
    driver.forget(graph)
    assert not {"memory", "exec", "graph"} & set(gpu.left())


def test_a_recording_that_fails_leaves_nothing(gpu: Bindings) -> None:
    driver = opened(gpu)
    before = gpu.left()
    gpu.fail = {named(gpu, "instantiate")[0]: [2, 2]}
    driver.record()
    with pytest.raises(OutOfMemoryError):
        driver.recorded()
    assert gpu.left() == before
    gpu.fail = {named(gpu, "begin")[0]: [900]}
    with pytest.raises(DeviceError, match=r"\(900\); WEFT_REPLAY=off does without recordings"):
        driver.record()
    driver.record()
    driver.forget(driver.recorded())
    assert gpu.left() == before


def test_arguments_of_a_launch(gpu: Bindings) -> None:
    driver, seen = opened(gpu), []

    def launch(*args: Any) -> tuple[int]:
        pointers = ctypes.cast(args[9], ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        seen.append((*args[:8], repr(args[8]), [pointers[i][0] for i in range(3)], args[10]))
        return (0,)

    setattr(gpu, named(gpu, "launch")[0], launch)
    addresses = [4096, 8192, 1 << 40]
    for shared in (0, 99 << 10):
        driver.launch("function", (5, 4, 3), (32, 2, 1), addresses, shared)
    assert seen == [("function", 5, 4, 3, 32, 2, 1, n, STREAM, addresses, 0) for n in (0, 99 << 10)]


def test_code_stays_loaded_and_asks_for_its_memory(gpu: Bindings) -> None:
    driver = opened(gpu)
    driver.load(b"code of weft_k", "weft_k")
    module = named(gpu, f"{gpu.kind}_module", "function")
    assert gpu.names() == module and "module" in gpu.left()
    driver.load(b"code of weft_k", "weft_k", 99 << 10)
    calls = gpu.take()
    if gpu.kind == "cuda":
        assert calls[-1][0] == "cuFuncSetAttribute" and calls[-1][2:] == (8, 99 << 10)
    else:
        assert [c[0] for c in calls] == module


def test_marks(gpu: Bindings) -> None:
    driver = opened(gpu)
    address, before = driver.alloc(8), gpu.left()
    marks = [driver.mark()]
    for _ in range(2):
        driver.fill(address, 0, 8)
        marks.append(driver.mark())
    assert driver.times(marks) == [0.002, 0.002]  # the fill and the mark
    assert gpu.left() == before
    gpu.fail = {named(gpu, "elapsed")[0]: [3]}
    with pytest.raises(DeviceError):
        driver.times([driver.mark(), driver.mark()])
    assert gpu.left() == before


def test_closing_gives_everything_back(gpu: Bindings) -> None:
    driver = opened(gpu)
    one = np.ones(8, np.uint8)
    address = driver.alloc(8)
    driver.write(address, pointer(one), 8)
    driver.load(b"code of weft_k", "weft_k")
    driver.free(address)
    driver.close()
    assert gpu.left() == [] and not gpu.pinned and driver.lost
    driver.close()  # nothing more to do
    with pytest.raises(DeviceError, match=f"{gpu.kind}:0 was closed: open it anew"):
        driver.alloc(8)
