"""Kernels of one's own (`weft.kernel`): called eagerly, compiled, on every device there is."""

import subprocess
import sys

import numpy as np
import pytest
from own_kernels import double, normal, product, softmax, softmax_of
from present import opened

import weft
from weft.errors import (
    CallError,
    DTypeError,
    KernelError,
    LimitError,
    ShapeError,
    TraceError,
    UsageError,
)

DEVICES = ["cpu", "vulkan"]


def present(device):
    opened(device)  # skips the test where there is none
    return device


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1,), (5, 7), (3, 64), (1000,)])
def test_elementwise(device, shape):
    x = normal(*shape)
    got = double(weft.tensor(x, device=present(device)))
    assert got.device.partition(":")[0] == device
    np.testing.assert_array_equal(got.numpy(), 2 * x)


@pytest.mark.parametrize("device", DEVICES)
def test_narrow_floats_compute_in_float32(device):
    x = weft.tensor(normal(70), device=present(device)).cast(weft.float16)
    np.testing.assert_array_equal(double(x).numpy(), 2 * x.numpy())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows, n", [(1, 1), (3, 5), (7, 200)])
def test_rows_meet_in_shared_memory(device, rows, n):
    x = normal(rows, n)
    got = softmax(weft.tensor(x, device=present(device)), threads=16).numpy()
    np.testing.assert_allclose(got, softmax_of(x), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (8, 8, 8), (9, 17, 10)])
def test_tiles_of_a_product(device, m, k, n):
    a, b = normal(m, k), normal(k, n)
    got = product(*(weft.tensor(v, device=present(device)) for v in (a, b))).numpy()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_in_a_compiled_function(device):
    """With maps before and after it, one value as both operands, and another view of one."""

    def net(a, w):
        h = double(a + 1)
        return softmax(product(h, w)) * 3, product(w, w), double(w.T), double(w.reshape(-1))

    a, w = normal(5, 6), normal(6, 6)
    compiled = weft.compile(net, device=present(device))
    got = [t.numpy() for t in compiled(a, w)]
    wide = 2.0 * (a + 1).astype(np.float64)
    want = 3 * softmax_of(wide @ w), w.astype(np.float64) @ w, 2 * w.T, 2 * w.reshape(-1)
    for one, truth in zip(got, want):
        np.testing.assert_allclose(one, truth, rtol=2e-5, atol=1e-5)
    assert "product" in compiled.report()


def test_operands_that_are_not_in_memory():
    f = weft.compile(lambda x: double(weft.arange(6) + 0 * x), device="cpu")
    np.testing.assert_array_equal(f(np.zeros(6, np.int32)).numpy(), 2 * np.arange(6))
    g = weft.compile(lambda x: double(weft.full((6,), 3.0)) + x, device="cpu")
    np.testing.assert_array_equal(g(np.ones(6, np.float32)).numpy(), np.full(6, 7.0))
    h = weft.compile(lambda x: double(weft.arange(6)) + x, device="cpu")
    np.testing.assert_array_equal(h(np.zeros(6, np.int32)).numpy(), 2 * np.arange(6))


def test_written_once_for_each_shape():
    calls = []

    @weft.kernel
    def negated(k, x):
        calls.append(x.shape)
        y = k.output(x.shape, x.dtype)
        k.launch(x.size)
        y.flat[k.group()] = -x.flat[k.group()]

    for shape in [(2,), (3,), (2,), (3,)]:
        negated(weft.ones(shape))
    assert calls == [(2,), (3,)]


def test_arguments():
    x = weft.ones((3, 3))
    with pytest.raises(CallError, match=r"double takes 1 tensors \(x\), got 2"):
        double(x, x)
    with pytest.raises(CallError, match="x is a float; expected a tensor"):
        double(1.0)
    with pytest.raises(CallError, match="double lacks a number 'block'; known: threads"):
        double(x, block=3)
    with pytest.raises(DTypeError, match="x is float64, which no device holds; cast x"):
        double(np.ones(3))
    assert double(weft.ones((0, 3))).shape == (0, 3)

    @weft.kernel
    def total(k, x):
        y = k.output(1)
        k.launch(1)
        y[0] = 0.0

    with pytest.raises(ShapeError, match="an argument is empty and an output is not"):
        total(weft.ones(0))


def written(body, match, error):
    """Writes a kernel of `body`: the error names this file and its line."""

    @weft.kernel
    def wrong(k, x, *, threads=4):
        y = k.output(x.shape, x.dtype)
        k.launch(1, threads)
        body(k, x, y)

    line = body.__code__.co_firstlineno
    with pytest.raises(error, match=match) as caught:
        wrong(weft.ones((4, 4)))
    said = str(caught.value)
    assert said.count("\n") <= 1 and f"test_kernels.py:{line}: kernel wrong: " in said


def endless(k, x, y):
    while True:
        k.barrier()


WRONG = {
    "truth": (lambda k, x, y: 1 if k.thread() < 2 else 0, "use `with k.when", TraceError),
    "range": (lambda k, x, y: range(k.thread()), r"use `with k.loop\(n\) as i:`", TraceError),
    "axes": (lambda k, x, y: x[0], "an index for each of its 2 axes, got 1", ShapeError),
    "bounds": (lambda k, x, y: x[4, 0], "index 4 of axis 0 is out of range", ShapeError),
    "dtypes": (lambda k, x, y: x[0, 0] + k.thread(), "float32 with int32; cast", DTypeError),
    "store": (lambda k, x, y: y.store((0, 0), k.thread()), "takes float32, not int32", DTypeError),
    "read": (lambda k, x, y: y[0, 0], "out0 is an output, which a kernel only writes", UsageError),
    "write": (lambda k, x, y: x.store((0, 0), 1.0), "x is an argument, which", UsageError),
    "index": (lambda k, x, y: x[0, x[0, 0]], "an index is a plain int32", DTypeError),
    "when": (lambda k, x, y: k.when(x[0, 0]), "a condition is a comparison", DTypeError),
    "else": (lambda k, x, y: k.otherwise(), "straight after the end of a `with", UsageError),
    "launch": (lambda k, x, y: k.launch(1), "calls k.launch once", UsageError),
    "zero": (lambda k, x, y: k.thread() // 0, "// by zero", UsageError),
    "quotient": (lambda k, x, y: k.thread() / 2, "use // for integers", DTypeError),
    "exp": (lambda k, x, y: k.exp(k.thread()), "exp of int32; cast it", DTypeError),
    "number": (lambda k, x, y: k.thread() + 0.5, "0.5 with int32; cast the value", DTypeError),
    "tensor": (lambda k, x, y: x[0, 0] + np.ones(3), "not a ndarray from outside", DTypeError),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_name_the_line(name):
    written(*WRONG[name])


def test_an_endless_loop_of_python_ends():
    @weft.kernel
    def wrong(k, x):
        k.output(1)
        k.launch(1, 2)
        endless(k, x, x)

    with pytest.raises(LimitError, match=r"more than 65,536 statements.*use `with k.loop"):
        wrong(weft.ones(4))


def test_an_endless_recursion_of_python_ends():
    @weft.kernel
    def wrong(k, x):
        y = k.output(1)
        k.launch(1)

        def inner(n):
            with k.when(x[0] > n):
                inner(n + 1)

        inner(0)
        y[0] = 1.0

    with pytest.raises(LimitError, match="more than 64 loops and branches within one another"):
        wrong(weft.ones(4))


def test_values_of_another_place_are_refused():
    kept = []

    @weft.kernel
    def first(k, x):
        kept.append(x[0])
        k.output(1)[0] = 1.0
        k.launch(1)

    @weft.kernel
    def second(k, x):
        y = k.output(1)
        k.launch(1)
        y[0] = kept[0] + 1.0

    @weft.kernel
    def third(k, x):
        y = k.output(1)
        k.launch(1, 4)
        with k.when(k.thread() < 2):
            inside = x[0]
        y[0] = inside

    first(weft.ones(4))
    for kernel in (second, third):
        with pytest.raises(KernelError, match="is not declared here"):
            kernel(weft.ones(4))


def test_a_saved_function_needs_no_kernel(tmp_path):
    """The file has the kernel itself: it runs where the function that wrote it is not."""
    compiled = weft.compile(lambda x: softmax(x) + 1, device="cpu")
    x = normal(3, 40)
    want = compiled(x).numpy()
    compiled.save(tmp_path / "own.weft")
    script = (
        "import sys, numpy as np, weft\n"
        "x = np.load(sys.argv[1] + '/x.npy')\n"
        "np.save(sys.argv[1] + '/y.npy', weft.load(sys.argv[1] + '/own.weft')(x))\n"
    )
    np.save(tmp_path / "x.npy", x)
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), want)
