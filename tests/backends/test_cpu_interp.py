"""The CPU device against the kernel interpreter: every IR node, and kernels made up at random."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_case import device, play
from hypothesis import given, settings, strategies as st
from rows import few

from weft.conform import kernels
from weft.conform.report import Skip
from weft.core import dtypes as dt
from weft.kernel import interp, ir
from weft.kernel.builder import Builder
from weft.kernel.expr import (
    binary,
    bitcast,
    cast,
    const,
    extract,
    fma,
    iota,
    load,
    select,
    shuffle,
    splat,
    unary,
)
from weft.kernel.ir import Type


@pytest.mark.parametrize("target", few(["host", "avx512", "avx2"], "host"))
def test_every_node_and_dtype(target: str) -> None:
    failures = []
    for name, check in kernels.checks(device(2, target)):
        try:
            check()
        except Skip:
            continue
        except Exception as e:
            failures.append(f"{name}: {e}")
    assert not failures, "\n".join(failures)


class Random:
    """Writes a random kernel: `draw` picks among choices."""

    N = 64

    def __init__(self, draw: st.DrawFn, lanes: int) -> None:
        self.draw, self.lanes = draw, lanes
        self.b = Builder("random")
        self.x = self.b.buffer("x", dt.int32, self.N)
        self.f = self.b.buffer("f", dt.float32, self.N)
        self.out = self.b.buffer("out", dt.int32, self.N, "w")
        self.tmp = self.b.array("tmp", dt.int32, 2 * lanes)
        self.ints: list[ir.Expr] = []
        self.floats: list[ir.Expr] = []

    def pick(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def integer(self) -> ir.Expr:
        return self.draw(st.sampled_from(self.ints))

    def real(self) -> ir.Expr:
        return self.draw(st.sampled_from(self.floats))

    def step(self, at: ir.Expr) -> None:
        """One more value, from those there are."""
        i32 = Type(dt.int32, self.lanes)
        kind = self.pick(
            "binary", "shift", "select", "narrow", "fma", "round", "gather", "shuffle", "array"
        )
        a, c = self.integer(), self.integer()
        if kind == "binary":
            op = self.pick("add", "sub", "mul", "min", "max", "and", "or", "xor")
            value = binary(op, a, c)
        elif kind == "shift":
            value = binary(self.pick("shl", "shr"), a, self.draw(st.integers(0, 31)))
        elif kind == "select":
            value = select(binary(self.pick("lt", "le", "eq", "ne"), a, c), a, self.integer())
        elif kind == "narrow":
            middle = self.draw(
                st.sampled_from([dt.int8, dt.uint8, dt.uint32, dt.float32, dt.bool_])
            )
            value = cast(cast(a, middle), dt.int32)
        elif kind == "fma":
            self.floats.append(self.b.let(fma(self.real(), self.real(), self.real())))
            value = bitcast(self.real(), dt.int32) & 0x7F000000
        elif kind == "round":
            op = self.pick("neg", "abs", "floor", "ceil", "trunc", "rint")
            real = self.b.let(unary(op, self.real()))
            self.floats.append(real)
            value = cast(cast(cast(real, dt.bfloat16), dt.float32), dt.int32)
        elif kind == "gather":
            value = load(self.x, a & (self.N - 1), self.lanes)
        elif kind == "shuffle" and self.lanes > 1:
            order = self.draw(st.permutations(range(self.lanes)))
            value = shuffle(order, a) + splat(extract(c, order[0]), self.lanes)
        else:
            self.b.store(self.tmp, self.draw(st.sampled_from([0, self.lanes])), a)
            value = load(self.tmp, 0, self.lanes) ^ load(self.tmp, self.lanes, self.lanes)
        assert value.type == i32
        self.ints.append(self.b.let(value))

    def kernel(self) -> ir.Kernel:
        b, lanes = self.b, self.lanes
        at = b.let(b.group(0) * lanes, "at")
        self.ints = [b.let(load(self.x, at, lanes)), b.let(cast(iota(lanes), dt.int32) + at)]
        self.floats = [b.let(load(self.f, at, lanes))]
        b.store(self.tmp, 0, self.ints[0])
        b.store(self.tmp, lanes, self.ints[1])
        for _ in range(self.draw(st.integers(1, 6))):
            self.step(at)
        total = b.var(self.ints[-1], "total")
        unroll, count = self.draw(st.booleans()), self.draw(st.integers(0, 4))
        with b.loop(count, unroll=unroll) as i:
            b.assign(total, total * 3 + splat(i, lanes) + self.integer())
            with b.when(b.group(0) + i < self.draw(st.integers(0, 6))):
                b.assign(total, total ^ self.integer())
            with b.otherwise():
                b.assign(total, total - self.integer())
        b.store(self.out, at, total, self.mask(at) if self.draw(st.booleans()) else None)
        return b.kernel((self.N // lanes,))

    def mask(self, at: ir.Expr) -> ir.Expr:
        limit = self.draw(st.integers(0, self.N))
        return binary("lt", at + iota(self.lanes), const(limit, Type(dt.int32, self.lanes)))


@st.composite
def kernels_of_any_kind(draw: st.DrawFn) -> ir.Kernel:
    return Random(draw, draw(st.sampled_from([1, 4, 16, 32]))).kernel()


@settings(max_examples=25, deadline=None)
@given(kernel=kernels_of_any_kind(), seed=st.integers(0, 1000))
def test_random_kernels(kernel: ir.Kernel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(-(2**31), 2**31, 64).astype(np.int32),
        (rng.standard_normal(64) * 10.0 ** rng.integers(-2, 6, 64)).astype(np.float32),
        np.zeros(64, np.int32),
    ]
    want = [a.copy() for a in arrays]
    interp.run(kernel, want, caps=device().caps)
    got = play(kernel, arrays)
    np.testing.assert_array_equal(got[2], want[2])
