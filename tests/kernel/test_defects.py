"""The interpreter finds every planted defect and says where it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from playing import ints, play

from weft.core import dtypes as dt
from weft.core.caps import PRESETS, Caps
from weft.core.errors import KernelError
from weft.kernel import expr as k, ir
from weft.kernel.builder import Builder
from weft.kernel.interp import run
from weft.kernel.ir import F32, Type


def fails(message: str, body: Callable, *arrays: np.ndarray, **options: object) -> str:
    with pytest.raises(KernelError, match=message) as caught:
        play(body, *arrays, **options)  # type: ignore[arg-type]
    assert "kernel kern: in `" in str(caught.value)
    return str(caught.value)


Y8 = np.zeros(8, np.float32)


def test_out_of_bounds() -> None:
    def store(b: Builder, y: ir.Buffer) -> None:
        b.store(y, b.thread(0) + b.group(0) * 5, 1.0)

    said = fails("index 8 is outside 0..7", store, Y8, grid=(2,), threads=(4,))
    assert "group 1, thread 3" in said

    def load(b: Builder, y: ir.Buffer) -> None:
        b.let(k.load(y, -1))

    fails("index -1 is outside", load, Y8)
    fails("index -1 is outside", load, Y8, check=False)

    def private(b: Builder, y: ir.Buffer) -> None:
        p = b.array("p", dt.float32, 4)
        b.store(p, b.thread(0), 1.0)

    fails("index 4 is outside 0..3", private, Y8, threads=(5,))

    def vector(b: Builder, y: ir.Buffer) -> None:
        b.let(k.load(y, 6, 4))

    fails("index 8 is outside", vector, Y8)


def test_uninitialised_reads() -> None:
    def local(space: str) -> Callable:
        def body(b: Builder, y: ir.Buffer) -> None:
            s = b.array("s", dt.float32, 4, space)
            b.store(s, b.thread(0), 1.0)
            b.barrier()
            b.store(y, b.thread(0), k.load(s, 3))

        return body

    fails("read before anything was stored", local("shared"), Y8, threads=(3,))
    fails("read before anything was stored", local("private"), Y8, threads=(3,))
    play(local("shared"), Y8, threads=(4,))


def test_undefined_buffers_and_what_is_left_out() -> None:
    def body(b: Builder, y: ir.Buffer) -> None:
        with b.loop(4) as i:
            b.store(y, i, 1.0)
        b.store(y, 5, k.load(y, 3))

    mask = np.ones(8, bool)
    play(body, Y8, undefined=[mask])
    np.testing.assert_array_equal(np.flatnonzero(mask), [4, 6, 7])

    def early(b: Builder, y: ir.Buffer) -> None:
        b.store(y, 0, k.load(y, 1))

    fails("element 1 is read before", early, Y8, undefined=[np.ones(8, bool)])


def neighbour(barrier: bool, space: str = "shared") -> Callable:
    """Thread t stores element t and reads element t + 1."""

    def body(b: Builder, y: ir.Buffer, z: ir.Buffer) -> None:
        s = b.array("s", dt.float32, 8, "shared") if space == "shared" else z
        t = b.let(b.thread(0), "t")
        b.store(s, t, 1.0)
        if barrier:
            b.barrier()
        b.store(y, t, k.load(s, (t + 1) % 8))

    return body


@pytest.mark.parametrize("space", ["shared", "buffer"])
def test_race_between_write_and_read(space: str) -> None:
    fails("race: element", neighbour(False, space), Y8, Y8, threads=(8,))
    play(neighbour(True, space), Y8, Y8, threads=(8,))


def test_race_between_read_and_write() -> None:
    def body(barrier: bool) -> Callable:
        def inner(b: Builder, y: ir.Buffer) -> None:
            t = b.let(b.thread(0), "t")
            v = b.let(k.load(y, (t + 1) % 8), "v")
            if barrier:
                b.barrier()
            b.store(y, t, v)

        return inner

    fails("race: element", body(False), Y8, threads=(8,))
    play(body(True), Y8, threads=(8,))


def test_race_between_writes_and_across_groups() -> None:
    def same(b: Builder, y: ir.Buffer) -> None:
        b.store(y, b.thread(0) / 2, 1.0)

    fails("race: element 0, write", same, Y8, threads=(8,))

    def groups(b: Builder, y: ir.Buffer) -> None:
        b.barrier()
        b.store(y, b.thread(0), 1.0)

    assert "group" in fails("race", groups, Y8, threads=(8,), grid=(2,))

    def reader(b: Builder, y: ir.Buffer) -> None:
        i = b.let(b.group(0) * 4 + b.thread(0), "i")
        v = b.let(k.load(y, 0), "v")
        b.barrier()
        b.store(y, i, v)

    fails("race", reader, Y8, threads=(4,), grid=(2,))


def test_colliding_lanes_of_a_scatter() -> None:
    def body(b: Builder, y: ir.Buffer) -> None:
        b.store(y, k.iota(4) / 2, k.const(1.0, Type(dt.float32, 4)))

    fails("two lanes of one thread", body, Y8)


def test_divergent_barriers() -> None:
    def per_thread(b: Builder, y: ir.Buffer) -> None:
        with b.when(b.thread(0) < 3):
            b.barrier()

    with pytest.raises(KernelError, match="barrier is inside"):
        play(per_thread, Y8, threads=(8,))
    fails("divergent barrier: 3 of 8 threads of group 0", per_thread, Y8, threads=(8,), check=False)

    def per_group(b: Builder, y: ir.Buffer, n: ir.Buffer) -> None:
        with b.when(k.load(n, b.group(0)) < 1):
            b.barrier()

    play(per_group, Y8, ints(0, 5), threads=(4,), grid=(2,))  # whole groups may differ


def test_division_by_zero() -> None:
    def body(b: Builder, n: ir.Buffer) -> None:
        b.store(n, b.thread(0), 7 / k.load(n, b.thread(0)))

    fails("division by zero", body, ints(1, 0), threads=(2,))


def test_subgroup_misuse() -> None:
    def body(b: Builder, y: ir.Buffer) -> None:
        b.store(y, b.thread(0), ir.Collective("subgroup_add", (k.const(1.0, F32),), F32))

    fails("subgroups of 0", body, Y8, threads=(8,))
    fails("divergent subgroup_add", _half, np.zeros(32, np.float32), threads=(32,),
          caps=PRESETS["cuda"], check=False)  # fmt: skip


def _half(b: Builder, y: ir.Buffer) -> None:
    t = b.let(b.thread(0), "t")
    with b.when(t < 16):
        b.store(y, t, ir.Collective("subgroup_add", (k.const(1.0, F32),), F32))


def test_limits_and_arguments() -> None:
    def big(b: Builder, y: ir.Buffer) -> None:
        b.array("s", dt.float32, 5000, "shared")

    small = Caps("small", max_threads=4)
    for body, threads, message in ((big, 1, "bytes of shared"), (neighbour, 8, "8 threads")):
        b = Builder("kern")
        y = b.buffer("y", dt.float32, 8, "rw")
        if body is big:
            big(b, y)
        with pytest.raises(KernelError, match=message):
            run(b.kernel((1,), (threads,)), [Y8.copy()], caps=small)
    b = Builder("kern")
    b.buffer("y", dt.float32, 8, "rw")
    kernel = b.kernel((1,))
    for wrong in ([], [np.zeros(7, np.float32)], [np.zeros(8)], [np.zeros((2, 4), np.float32)]):
        with pytest.raises(KernelError, match="kernel kern"):
            run(kernel, wrong)
