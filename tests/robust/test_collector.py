"""The garbage collector is off while a function compiles, and only then."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import weft
from weft.host.collector import uncollected


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


def test_it_is_off_while_a_function_compiles() -> None:
    seen = []

    def fn(x: Any) -> Any:
        seen.append(gc.isenabled())
        return x + 1

    run = weft.compile(fn, "cpu")
    run(weft.ones(3))
    assert seen == [False] and gc.isenabled()

    def fails(x: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        weft.compile(fails, "cpu")(weft.ones(3))
    assert gc.isenabled()


def test_nested_and_in_threads() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with uncollected(), uncollected():
        thread.start()
        inside.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_collects() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
