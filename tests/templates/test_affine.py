"""Index algebra against integers: div, mod and reshapes of affine values over small ranges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from weft import ops
from weft.core import dtypes as dt
from weft.graph.ir import Graph
from weft.templates import affine
from weft.templates.affine import Affine, Sym
from weft.templates.group import Group
from weft.templates.view import view_of


def value(x: Affine, at: dict[str, int]) -> int:
    total = x.const
    for s, c in x.terms:
        if s.src is None:
            v = at[s.name]
        else:
            v = value(s.src, at)
            v = v // s.d if s.kind == "div" else v % s.d
        assert 0 <= v < s.extent and v % s.step == 0, (x, s, v)
        total += c * v
    return total


extents = st.tuples(*[st.integers(1, 6)] * 3)


@settings(max_examples=300, deadline=None)
@given(extents, st.tuples(*[st.integers(0, 12)] * 3), st.integers(0, 9), st.integers(1, 24))
def test_divide(ext: tuple[int, ...], coef: tuple[int, ...], const: int, d: int) -> None:
    syms = [Sym(f"v{i}", "var", e) for i, e in enumerate(ext)]
    x = affine.combine([(affine.number(const), 1), *zip(map(affine.symbol, syms), coef)])
    q, r = affine.divide(x, d)
    back = q * d + r
    for at in itertools.product(*map(range, ext)):
        names = {s.name: v for s, v in zip(syms, at)}
        n = value(x, names)
        assert (value(q, names), value(r, names)) == divmod(n, d)
        assert value(back, names) == n


shapes = st.sampled_from([(24,), (4, 6), (2, 3, 4), (6, 1, 4), (12, 2), (3, 8), (2, 2, 2, 3)])


@settings(max_examples=100, deadline=None)
@given(shapes, shapes, shapes)
def test_reshapes(a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...]) -> None:
    """The element that a chain of reshapes reads, found by brute force."""
    syms = [Sym(f"v{i}", "var", d) for i, d in enumerate(a)]
    index = tuple(map(affine.symbol, syms))
    for new, old in ((a, b), (b, c)):
        index = affine.reshape_index(index, new, old)
    linear = affine.flatten(index, affine.contiguous(c))
    for k, at in enumerate(itertools.product(*map(range, a))):
        assert value(linear, {s.name: v for s, v in zip(syms, at)}) == k
    # there and back again needs neither div nor mod
    assert all(s.kind == "var" for s, _ in linear.terms)


def test_lanes_do_not_carry() -> None:
    i = affine.symbol(Sym("i", "var", 96, 16)) + affine.symbol(Sym("lane16", "lane", 16))
    q, r = affine.divide(i, 48)
    assert q.lanes == 1 and r.aligned(16)


@pytest.mark.parametrize("case", ["transpose", "heads", "reverse", "broadcast", "merged", "none"])
def test_view_of(case: str) -> None:
    x = ops.input_node("x", (6, 8), dt.float32)
    with ops.building():
        y = {
            "transpose": lambda: ops.transpose(x, (1, 0)),
            "heads": lambda: ops.transpose(ops.reshape(x, (6, 2, 4)), (1, 0, 2)),
            "reverse": lambda: ops.slice_(x, (5, 1), (-1, 8), (-2, 3)),
            "broadcast": lambda: ops.broadcast(ops.slice_(x, (2, 0), (3, 8)), (6, 8)),
            "merged": lambda: ops.reshape(ops.transpose(x, (1, 0)), (48,)),
            "none": lambda: ops.neg(x),
        }[case]()
    view = view_of(Group("map", (x,), (y,)), y)
    if case in ("merged", "none"):
        assert view is None
        return
    assert view is not None and view.node is x
    data = np.arange(48).reshape(6, 8)
    want = ops.evaluate(Graph((x,), (y,)), [data.astype(np.float32)])[0]
    got = np.empty(y.shape)
    for at in np.ndindex(y.shape):
        got[at] = data.ravel()[view.offset + sum(a * s for a, s in zip(at, view.strides))]
    assert (got == want).all()
