"""Views write through: as PyTorch's on the CPU, and alike on devices and in traced functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import weft
from weft.errors import GradientError, ShapeError, TraceError, WeftError

START = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def chained(x: Any) -> None:
    x[0][1] = 5


def transposed(x: Any) -> None:
    x.T[0] = 1


def named(x: Any) -> None:
    v = x[0]
    v[1] = 5
    v[0][2] = 6


def seen_by_the_view(x: Any) -> None:
    v, w = x[:, 1:], x.reshape(-1)
    x[0, 1] = 7
    v[1, 0] = w[:4] + v[0, 0]
    w[::5] = -1


def rows(x: Any) -> None:
    for i, row in enumerate(x):
        row[i] = 3
        row[..., None][2] = 4


def added(x: Any) -> None:
    x[0][1] += 5
    x[1, 1:][:, 2:] *= 2
    v = x[1]
    v[0] -= v[1]


def by_mask(x: Any) -> None:
    v = x[1]
    v[v > 15] = 0
    x[0][[0, 2]] = 8


def of_a_copy(x: Any) -> None:
    x[[0]][0] = 5
    (x + 0)[0] = 6
    x.T.reshape(-1)[0] = 7


def full(x: Any) -> None:
    v = x[1][1]
    v[...] = 4
    x[0][:] = v


@pytest.mark.parametrize(
    "change", [chained, named, seen_by_the_view, rows, added, by_mask, of_a_copy, full]
)
def test_as_numpy(change: Callable[[Any], None]) -> None:
    want, x = START.copy(), weft.tensor(START)
    change(want)
    change(x)
    assert np.array_equal(x.numpy(), want)

    def traced(x: Any) -> Any:
        y = x * 1.0
        change(y)
        return y

    state = weft.tensor(START)

    def stateful() -> None:
        change(state)

    if change is not by_mask:  # a mask's count is unknown while tracing
        assert np.array_equal(weft.compile(traced, device="cpu")(START).numpy(), want)
        weft.compile(stateful, device="cpu")()
        assert np.array_equal(state.numpy(), want)


def test_transposed() -> None:
    x = weft.tensor(START[0])
    x.T[0] = 1
    x.T[1:].T[2] = 9
    x.mT[3, 0] = 8
    want = START[0].copy()
    want[:, 0], want[2, 1:], want[0, 3] = 1, 9, 8
    assert np.array_equal(x.numpy(), want)


STEPS = ["index", "slice", "T", "reshape", "merge", "unsqueeze", "expand", "detach", "narrow", "+0"]


def applied(t: Any, step: str, a: int, b: int) -> Any:
    """One step of a chain, of weft's and of PyTorch's tensors alike."""
    if step == "index" and t.ndim:
        return t[a % t.shape[0]]
    if step == "slice" and t.ndim:
        return t[..., a % t.shape[-1] :: 1 + b % 2]
    if step == "T" and t.ndim > 1:
        i, j = a % t.ndim, b % t.ndim
        return t.transpose(i, j)
    if step == "reshape" and t.ndim and not t.shape[-1] % 2:
        return t.reshape((*t.shape[:-1], 2, t.shape[-1] // 2))
    if step == "merge" and t.ndim > 1:
        return t.reshape((t.shape[0] * t.shape[1], *t.shape[2:]))
    if step == "unsqueeze":
        return t.unsqueeze(a % (t.ndim + 1))
    if step == "expand" and 1 in t.shape:
        return t.expand(tuple(2 if d == 1 else d for d in t.shape))
    if step == "detach":
        return t.detach()
    if step == "narrow" and t.ndim and t.shape[0] > 1:
        return t.narrow(0, 1, t.shape[0] - 1)
    return t + 0 if step == "+0" else t


numbers = st.integers(0, 5)
programs = st.lists(
    st.one_of(
        st.tuples(st.just("view"), numbers, st.sampled_from(STEPS), numbers, numbers),
        st.tuples(st.just("write"), numbers, st.just(""), numbers, numbers),
        st.tuples(st.just("copy"), numbers, st.just(""), numbers, numbers),
    ),
    min_size=1,
    max_size=9,
)


def played(program: Any, x: Any, held: list[Any]) -> None:
    """Runs a program over a growing list of tensors; `held` is that list at its end."""
    held.append(x)
    for what, which, step, a, b in program:
        t = held[which % len(held)]
        if what == "view":
            held.append(applied(t, step, a, b))
        elif what == "write" and t.ndim:
            t[a % t.shape[0]] = float(b)
        elif what == "copy":
            source = held[b % len(held)]
            if tuple(source.shape) == tuple(t.shape):
                t[...] = source * 2.0


def outcome(program: Any, x: Any) -> tuple[Any, bool]:
    held: list[Any] = []
    try:
        played(program, x, held)
    except (ShapeError, RuntimeError) as error:
        assert isinstance(error, WeftError) == isinstance(x, weft.Tensor)
        return None, True
    return [np.asarray(t.detach()) for t in held], False


@settings(max_examples=300, deadline=None)
@given(programs)
def test_programs_as_pytorch(program: Any) -> None:
    want, refused = outcome(program, torch.tensor(START))
    got, stopped = outcome(program, weft.tensor(START))
    assert stopped == refused
    for a, b in zip(got or (), want or ()):
        assert np.array_equal(a, b)


@settings(max_examples=40, deadline=None)
@given(programs)
def test_programs_traced(program: Any) -> None:
    want, refused = outcome(program, torch.tensor(START))

    def fn(x: Any) -> Any:
        held: list[Any] = []
        played(program, x * 1.0, held)
        return held

    fast = weft.compile(fn, device="cpu")
    if refused:
        with pytest.raises(WeftError):
            fast(START)
        return
    for a, b in zip(fast(START), want):
        assert np.array_equal(a.numpy(), b)


@settings(max_examples=150, deadline=None)
@given(programs)
def test_gradients_as_pytorch_or_an_error(program: Any) -> None:
    leaf = torch.tensor(START, requires_grad=True)
    mine = weft.tensor(START, requires_grad=True)
    found, out = [], []
    for tensor, library in ((leaf, torch), (mine, weft)):
        held: list[Any] = []
        try:
            played(program, tensor * 3.0, held)
            loss = sum((t * t).sum() for t in held if t.requires_grad)
            loss.backward()
        except (RuntimeError, WeftError):
            out.append(None)
            continue
        found.append(np.asarray(library.asarray(tensor.grad).detach()))
        out.append(float(loss))
    if None not in out:
        assert np.isclose(*out) and np.allclose(*found, rtol=1e-4)


def test_leaves_need_no_grad() -> None:
    w = weft.ones((2, 2)).requires_grad_()
    with pytest.raises(GradientError, match="no_grad"):
        w[0][1] = 5
    with weft.no_grad():
        w[0][1] = 5
    w.detach()[1][0] = 6
    assert w.tolist() == [[1, 5], [6, 1]]
    (w[0] * w[0]).sum().backward()
    assert w.grad.tolist() == [[2, 10], [0, 0]]


def test_gradients_go_through_a_write() -> None:
    w, x = weft.tensor([2.0], requires_grad=True), weft.zeros((2, 2))
    x[0][1] = w * 3.0
    assert x.requires_grad
    (x * x).sum().backward()
    assert w.grad.item() == 36.0


def test_writes_behind_a_history_are_refused() -> None:
    y = weft.tensor([1.0, 2.0], requires_grad=True) * 2.0
    with pytest.raises(GradientError, match="behind their back"):
        y.detach()[0] = 5
    with weft.no_grad(), pytest.raises(GradientError, match="history"):
        y[0] = 5


def test_a_tape_keeps_what_it_met() -> None:
    w = weft.tensor([1.0, 2.0], requires_grad=True)
    x = weft.tensor([3.0, 4.0])
    loss, view = (w * x).sum(), x[:1]
    view[0] = 100
    loss.backward()
    assert w.grad.tolist() == [3.0, 4.0]


def test_an_overwritten_local_loses_its_history_when_traced() -> None:
    def fn(w: Any) -> Any:
        w = w.detach().requires_grad_()
        y = w * 2.0
        y[...] = 5.0
        return weft.grad((y * w).sum(), [w])[0]

    w = weft.tensor([1.0, 2.0])
    assert fn(w).tolist() == [5.0, 5.0] == weft.compile(fn, device="cpu")(w).tolist()


def test_arguments_of_a_compiled_function_are_not_written() -> None:
    def fn(x: Any) -> Any:
        x[0][1] = 5
        return x

    with pytest.raises(TraceError, match="is assigned to"):
        weft.compile(fn, device="cpu")(START)


def test_views_of_state_follow_it() -> None:
    state = weft.zeros((2, 2))
    row = state[1]

    def fn() -> Any:
        state.assign(state + 1.0)
        row[0] = 10.0
        return row * 1.0

    fast = weft.compile(fn, device="cpu")
    for i in range(1, 4):
        assert fast().tolist() == [10.0, float(i)]
        assert row.tolist() == [10.0, float(i)]
        assert state.tolist() == [[i, i], [10.0, i]]
    row[1] = -5.0
    assert fast().tolist() == [10.0, -4.0]
    read = weft.compile(lambda: row * 2.0, device="cpu")
    assert read().tolist() == [20.0, -8.0]
    state[1] = 1.0
    assert read().tolist() == [2.0, 2.0]


def test_expanded_views_cannot_be_written() -> None:
    x = weft.zeros((1, 3))
    with pytest.raises(ShapeError, match="several times"):
        x.expand(4, 3)[0] = 1
    x.expand(1, 3)[0] = 1
    assert x.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("device", ["interp"])
def test_on_a_device(device: str) -> None:
    for change in (chained, named, seen_by_the_view, full):
        want, x = START.copy(), weft.tensor(START, device=device)
        change(want)
        change(x)
        assert x.device != "cpu" and np.array_equal(x.numpy(), want)


def test_exports_cannot_write() -> None:
    x = weft.ones(3)
    for array in (x.numpy(), np.asarray(x), np.from_dlpack(x), torch.from_dlpack(x).numpy()):
        try:
            array[0] = 9
        except ValueError as error:
            assert "read-only" in str(error)
    np.array(x)[0] = 9
    torch.from_dlpack(x)[0] = 9
    assert x.tolist() == [1, 1, 1]


def test_an_export_of_state_stays() -> None:
    state = weft.zeros(2)
    fast = weft.compile(lambda: state.assign(state + 1.0), device="cpu")
    fast()
    before = state.numpy()
    fast()
    assert before.tolist() == [1, 1] and state.tolist() == [2, 2]


def test_long_chains() -> None:
    x = weft.zeros((2, 2))
    y = x
    for _ in range(3000):
        y = y.T
    y[0] = 1
    assert x.tolist() == [[1, 1], [0, 0]]
    x[1] = 2
    assert y.tolist() == [[1, 1], [2, 2]]


def test_moved_tensors_share_no_more() -> None:
    x = weft.zeros(2)
    v = x[:1]
    x.to_(weft.float16)
    x[0] = 1
    v[0] = 2
    assert x.tolist() == [1, 0] and v.tolist() == [2]
