"""Threads as loops and as lanes: the same results as the threads themselves in the interpreter."""

import random

import numpy as np
import pytest
from rows import few

from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.kernel import interp, ir
from weft.kernel.guard import guard
from weft.kernel.language import KernelWriter
from weft.kernel.one_thread import one_thread
from weft.kernel.verify import verify
from weft.kernel.walk import walk

N = 24


def lane_counts(kernel):
    return {e.type.lanes for e in walk(kernel.body) if isinstance(e, ir.Expr)}


def same(write, threads, seed=0, groups=2):
    """Plays a kernel of x[N], i[N] -> float y[groups * N], int z[groups * N] in all its forms."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(N).astype(np.float32)
    i = rng.integers(0, N, N).astype(np.int32)
    k = KernelWriter("sample")
    given = k.argument("x", (N,), dt.float32), k.argument("i", (N,), dt.int32)
    out = k.output((groups, N)), k.output((groups, N), dt.int32)
    k.launch(groups, threads)
    write(k, *given, *out)
    kernel = k.finished()
    verify(kernel)

    def play(form, caps=None):
        verify(form)
        y = [np.zeros(groups * N, np.float32), np.zeros(groups * N, np.int32)]
        interp.run(form, [x, i, *y], caps=caps)
        return y

    want = play(kernel)
    assert np.any(want[0]) or np.any(want[1])
    for lanes in (1, 4, 8, 16):
        for form in (kernel, guard(kernel).kernel):
            form = one_thread(form, lanes)
            assert form.threads == (1, 1, 1)
            for got, truth in zip(play(form, PRESETS["cpu-avx512"]), want):
                np.testing.assert_array_equal(got, truth)
    return one_thread(kernel, 16)


def flat(k):
    return k.number()


def test_branches(threads=8):
    def write(k, x, i, y, z):
        t, g = flat(k), k.group()
        with k.loop(t, N, step=threads) as n:
            v = k.var(0.0)
            with k.when(x[n] > 0):
                v.set(x[n] * 2)
                with k.when(i[n] > 9):
                    v += 1.0
            with k.otherwise():
                v.set(k.exp(x[n]))
            y[g, n] = v
            z[g, n] = k.where((i[n] > 4) & ~(x[n] < 0.5), i[n] // (t + 1), i[n] % 5)

    assert 8 in lane_counts(same(write, threads))


def test_values_outlive_barriers():
    """Variables, values, conditions, index arithmetic and private arrays."""

    def write(k, x, i, y, z):
        t, g = flat(k), k.group()
        s, p = k.shared(8), k.private(3)
        keep, odd = k.exp(x[t]), (t & 1) == 1
        total, at = k.var(1.0), t * 3
        p[0], p[2] = x[t], x[t + 8]
        p[1] = p[0] + 1.0
        with k.loop(3) as turn:
            s[t] = total + keep
            k.barrier()
            with k.when(odd):
                total += s[(t + turn) % 8]
            k.barrier()
        with k.loop(3) as n:
            y[g, at + n] = p[n] * total + keep
            z[g, at + n] = at + n + turn_of(k, odd)

    def turn_of(k, odd):
        return k.where(odd, 100, 200)

    assert 8 in lane_counts(same(write, 8))


@pytest.mark.parametrize("threads", [(4, 3), (8, 3), (2, 2, 3), 6, 12, 24, 3])
def test_axes_and_odd_numbers_of_threads(threads):
    def write(k, x, i, y, z):
        t, g = flat(k), k.group()
        total = k.sum(x[t])
        most = k.max(i[t])
        with k.loop(t, N, step=k.threads) as n:
            y[g, n] = total + x[n] * k.thread(0).cast("float32")
            z[g, n] = most + k.thread(1) * 10 + k.thread(2)

    same(write, threads)


def test_gathers_scatters_and_single_stores():
    def write(k, x, i, y, z):
        t, g = flat(k), k.group()
        s = k.shared(N, dt.int32)
        s[t] = i[t]
        s[t + 12] = i[t + 12]
        k.barrier()
        y[g, (t * 5) % 12] = x[s[t]]
        with k.when(t == 3):
            z[g, 23] = s[5] + 1
        with k.when(k.group() == 1):
            z[g, t] = s[N - 1 - t]
        with k.otherwise():
            z[g, 11 - t] = 7 * s[t]

    assert 4 in lane_counts(same(write, 12))


def test_loops_that_differ_between_threads():
    def write(k, x, i, y, z):
        t, g = flat(k), k.group()
        total, count = k.var(0.0), k.var(0)
        with k.loop(t, N - 1, step=3) as n:
            total += x[n]
            with k.loop(n, N, step=5) as m:
                total += x[m]
                count += m
        with k.loop(i[t]) as n:  # a bound from memory: the threads run one after the other
            count += n
        y[g, t], z[g, t] = total, count

    same(write, 16)


def test_lanes_of_the_users_own():
    def write(k, x, i, y, z):
        t, g = flat(k), k.group()
        p = k.private(4)
        v = x.load(t * 4, lanes=4)
        p.store(0, v * 2)
        k.barrier()
        y.store((g, t * 4), p.load(0, lanes=4) + v)
        z[g, t] = k.where(v.lane(1) > v.lane(2), 1, 2)

    same(write, 6)


def test_masks():
    def write(k, x, i, y, z):
        t, g = flat(k), k.group()
        a = x.load(t * 2, mask=t < 9)
        b = i.load(2, mask=(t & 1) == 0)
        y.store((g, t), a + x.load(t + 3, mask=x[t] > 0), mask=t > 2)
        z[g, t] = b

    same(write, 16)


LONG = {0, 2, 10, 11, 13, 17, 19, 21}


class Random:
    """A kernel by chance: without races, as threads write shared memory at their own place."""

    def __init__(self, seed, k, x, i, y, z):
        self.r, self.k, self.x, self.i = random.Random(seed), k, x, i
        self.t, self.g = k.number(), k.group()
        self.floats = [k.var(self.r.random()) for _ in range(2)]
        self.ints = [k.var(self.r.randrange(9)) for _ in range(2)]
        self.shared, self.private = k.shared(16), k.private(5)
        with k.loop(5) as n:
            self.private[n] = n.cast("float32")
        for _ in range(self.r.randrange(3, 6)):
            self.top(0)
        y[self.g, self.t] = self.floats[0] + self.floats[1] + self.private[2]
        z[self.g, self.t] = self.ints[0] + self.ints[1]

    def top(self, depth):
        kind = self.r.randrange(5)
        if kind == 0:
            self.k.barrier()
            self.shared[self.t] = self.float()
            self.k.barrier()
            v = self.r.choice(self.floats)
            v += self.shared[(self.t + self.r.randrange(16)) % self.k.threads]
        elif kind == 1 and depth < 2:
            with self.k.loop(self.r.randrange(1, 4)):
                self.top(depth + 1)
                self.body(1)
        elif kind == 2 and depth < 2:
            with self.k.when(self.g == self.r.randrange(2)):
                self.top(depth + 1)
        else:
            self.body(0)

    def body(self, depth):
        for _ in range(self.r.randrange(1, 4)):
            kind = self.r.randrange(6 if depth < 3 else 3)
            if kind == 0:
                self.r.choice(self.floats).set(self.float())
            elif kind == 1:
                self.r.choice(self.ints).set(self.int())
            elif kind == 2:
                self.private[self.small(5)] = self.float()
            elif kind in (3, 4):
                with self.k.when(self.condition()):
                    self.body(depth + 1)
                if self.r.random() < 0.5:
                    with self.k.otherwise():
                        self.body(depth + 1)
            else:
                start = self.r.choice([0, self.t, self.t * 2, self.small(7)])
                with self.k.loop(start, self.r.randrange(1, 40), step=self.r.randrange(1, 17)) as n:
                    v = self.r.choice(self.ints)
                    v += n
                    self.body(depth + 2)

    def condition(self):
        found = self.r.choice([self.float() < self.float(), self.int() % 3 == 1, self.t < 9])
        return found & (self.int() > 2) if self.r.random() < 0.3 else found

    def small(self, n):
        return self.k.abs(self.int() % n)

    def int(self):
        a, b = self.r.choice(self.ints), self.r.choice([self.t, self.r.randrange(1, 9)])
        return self.r.choice([
            lambda: a + b, lambda: a * 3 - b, lambda: self.i[self.small_of(a)], lambda: a ^ b,
            lambda: self.t * self.r.randrange(4) + self.g, lambda: a // 3,
        ])()  # fmt: skip

    def small_of(self, a):
        return self.k.abs(a % N)

    def float(self):
        a, b = self.r.choice(self.floats), self.r.choice(self.floats)
        at = self.small_of(self.r.choice(self.ints))
        return self.r.choice([
            lambda: a * 0.5 + b, lambda: self.x[at], lambda: self.private[self.small(5)],
            lambda: self.k.maximum(a, b) - 1.0, lambda: self.x[self.t + self.r.randrange(8)],
            lambda: self.k.where(a < b, self.k.tanh(a), 0.25),
            lambda: self.x.load(at, mask=a < 1.0),
        ])()  # fmt: skip


# The longest to compile are slow.
@pytest.mark.parametrize("seed", few(range(25), *(s for s in range(25) if s not in LONG)))
def test_kernels_by_chance(seed):
    same(lambda k, *rest: Random(seed, k, *rest), 16, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 600))
def test_kernels_by_chance_at_length(seed):
    same(lambda k, *rest: Random(seed, k, *rest), random.Random(seed).choice([4, 16, (8, 2)]), seed)
