"""The drivers of CUDA and HIP on stand-ins for their bindings: which calls, with what, in which
order; how long things live; what each error becomes. One suite for both vendors."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import numpy as np
import pytest
from gpu_bindings import APIS, BACKENDS, Bindings, named, opened, pointer

from weft.backends.gpu import Driver
from weft.backends.gpu.memory import rounded
from weft.core.errors import CompileError, DeviceError, OutOfMemoryError

STREAM, ALL = "stream", (1 << 64) - 1


def shown(calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Calls with handles by their kind."""
    return [tuple(repr(a) if hasattr(a, "what") else a for a in call) for call in calls]


def test_opening(gpu: Bindings) -> None:
    driver = Driver(APIS[gpu.kind](), 0)
    want = {"cuda": ("sm_90", "CUDA 12.4"), "hip": ("gfx90a", "HIP 6.3")}[gpu.kind]
    assert (driver.arch, driver.version) == want
    assert (driver.kind, driver.index, driver.name, driver.memory) == (
        gpu.kind,
        0,
        "GPU 0",
        1 << 26,
    )
    names = [c[0] for c in gpu.calls]
    assert names[0] == named(gpu, "init")[0] and gpu.kept == ALL
    tail = ["choose", "stream", "choose", "pool", f"{gpu.kind}_keep"]
    tail = ["retain", *tail[:3], "number", *tail[3:]] if gpu.kind == "cuda" else tail
    assert names[-len(tail) :] == named(gpu, *tail)
    with pytest.raises(DeviceError, match=f'is 1 [A-Z]+ GPU; "{gpu.kind}:1" does not exist'):
        Driver(APIS[gpu.kind](), 1)


def test_a_gpu_that_others_hold(gpu: Bindings) -> None:
    first = named(gpu, "retain" if gpu.kind == "cuda" else "stream")[0]
    gpu.fail = {first: [2, 46]}
    with pytest.raises(OutOfMemoryError, match="other programs"):
        Driver(APIS[gpu.kind](), 0)
    with pytest.raises(DeviceError, match="another process has the GPU to itself"):
        Driver(APIS[gpu.kind](), 0)
    assert gpu.left() == []


def test_a_failed_opening_leaves_nothing(gpu: Bindings) -> None:
    for short in ("stream", "pool", f"{gpu.kind}_keep"):
        gpu.fail = {named(gpu, short)[0]: [3]}
        with pytest.raises(DeviceError, match="ERROR_3"):
            Driver(APIS[gpu.kind](), 0)
        assert gpu.left() == []


def test_several_devices(gpu: Bindings) -> None:
    gpu.gpus = 2
    first, second = opened(gpu, 0), opened(gpu, 1)
    chosen = []
    for driver in (first, second, first):
        address = driver.alloc(8)
        chosen.append(gpu.chosen.value)
        driver.free(address)
    assert chosen[0] is chosen[2] is not chosen[1]
    assert second.name == "GPU 1" and [x.id for x in BACKENDS[gpu.kind].probe()] == [
        f"{gpu.kind}:0", f"{gpu.kind}:1",
    ]  # fmt: skip


def test_garbage_of_another_device(gpu: Bindings) -> None:
    """Freed while a call is on its way, it leaves that call its device."""
    gpu.gpus = 2
    first, second = opened(gpu, 0), opened(gpu, 1)
    address, gifts = first.alloc(8), [second.alloc(8)]
    other, real, seen = gpu.chosen.value, first.api.call, []

    def collecting(name: str, *args: Any) -> Any:
        if name == "MemsetD8Async":
            seen.append(gpu.chosen.value)
            second.free(gifts.pop())
            seen.append(gpu.chosen.value)
        return real(name, *args)

    first.api.call = collecting  # type: ignore[method-assign]
    first.fill(address, 0, 8)
    assert seen[0] is seen[1] is not other


def test_any_thread_may_call(gpu: Bindings) -> None:
    driver, got = opened(gpu), []
    thread = threading.Thread(target=lambda: got.append(driver.alloc(8)))
    thread.start()
    thread.join()
    assert got


def test_memory(gpu: Bindings) -> None:
    driver = opened(gpu)
    a, b = driver.alloc(100), driver.alloc(100)
    assert a % 256 == b % 256 == 0
    driver.fill(a, 7, 100)
    driver.copy(b, a, 100)
    driver.free(a)
    assert shown(gpu.take()) == [
        (named(gpu, "alloc_async")[0], 100, STREAM),
        (named(gpu, "alloc_async")[0], 100, STREAM),
        (named(gpu, "fill")[0], a, 7, 100, STREAM),
        (named(gpu, "copy")[0], b, a, 100, STREAM),
        (named(gpu, "free_async")[0], a, STREAM),
    ]
    driver.fill(b, 7, 0)
    driver.copy(b, a, 0)
    assert gpu.take() == []
    got = np.zeros(100, np.uint8)
    driver.read(pointer(got), b, 100)
    assert (got == 7).all()


@pytest.mark.parametrize("wish", ["", "off", "on"])
def test_without_memory_pools(gpu: Bindings, wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed memory serves again at once, in the stream's order; the driver gets it back where it
    has none left. AMD's pools are not trusted."""
    monkeypatch.setenv("WEFT_POOL", wish)
    gpu.pools = int(gpu.kind == "hip" and wish != "on")
    driver = opened(gpu)
    assert gpu.kept is None
    a, b = driver.alloc(1 << 25), driver.alloc(100)
    driver.fill(b, 1, 100)
    driver.free(b)
    assert driver.alloc(90) == b and driver.alloc(100) != b
    assert shown(gpu.take()) == [
        (named(gpu, "alloc")[0], 1 << 25), (named(gpu, "alloc")[0], 512),
        (named(gpu, "fill")[0], b, 1, 100, STREAM), (named(gpu, "alloc")[0], 512),
    ]  # fmt: skip
    driver.free(a)
    driver.alloc(3 << 24)
    assert gpu.names() == named(gpu, "alloc", "room", "wait", "free", "alloc")
    with pytest.raises(OutOfMemoryError, match="no 33,554,432 bytes left"):
        driver.alloc(1 << 25)


def test_sizes_that_share_memory() -> None:
    for n in (1, 511, 513, 10_000, 123_456, 10**7, 10**9 + 1):
        size = rounded(n)
        assert 0 <= size - n <= max(512, min(n // 8, 2 << 20))
        assert size % 512 == 0 and rounded(size) == size


# -- kernels and recordings


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


# -- errors


def test_an_error_number_that_the_bindings_do_not_know(gpu: Bindings) -> None:
    driver = opened(gpu)

    def wait(stream: Any) -> None:
        raise ValueError("12345 is not a valid error")

    name = named(gpu, "wait")[0]
    setattr(gpu, name, wait)
    with pytest.raises(DeviceError, match=f"{name} failed: 12345 is not a valid error"):
        driver.sync()


def test_a_driver_that_is_older_than_the_bindings(gpu: Bindings) -> None:
    driver = opened(gpu)
    name = named(gpu, "elapsed")[0]

    def missing(*args: Any) -> None:
        raise RuntimeError(f'Function "{name}_v2" not found')

    setattr(gpu, name, missing)
    with pytest.raises(DeviceError, match=r'_v2" not found; is the driver older than .*bindings'):
        driver.times([driver.mark(), driver.mark()])
    assert not driver.lost


def test_out_of_memory_says_what_there_is(gpu: Bindings) -> None:
    driver = opened(gpu)
    driver.alloc(1 << 20)
    with pytest.raises(OutOfMemoryError) as error:
        driver.alloc(1 << 26)
    said = str(error.value)
    assert f"{gpu.kind}:0 (GPU 0) has no 67,108,864 bytes left" in said
    assert "66,060,288 of 67,108,864 bytes are free" in said
    assert "arrays hold 1,048,576" in said and "other programs" in said
    assert not driver.lost and driver.alloc(8)


def test_memory_that_the_pool_keeps_is_asked_back(gpu: Bindings) -> None:
    driver = opened(gpu)
    driver.free(driver.alloc(1 << 25))
    gpu.take()
    assert driver.alloc(1 << 26)
    names = ("alloc_async", "room", "wait", "trim", "alloc_async")
    assert gpu.names() == named(gpu, *names)


def test_others_get_what_the_pool_keeps(gpu: Bindings) -> None:
    """Code and recordings want memory too, beside the pool."""
    driver = opened(gpu)
    module, make, replay = named(gpu, f"{gpu.kind}_module", "instantiate", "replay")
    gpu.fail = {module: [2], make: [2], replay: [2]}
    driver.load(b"code of weft_k", "weft_k")
    driver.record()
    graph = driver.recorded()
    driver.replay(graph)
    again = named(gpu, "room", "wait", "trim")
    names = gpu.names()
    for name in (module, make, replay):
        at = names.index(name)
        assert names[at + 1 : at + 5] == [*again, name]
    driver.forget(graph)


def test_room_counts_what_the_pool_keeps(gpu: Bindings) -> None:
    driver = opened(gpu)
    driver.free(driver.alloc(1 << 25))
    assert driver.room() == (1 << 26, 1 << 26)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_driver_alone(gpu: Bindings) -> None:
    driver = opened(gpu)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(DeviceError, match="opened before this process was forked"):
                driver.alloc(8)
            driver.close()
            os._exit(len(gpu.calls))
        finally:
            os._exit(255)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and not driver.lost


def test_code_that_the_driver_refuses(gpu: Bindings) -> None:
    driver = opened(gpu)
    load = named(gpu, f"{gpu.kind}_module")[0]
    gpu.fail = {load: [218, 2, 2]}
    with pytest.raises(CompileError, match=rf"weft_k: the driver refuses the code: {load} .*218"):
        driver.load(b"nonsense", "weft_k")
    with pytest.raises(OutOfMemoryError, match="bytes are free"):
        driver.load(b"much", "weft_k")
    assert not driver.lost


def test_a_lost_device_says_so_and_is_left_alone(gpu: Bindings) -> None:
    driver = opened(gpu)
    wait = named(gpu, "wait")[0]
    gpu.fail = {wait: [700]}
    with pytest.raises(DeviceError, match=rf"lost.*{wait} failed: ILLEGAL_ADDRESS \(700\)"):
        driver.sync()
    assert driver.lost
    gpu.take()
    for use in (driver.sync, lambda: driver.alloc(8), lambda: driver.load(b"", "weft_k")):
        with pytest.raises(DeviceError, match=f"{gpu.kind}:0 was lost.*start the process anew"):
            use()
    driver.close()
    assert gpu.names() == []
