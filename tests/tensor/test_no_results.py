"""Compiled functions of which no tensor comes: None, empty containers, only writes to state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft

X = np.float32([1, 2, 3])
EMPTY: dict[str, Any] = {
    "None": None, "tuple": (), "list": [], "dict": {}, "nested": {"a": None, "b": [(), [None]]},
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "interp"])
@pytest.mark.parametrize("partition", [False, True])
@pytest.mark.parametrize("what", EMPTY)
def test_nothing_comes_of_it(what: str, device: str, partition: bool) -> None:
    made = EMPTY[what]
    for fn in (lambda x: made, lambda x: (x + 1, made)[1]):
        compiled = weft.compile(fn, device=device, partition=partition)
        for _ in range(8):  # the later ones may be called by a shorter way
            assert compiled(weft.tensor(X)) == made
        assert compiled(weft.tensor(X[:2])) == made
    assert weft.compile(lambda: made, device=device)() == made


@pytest.mark.parametrize("device", ["cpu", "interp"])
@pytest.mark.parametrize("partition", [False, True])
@pytest.mark.parametrize("what", EMPTY)
def test_only_a_state_is_written(what: str, device: str, partition: bool) -> None:
    state, made = weft.tensor(np.zeros(3, np.float32)), EMPTY[what]

    def fn(x: weft.Tensor) -> Any:
        state.assign(state + x * 2)
        return made

    compiled = weft.compile(fn, device=device, partition=partition)
    for _ in range(8):
        assert compiled(weft.tensor(X)) == made
    np.testing.assert_array_equal(state.numpy(), X * 16)


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_results_beside_none(device: str) -> None:
    fns: list[Callable[[weft.Tensor], Any]] = [
        lambda x: (x * 2, None), lambda x: [None, {"a": x * 2}], lambda x: {"a": (x * 2,), "b": ()},
    ]  # fmt: skip
    for fn in fns:
        compiled, wanted = weft.compile(fn, device=device), fn(weft.tensor(X))
        for _ in range(8):
            found = compiled(weft.tensor(X))
            assert str(found).replace(", device=interp:0", "") == str(wanted)


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_only_a_gradient_is_left(device: str) -> None:
    w = weft.tensor(X, requires_grad=True)

    def fn(x: weft.Tensor) -> None:
        w.grad = None
        (w * x).sum().backward()

    compiled = weft.compile(fn, device=device)
    for _ in range(8):
        assert compiled(weft.tensor(X)) is None
        assert w.grad is not None
        np.testing.assert_array_equal(w.grad.numpy(), X)


def test_a_function_of_no_results_is_shown_and_saved(tmp_path: Path) -> None:
    compiled = weft.compile(lambda x: None, device="cpu")
    compiled(weft.tensor(X))
    (program,) = compiled.programs()
    assert not program.outputs and compiled.report()
    compiled.save(tmp_path / "f.weft")
    assert not weft.load(tmp_path / "f.weft")(weft.tensor(X))


def test_verified_by_tracing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "1")
    compiled = weft.compile(lambda x: None, device="cpu")
    assert [compiled(weft.tensor(X)) for _ in range(3)] == [None] * 3
