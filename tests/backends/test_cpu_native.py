"""The builder of the CPU's run loop: what it writes does what Python would."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

import pytest
from cpu_case import device

from weft.backends.cpu import jit, link
from weft.backends.cpu.native import ATTRIBUTES, INTRINSICS, NativeFunction

PAIRS = list(itertools.product((-(1 << 40), -7, -1, 0, 1, 3, 1 << 33), (-5, -1, 1, 2, 1 << 35)))


def run(*functions: NativeFunction, arguments: int = 2) -> Callable[..., int]:
    """The last of these functions, compiled."""
    d = device()
    if not jit.own_linking(d.host):
        pytest.skip("objects are not linked here")
    text = "".join(f.text() for f in functions) + INTRINSICS + ATTRIBUTES
    found = link.link([jit.compile_object(text, d.host, "test")], ("main",))[0]["main"]
    made = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(found)
    made.code = found  # the code stays while its address is held
    return made


def main(arguments: str = "i64 a, i64 b") -> NativeFunction:
    return NativeFunction("main", arguments, "i64", local=False)


def wrapped(x: int) -> int:
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


OPERATIONS = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "sub": (lambda a, b: a - b, lambda a, b: a - b),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "unsigned division": (lambda a, b: a // b, lambda a, b: a % (1 << 64) // (b % (1 << 64))),
    "and": (lambda a, b: a & b, lambda a, b: a & b),
    "or": (lambda a, b: a | b, lambda a, b: a | b),
    "left": (lambda a, b: a << 3, lambda a, b: a << 3),
    "right": (lambda a, b: a >> 3, lambda a, b: a % (1 << 64) >> 3),
    "half": (lambda a, b: a.half(3), lambda a, b: a >> 3),
    "least": (lambda a, b: a.fn.least(a, b), min),
    "most": (lambda a, b: a.fn.most(a, b), max),
    "low": (lambda a, b: a.to("i32").to("i64"), lambda a, b: a % (1 << 32)),
    "less": (lambda a, b: (a < b).to("i64"), lambda a, b: a < b),
    "at most": (lambda a, b: (a <= b).to("i64"), lambda a, b: a <= b),
    "more": (lambda a, b: (a > b).to("i64"), lambda a, b: a > b),
    "at least": (lambda a, b: (a >= b).to("i64"), lambda a, b: a >= b),
    "same": (lambda a, b: a.same(b).to("i64"), lambda a, b: a == b),
    "differs": (lambda a, b: a.differs(b).to("i64"), lambda a, b: a != b),
    "choose": (lambda a, b: a.fn.choose(a < b, a, b), min),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operators(name: str) -> None:
    ours, python = OPERATIONS[name]
    f = main()
    f.give(ours(f["a"], f["b"]))
    made = run(f)
    for a, b in PAIRS:
        assert made(a, b) == wrapped(int(python(a, b))), (a, b)


def test_loops_that_nest_leave_and_begin_again() -> None:
    """The sum of i * j for i below a, j below b, without odd j, and no further than j = 6."""
    f = main()
    total = f.variable("i64")
    with f.count(f["a"]) as i:
        j = f.variable("i64", -1)  # anew for each i
        with f.loop() as loop:
            j.set(j.get() + 1)
            loop.leave((j.get() >= f["b"]) | (j.get() > 6))
            loop.again((j.get() & 1).same(1))
            total.set(total.get() + i * j.get())
    f.give(total.get())
    made = run(f)
    for a, b in itertools.product(range(5), (0, 1, 4, 7, 20)):
        assert made(a, b) == sum(i * j for i in range(a) for j in range(0, min(b, 7), 2))


def test_returns_inside_of_blocks() -> None:
    """The first of a, a + 1, ... that b divides."""
    f = main()
    at = f.variable("i64", f["a"])
    with f.loop():
        with f.when((at.get() // f["b"] * f["b"]).same(at.get())):
            f.give(at.get())
        at.set(at.get() + 1)
    made = run(f)
    for a, b in itertools.product((0, 1, 5, 6), (1, 3, 7)):
        assert made(a, b) == -(-a // b) * b


def test_both_ways_through_a_condition_meet_again() -> None:
    f = main()
    found = f.variable("i64", 10)
    with f.when(f["a"] > 0):
        found.set(20)
        with f.when(f["b"] > 0):
            found.set(30)
    f.give(found.get())
    made = run(f)
    assert [made(a, b) for a, b in ((0, 0), (0, 1), (1, 0), (1, 1))] == [10, 10, 20, 30]


def test_calls_and_a_function_without_an_end() -> None:
    square = NativeFunction("square", "i64 x", "i64")
    square.give(square["x"] * square["x"])
    set_ = NativeFunction("set", "ptr at, i64 x")
    set_["at"].at("i64").set(set_["x"] + 1)
    f = main("i64 a")
    place = f.variable("i64")
    f.call("set", "void", place.address, f.call("square", "i64", f["a"]))
    f.give(place.get())
    made = run(square, set_, f, arguments=1)
    assert [made(a) for a in (-3, 0, 5)] == [10, 1, 26]


def test_memory_plain_and_atomic() -> None:
    words = (ctypes.c_int64 * 4)(1, 2, 3, 4)
    f = main("ptr at, i64 n")
    word = f["at"].at("i64", f["n"], 8)
    before = word.add(100, "seq_cst")
    seen, won = word.exchange(before, f["n"], "acq_rel acquire")  # not any more what it was
    word.set(seen * 2, "release")
    second, again = word.exchange(seen * 2, word.get("acquire") + 1, "acq_rel acquire")
    f.give((second << 2) | (won.to("i64") << 1) | again.to("i64"))
    made = run(f)
    assert made(ctypes.addressof(words), 2) == (206 << 2) | 1
    assert list(words) == [1, 2, 207, 4]
    g = main("ptr at, i64 n")
    g.give((g["at"].at("i32", 4).get().to("i64") << 1) | g["at"].missing().to("i64"))
    half = (ctypes.c_int32 * 2)(5, 6)
    assert run(g)(ctypes.addressof(half), 0) == 12
