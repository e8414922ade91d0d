"""Eager tensors on devices and weft.compile, against eager on the CPU."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from rows import covering

import weft
from weft.backends import registry
from weft.core import dtypes as dt
from weft.core.errors import DeviceError, DTypeError, LimitError, TraceError, UsageError
from weft.tensor import Tensor, functional as F

rng = np.random.default_rng(11)
X = rng.standard_normal((4, 8)).astype(np.float32)
W = rng.standard_normal((8, 3)).astype(np.float32)


def same(got: Tensor, want: Tensor, atol: float = 1e-5) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    a, b = got.numpy().astype(np.float64), want.numpy().astype(np.float64)
    np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5)


FUNCTIONS = {
    "scalar": lambda x, w: 1.5 - x * 2,
    "matmul": lambda x, w: x @ w,
    "softmax": lambda x, w: F.softmax(x, 0),
    "norm": lambda x, w: F.layer_norm(x) + F.rms_norm(x),
    "index": lambda x, w: x[[2, 0], ::-1, None],
    "order": lambda x, w: x.topk(3)[0] + x.sort(1)[:, :3],
    "where": lambda x, w: (x > 0).where(x, 0),
    "join": lambda x, w: weft.cat([x, x * 2], 1).chunk(2, 1)[1],
    "reduce": lambda x, w: x.mean(0) + x.min(0) + x.var(0) + x.prod(0),
    "integers": lambda x, w: (x * 9).cast("int32") // 4 % 3 + x.argmax(1, keepdims=True),
    "narrow": lambda x, w: x.cast("f16").gelu().cast("bf16") + 1,
    "empty": lambda x, w: x[:0] @ w,
    "reshape": lambda x, w: x.reshape(2, -1).T.flatten() + 0,
    "write": lambda x, w: _write(x),
    "numbers": lambda x, w: weft.stack([_with_numbers(x), _with_numbers(x * 0 + 0.5)]),
    "windows": lambda x, w: F.avg_pool2d(
        x.reshape(1, 2, 4, 4), 3, 2, 1, ceil_mode=True, count_include_pad=False
    ),
    "nothing": lambda x, w: x[:0].prod(0) + w[:0].prod() + _attend_to_nothing(x)[0, 0],
}


def _with_numbers(x: Tensor) -> Tensor:
    """Functions whose formulas turn a number into another before it meets the tensor."""
    pairs = [weft.hypot, weft.logaddexp, weft.atan2, weft.copysign]
    total = weft.atan(x) + weft.asin(x / 8) + weft.acos(x / 8)
    for f in pairs:
        total = total + f(x, 0.5) + f(2.0, x)
    return total


def _attend_to_nothing(x: Tensor) -> Tensor:
    none = x[:0].reshape(1, 1, 0, 8)
    return F.attention(x.reshape(1, 1, 4, 8), none, none)


def _write(x: Tensor) -> Tensor:
    y = x + 0
    y[1:3, ::3] = -1
    y[np.array([3, 0])] = x[:2] * 2
    return y


@pytest.mark.parametrize(
    "name,device", covering(FUNCTIONS, ["cpu", "interp", "vulkan"]), indirect=["device"]
)
def test_eager_and_compiled_agree_with_the_oracle(name: str, device: str) -> None:
    fn, x, w = FUNCTIONS[name], weft.tensor(X), weft.tensor(W)
    want = fn(x, w)
    xd, wd = x.to(device), w.to(device)
    same(fn(xd, wd).cpu(), want, 2e-2 if name == "narrow" else 1e-5)
    compiled = weft.compile(fn, device)
    for args in ((x, w), (xd, wd), (X, W)):
        got = compiled(*args)
        assert got.device == ("cpu" if device == "cpu" else registry.get(device).info.id)
        same(got, want, 2e-2 if name == "narrow" else 1e-5)
    assert len(compiled.programs()) == 1
    compiled.sync()


def test_results_outlive_later_runs(device: str) -> None:
    double = weft.compile(lambda x: x * 2, device)
    results = [double(weft.full((300,), i, "f32")) for i in range(5)]
    views = [r.reshape(3, 100) for r in results]
    del results
    gc.collect()
    for _ in range(3):
        double(weft.full((300,), 99.0))
    for i, v in enumerate(views):
        assert (v.numpy() == 2 * i).all()


def test_state_lives_on_the_device(device: str) -> None:
    total = weft.zeros((3,))
    total.name = "total"
    steps = weft.tensor(0)

    def step(x: Tensor) -> Tensor:
        total.assign(total + x)
        steps.assign(steps + 1)
        return total * 1

    compiled, read = weft.compile(step, device), weft.compile(lambda x: total + x, device)
    for i in range(1, 4):
        assert compiled(weft.ones((3,))).tolist() == [i] * 3
    assert total.tolist() == [3, 3, 3] and steps.item() == 3
    kept = total + 0
    assert read(weft.ones((3,))).tolist() == [4, 4, 4]  # the same buffer, in another Program
    total.assign(10.0)  # eagerly, between runs
    assert compiled(weft.ones((3,))).tolist() == [11] * 3
    assert read(weft.ones((3,))).tolist() == [12, 12, 12]
    total[1] = weft.tensor(0.0).to("cpu" if device == "cpu" else device)
    assert compiled(weft.ones((3,))).tolist() == [12, 1, 12]
    assert kept.tolist() == [3, 3, 3]
    assert compiled(weft.ones((1,))).tolist() == [13, 2, 13]  # another signature, the same state


def test_weights_are_read_anew_when_replaced(device: str) -> None:
    w = weft.tensor(W, name="w")
    compiled = weft.compile(lambda x: x @ w, device)
    same(compiled(X), weft.tensor(X @ W))
    w.assign(weft.tensor(W * 2))
    same(compiled(X), weft.tensor(X @ (W * 2)))


def test_a_weight_that_moved_away_is_named_at_each_call() -> None:
    w = weft.tensor(W, name="w")
    compiled = weft.compile(lambda x: x @ w, "cpu")
    same(compiled(X), weft.tensor(X @ W))
    w.to_("interp").assign(w * 2)
    for _ in range(3):
        with pytest.raises(DeviceError, match=r"tensor 'w' .* is on interp:0"):
            compiled(X)
    w.to_("cpu")
    same(compiled(X), weft.tensor(X @ (W * 2)))


def test_signatures_share_weights_on_the_device(device: str) -> None:
    w = weft.tensor(W, name="w")
    compiled = weft.compile(lambda x: x @ w, device)
    for rows in (1, 2, 4):
        same(compiled(X[:rows]), weft.tensor(X[:rows] @ W))
    held = [e.session.weights["w"] for e in compiled._kept.entries() if e.session]
    assert len(held) == 3 and all(b is held[0] for b in held)


def test_signatures_and_nested_arguments(device: str) -> None:
    def fn(pair: Any, scale: float = 1.0, **more: Tensor) -> Any:
        a, b = pair["a"], pair["b"]
        return {"sum": (a + b) * scale, "more": [m + 1 for m in more.values()], "none": None}

    compiled = weft.compile(fn, device)
    a = weft.tensor(X)
    got = compiled({"a": a, "b": [a, a][0]}, scale=2.0, extra=a)
    same(got["sum"], (a + a) * 2)
    same(got["more"][0], a + 1)
    assert got["none"] is None
    compiled({"a": a, "b": a}, scale=3.0, extra=a)
    compiled({"a": a, "b": a}, scale=3.0, extra=a[:2])
    compiled({"a": a, "b": a}, scale=3.0, extra=a[:2])
    assert len(compiled.programs()) == len(compiled.graphs()) == 3
    with pytest.raises(UsageError, match="hashable"):
        compiled({"a": a, "b": a}, scale=bytearray(b"x"))


def test_int64_ids_are_taken_as_int32(device: str) -> None:
    table = weft.tensor(W)
    look = weft.compile(lambda ids: F.embedding(ids, table), device)
    same(look(np.array([[1, 7], [0, 2]])), weft.tensor(W[[[1, 7], [0, 2]]]))
    with pytest.raises(DTypeError, match="do not fit int32"):
        look(np.array([[1 << 40, 7], [0, 2]]))
    with pytest.raises(DTypeError, match=r'float64; cast first: \.astype\("float32"\)'):
        weft.compile(lambda x: x + 1, device)(X.astype(np.float64))


def test_an_output_that_is_an_input(device: str) -> None:
    compiled = weft.compile(lambda x: (x, x.reshape(8, 4), weft.ones((2,))), device)
    first = compiled(X)
    compiled(X * 2)
    same(first[0], weft.tensor(X))
    same(first[1], weft.tensor(X.reshape(8, 4)))
    assert first[2].tolist() == [1, 1]


def test_edges(device: str) -> None:
    w, s = weft.tensor([1.0, 2.0]), weft.zeros((2,))

    def only_state(x: Tensor) -> None:
        s.assign(s + x)

    assert weft.compile(only_state, device)(w) is None and s.tolist() == [1, 2]
    bump = weft.compile(lambda x: s.assign(s + x), device)
    first = bump(w)
    bump(w)
    assert first.tolist() == [2, 4] and s.tolist() == [3, 6]
    assert weft.compile(lambda: w * 2, device)().tolist() == [2, 4]
    assert weft.compile(lambda: w, device)().tolist() == [1, 2]
    assert weft.compile(lambda: weft.eye(2), device)().tolist() == [[1, 0], [0, 1]]
    one, two = weft.compile(lambda x: (x + 1,) * 2, device)(w)
    assert one.tolist() == two.tolist() == [2, 3]
    assert weft.compile(lambda x: x.sum(0), device)(weft.zeros((0, 3))).tolist() == [0, 0, 0]
    assert weft.compile(lambda x: x[:, :0], device)(weft.zeros((2, 3))).shape == (2, 0)
    assert weft.compile(lambda x: x * 2, device)(weft.tensor(3.0)).item() == 6
    ids = weft.arange(10)
    masks = weft.compile(lambda x: (x > 1) & (x < 5) | (x == 9), device)(ids)
    assert masks.tolist() == [v in (2, 3, 4, 9) for v in range(10)]
    wrapped = weft.compile(lambda x: (x * 3) // 2, device)(ids.cast("uint8") * 20)
    assert wrapped.tolist() == [(20 * v * 3 % 256) // 2 for v in range(10)]
    with pytest.raises(DTypeError, match="int64"):
        weft.compile(lambda x: x.cast("int64"), device)(w)


def test_nested_compiled_functions_are_one_program(device: str) -> None:
    inner = weft.compile(lambda x: x * 2, device)
    outer = weft.compile(lambda x: inner(x) + 1, device)
    same(outer(X), weft.tensor(X * 2 + 1))
    assert not inner.programs()


def test_random_bits_are_the_same_on_every_device(device: str) -> None:
    assert weft.rand(1001, key=4, device=device).tolist() == weft.rand(1001, key=4).tolist()
    same(weft.randn(501, key=4, device=device).cpu(), weft.randn(501, key=4), 2e-5)
    assert (
        weft.randint(0, 9, 50, key=1, device=device).tolist()
        == weft.randint(0, 9, 50, key=1).tolist()
    )


def test_large_eager_ops_keep_no_buffers(device: str) -> None:
    x = weft.ones((600, 600)).to(device)
    y = (x * 600.0 + x * 2.0 - x.T)[1:, ::2]
    assert y.shape == (599, 300) and (y.cpu() == 601).all()
    if device == "cpu":
        return
    from weft.tensor.device import DEVICES

    held = [b.nbytes for s in DEVICES._sessions.values() for b in s._buffers]
    assert sum(held) < 600 * 600 * 4 * 3


def test_mixing_devices_names_both() -> None:
    a, b = weft.ones((2,)), weft.ones((3, 1)).to("interp")
    with pytest.raises(DeviceError, match=r"add: float32\[3, 2\] is on cpu and float32\[3, 2\] on"):
        a + b
    with pytest.raises(DeviceError, match=r"matmul.*\.to\("):
        weft.ones((2, 3)) @ b
    with pytest.raises(DeviceError, match="compiled for cpu"):
        weft.compile(lambda x: x + 1, "cpu")(b)
    w = weft.ones((2,)).to("interp")
    with pytest.raises(DeviceError, match="move it with"):
        weft.compile(lambda x: x + w, "cpu")(a)


def test_devices_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(DTypeError, match=r'cannot hold float64; cast first: \.astype\("float32"\)'):
        weft.tensor(np.ones(2)).to("interp")
    with pytest.raises(DTypeError, match=r'\.astype\("int32"\)'):
        weft.ones((2,), "int64").to("interp")
    with pytest.raises(LimitError, match="per buffer"):
        Tensor(np.broadcast_to(np.float32(0), (1 << 41,))).to("interp")


def test_the_default_device_is_that_of_the_arguments() -> None:
    fn = weft.compile(lambda x: x + 1)
    assert fn(weft.ones((2,)).to("interp")).device == "interp:0"


def test_errors_leave_the_function_usable(device: str) -> None:
    compiled = weft.compile(lambda x: x if x.sum() > 0 else -x, device)
    for _ in range(2):
        with pytest.raises(TraceError, match="control flow"):
            compiled(X)
    assert weft.compile(lambda x: x + 1, device)(X).dtype is dt.float32


def test_importing_weft_is_cheap() -> None:
    code = (
        "import numpy, sys, time; t = time.perf_counter(); import weft; "
        "ms = (time.perf_counter() - t) * 1e3; "
        "heavy = {'llvmlite', 'wgpu', 'rich', 'tokenizers', 'jinja2'} & set(sys.modules); "
        "import weft.compile; assert callable(weft.compile) and callable(weft.tensor); "
        "assert not heavy, heavy; assert ms < 30, ms; assert 'float32' in dir(weft); "
        "assert weft.bool.name == 'bool' and weft.errors.WeftError"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = weft.nonsense  # type: ignore[attr-defined]
