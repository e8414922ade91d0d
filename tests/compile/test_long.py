"""Programs of any length: long chains, wide fans, deep gradients. Results equal the oracle's, no
kernel grows with the program, and the work of compiling grows with its length alone (counted in
function calls, not in seconds)."""

import cProfile
import itertools

import numpy as np
import pytest
from graphs import check
from rows import covering, few
from test_growth import size_of

import weft
from weft.backends import registry
from weft.compile import compile_graph, cuts, stored
from weft.compile.passes import groups_of
from weft.core.caps import PRESETS
from weft.kernel.builder import Builder
from weft.kernel.printer import text
from weft.program import foreign, serial
from weft.tensor.tracing import Spec, Trace, trace

F = weft.functional


def chain(n):
    def fn(x):
        for i in range(n):
            x = x * 0.999 + 0.001 if i % 2 else x.tanh()
        return x

    return fn, [(5, 7)]


def diamonds(n):
    def fn(x):
        for _ in range(n // 3):
            a, b = x * 0.5, x.sin()
            x = a + b * 0.4
        return x

    return fn, [(33,)]


def powers(n):
    def fn(x):
        for _ in range(n // 3):
            x = (x * x + 1.0) ** 0.7
        return x

    return fn, [(33,)]


def tower(n):
    def fn(x):
        for _ in range(n // 4):
            x = x + (x * 0.5).tanh() * 0.001
        return x

    return fn, [(33,)]


def pairs(n):
    def fn(a, b):
        for _ in range(n // 4):
            a, b = (a + b) * 0.5, (a - b) * 0.9
        return a, b

    return fn, [(9,), (9,)]


def turns(n):
    def fn(x):
        for _ in range(n // 3):
            x = x.transpose(0, 1).reshape(5, 7) * 0.999
        return x

    return fn, [(5, 7)]


def rolls(n):
    def fn(x):
        for _ in range(n // 4):
            x = weft.concat([x[3:], x[:3]]) * 0.999
        return x

    return fn, [(17,)]


def stencil(n):
    def fn(x):
        for _ in range(n // 8):
            wide = weft.concat([x[:1], x, x[-1:]])
            x = (wide[2:] + wide[:-2]) * 0.25 + x * 0.5
        return x

    return fn, [(40,)]


def casts(n):
    def fn(x):
        for _ in range(n // 3):
            x = (x.astype(weft.float16) * 0.5).astype(weft.float32) + 0.25
        return x

    return fn, [(6,)]


def reductions(n):
    def fn(x):
        for _ in range(n // 3):
            x = x - x.max(axis=-1, keepdims=True) * 0.01
        return x

    return fn, [(4, 16)]


def products(n):
    def fn(x, w):
        for _ in range(n // 2):
            x = (x @ w).tanh()
        return x

    return fn, [(4, 8), (8, 8)]


def many_inputs(n):
    def fn(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total * 0.5 + x
        return total

    return fn, [(3,)] * (n // 3)


def constants(n):
    def fn(x):
        return [x * (i + 2.0) + 1.0 for i in range(n // 3)]

    return fn, [(7,)]


def parts(n):
    def fn(x):
        return [x[i, 1:] * 2.0 for i in range(n // 3)]

    return fn, [(n // 3, 5)]


def sums(n):
    def fn(x):
        total = x[0, 0] * 0.0
        for i in range(n // 4):
            total = total + (x * (i / n)).sum()
        return total

    return fn, [(3, 5)]


def gathers(n):
    index = [np.array([i % 8, 3 * i % 8], np.int32) for i in range(n // 3)]

    def fn(x):
        return [(x * 2.0)[weft.tensor(i)] + 1.0 for i in index]

    return fn, [(8, 5)]


def gradient(n):
    def fn(x):
        x = y = x.detach().requires_grad_()
        for _ in range(n // 9):
            y = (y * 0.9 + 0.1).tanh()
        return weft.grad(y.sum(), [x])

    return fn, [(9,)]


def attention(n):
    def fn(x, g):
        for _ in range(n // 12):
            h = F.layer_norm(x, g, g)
            x = x * 0.9 + F.gelu(h) * 0.1
        return x

    return fn, [(4, 16), (16,)]


PROGRAMS = [
    chain, diamonds, tower, pairs, turns, rolls, stencil, casts, reductions, products, many_inputs,
    constants, parts, sums, gathers, gradient, attention,
]  # fmt: skip
LONG = 1100  # more than one kernel holds (cuts.WORK)
IN_PROPORTION = [
    chain, pairs, rolls, products, many_inputs, constants, sums, gathers, attention
]  # fmt: skip


def traced(make, n):
    fn, shapes = make(n)
    return trace(fn, [Spec(shape, name=f"a{i}") for i, shape in enumerate(shapes)])


@pytest.mark.parametrize(
    "make",
    few(PROGRAMS, turns, stencil, casts, parts, gradient, tower),
    ids=lambda make: make.__name__,
)
def test_a_long_program_equals_the_oracle(make):
    program = check(traced(make, LONG), registry.get("cpu"))
    longest = max(len(text(kernel).splitlines()) for kernel in program.kernels)
    assert longest < 20 * cuts.WORK


@pytest.mark.parametrize(
    "make,target",
    covering([chain, rolls, many_inputs, constants], ["webgpu", "lavapipe", "cuda"]),
    ids=lambda x: getattr(x, "__name__", x),
)
def test_kernels_stay_small_for_every_target(make, target):
    caps = PRESETS[target]
    for group in groups_of(traced(make, LONG), caps):
        assert cuts.work_of(group) <= cuts.WORK
        assert len(group.inputs) + len(group.outputs) <= caps.max_bindings


def calls(fn):
    """How many functions `fn()` calls, of Python and of C."""
    profile = cProfile.Profile()
    profile.runcall(fn)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("target", ["cpu-avx512", "webgpu"])
def test_a_wide_group_is_cut_in_one_go(target, monkeypatch):
    """As is all that it reads; each round of grouping looks at the whole program."""
    rounds = []
    made = stored.StoredValues.__init__
    monkeypatch.setattr(
        stored.StoredValues, "__init__", lambda *args: (rounds.append(1), made(*args))[1]
    )
    caps = PRESETS[target]
    groups = groups_of(traced(many_inputs, 2400), caps)
    assert len(groups) < 900 / (caps.max_bindings - 2) + 10 and len(rounds) <= 3


@pytest.mark.parametrize("make", [diamonds, powers], ids=lambda make: make.__name__)
def test_costly_functions_count_as_what_they_become(make):
    """A hundred sines in one kernel were more than the loader accepts from a stranger."""
    program = compile_graph(traced(make, 300), PRESETS["cpu-avx512"])
    assert max(map(size_of, program.kernels)) < foreign.MAX_NODES / 3
    assert len(serial.loads(serial.dumps(program)).kernels) == len(program.kernels)


def test_names_that_many_want_cost_one_look_each():
    class Counted(set):
        looks = 0

        def __contains__(self, name):
            self.looks += 1
            return super().__contains__(name)

    names = Counted()
    builder = Builder("k", names)
    assert [builder.unique("v") for _ in range(3000)][::1499] == ["v", "v_1499", "v_2998"]
    assert names.looks < 4 * 3000

    build = Trace()
    build.names = Counted()
    found = [build.unique(name) for name in ["t_1", *["t"] * 3000]]
    assert found[:4] == ["t_1", "t", "t_2", "t_3"] and build.names.looks < 4 * 3000


@pytest.mark.parametrize(
    "make,size",
    [
        *few(
            itertools.product(IN_PROPORTION, [400]), *((make, 400) for make in IN_PROPORTION[::2])
        ),
        *(pytest.param(make, 800, marks=pytest.mark.slow) for make in PROGRAMS),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_compiling_takes_work_in_proportion(make, size, monkeypatch):
    monkeypatch.setenv("WEFT_VERIFY", "0")  # as a user's compiler runs
    caps = PRESETS["cpu-avx512"]
    small, large = (traced(make, n) for n in (size, 3 * size))
    compile_graph(traced(make, 90), caps)  # imports are not counted
    assert calls(lambda: compile_graph(large, caps)) < 4 * calls(lambda: compile_graph(small, caps))


def test_kernels_that_differ_by_numbers_become_one():
    caps = PRESETS["cpu-avx512"]
    for make in (constants, parts):
        assert len(compile_graph(traced(make, 600), caps).kernels) == 1
    few = trace(lambda x: [x * 2.0, x * 3.0], [Spec((7,))])
    assert len(compile_graph(few, caps).kernels) == 2


def test_a_number_that_all_share_stays_in_the_kernel():
    program = compile_graph(traced(constants, 600), PRESETS["cpu-avx512"])
    (kernel,) = program.kernels
    assert len(kernel.buffers) == 3 and "1.0:f32" in text(kernel)
