"""Activations by every door (functional, nn, compiled, ATen, ONNX and its recurrent cells) against
PyTorch: values and gradients at kinks, signed zeros, very large numbers, infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as T

import weft
from weft import nn
from weft.errors import UsageError
from weft.importers.aten import entry
from weft.tensor import activations, functional as F
from weft.tensor.core import Tensor

POINTS = np.array(
    [-math.inf, -1e30, -200, -100, -89, -88.8, -20.5, -20, -6, -3.0000002, -3, -2.9999998, -2, -1,
     -0.5, -1e-3, -1e-30, -0.0, 0.0, 1e-30, 1e-3, 0.5, 1, 2, 2.9999998, 3, 3.0000002, 6, 20, 20.5,
     88.8, 100, 1e30, math.inf, math.nan],
    np.float32,
)  # fmt: skip
SMOOTH = {"gelu", "gelu_tanh", "silu", "mish", "tanhshrink"}


@dataclass(frozen=True)
class Case:
    """An activation by PyTorch and by weft's doors; `onnx` and `rnn` are an operator's name and its
    attributes."""

    torch: Callable[[torch.Tensor], torch.Tensor]
    functional: Callable[[Tensor], Tensor]
    module: Callable[[], Any] | None = None
    aten: tuple[str, tuple[Any, ...]] | None = None
    onnx: tuple[str, dict[str, float]] | None = None
    rnn: tuple[str, list[float], list[float]] | None = None
    loose: float = field(default=2e-6)


CASES = {
    "relu": Case(T.relu, F.relu, nn.ReLU, ("relu", ()), ("Relu", {}), ("Relu", [], [])),
    "relu6": Case(T.relu6, F.relu6, nn.ReLU6, ("relu6", ())),
    "sigmoid": Case(T.sigmoid, F.sigmoid, nn.Sigmoid, ("sigmoid", ()), ("Sigmoid", {}),
                    ("Sigmoid", [], []), 1e-4),
    "tanh": Case(torch.tanh, Tensor.tanh, nn.Tanh, ("tanh", ()), ("Tanh", {}), ("Tanh", [], []),
                 2e-5),
    "gelu": Case(T.gelu, F.gelu, nn.GELU, ("gelu", ()), ("Gelu", {}), loose=1e-3),
    "gelu_tanh": Case(lambda x: T.gelu(x, approximate="tanh"), lambda x: F.gelu(x, "tanh"),
                      lambda: nn.GELU("tanh"), ("gelu", ("tanh",)), loose=1e-3),
    "silu": Case(T.silu, F.silu, nn.SiLU, ("silu", ()), ("Swish", {})),
    "mish": Case(T.mish, F.mish, nn.Mish, ("mish", ()), ("Mish", {}), loose=1e-4),
    "hardtanh": Case(T.hardtanh, F.hardtanh, nn.Hardtanh, ("hardtanh", ())),
    "hardtanh_wide": Case(lambda x: T.hardtanh(x, -2, 3), lambda x: F.hardtanh(x, -2, 3),
                          lambda: nn.Hardtanh(-2, 3), ("hardtanh", (-2, 3))),
    "hardsigmoid": Case(T.hardsigmoid, F.hardsigmoid, nn.Hardsigmoid, ("hardsigmoid", ()),
                        ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
                        ("HardSigmoid", [1 / 6], [0.5]), 3e-6),
    "hardswish": Case(T.hardswish, F.hardswish, nn.Hardswish, ("hardswish", ()),
                      ("HardSwish", {})),
    "leaky_relu": Case(T.leaky_relu, F.leaky_relu, nn.LeakyReLU, ("leaky_relu", ()),
                       ("LeakyRelu", {}), ("LeakyRelu", [], [])),
    "leaky_relu_half": Case(lambda x: T.leaky_relu(x, 0.5), lambda x: F.leaky_relu(x, 0.5),
                            lambda: nn.LeakyReLU(0.5), ("leaky_relu", (0.5,)),
                            ("LeakyRelu", {"alpha": 0.5}), ("LeakyRelu", [0.5], [])),
    "rrelu": Case(T.rrelu, F.rrelu, lambda: nn.RReLU().eval(), ("rrelu", ())),
    "elu": Case(T.elu, F.elu, nn.ELU, ("elu", ()), ("Elu", {}), ("Elu", [], [])),
    "elu_steep": Case(lambda x: T.elu(x, 1.5), lambda x: F.elu(x, 1.5), lambda: nn.ELU(1.5),
                      ("elu", (1.5,)), ("Elu", {"alpha": 1.5}), ("Elu", [1.5], [])),
    "celu": Case(lambda x: T.celu(x, 2.0), lambda x: F.celu(x, 2.0), lambda: nn.CELU(2.0),
                 ("celu", (2.0,)), ("Celu", {"alpha": 2.0})),
    "selu": Case(T.selu, F.selu, nn.SELU, ("selu", ()), ("Selu", {})),
    "softplus": Case(T.softplus, F.softplus, nn.Softplus, ("softplus", ()), ("Softplus", {}),
                     ("Softplus", [], [])),
    "softplus_cut": Case(lambda x: T.softplus(x, 2.0, 3.0), lambda x: F.softplus(x, 2.0, 3.0),
                         lambda: nn.Softplus(2.0, 3.0), ("softplus", (2.0, 3.0))),
    "logsigmoid": Case(T.logsigmoid, F.logsigmoid, nn.LogSigmoid, ("log_sigmoid", ())),
    "softsign": Case(T.softsign, F.softsign, nn.Softsign, None, ("Softsign", {}),
                     ("Softsign", [], []), 2e-5),
    "threshold": Case(lambda x: T.threshold(x, 0.5, 7.0), lambda x: F.threshold(x, 0.5, 7.0),
                      lambda: nn.Threshold(0.5, 7.0), ("threshold", (0.5, 7.0))),
    "thresholded_relu": Case(lambda x: T.threshold(x, 1.0, 0.0), lambda x: F.threshold(x, 1.0, 0.0),
                             None, None, ("ThresholdedRelu", {}), ("ThresholdedRelu", [], [])),
    "softshrink": Case(T.softshrink, F.softshrink, nn.Softshrink, ("softshrink", ()),
                       ("Shrink", {"lambd": 0.5, "bias": 0.5})),
    "hardshrink": Case(T.hardshrink, F.hardshrink, nn.Hardshrink, ("hardshrink", ()),
                       ("Shrink", {"lambd": 0.5})),
    "tanhshrink": Case(T.tanhshrink, F.tanhshrink, nn.Tanhshrink, loose=1e-4),
    "scaled_tanh": Case(lambda x: 1.5 * torch.tanh(0.5 * x),
                        lambda x: activations.scaled_tanh(x, 1.5, 0.5),
                        rnn=("ScaledTanh", [1.5], [0.5]), loose=2e-5),
    "swish": Case(lambda x: x * torch.sigmoid(1.702 * x),
                  lambda x: activations.swish(x, 1.702),
                  onnx=("Swish", {"alpha": 1.702}), loose=1e-4),
}  # fmt: skip


def by_torch(case: Case) -> tuple[np.ndarray, np.ndarray]:
    x = torch.from_numpy(POINTS.copy()).requires_grad_()
    out = case.torch(x)
    out.backward(torch.ones_like(out))
    assert x.grad is not None
    return out.detach().numpy(), x.grad.numpy()


def by_weft(run: Callable[[Tensor], Tensor]) -> tuple[np.ndarray, np.ndarray]:
    x = Tensor(POINTS.copy())
    x.requires_grad_()
    out = run(x)
    out.backward(Tensor(np.ones(out.shape, np.float32)))
    assert x.grad is not None
    return out.numpy().reshape(-1), x.grad.numpy()


def check(
    name: str, case: Case, have: tuple[np.ndarray, np.ndarray], shrinks: bool = False
) -> None:
    """The derivative of a smooth step at an infinity is its limit, where PyTorch has NaN, as its
    vectors have for gelu(inf) on some machines; ONNX's Shrink has 0 for NaN."""
    for what, got, want in zip(("value", "gradient"), have, by_torch(case)):
        near = np.isclose(got, want, rtol=case.loose, atol=3e-7 if case.loose > 2e-6 else 1e-37,
                          equal_nan=True)  # fmt: skip
        if what == "value":
            near |= np.isnan(want) & np.isposinf(got) & np.isposinf(POINTS)
        if what == "gradient":
            limits = np.isnan(want) & ~np.isnan(POINTS)
            near |= limits & np.isin(got, (0.0, 1.0)) & (np.abs(POINTS) >= 1e30)
        if shrinks:
            near |= np.isnan(POINTS) & (got == 0)
        assert near.all(), (name, what, POINTS[~near], got[~near], want[~near])


@pytest.mark.parametrize("name", CASES)
def test_functional_nn_and_compiled(name: str) -> None:
    case = CASES[name]
    check(name, case, by_weft(case.functional))
    if case.module is not None:
        check(name, case, by_weft(case.module()))
    compiled = weft.compile(weft.value_and_grad(lambda x: case.functional(x).sum()), "cpu")
    gradient = np.array([compiled(Tensor(POINTS[i : i + 1]))[1].numpy()[0] for i in (15, 17, 18)])
    want = by_torch(case)[1][[15, 17, 18]]
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-7)


def by_aten(case: Case) -> Callable[[Tensor], Tensor]:
    target, args = case.aten or ("", ())
    found = entry(f"aten.{target}.default")
    assert found is not None
    keys = {"approximate": args[0]} if args == ("tanh",) else {}
    return lambda x: found.run(x, *(() if keys else args), **keys)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.aten])
def test_aten(name: str) -> None:
    check(name, CASES[name], by_weft(by_aten(CASES[name])))


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.onnx])
def test_onnx(name: str) -> None:
    kit = pytest.importorskip("onnx").helper
    from weft.importers import from_onnx

    op, attrs = CASES[name].onnx or ("", {})
    ports = [kit.make_tensor_value_info(n, 1, [POINTS.size]) for n in ("x", "y")]
    graph = kit.make_graph([kit.make_node(op, ["x"], ["y"], **attrs)], "g", ports[:1], ports[1:])
    made = kit.make_model(graph, ir_version=10, opset_imports=[kit.make_opsetid("", 24)])
    model = from_onnx(made).train()
    check(name, CASES[name], by_weft(model), op == "Shrink")
    value = from_onnx(made).eval()(POINTS).numpy()  # compiled
    want = by_torch(CASES[name])[0]
    known = np.isfinite(POINTS)
    np.testing.assert_allclose(value[known], want[known], rtol=1e-4, atol=3e-7)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.rnn])
def test_onnx_recurrent(name: str) -> None:
    """A cell of one step without recurrence is its activation."""
    kit = pytest.importorskip("onnx").helper
    from onnx import numpy_helper

    from weft.importers import from_onnx

    op, alphas, betas = CASES[name].rnn or ("", [], [])
    weights = [numpy_helper.from_array(np.full((1, 1, 1), v, np.float32), n)
               for n, v in (("w", 1), ("r", 0))]  # fmt: skip
    attrs = {"activation_alpha": alphas, "activation_beta": betas}
    node = kit.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=1, activations=[op],
                         **{k: v for k, v in attrs.items() if v})  # fmt: skip
    port = kit.make_tensor_value_info("x", 1, [1, POINTS.size, 1])
    out = kit.make_tensor_value_info("y", 1, None)
    graph = kit.make_graph([node], "g", [port], [out], weights)
    made = kit.make_model(graph, ir_version=9, opset_imports=[kit.make_opsetid("", 21)])
    model = from_onnx(made).train()
    check(name, CASES[name], by_weft(lambda x: model(x.reshape(1, -1, 1))))


SLOPES = np.array([0.25, -0.5], np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 2), (2, 1, 3)])
@pytest.mark.parametrize("value", [-1.5, 2.0])
def test_prelu_with_one_weight_keeps_the_shape(shape: tuple[int, ...], value: float) -> None:
    x, weight = np.full(shape, value, np.float32), np.array([0.25], np.float32)
    a, b = torch.from_numpy(x.copy()).requires_grad_(), torch.tensor(weight).requires_grad_()
    want = T.prelu(a, b)
    want.sum().backward()
    u, v = Tensor(x.copy()).requires_grad_(), Tensor(weight.copy()).requires_grad_()
    made = F.prelu(u, v)
    made.sum().backward()
    for got, true in ((made, want.detach()), (u.grad, a.grad), (v.grad, b.grad)):
        assert got.shape == tuple(true.shape)
        np.testing.assert_array_equal(got.numpy(), true.numpy())


def test_prelu_and_glu() -> None:
    x = np.stack([POINTS, POINTS], 0)[None].astype(np.float32)
    a, b = torch.from_numpy(x.copy()).requires_grad_(), torch.tensor(SLOPES).requires_grad_()
    out = T.prelu(a, b)
    out.backward(torch.ones_like(out))
    u, v = Tensor(x.copy()).requires_grad_(), Tensor(SLOPES.copy()).requires_grad_()
    made = F.prelu(u, v)
    made.backward(Tensor(np.ones(made.shape, np.float32)))
    for got, want in ((made, out.detach()), (u.grad, a.grad)):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    fine = x[..., np.isfinite(POINTS) & (np.abs(POINTS) < 1e4)]
    fine = np.concatenate([fine, np.full((1, 2, 1), np.inf, np.float32)], -1)
    a, b = torch.from_numpy(fine.copy()), torch.tensor(SLOPES).requires_grad_()
    T.prelu(a, b).backward(torch.ones(fine.shape))
    v = Tensor(SLOPES.copy()).requires_grad_()
    F.prelu(Tensor(fine), v).backward(Tensor(np.ones(fine.shape, np.float32)))
    np.testing.assert_allclose(v.grad.numpy(), b.grad.numpy(), rtol=1e-6)
    module, theirs = nn.PReLU(2, 0.3), torch.nn.PReLU(2, 0.3)
    np.testing.assert_array_equal(
        module(Tensor(x)).numpy(), theirs(torch.from_numpy(x)).detach().numpy()
    )
    pair = np.linspace(-3, 3, 8).astype(np.float32).reshape(2, 4)
    want = T.glu(torch.from_numpy(pair))
    np.testing.assert_allclose(nn.GLU()(Tensor(pair)).numpy(), want.numpy(), rtol=1e-6)
    with pytest.raises(UsageError, match="two equal halves"):
        F.glu(Tensor(pair[:, :3]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_narrow_floats(name: str, dtype: str) -> None:
    """PyTorch's float32 values and gradients at the narrow points, rounded once. Only the gradient
    of tanh is made of the rounded result, as in PyTorch."""
    case = CASES[name]
    points = POINTS[np.abs(POINTS) < 1e4]
    x = torch.from_numpy(points).to(getattr(torch, dtype)).float().requires_grad_()
    out = case.torch(x)
    out.backward(torch.ones_like(out))
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    atol = step if name == "tanh" else 1e-6
    for door in (case.functional, case.module and case.module(), case.aten and by_aten(case)):
        if door is None:
            continue
        y = Tensor(points).cast(dtype).requires_grad_()
        made = door(y)
        made.backward(Tensor(np.ones(points.shape, np.float32)).cast(dtype))
        assert made.dtype.name == dtype
        for got, want in ((made, out.detach()), (y.grad, x.grad)):
            np.testing.assert_allclose(
                got.cast("float32").numpy(), want.numpy(), rtol=step, atol=atol, err_msg=name
            )


def test_wrong_options_are_named() -> None:
    x = Tensor(np.ones(2, np.float32))
    with pytest.raises(UsageError, match="lower one first"):
        F.hardtanh(x, 1.0, -1.0)
    with pytest.raises(UsageError, match="alpha is 0"):
        F.celu(x, 0.0)


def test_gumbel_softmax_draws_each_class_as_often_as_softmax_says() -> None:
    rows = np.tile(np.array([0.0, 1.0, -1.0], np.float32), (4000, 1))
    x = Tensor(rows).requires_grad_()
    hard = F.gumbel_softmax(x, 0.5, hard=True, key=1)
    assert np.array_equal(np.sort(hard.numpy(), -1), np.tile([0, 0, 1], (4000, 1)))
    want = torch.softmax(torch.tensor([0.0, 1.0, -1.0]), -1).numpy()
    np.testing.assert_allclose(hard.numpy().mean(0), want, atol=0.03)
    weights = Tensor(np.arange(3, dtype=np.float32))
    (hard * weights).sum().backward()
    slope, x.grad = x.grad, None
    soft = F.gumbel_softmax(x, 0.5, key=1)
    np.testing.assert_allclose(soft.numpy().sum(-1), 1.0, rtol=1e-5)
    assert np.array_equal(soft.numpy().argmax(-1), hard.numpy().argmax(-1))
    (soft * weights).sum().backward()
    np.testing.assert_allclose(slope.numpy(), x.grad.numpy(), rtol=1e-5, atol=1e-7)
    with pytest.raises(UsageError, match="tau is 0"):
        F.gumbel_softmax(x, 0.0)
