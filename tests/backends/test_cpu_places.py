"""Workers run on CPUs that neither the caller nor each other uses (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from weft.backends.cpu import CpuDevice
from weft.backends.cpu.places import WorkerCpus
from weft.backends.cpu.threads import Workers
from weft.tensor.compiling import compile as compile_

few = not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2
pytestmark = pytest.mark.skipif(few, reason="this process may use one CPU only")


@pytest.fixture
def allowed():
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


def masks(workers: Workers) -> list[set[int]]:
    return [os.sched_getaffinity(t.native_id) for t in workers._started]


def test_a_caller_keeps_its_cpu(allowed: list[int], tmp_path: Path) -> None:
    count = min(len(allowed), 4)
    device = CpuDevice(threads=count, cache=tmp_path)
    device._workers = Workers(device.functions, count)  # not those that other tests share
    fn = compile_(lambda x: (x * 2.0).sin() + 1.0, device=device)
    x = np.ones(1 << 20, np.float32)
    for cpu in (allowed[0], allowed[1], allowed[0]):
        os.sched_setaffinity(0, {cpu})
        for _ in range(3):
            fn(x)
        found = masks(device.workers)
        assert len(found) == count - 1
        assert all(m and cpu not in m for m in found), (cpu, found)
        assert sum(map(len, found)) == len(set().union(*found)), "workers share a CPU"
    device.workers.stop()


def test_too_few_cpus_leave_threads_alone(allowed: list[int]) -> None:
    places = WorkerCpus(len(allowed))  # and the caller: one thread too many
    thread = os.getpid()
    for _ in allowed:
        places.joined(thread)
    places.settle()
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_a_worker_that_ended_is_no_error(allowed: list[int]) -> None:
    places = WorkerCpus(1)
    places.joined(2**22 + 1)  # no such thread
    places.settle()
