"""The drivers of CUDA and HIP on stand-ins for their bindings: which calls, with what, in which
order; how long things live; what each error becomes. One suite for both vendors. Kernels and
recordings: test_gpu_recording.py."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from gpu_bindings import APIS, BACKENDS, STREAM, Bindings, named, opened, pointer, shown

from weft.backends.gpu import Driver
from weft.backends.gpu.memory import rounded
from weft.core.errors import CompileError, DeviceError, OutOfMemoryError

ALL = (1 << 64) - 1


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
    with pytest.raises(OutOfMemoryError, match="cannot allocate 33,554,432 bytes"):
        driver.alloc(1 << 25)


def test_sizes_that_share_memory() -> None:
    for n in (1, 511, 513, 10_000, 123_456, 10**7, 10**9 + 1):
        size = rounded(n)
        assert 0 <= size - n <= max(512, min(n // 8, 2 << 20))
        assert size % 512 == 0 and rounded(size) == size


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
    assert f"{gpu.kind}:0 (GPU 0) cannot allocate 67,108,864 bytes" in said
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
