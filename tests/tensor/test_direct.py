"""The shorter way of calls with nothing but arrays: never another result than the long way's."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import weft
from weft.backends.cpu import CpuDevice, direct
from weft.errors import WeftError


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The compiled function, after so many calls that a shorter way is taken if there is one."""
    made = weft.compile(fn, **{"device": "cpu", **options})
    for _ in range(5):
        made(*args)
    return made


def taken(fn: Any, *args: Any) -> bool:
    """Whether a call like this takes a shorter way."""
    return any(play(args) is not None for _, play in fn._kept.direct)


SMALL = np.arange(12, dtype=np.float32).reshape(3, 4)


def combine(x, y):
    return x * 2.0 + y


def kinds(rng: np.random.Generator) -> dict[str, Callable[[], Any]]:
    """Values that a function of (3, 4) floats may be given, as makers of fresh ones."""

    def fresh(shape=(3, 4), dtype=np.float32):
        return rng.integers(-50, 50, shape).astype(dtype)

    def frozen():
        a = fresh()
        a.flags.writeable = False
        return a

    def unaligned():
        return np.frombuffer(b"x" + fresh().tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)

    class Sub(np.ndarray):
        pass

    return {
        "array": fresh,
        "tensor": lambda: weft.tensor(fresh()),
        "leaf": lambda: weft.tensor(fresh(), requires_grad=True),
        "computed": lambda: weft.tensor(fresh(), requires_grad=True) * 1.0,
        "read-only": frozen,
        "transposed": lambda: fresh((4, 3)).T,
        "strided": lambda: fresh((3, 8))[:, ::2],
        "offset": lambda: fresh((5, 4))[2:],
        "backwards": lambda: fresh()[::-1],
        "broadcast": lambda: np.broadcast_to(fresh((1, 4)), (3, 4)),
        "Fortran": lambda: np.asfortranarray(fresh()),
        "unaligned": unaligned,
        "subclass": lambda: fresh().view(Sub),
        "masked": lambda: np.ma.masked_array(fresh(), fresh() > 0),
        "big-endian": lambda: fresh().astype(">f4"),
        "another name": lambda: fresh().view(np.dtype("<f4", align=True)),
        "int64": lambda: fresh(dtype=np.int64),
        "bfloat16": lambda: fresh(dtype=weft.bfloat16.numpy),
        "other shape": lambda: fresh((4, 4)),
        "other rank": lambda: fresh((1, 3, 4)),
        "another axis": lambda: fresh((3, 4, 1)),
        "row": lambda: fresh((4,)),
        "empty": lambda: fresh((0, 4)),
        "number": lambda: 2.5,
        "scalar": lambda: np.float32(1.5),
        "none": lambda: None,
        "list": lambda: [fresh()],
    }


NAMES = sorted(kinds(np.random.default_rng(0)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), min_size=1, max_size=4),
       st.integers(0, 1000))  # fmt: skip
def test_any_mixture_gives_what_the_long_way_gives(pairs, seed) -> None:
    short, long = SHORT, LONG
    rng = np.random.default_rng(seed)
    make = kinds(rng)
    for names in pairs:
        args = [make[name]() for name in names]

        def outcome(fn, args=args):
            try:
                out = fn(*args)
            except (WeftError, TypeError) as error:
                return type(error), None
            assert isinstance(out, weft.Tensor) and not out.requires_grad
            return out.dtype, out.numpy()

        long._direct = []
        want, got = outcome(long), outcome(short)
        assert got[0] is want[0], names
        np.testing.assert_array_equal(got[1], want[1])


SHORT = compiled(combine, SMALL, SMALL)
LONG = weft.compile(combine, device="cpu")


def test_the_plain_case_takes_it() -> None:
    fn = compiled(combine, SMALL, SMALL)
    for x in (SMALL, weft.tensor(SMALL), SMALL[:], weft.tensor(SMALL, requires_grad=True)):
        assert taken(fn, x, SMALL)
    frozen = SMALL.copy()
    frozen.flags.writeable = False
    assert taken(fn, frozen, frozen)
    others = (SMALL.T.copy().T, SMALL.astype(np.float64), SMALL[:, :2], SMALL[0], SMALL[..., None])
    for x in (*others, 1.0, None):
        assert not taken(fn, x, SMALL)
    assert not taken(fn, SMALL)
    assert not taken(fn, SMALL, SMALL, SMALL)


def test_outputs_are_new_each_time() -> None:
    first = SHORT(SMALL, SMALL)
    want = first.numpy().copy()
    second = SHORT(first, first)
    np.testing.assert_array_equal(first.numpy(), want)
    np.testing.assert_array_equal(second.numpy(), want * 3)
    assert not np.shares_memory(first.numpy(), second.numpy())


def test_without_axes_and_with_several_results() -> None:
    x = np.array(3.0, np.float32)
    fn = compiled(lambda x, y: {"a": x + y, "b": (x * y, None)}, x, SMALL)
    assert taken(fn, x, SMALL)
    out = fn(np.array(5.0, np.float32), SMALL)
    np.testing.assert_array_equal(out["a"].numpy(), SMALL + 5)
    np.testing.assert_array_equal(out["b"][0].numpy(), SMALL * 5)
    assert out["b"][1] is None


def test_several_signatures_and_one_that_is_forgotten() -> None:
    fn = weft.compile(lambda x: x + 1.0, device="cpu", cache_size=3)
    arrays = [np.full(n, n, np.float32) for n in range(1, 7)]
    for x in arrays:
        for _ in range(5):
            np.testing.assert_array_equal(fn(x).numpy(), x + 1)
    assert [taken(fn, x) for x in arrays] == [False, False, False, True, True, True]
    assert len(fn.programs()) == 3
    for x in arrays[3:] * 2 + arrays[:1]:  # a call in the shorter way counts as a use, too
        fn(x)
    assert [taken(fn, x) for x in arrays[3:]] == [False, True, True]


def test_what_the_function_reads_is_watched() -> None:
    weight = weft.tensor(SMALL)
    fn = compiled(lambda x: x + weight, SMALL)
    assert taken(fn, SMALL)
    weight.assign(weight * 10.0)
    assert not taken(fn, SMALL)
    for _ in range(6):
        np.testing.assert_array_equal(fn(SMALL).numpy(), SMALL * 11)
    assert taken(fn, SMALL)


def test_what_a_trace_depends_on_is_watched() -> None:
    layer = weft.nn.Dropout(0.5)
    layer.eval()
    fn = compiled(lambda x: layer(x) * 1.0, SMALL)
    assert taken(fn, SMALL)
    layer.train()
    assert not taken(fn, SMALL)
    assert (fn(SMALL + 1).numpy() == 0).any()
    layer.eval()
    np.testing.assert_array_equal(fn(SMALL).numpy(), SMALL)


def test_states_do_not_take_it() -> None:
    total = weft.zeros((3, 4))

    def add(x):
        total.assign(total + x)
        return total * 1.0

    fn = compiled(add, SMALL)
    assert not taken(fn, SMALL)
    np.testing.assert_array_equal(fn(SMALL).numpy(), SMALL * 6)


LARGE = np.arange(1 << 18, dtype=np.float32).reshape(512, 512) % 31


@pytest.mark.parametrize("threads", [1, 2])
def test_large_work_takes_it_from_several_threads(threads: int) -> None:
    fn = compiled(lambda x, w: x @ w, LARGE, LARGE, device=CpuDevice(threads))
    assert taken(fn, LARGE, LARGE)
    want, failures = LARGE @ LARGE, []

    def work() -> None:
        for _ in range(20):
            if not (fn(LARGE, LARGE).numpy() == want).all():
                failures.append(1)

    others = [threading.Thread(target=work) for _ in range(3)]
    for t in others:
        t.start()
    for t in others:
        t.join()
    assert not failures


def test_memory_of_results_is_used_again_once_nobody_holds_it() -> None:
    fn = compiled(lambda x: x + 1.0, LARGE)

    def address(made: Any) -> int:
        return int(made.numpy().ctypes.data)

    held = [fn(LARGE) for _ in range(8)]
    assert len({address(made) for made in held}) == 8
    assert all(address(made) % 64 == 0 for made in held)
    view = held.pop().numpy()[3:5].T  # a view of a view keeps it
    seen = [address(fn(LARGE)) for _ in range(8)]
    assert len(set(seen)) == 1
    fn(weft.tensor(np.zeros_like(LARGE)))
    np.testing.assert_array_equal(view, LARGE[3:5].T + 1)
    for made in held:
        np.testing.assert_array_equal(made.numpy(), LARGE + 1)
    del made, view
    first = np.asarray(held[0].numpy().astype(weft.bfloat16.numpy))
    half = compiled(lambda x: x * 2, first)
    kept = half(first).numpy()[1:]
    assert half(first).numpy().dtype == first.dtype
    assert not np.shares_memory(kept, half(first).numpy())


def test_inside_of_another_trace() -> None:
    outer = compiled(lambda x: SHORT(x, x) - 1.0, SMALL)
    np.testing.assert_array_equal(outer(SMALL).numpy(), SMALL * 3 - 1)


def test_results_outlive_the_function() -> None:
    fn = compiled(combine, SMALL, SMALL)
    out, play = fn(SMALL, SMALL), fn._kept.direct[0][1]
    del fn
    gc.collect()
    np.testing.assert_array_equal(out.numpy(), SMALL * 3)
    np.testing.assert_array_equal(play((SMALL, SMALL)).numpy(), SMALL * 3)


def test_scratch_memory_that_grows_is_followed() -> None:
    """Programs of one function share their arena, which moves when a larger one comes."""

    def chain(x):
        return ((x @ x).softmax(-1) @ x).sum(-1)

    small, large = np.eye(4, dtype=np.float32), np.eye(48, dtype=np.float32)
    fn = compiled(chain, small)
    want = fn(small).numpy().copy()
    for _ in range(5):
        fn(large)
        np.testing.assert_array_equal(fn(small).numpy(), want)


def test_threads() -> None:
    failures = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for i in range(400):
            x = rng.integers(0, 99, (3, 4) if i % 3 else (2, 2)).astype(np.float32)
            if not (SHORT(x, x).numpy() == x * 3).all():
                failures.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("x", [SMALL, LARGE], ids=["small", "large"])
def test_after_a_fork(x: np.ndarray) -> None:
    want = SHORT(x, x).numpy()
    for _ in range(5):
        SHORT(x, x)  # the latest shorter way again
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if taken(SHORT, x, x) else 3
            status = status or (0 if (SHORT(x, x).numpy() == want).all() else 2)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
def test_an_interruption_leaves_it_usable() -> None:
    """An exception from a signal, as Ctrl-C makes one, at any place of a call."""

    class Interrupted(Exception):
        pass

    count = 0

    def raise_(*_: object) -> None:
        nonlocal count
        count += 1
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_)
    try:
        for i in range(200):
            with contextlib.suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 20))
                for _ in range(2000):  # an end: Python sees some signals only with the next
                    SHORT(SMALL, SMALL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count > 100
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(SHORT(SMALL, SMALL)))
    other.start()
    other.join(240)
    np.testing.assert_array_equal(results[0].numpy(), SMALL * 3)


@pytest.mark.parametrize("field", ["DATA", "NDIM", "SHAPE", "DTYPE", "FLAGS"])
def test_another_layout_of_arrays_is_noticed(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert direct.supported()
    monkeypatch.setattr(direct, field, getattr(direct, field) + 8 * (-1 if field == "FLAGS" else 1))
    if field == "SHAPE":
        monkeypatch.setattr(direct, field, direct.NDIM - 8)  # the data, read as sizes
    assert not direct.supported.__wrapped__()


def test_memory_is_given_back() -> None:
    import tracemalloc

    for _ in range(50):
        SHORT(SMALL, SMALL)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(2000):
        SHORT(SMALL, SMALL)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000
