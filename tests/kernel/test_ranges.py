"""What the ranges of index expressions promise, against exact arithmetic that wraps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from weft.core import dtypes as dt
from weft.kernel import expr as kb, ir, sums
from weft.kernel.builder import Builder
from weft.kernel.facts import SignFacts
from weft.kernel.ir import BOOL, I32, Expr
from weft.kernel.ranges import INT32, Ranges
from weft.kernel.sums import Atom, Sum

SLOTS = {0: (0, 7), 1: (0, 15), 2: (-20, 20), 3: INT32}
PARAMS = [ir.Param(f"p{slot}", slot) for slot in SLOTS]


def wrap(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def evaluate(e: Expr, values: dict[int, int]) -> int:
    """The meaning of a scalar int32 or bool expression."""
    if isinstance(e, ir.Const):
        return int(e.value)
    if isinstance(e, ir.Param):
        return values[e.slot]
    if isinstance(e, ir.Unary):
        x = evaluate(e.x, values)
        return int(not x) if e.op == "not" else wrap(-x if e.op == "neg" else abs(x))
    if isinstance(e, ir.Select):
        return evaluate(e.a if evaluate(e.cond, values) else e.b, values)
    if isinstance(e, ir.Cast):
        return evaluate(e.x, values)
    assert isinstance(e, ir.Binary)
    a, b = evaluate(e.a, values), evaluate(e.b, values)
    if e.op in ("div", "rem"):
        if b == 0:
            return a if e.op == "div" else 0  # as compiled code has it, which may not be relied on
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return wrap(quotient if e.op == "div" else a - b * quotient)
    table = {
        "add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b), "and": a & b,
        "or": a | b, "xor": a ^ b, "shl": a << (b & 31), "shr": a >> (b & 31), "lt": a < b,
        "le": a <= b, "eq": a == b, "ne": a != b,
    }  # fmt: skip
    return wrap(int(table[e.op]))


def exact(total: Sum, values: dict[int, int]) -> int | None:
    """What a sum says the expression is; None where it says nothing."""
    result = total.const
    for c, atom in total.terms.values():
        value = of_atom(atom, values)
        if value is None:
            return None
        result += c * value
    return result


def of_atom(atom: Atom, values: dict[int, int]) -> int | None:
    if atom.key.startswith("$"):
        return values[int(atom.key[1:])]
    if atom.kind in ("div", "rem"):
        inner = exact(atom.inner, values)
        return (
            None if inner is None else (inner // atom.c if atom.kind == "div" else inner % atom.c)
        )
    if atom.arms:
        arms = [exact(arm, values) for arm in atom.arms]
        return None if None in arms else (min if atom.kind == "min" else max)(arms)
    return None


def binary(op: str, a: Expr, b: Expr) -> Expr:
    return ir.Binary(op, a, b, BOOL if op in ir.COMPARE else I32)


leaves = st.sampled_from(PARAMS) | st.integers(-40, 300).map(kb.const) | st.integers(*INT32).map(
    kb.const
)  # fmt: skip
conditions = st.deferred(
    lambda: st.builds(binary, st.sampled_from(ir.COMPARE), indices, indices)
    | st.builds(lambda op, a, b: ir.Binary(op, a, b, BOOL), st.sampled_from(["and", "or"]),
                conditions, conditions)
    | conditions.map(lambda c: ir.Unary("not", c, BOOL))
)  # fmt: skip
small = st.integers(1, 70).map(kb.const)
indices = st.deferred(
    lambda: leaves
    | st.builds(binary, st.sampled_from(["add", "sub", "mul", "min", "max", "add", "sub"]), indices,
                indices)
    | st.builds(binary, st.sampled_from(["div", "rem", "mul", "div", "rem"]), indices, small)
    | st.builds(binary, st.sampled_from(["and", "or", "xor", "shl", "shr", "div", "rem"]), indices,
                indices)
    | st.builds(binary, st.sampled_from(["shl", "shr"]), indices, st.integers(0, 33).map(kb.const))
    | st.builds(lambda op, x: ir.Unary(op, x, I32), st.sampled_from(["neg", "abs"]), indices)
    | st.builds(lambda c, a, b: ir.Select(c, a, b, I32), conditions, indices, indices)
    | conditions.map(lambda c: ir.Cast(c, I32))
)  # fmt: skip
assignments = st.fixed_dictionaries({slot: st.integers(*r) for slot, r in SLOTS.items()})


def ranges() -> Ranges:
    b = Builder("k")
    return Ranges(b.kernel(grid=(1,)), SLOTS)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(e=indices, known=st.lists(conditions, max_size=3), values=assignments)
def test_bounds_hold_under_what_is_known(
    e: Expr, known: list[Expr], values: dict[int, int]
) -> None:
    found = ranges()
    for condition in known:
        truth = bool(evaluate(condition, values))
        found.facts.add(found.holds(condition, truth))
    total = found.value(e)
    want = evaluate(e, values)
    low, high = found.bounds(total)
    assert low <= want <= high, total.text
    says = exact(total, values)
    assert says is None or says == want, total.text


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.integers(-50, 50), min_size=4, max_size=4),
    facts=st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4), max_size=4),
    values=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    slack=st.lists(st.integers(0, 5), min_size=4, max_size=4),
)
def test_facts_only_bound_what_is_so(
    weights: list[int], facts: list[list[int]], values: list[int], slack: list[int]
) -> None:
    atoms = [sums.of(Atom(f"a{i}", 0, 40)) for i in range(4)]

    def total(by: list[int]) -> Sum:
        result = Sum(3)
        for c, atom in zip(by, atoms):
            result = result.plus(atom, c)
        return result

    def number(by: list[int]) -> int:
        return 3 + sum(c * v for c, v in zip(by, values))

    known = SignFacts()
    with known.given(total(by).plus(Sum(-number(by) - more)) for by, more in zip(facts, slack)):
        assert known.low(total(weights)) <= number(weights) <= known.high(total(weights))
    assert (known.low(total(weights)), known.high(total(weights))) == total(weights).range


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(e=indices, c=st.integers(1, 64), values=assignments)
def test_division_is_exact(e: Expr, c: int, values: dict[int, int]) -> None:
    found = ranges()
    total = found.value(e)
    if total.range[0] < 0:  # divisions are of what is not negative
        total = total.plus(Sum(-total.range[0]))
    says = exact(total, values)
    assume(says is not None)
    assert exact(sums.div(total, c), values) == says // c
    assert exact(sums.rem(total, c), values) == says % c


def test_what_is_not_int32_is_any_number() -> None:
    found = ranges()
    p, q = PARAMS[3], PARAMS[1]
    assert found.bounds(found.value(p + 1)) == INT32
    assert found.bounds(found.value(q * (1 << 28))) == INT32
    assert found.bounds(found.value(q * (1 << 27))) == (0, 15 << 27)
    assert len(found.overflows) == 2
    assert found.bounds(found.value((q + 1) * (q + 1))) == (1, 256)
    assert len(found.overflows) == 2


def test_lanes_are_told_apart() -> None:
    found = ranges()
    index = kb.splat(PARAMS[1], 8) + kb.iota(8)
    assert found.bounds(found.value(index)) == (0, 22)
    lane = kb.extract(kb.splat(PARAMS[1], 8) + kb.iota(8), 3)
    assert found.value(lane).text == "1*$1 + 3"
    mixed = kb.shuffle([7, 6, 5, 4, 3, 2, 1, 0], kb.splat(PARAMS[1], 8) * kb.iota(8))
    assert found.value(mixed).terms.keys().isdisjoint({"$1", "iota8"})


@pytest.mark.parametrize("dtype", [dt.uint8, dt.int8, dt.uint32, dt.bool_])
def test_casts_of_loaded_numbers(dtype: dt.DType) -> None:
    b = Builder("k")
    x = b.buffer("x", dtype, 4)
    found = ranges()
    low, high = found.bounds(found.value(kb.cast(kb.load(x, 0), dt.int32)))
    if dtype == dt.uint32:
        assert (low, high) == INT32
    else:
        info = (
            (0, 1) if dtype == dt.bool_ else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
        )
        assert (low, high) == tuple(map(int, info))
