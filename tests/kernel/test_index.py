"""Index algebra: equal values on random assignments, and the rewrites that templates rely on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core import dtypes as dt
from weft.kernel import builder as k
from weft.kernel import ir
from weft.kernel.index import bounds, simplify, split
from weft.kernel.ir import I32, Expr
from weft.kernel.printer import expr_text

RANGES = {"a": (0, 7), "b": (0, 15), "c": (0, 99), "d": (-20, 20)}
VARS = {name: ir.Var(name, I32) for name in RANGES}


def evaluate(e: Expr, values: dict[str, int]) -> int:
    """The meaning of a scalar index expression, on Python integers."""
    if isinstance(e, ir.Const):
        return int(e.value)
    if isinstance(e, ir.Var):
        return values[e.name]
    if isinstance(e, ir.Unary):
        return -evaluate(e.x, values)
    assert isinstance(e, ir.Binary)
    a, b = evaluate(e.a, values), evaluate(e.b, values)
    if e.op in ("div", "rem"):
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if e.op == "div" else a - b * quotient
    return {
        "add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b),
        "and": a & b, "shl": a << max(b, 0), "shr": a >> max(b, 0), "lt": a < b, "le": a <= b,
        "eq": a == b, "ne": a != b,
    }[e.op]  # fmt: skip


def raw(op: str, a: Expr, b: Expr) -> Expr:
    return ir.Binary(op, a, b, I32)


leaves = st.one_of(
    st.sampled_from(sorted(VARS)).map(lambda n: VARS[n]), st.integers(0, 40).map(k.const)
)
divisors = st.integers(1, 13).map(k.const)


def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(raw, st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner),
        st.builds(raw, st.sampled_from(["mul", "div", "rem", "div", "rem"]), inner, divisors),
        st.builds(raw, st.just("and"), inner, st.sampled_from([3, 7, 15]).map(k.const)),
        st.builds(raw, st.sampled_from(["shl", "shr"]), inner, st.integers(0, 3).map(k.const)),
        inner.map(lambda e: k.unary("neg", e)),
    )


def fits(e: Expr) -> bool:
    low, high = bounds(e, RANGES)
    return low > -(1 << 30) and high < 1 << 30


@settings(max_examples=200, deadline=None)
@given(st.recursive(leaves, extend, max_leaves=9), st.integers(0, 1 << 30))
def test_simplified_expressions_keep_their_value(e: Expr, seed: int) -> None:
    if not fits(e):
        return
    short = simplify(e, RANGES)
    low, high = bounds(e, RANGES)
    rng = random.Random(seed)
    parts = split(e, "b", RANGES)
    for _ in range(20):
        values = {n: rng.randint(*r) for n, r in RANGES.items()}
        want = evaluate(e, values)
        assert evaluate(short, values) == want, (expr_text(e), expr_text(short), values)
        assert low <= want <= high
        if parts is not None:
            assert parts[0] * values["b"] + evaluate(parts[1], values) == want


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(ir.COMPARE),
    st.recursive(leaves, extend, max_leaves=4),
    st.recursive(leaves, extend, max_leaves=4),
    st.integers(0, 1 << 30),
)
def test_comparisons_keep_their_value(op: str, x: Expr, y: Expr, seed: int) -> None:
    e = ir.Binary(op, x, y, ir.BOOL)
    short = simplify(e, RANGES)
    rng = random.Random(seed)
    for _ in range(20):
        values = {n: rng.randint(*r) for n, r in RANGES.items()}
        assert bool(evaluate(short, values)) == bool(evaluate(e, values))


a, b, c = VARS["a"], VARS["b"], VARS["c"]


@pytest.mark.parametrize(
    ("e", "want"),
    [
        ((a * 16 + b) // 16, "a"),
        ((a * 16 + b) % 16, "b"),
        ((c // 12) * 12 + c % 12, "c"),
        (c // 3 // 4, "(c / 12)"),
        (c // 12 * 4 + c // 3 % 4, "(c / 3)"),
        ((c % 12) % 4, "(c % 4)"),
        (c // 100, "0"),
        (c % 100, "c"),
        ((a * 6) // 4 * 4 + (a * 6) % 4, "(a * 6)"),
        ((a * 4) // 8, "(a / 2)"),
        ((a * 32 + b * 2 + 1) % 32, "((b * 2) + 1)"),
        ((a + 3) * 5 - a * 5, "15"),
        ((a * 4 + 5) // 4 - 1, "a"),
        (k.minimum(a, 7), "a"),
        (b < 16, "true:bool"),
        (c < 0, "false:bool"),
    ],
)
def test_rewrites(e: Expr, want: str) -> None:
    assert expr_text(simplify(e, RANGES)) == want


def test_split_finds_the_stride() -> None:
    parts = split((a * 16 + b) // 16 * 64 + b * 3 + 2, "b", RANGES)
    assert parts is not None and parts[0] == 3 and expr_text(parts[1]) == "((a * 64) + 2)"
    assert split(b // 2, "b", RANGES) is None
    nothing = split(c, b, RANGES)
    assert nothing is not None and nothing[0] == 0


def test_vectors_keep_their_lanes_and_add_scalars_once() -> None:
    e = (k.iota(4) + 3) + a * 16
    assert expr_text(simplify(e, RANGES)) == "(splat:i32x4(((a * 16) + 3)) + iota:i32x4())"
    assert simplify(k.iota(4) * 0 + 1).type == ir.Type(dt.int32, 4)


def test_without_ranges_a_possible_negative_dividend_is_left_alone() -> None:
    x = ir.Var("x", I32)
    assert expr_text(simplify((x * 4 + 3) // 4)) == "(((x * 4) + 3) / 4)"
