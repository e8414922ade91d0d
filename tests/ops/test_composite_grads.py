"""Derivatives of the row and activation composites: against central differences in float64 and
PyTorch, eagerly and compiled for devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradkit import check, check_second, seed_for
from opkit import FLOATS, agree, from_torch, to_torch
from rows import covering

import weft
from weft import ops
from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError

F32 = dt.float32
TARGETS = np.array([1, 6, -100, 0, 3], np.int32)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def call(name: str, **params: Any) -> Callable[..., Any]:
    return functools.partial(ops.call, name, **params)


def _rows(n: int) -> tuple[np.ndarray, ...]:
    return normal(2, 3, n), normal(n, seed=1), normal(n, seed=2)


def _angles() -> list[np.ndarray]:
    return [np.cos(normal(5, 3, seed=3)), np.sin(normal(5, 3, seed=3))]


X, W, B = _rows(7)
CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "softmax": (call("softmax"), [X]),
    "log_softmax": (call("log_softmax"), [X]),
    "layer_norm": (call("layer_norm", eps=1e-2), [X, W, B]),
    "layer_norm of one row": (call("layer_norm", eps=1e-2), [X[0, 0], W, B]),
    "rms_norm": (call("rms_norm", eps=1e-2), [X, W]),
    "rms_norm with offset": (call("rms_norm", eps=1e-2, offset=1.0), [X, W]),
    "gelu": (call("gelu"), [X]),
    "gelu tanh": (call("gelu", approximate="tanh"), [X]),
    "sigmoid": (call("sigmoid"), [X]),
    "silu": (call("silu"), [X]),
    "relu": (call("relu"), [X]),
    "clip_low": (call("clip_low"), [X, normal(2, 3, 7, seed=4)]),
    "clip_high": (call("clip_high"), [X, normal(2, 3, 7, seed=4)]),
    "rope": (call("rope"), [normal(5, 2, 6), *_angles()]),
    "rope interleaved": (call("rope", interleaved=True), [normal(5, 2, 6), *_angles()]),
    "cross_entropy": (call("cross_entropy"), [normal(5, 7), TARGETS]),
    "cross_entropy smoothed": (
        call("cross_entropy", ignore_index=3, label_smoothing=0.2),
        [normal(5, 7), np.maximum(TARGETS, 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_differences(name: str) -> None:
    fn, arrays = CASES[name]
    check(fn, *arrays)
    if "clip" not in name and name != "relu":
        check_second(fn, *arrays)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_no_rows_and_no_columns(name: str) -> None:
    for shape in ((0, 3), (3, 0)):
        rows = [np.zeros(shape, np.float32)]
        rows += [np.ones(shape[-1:], np.float32)] * {"layer_norm": 2, "rms_norm": 1}.get(name, 0)
        tensors = [weft.tensor(x, requires_grad=True) for x in rows]
        out = tensors[0]._call(name, *tensors[1:], **({"eps": 1e-5} if rows[1:] else {}))
        out.backward(weft.tensor(np.ones(shape, np.float32)))
        assert [t.grad.shape for t in tensors] == [x.shape for x in rows]


# -- against PyTorch ------------------------------------------------------------------------------


def _torch_rms(x: Any, w: Any) -> Any:
    return F.rms_norm(x, x.shape[-1:], w, 1e-5)


def _torch_loss(x: Any) -> Any:
    t = torch.from_numpy(np.resize(TARGETS, x.shape[0])).long()
    return F.cross_entropy(x, t, reduction="none", label_smoothing=0.1)


def _loss(x: Any) -> Any:
    t = ops.const(np.resize(TARGETS, x.shape[0]))
    return ops.call("cross_entropy", x, t, label_smoothing=0.1)


N = 33
TORCH: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "softmax": (call("softmax"), lambda x: F.softmax(x, -1), [(6, N)]),
    "log_softmax": (call("log_softmax"), lambda x: F.log_softmax(x, -1), [(6, N)]),
    "layer_norm": (
        call("layer_norm", eps=1e-5),
        lambda x, w, b: F.layer_norm(x, (N,), w, b, 1e-5),
        [(6, N), (N,), (N,)],
    ),
    "rms_norm": (call("rms_norm", eps=1e-5), _torch_rms, [(2, 3, N), (N,)]),
    "gelu": (call("gelu"), F.gelu, [(6, N)]),
    "gelu tanh": (
        call("gelu", approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), [(6, N)],
    ),
    "sigmoid": (call("sigmoid"), torch.sigmoid, [(6, N)]),
    "silu": (call("silu"), F.silu, [(6, N)]),
    "relu": (call("relu"), F.relu, [(6, N)]),
    "cross_entropy": (_loss, _torch_loss, [(6, N)]),
}  # fmt: skip


@functools.cache
def _wanted(name: str, dtype: dt.DType) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Operands of a dtype, and PyTorch's float64 gradients rounded to it."""
    shapes = TORCH[name][2]
    arrays = [
        normal(*s, seed=i).astype(np.float32).astype(dtype.numpy) for i, s in enumerate(shapes)
    ]
    leaves = [to_torch(a).double().requires_grad_() for a in arrays]
    out = TORCH[name][1](*leaves)
    out.backward(torch.from_numpy(seed_for(out.detach().numpy())))
    return arrays, [from_torch(t.grad).astype(dtype.numpy) for t in leaves]


def _gradients(name: str) -> Callable[..., Any]:
    """A function of tensors that gives the gradients of a case by each of them."""

    def run(*xs: Any) -> Any:
        leaves = [x.detach().requires_grad_() for x in xs[:-1]]
        value = TORCH[name][0](*(x.value for x in leaves))
        leaves[0]._wrap(value).backward(xs[-1])
        return tuple(x.grad for x in leaves)

    return run


def _check(name: str, dtype: dt.DType, run: Callable[..., Any]) -> None:
    arrays, wants = _wanted(name, dtype)
    out = np.asarray(TORCH[name][0](*arrays))
    got = run(*(weft.tensor(a) for a in arrays), weft.tensor(seed_for(out)))
    for g, want in zip(got, wants):
        agree(g.numpy(), want, "dot", dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", TORCH)
def test_against_torch(name: str, dtype: dt.DType) -> None:
    _check(name, dtype, _gradients(name))


@pytest.mark.parametrize("name,device", covering(TORCH, ["cpu", "interp", "vulkan"]))
def test_compiled(name: str, device: str) -> None:
    for dtype in FLOATS:
        if _supported(device, dtype):
            _check(name, dtype, weft.compile(_gradients(name), device=device))


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "cross_entropy"])
def test_eager_on_a_device(name: str) -> None:
    if _supported("vulkan", F32):
        run = _gradients(name)
        _check(name, F32, lambda *xs: run(*(x.to("vulkan") for x in xs)))


@functools.cache
def _supported(device: str, dtype: dt.DType) -> bool:
    if not any(d.kind == device and d.available for d in weft.devices()):
        pytest.skip(f"no {device} device")
    from weft.backends.registry import get

    return get(device).supports(dtype)


def test_weight_gradients_of_any_number_of_rows() -> None:
    """Rows that 64 does not divide, many and prime in number; compiled as well."""
    for rows in (67, 192, 1, 130):
        arrays = [normal(rows, 5), normal(5, seed=1), normal(5, seed=2), normal(rows, 5, seed=3)]
        arrays = [a.astype(np.float32) for a in arrays]
        leaves = [torch.from_numpy(a).double().requires_grad_() for a in arrays[:3]]
        F.layer_norm(leaves[0], (5,), *leaves[1:], 1e-5).backward(
            torch.from_numpy(arrays[3]).double()
        )
        run = _gradients("layer_norm")
        for fn in (run, weft.compile(run, device="cpu")):
            for got, want in zip(fn(*map(weft.tensor, arrays)), leaves):
                agree(got.numpy(), want.grad.numpy().astype(np.float32), "dot")


# -- edges --------------------------------------------------------------------------------------


def _grad_of(fn: Callable[[Any], Any], x: list[float]) -> list[float]:
    t = weft.tensor(np.array(x, np.float32), requires_grad=True)
    fn(t).sum().backward()
    return t.grad.numpy().tolist()


def test_relu_and_clip_on_the_edge() -> None:
    x = [-1.0, 0.0, 0.5, 1.0, 2.0]
    for fn in (
        lambda t: t.relu(), lambda t: t.clip(0.0, 1.0), lambda t: t.clip(min=0.5),
        lambda t: t.clip(max=0.5),
    ):  # fmt: skip
        t = torch.tensor(x, requires_grad=True)
        fn(t).sum().backward()
        assert _grad_of(fn, x) == t.grad.tolist()
    assert weft.tensor([-3, 4]).relu().clip(max=3).numpy().tolist() == [0, 3]


def test_gates_far_out() -> None:
    """Where exp(-x) overflows, the gradients are still those of the limit."""
    for name, far in (("sigmoid", 0.0), ("silu", 1.0), ("gelu", 1.0)):
        got = _grad_of(lambda t: getattr(t, name)(), [-1e4, -100.0, 100.0, 1e4])  # noqa: B023
        np.testing.assert_allclose(got, [0.0, 0.0, far, far], atol=1e-30)


def test_clip_by_tensors() -> None:
    values = [normal(4, 5), normal(5, seed=1) - 1, normal(5, seed=2) + 1]
    mine = [weft.tensor(v, requires_grad=True) for v in values]
    theirs = [torch.from_numpy(v).requires_grad_() for v in values]
    (mine[0].clip(mine[1], mine[2]) * weft.tensor(values[0])).sum().backward()
    (theirs[0].clip(theirs[1], theirs[2]) * torch.from_numpy(values[0])).sum().backward()
    for a, b in zip(mine, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-12)


def test_cross_entropy_of_odd_rows() -> None:
    """Ignored rows have no gradient even where they hold NaN; huge logits do not overflow; rows of
    targets that are no class are NaN."""
    x = normal(5, 7, dtype=np.float32) * 1e4
    x[2] = np.nan
    x[0, :3] = -np.inf
    t = np.array([6, 0, -100, 99, -1], np.int32)
    want = torch.from_numpy(x).double().requires_grad_()
    F.cross_entropy(want, torch.tensor([6, 0, -100, 6, 0]), reduction="sum").backward()
    leaf = weft.tensor(x, requires_grad=True)
    loss = leaf._call("cross_entropy", weft.tensor(t))
    loss.sum().backward()
    assert loss.numpy()[2] == 0 and not leaf.grad.numpy()[2].any()
    assert np.isnan(loss.numpy()[3:]).all() and np.isnan(leaf.grad.numpy()[3:]).all()
    rows = [0, 1]
    np.testing.assert_allclose(leaf.grad.numpy()[rows], want.grad.numpy()[rows], atol=1e-6)


def test_cross_entropy_refuses() -> None:
    x, t = np.zeros((3, 4), np.float32), np.zeros(3, np.int32)
    with pytest.raises(ShapeError, match=r"expected \[N, V\]"):
        ops.call("cross_entropy", x[0], t)
    with pytest.raises(ShapeError, match=r"targets \[2\]"):
        ops.call("cross_entropy", x, t[:2])
    with pytest.raises(DTypeError, match="expected int32"):
        ops.call("cross_entropy", x, t.astype(np.int64))
    with pytest.raises(ShapeError, match="0 classes"):
        ops.call("cross_entropy", x[:, :0], t)
