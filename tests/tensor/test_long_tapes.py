"""Eager gradients through very many operations: no recursion, work in proportion, and a tape that
is let go without deep calls of the interpreter."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

import weft
from weft.tensor import Tensor

PLAY = """
import sys, threading, weft
def run():
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    y = x
    for i in range({count}):
        y = y * 1.0 + 0.0 if i % 2 else y + x * 0.0
    loss = y.sum()
    loss.backward({options})
    print(x.grad.tolist())
    del loss, y
    x.grad = None
threading.stack_size(256 << 10)
thread = threading.Thread(target=run)
thread.start()
thread.join()
print("alive")
"""


def played(count: int, options: str = "") -> list[str]:
    """In a process of its own (a crash ends it), in a thread with a small stack."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PLAY.format(count=count, options=options)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split("\n")


@pytest.mark.parametrize("options", ["", "create_graph=True"])
def test_ten_thousand_operations(options: str) -> None:
    assert played(5_000, options)[:2] == ["[1.0, 1.0]", "alive"]


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "create_graph=True"])
def test_a_hundred_thousand_operations(options: str) -> None:
    assert played(50_000, options)[:2] == ["[1.0, 1.0]", "alive"]


def chain(count: int) -> Tensor:
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    y = x
    for _ in range(count):
        y = y * 1.0
    y.sum().backward()
    return x


def test_work_in_proportion() -> None:
    def calls(count: int) -> int:
        found = 0

        def note(frame: object, event: str, arg: object) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            chain(count)
        finally:
            sys.setprofile(None)
        return found

    chain(10)
    assert calls(1500) < 3.2 * calls(500)


def test_a_tape_holds_nothing_once_it_is_let_go() -> None:
    from weft.ops.tape import Tracked

    gc.collect()
    gc.disable()
    try:
        leaf = chain(2000)
        alive = [o for o in gc.get_objects() if isinstance(o, Tracked)]
    finally:
        gc.enable()
    assert leaf.grad is not None and len(alive) < 10
