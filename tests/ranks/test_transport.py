"""Typed arrays between processes: what arrives is what was sent, and nothing waits for ever."""

from __future__ import annotations

import ast
import os
import signal
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from several import needs_mpi, together

from weft.core.errors import RankError, UsageError
from weft.ranks import SingleRank, frames, join, launched

# -- what the ranks do; each is called in processes of its own -------------------------------------

SHAPES = [(), (0,), (5,), (3, 0, 2), (2, 3, 4), (300_000,)]


def sample(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bits: NaNs and denormals too."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    return (raw & 1 if dtype == np.dtype(bool) else raw).view(dtype).reshape(shape)


def case_one_to_one() -> None:
    ranks = join()
    ranks.watch()
    other = 1 - ranks.rank
    todo = [(d, s) for d in frames.DTYPES for s in SHAPES]
    under_way = [
        ranks.start_send(sample(d, s, i + 1000 * ranks.rank), other, tag=i % 3)
        for i, (d, s) in enumerate(todo)
    ]
    for tag in range(3):  # another order than they were sent in, but that of each tag
        for i, (d, s) in enumerate(todo):
            if i % 3 == tag:
                got = ranks.receive(other, tag, seconds=20)
                want = sample(d, s, i + 1000 * other)
                assert got.dtype == want.dtype and got.shape == want.shape
                assert got.tobytes() == want.tobytes()
    for sent in under_way:
        sent.wait(240)
    ranks.finish()


def case_all_together() -> None:
    ranks = join()
    n, me = ranks.size, ranks.rank
    value = np.arange(10, dtype=np.int64) * (me == 1)
    assert np.array_equal(ranks.broadcast(value, 1), np.arange(10))
    sizes = [r * 3 for r in range(n)]
    whole = ranks.gather(np.full(sizes[me], me, np.float32), sizes)
    assert np.array_equal(whole, np.repeat(np.arange(n, dtype=np.float32), sizes))
    mine = [np.full(me + to, 10 * me + to, ml_dtypes.bfloat16) for to in range(n)]
    got = ranks.exchange(mine, [r + me for r in range(n)])
    assert [g.size for g in got] == [r + me for r in range(n)]
    assert all((g == 10 * r + me).all() for r, g in enumerate(got))
    ranks.barrier()
    ranks.finish()
    print("fine", flush=True)


def case_deadline() -> None:
    ranks = join()
    ranks.watch()
    if ranks.rank == 0:
        began = time.monotonic()
        try:
            ranks.receive(1, seconds=0.5)
        except RankError as error:
            assert 0.4 < time.monotonic() - began < 60
            print(error, file=sys.stderr, flush=True)
            ranks.leave(7)
    time.sleep(60)
    ranks.leave(0)  # if the launcher did not end it: MPI's own end would wait for rank 0


def case_not_ours() -> None:
    ranks = join()
    if ranks.rank == 1:
        from mpi4py import MPI

        ranks._comm.Send([np.zeros(frames.HEADER, np.int64), MPI.INT64_T], 0, 4)
        ranks.send(np.zeros(100, np.float32), 0, 5)
        ranks.barrier()
        ranks.leave(0)
    found = []
    for tag, most in ((4, 1 << 20), (5, 399)):
        try:
            ranks.receive(1, tag, most=most)
        except RankError as error:
            found.append(str(error))
    print(found, flush=True)
    ranks.barrier()
    ranks.leave(0)


def case_killed() -> None:
    ranks = join()
    ranks.watch()
    if ranks.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.receive(1)


def case_stopped() -> None:
    """Rank 1 neither dies nor lives, as behind a cut link."""
    ranks = join()
    ranks.watch()
    if ranks.rank == 1:
        ranks._watch.stop()  # type: ignore[attr-defined]
        time.sleep(60)
        ranks.leave(0)
    began = time.monotonic()
    try:
        ranks.receive(1)
    except RankError as error:
        print(f"after {time.monotonic() - began:.1f} s: {error}", file=sys.stderr, flush=True)
        ranks.leave(75)


def case_busy() -> None:
    """A rank that computes for longer than the patience is not lost."""
    ranks = join()
    ranks.watch()
    if ranks.rank == 1:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            sum(range(100_000))
    ranks.barrier()
    ranks.finish()


# -- tests -----------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("case, count", [("one_to_one", 2), ("all_together", 3)])
def test_what_arrives_is_what_was_sent(case: str, count: int) -> None:
    status, out, err = together(count, __file__, f"case_{case}")
    assert status == 0, err
    assert out.count("fine") == (count if case == "all_together" else 0)


@needs_mpi
def test_a_deadline_ends_a_wait_and_the_others_with_it() -> None:
    began = time.monotonic()
    status, _, err = together(2, __file__, "case_deadline")
    assert status == 7 and time.monotonic() - began < 200
    assert "receiving from rank 1 on " in err and "took more than 0.5 s" in err


@needs_mpi
def test_frames_that_are_not_ours_or_too_large_are_refused() -> None:
    status, out, err = together(2, __file__, "case_not_ours")
    assert status == 0, err
    assert "sent no frame of this weft's" in out
    assert "sent 400 bytes; at most 399 were expected" in out


@needs_mpi
def test_a_killed_rank_ends_the_others_at_once() -> None:
    began = time.monotonic()
    status, _, _ = together(2, __file__, "case_killed")
    assert status == 9 and time.monotonic() - began < 200


@needs_mpi
def test_a_silent_rank_is_lost_after_the_patience() -> None:
    status, _, err = together(2, __file__, "case_stopped", WEFT_PATIENCE="3")
    assert status == 75
    assert "rank 1 on " in err and "said nothing for 3 s" in err


@needs_mpi
@pytest.mark.slow
def test_a_busy_rank_is_not_lost() -> None:
    status, _, err = together(2, __file__, "case_busy", WEFT_PATIENCE="3")
    assert status == 0, err


def test_alone() -> None:
    assert launched() == 1 and isinstance(join(), SingleRank)
    ranks = SingleRank()
    array = np.arange(4)
    assert np.array_equal(ranks.gather(array, [4]), array)
    assert np.array_equal(ranks.exchange([array], [4])[0], array)
    with pytest.raises(UsageError, match="alone"):
        ranks.send(array, 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=12, max_size=12), st.booleans())
def test_no_header_does_harm(values: list[int], ours: bool) -> None:
    head = np.array(values, np.int64)
    if ours:
        head[:2] = frames.MAGIC, frames.FORM
        head[2:4] %= 20
    try:
        made = frames.announced(head, 1 << 16, "rank 1")
    except RankError:
        return
    assert ours and made.nbytes <= 1 << 16


def test_headers_come_back() -> None:
    for dtype in frames.DTYPES:
        for shape in SHAPES:
            array = np.zeros(shape, dtype)
            back = frames.announced(frames.header(array), 1 << 30, "rank 1")
            assert back.shape == array.shape and back.dtype == array.dtype
    for wrong in (np.zeros((4, 4)).T, np.zeros(2, object), np.zeros((1,) * 9)):
        with pytest.raises(UsageError, match="cannot travel"):
            frames.header(wrong)


ALLOWED = {  # typed buffers, none of which MPI adds
    "Dup", "Get_rank", "Get_size", "Set_errhandler", "Isend", "Irecv", "Ibarrier", "Iprobe", "Recv",
}  # fmt: skip


def test_mpi_neither_pickles_nor_adds() -> None:
    """mpi4py's lower-case calls pickle; MPI's reductions add in an order of their own."""
    used = set()
    for path in Path(frames.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                of = node.value
                name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
                if name in ("comm", "_comm", "_all", "COMM_WORLD"):
                    used.add(node.attr)
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {a.name for a in node.names} | {getattr(node, "module", None)}
                assert "pickle" not in names
    assert used == ALLOWED
