"""What one can ask of a kernel of one's own: check, source, tune; and its derivative."""

import json

import numpy as np
import pytest
from own_kernels import double, normal, product, softmax, softmax_of

import weft
from weft.backends.llvm import gpu_target, offline, ptxas
from weft.core.caps import PRESETS
from weft.errors import GradientError, KernelError, LimitError, UsageError
from weft.kernel import interp
from weft.kernel.verify import verify
from weft.templates.own import for_caps

X = normal(5, 70)
CASES = {
    "double": (double, (X,), lambda: 2 * X),
    "softmax": (softmax, (X,), lambda: softmax_of(X)),
    "product": (product, (X, X.T.copy()), lambda: X.astype(np.float64) @ X.T),
}


def kernel_for(name, target):
    kernel, arrays, _ = CASES[name]
    own = kernel._own(kernel._tensors(arrays), {})
    caps = PRESETS[target] if target in PRESETS else gpu_target(target).caps
    return for_caps(own.suited(caps).kernel, caps), caps


@pytest.mark.parametrize("target", PRESETS)
@pytest.mark.parametrize("name", CASES)
def test_every_target_in_the_interpreter(name, target):
    kernel, caps = kernel_for(name, target)
    verify(kernel)
    _, arrays, want = CASES[name]
    given = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
    out = np.full(want().size, np.nan, np.float32)
    interp.run(kernel, [*given, out], caps=caps)
    np.testing.assert_allclose(out.reshape(want().shape), want(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120", "gfx90a", "gfx942", "gfx1100"])
def test_every_gpu_compiles(arch):
    if arch.startswith("sm_") and ptxas.find() is None:
        pytest.skip(ptxas.MISSING)
    kernels = []
    for name in CASES:
        kernel, _ = kernel_for(name, arch)
        kernels.append(kernel)
    found = offline.resources(kernels, gpu_target(arch))
    assert len(found) == len(CASES)


def test_sources():
    spec = weft.Spec((5, 70))
    assert softmax.source(spec).startswith("kernel softmax\n  buffer x: f32[350]")
    assert "workgroupBarrier();" in softmax.source(spec, target="wgsl")
    assert "define" in softmax.source(spec, target="llvm")
    assert "bar.sync" in softmax.source(spec, target="sm_90")
    assert "s_barrier" in softmax.source(spec, target="gfx942", threads=128)
    assert "@llvm.nvvm.barrier" in softmax.source(spec, target="llvm:sm_80")
    with pytest.raises(weft.errors.DeviceError, match="abacus"):
        softmax.source(spec, target="abacus")


# -- check


def wrong(body, out=None):
    """A kernel of 64 threads with a mistake in it."""

    @weft.kernel
    def faulty(k, x):
        y = k.output(out or x.shape, x.dtype)
        k.launch(1, 64)
        body(k, x, y, k.thread())

    return faulty, body.__code__.co_firstlineno


def races(k, x, y, t):
    s = k.shared(64)
    s[t] = x[t]
    y[t] = s[63 - t]


def beyond(k, x, y, t):
    y[t] = x[t + 7]


def writes_beyond(k, x, y, t):
    y[t * 3] = 1.0


def unset(k, x, y, t):
    s = k.shared(64)
    y[t] = s[t]


def diverges(k, x, y, t):
    with k.when(x[t] < 0):
        k.barrier()
    y[t] = 1.0


def divides(k, x, y, t):
    y[t] = (7 // (t - 5)).cast(weft.float32)


MISTAKES = {
    races: (3, "race: element 63, read here by group 0, thread 0"),
    beyond: (1, r"index 64 is outside 0..63 \(group 0, thread 57; 7 of 64 accesses\)"),
    writes_beyond: (1, r"index 66 is outside 0..63"),
    unset: (2, "element 0 is read before anything was stored there"),
    divides: (1, "division by zero"),
}


@pytest.mark.parametrize("body", MISTAKES, ids=lambda f: f.__name__)
def test_check_names_the_line(body):
    (faulty, line), (down, said) = wrong(body), MISTAKES[body]
    for target in (None, "cpu-avx2", "sm_90", "cpu"):
        with pytest.raises(KernelError, match=said) as caught:
            faulty.check(np.ones(64, np.float32), target=target)
        text = str(caught.value)
        assert (text.count("\n") <= 1 and f"test_kernel_tools.py:{line + down + 0}: " in text) or (
            body is races and f"test_kernel_tools.py:{line + 3}: " in text
        )


def test_a_divergent_barrier_is_refused_at_once():
    faulty, line = wrong(diverges)
    with pytest.raises(KernelError, match="a barrier is inside a condition") as caught:
        faulty(np.ones(64, np.float32))
    assert f"test_kernel_tools.py:{line + 2}: kernel faulty: " in str(caught.value)


def test_check_wants_whole_outputs():
    faulty, _ = wrong(lambda k, x, y, t: y.store(t, 1.0, mask=t > 3))
    with pytest.raises(KernelError, match=r"out0 is not written whole: 4 of 64 .* first at \[0\]"):
        faulty.check(np.ones(64, np.float32))


def test_check_knows_hardware_that_is_not_here():
    @weft.kernel
    def wide(k, x):
        y = k.output(x.shape, x.dtype)
        k.launch(1, 512)
        with k.when(k.thread() < x.size):
            y[k.thread()] = x[k.thread()]

    x = np.ones(300, np.float32)
    wide.check(x, target="cuda")
    with pytest.raises(KernelError, match="512 threads in a group, but webgpu has 256"):
        wide.check(x)
    compiled = weft.compile(lambda x: wide(x), device="cpu")
    np.testing.assert_array_equal(compiled(x).numpy(), x)


@pytest.mark.parametrize("body", [beyond, writes_beyond, unset, races, divides])
def test_mistakes_never_end_the_process(body):
    """Accesses that are not proved in range have guards: outside, a load gives 0."""
    faulty, _ = wrong(body)
    assert faulty(np.ones(64, np.float32)).shape == (64,)


def test_wild_addresses_do_not_leave_memory():
    @weft.kernel
    def scattered(k, x, at):
        y = k.output(x.shape, x.dtype)
        k.launch(1, x.size)
        t = k.thread()
        y[t] = 0.0
        s = k.shared(4)
        s[at[t] * 1000] = 1.0
        y[at[t]] = x[at[t] * at[t]] + s[at[t]]

    at = np.array([0, -1, 1 << 30, -(1 << 31)], np.int32)
    scattered(np.ones(4, np.float32), at)
    with pytest.raises(KernelError, match=r"is outside 0\.\.3"):
        scattered.check(np.ones(4, np.float32), at)


# -- derivatives


@weft.kernel
def square(k, x, *, power=2):
    y = k.output(x.shape, x.dtype)
    k.launch(x.size)
    i = k.group()
    y.flat[i] = k.pow(k.abs(x.flat[i]), float(power))


@weft.kernel
def slope(k, g, x, *, power=2):
    y = k.output(x.shape, x.dtype)
    k.launch(x.size)
    i = k.group()
    y.flat[i] = (
        g.flat[i]
        * power
        * k.pow(k.abs(x.flat[i]), float(power - 1))
        * k.where(x.flat[i] < 0, -1.0, 1.0)
    )


@square.gradient
def _(g, y, x, power):
    return slope(g, x, power=power)


@slope.gradient
def _(grad, out, g, x, power):
    signs = weft.where(x < 0, -1.0, 1.0)
    first = power * x.abs() ** (power - 1) * signs
    return grad * first, grad * g * power * (power - 1) * x.abs() ** (power - 2)


def loss(x):
    return (square(x, power=3) * weft.arange(4).cast(weft.float32)).sum()


def test_derivatives():
    x = np.array([-1.5, 0.5, 2.0, -3.0], np.float32)
    want = 3 * x * np.abs(x) * np.arange(4)
    eager = weft.tensor(x, requires_grad=True)
    loss(eager).backward()
    np.testing.assert_allclose(eager.grad.numpy(), want, rtol=1e-5)
    both = weft.compile(weft.value_and_grad(loss), device="cpu")
    value, grad = both(x)
    np.testing.assert_allclose(value.numpy(), (np.abs(x) ** 3 * np.arange(4)).sum(), rtol=1e-5)
    np.testing.assert_allclose(grad.numpy(), want, rtol=1e-5)


def test_second_derivatives():
    x = weft.tensor([-1.5, 0.5, 2.0, -3.0], requires_grad=True)
    (first,) = weft.grad(loss(x), [x], create_graph=True)
    first.sum().backward()
    want = 6 * np.abs(x.detach().numpy()) * np.arange(4)
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5)


@weft.kernel
def sum_and_difference(k, a, b):
    s, d = k.output(a.shape), k.output(a.shape)
    k.launch(a.size)
    i = k.group()
    s[i] = a[i] + b[i]
    d[i] = a[i] - b[i]


@sum_and_difference.gradient
def _(grads, outs, a, b):
    return grads[0] + grads[1], grads[0] - grads[1]


def test_several_outputs():
    a, b = weft.tensor(normal(6), requires_grad=True), weft.tensor(normal(6, seed=1))
    b.requires_grad_()
    s, d = sum_and_difference(a, b)
    np.testing.assert_array_equal(s.numpy(), a.detach().numpy() + b.detach().numpy())
    (s * d).sum().backward()  # a^2 - b^2
    np.testing.assert_allclose(a.grad.numpy(), 2 * a.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), -2 * b.detach().numpy(), rtol=1e-6)


def test_what_is_wrong_with_a_derivative():
    x = weft.tensor([1.0], requires_grad=True)
    with pytest.raises(GradientError, match=r"kernel double has no derivative; give it one"):
        double(x).sum().backward()

    @weft.kernel
    def copied(k, x):
        y = k.output(x.shape)
        k.launch(1)
        y[0] = x[0]

    copied.gradient(lambda g, y, x: (g, g))
    with pytest.raises(GradientError, match="gave 2 gradients for 1 arguments"):
        copied(x).sum().backward()


# -- tuning


@pytest.fixture
def own_tables(tmp_path, monkeypatch):
    monkeypatch.delenv("WEFT_TUNING", raising=False)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def candidate(tune):
    @weft.kernel(tune=tune)
    def scaled(k, x, *, threads=1, times=2, again=500):
        y = k.output(x.shape, x.dtype)
        k.launch(k.ceil_div(x.size, threads), threads)
        i = k.group() * threads + k.thread()
        with k.when(i < x.size):
            total = k.var(0.0)
            with k.loop(again):
                total.set(k.sin(total) * x.flat[i])
            y.flat[i] = times * x.flat[i] + total

    return scaled


def test_tune_keeps_the_fastest(own_tables):
    scaled, x = candidate({"again": (500, 1)}), weft.tensor(normal(3000))
    found = scaled.tune(x)
    assert found[0][0] == {"again": 1} and found[1][0] == {"again": 500}
    assert found[0][1] < found[1][1]
    (file,) = own_tables.glob("tuned-*.json")
    (row,) = json.loads(file.read_text())["rows"]
    assert row["kind"] == "own" and row["config"] == {"again": 1}
    compiled = weft.compile(lambda x: scaled(x), device="cpu")
    np.testing.assert_array_equal(compiled(x).numpy(), 2 * x.numpy())
    assert "again=1" in compiled.report()


def test_numbers_that_change_the_result_are_refused(own_tables):
    with pytest.raises(KernelError, match=r"tune: \{'times': 3\} gives other results"):
        candidate({"times": (3,)}).tune(weft.ones(4))


def test_what_cannot_be_tuned(own_tables, monkeypatch):
    with pytest.raises(UsageError, match="scaled has no candidates to measure on cpu"):
        candidate({}).tune(weft.ones(4))
    with pytest.raises(UsageError, match="tune names 'block', no number with a default"):
        candidate({"block": (1, 2)})
    with pytest.raises(LimitError, match="10,000 combinations to tune; at most 64"):
        candidate({"threads": tuple(range(1, 101)), "times": tuple(range(100))})
    monkeypatch.setenv("WEFT_TUNING", "")
    with pytest.raises(UsageError, match="WEFT_TUNING turns tuning tables off"):
        candidate({"threads": (1, 2)}).tune(weft.ones(4))
