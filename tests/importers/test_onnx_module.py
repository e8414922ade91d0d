"""An ONNX model is a Module: it trains, saves, moves, is copied and is part of others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.errors import GradientError, ModelError, TraceError, UsageError
from weft.importers import from_onnx
from weft.importers.foreign import dequantized
from weft.quantize.imported import quantize_imported
from weft.quantize.schemes import Scheme

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net(nodes: list[Any], weights: dict[str, np.ndarray], shape: Any, outputs: str = "y") -> Any:
    """A model of nodes from x to the outputs."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [onnx.ValueInfoProto(name=n) for n in outputs.split()],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])


def classifier() -> torch.nn.Module:
    """Convolution, batch norm, pool and two linear layers, with statistics that are not trivial."""
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, stride=2, padding=1), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(6, 8),
        torch.nn.Linear(8, 1),
    )  # fmt: skip
    made[1].running_mean.normal_()
    made[1].running_var.uniform_(0.5, 2.0)
    return made.eval()


def as_onnx(module: torch.nn.Module) -> Any:
    """The same net, its initializers called as PyTorch calls them."""
    state = {n: v.numpy() for n, v in module.state_dict().items() if v.ndim}
    norm = ["1.weight", "1.bias", "1.running_mean", "1.running_var"]
    state["6.weight"] = np.ascontiguousarray(state["6.weight"].T)  # as MatMul has it
    return net(
        [
            helper.make_node("Conv", ["x", "0.weight", "0.bias"], ["a"], strides=[2, 2],
                             pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["a", *norm], ["b"]),
            helper.make_node("Relu", ["b"], ["c"]),
            helper.make_node("GlobalAveragePool", ["c"], ["d"]),
            helper.make_node("Flatten", ["d"], ["e"]),
            helper.make_node("Gemm", ["e", "5.weight", "5.bias"], ["f"], transB=1),
            helper.make_node("MatMul", ["f", "6.weight"], ["g"]),
            helper.make_node("Add", ["g", "6.bias"], ["y"]),
        ],
        state, ("batch", 3, 8, 8),
    )  # fmt: skip


@pytest.mark.parametrize("device", ["eager", "cpu", pytest.param("vulkan", marks=pytest.mark.slow)])
def test_gradients_are_pytorchs(device: str) -> None:
    if device == "vulkan" and not any(d.kind == "vulkan" and d.available for d in weft.devices()):
        pytest.skip("no Vulkan device")
    theirs = classifier()
    mine = from_onnx(as_onnx(theirs), None if device == "eager" else device).train()
    x = rows(4, 3, 8, 8)
    (theirs(torch.from_numpy(x)) ** 2).sum().backward()

    def step(x: Any) -> Any:
        loss = (mine(x) ** 2).sum()
        loss.backward()
        return loss

    (step if device == "eager" else weft.compile(step, device=device))(x)
    wanted = dict(theirs.named_parameters())
    found = dict(mine.named_parameters())
    assert found.keys() == wanted.keys()
    assert {n for n, _ in mine.named_buffers()} == {"1.running_mean", "1.running_var"}
    for name, p in wanted.items():
        want = p.grad.numpy().T if name == "6.weight" else p.grad.numpy()
        np.testing.assert_allclose(found[name].grad.numpy(), want, rtol=2e-4, atol=2e-5)


def test_gradients_are_finite_differences() -> None:
    """Through operators that no layer of PyTorch is behind, and a function of ONNX's own."""
    weights = {"w": rows(4, seed=1), "s": rows(3, 4, seed=2) * 0.5}
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Softplus", ["a"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "w"], ["c"]),
        helper.make_node("Celu", ["c"], ["d"], alpha=1.5),
        helper.make_node("Einsum", ["d", "s"], ["e"], equation="ij,kj->ik"),
        helper.make_node("ReduceLogSumExp", ["e"], ["y"], keepdims=0),
    ]
    model = from_onnx(net(nodes, weights, (2, 4))).train()
    x = rows(2, 4, seed=3)
    model(x).backward()
    for name in ("w", "s"):
        held = model.tensor(name)
        found, step = held.grad.numpy(), 1e-2
        plain = held.numpy().copy()
        for at in np.ndindex(plain.shape):
            values = []
            for sign in (1, -1):
                moved = plain.copy()
                moved[at] += sign * step
                model.load_state_dict(model.state_dict() | {name: moved})
                values.append(float(model(x).detach().numpy()))
            model.load_state_dict(model.state_dict() | {name: plain})
            slope = (values[0] - values[1]) / (2 * step)
            np.testing.assert_allclose(found[at], slope, rtol=3e-2, atol=3e-3)


def test_an_evaluating_model_has_gradients_too() -> None:
    """Of results that were computed with frozen weights: by computing them again, once."""
    model = from_onnx(as_onnx(classifier()))
    assert not model.training
    x = rows(1, 3, 8, 8)
    (model(x) * 2).sum().backward()
    found = {name: p.grad.numpy() for name, p in model.named_parameters()}
    model.zero_grad()
    (model.train()(x) * 2).sum().backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(found[name], p.grad.numpy(), rtol=1e-4, atol=1e-5)
    given = weft.tensor(x).requires_grad_()
    model.eval()(given).sum().backward()  # given what requires gradients, it is recorded
    assert given.grad is not None
    with weft.no_grad():
        assert not model(x).requires_grad


def test_weights_that_changed_since_refuse_to_go_backward() -> None:
    model = from_onnx(as_onnx(classifier()))
    out = model(rows(1, 3, 8, 8)).sum()
    model.load_state_dict({n: t * 2 for n, t in model.state_dict().items()})
    with pytest.raises(GradientError, match="was written after the forward pass"):
        out.backward()


def test_it_trains_and_then_evaluates_what_it_has_learnt() -> None:
    """Weights that a compiled step has written are seen by the frozen Program."""
    model = from_onnx(as_onnx(classifier()))
    x, target = rows(8, 3, 8, 8), rows(8, 1, seed=1)
    first = ((model(x).numpy() - target) ** 2).mean()
    optimiser = weft.optim.AdamW(model.parameters(), lr=3e-2)

    @weft.compile
    def step(x: Any, target: Any) -> Any:
        loss = ((model(x) - target) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss

    model.train()
    losses = [float(step(x, target).numpy()) for _ in range(30)]
    assert losses[0] == pytest.approx(first, rel=1e-4)
    assert losses[-1] < 0.7 * losses[0]
    now = model.eval()(x).numpy()
    assert ((now - target) ** 2).mean() < 0.1 * first
    step(x, target)
    assert not np.array_equal(model(x).numpy(), now)
    np.testing.assert_allclose(
        model(x).numpy(), model.train()(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )


def test_compiled_by_itself_it_is_frozen_while_it_evaluates() -> None:
    model = from_onnx(as_onnx(classifier()))
    run = weft.compile(model)
    x = rows(2, 3, 8, 8)
    want = run(x).numpy().copy()
    assert run.graphs()[0].meta["frozen"]
    model.train()
    np.testing.assert_allclose(run(x).numpy(), want, rtol=1e-4, atol=1e-5)
    assert [bool(g.meta.get("frozen")) for g in run.graphs()] == [True, False]


def test_state_is_saved_and_loaded(tmp_path: Path) -> None:
    one = from_onnx(as_onnx(classifier()))
    other = classifier()
    for p in other.parameters():
        p.data.mul_(0.5)
    two = from_onnx(as_onnx(other))
    x = rows(2, 3, 8, 8)
    assert not np.allclose(one(x).numpy(), two(x).numpy())
    np.savez(tmp_path / "state.npz", **one.state_dict())
    two.load_state_dict(dict(np.load(tmp_path / "state.npz")))
    np.testing.assert_array_equal(one(x).numpy(), two(x).numpy())
    with pytest.raises(ModelError, match=r"missing 5\.bias"):
        two.load_state_dict({n: v for n, v in one.state_dict().items() if n != "5.bias"})


def test_copies_share_nothing() -> None:
    one = from_onnx(as_onnx(classifier()))
    x = rows(2, 3, 8, 8)
    before = one(x).numpy().copy()
    two = copy.deepcopy(one)
    np.testing.assert_array_equal(two(x).numpy(), before)
    two.load_state_dict({n: v * 0 + 1 for n, v in two.state_dict().items()})
    np.testing.assert_array_equal(one(x).numpy(), before)
    assert not np.allclose(two(x).numpy(), before)


def test_it_moves_to_a_device() -> None:
    if not any(d.kind == "vulkan" and d.available for d in weft.devices()):
        pytest.skip("no Vulkan device")
    model = from_onnx(as_onnx(classifier()))
    x = rows(2, 3, 8, 8)
    want = model(x).numpy()
    outer = nn.Sequential(model).to("vulkan")  # as a part of another module
    got = outer(x)
    assert got.device.startswith("vulkan")
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.to("cpu")(x).numpy(), want, rtol=1e-6)
    with pytest.raises(UsageError, match="types"):
        model.to(weft.float16)


def test_names_that_modules_cannot_have() -> None:
    """Of initializers: empty parts, names of methods, a tensor where a module is, odd letters."""
    names = ["a..b", "forward", "a", "a.b", "training", "x\ny", ".".join("d" * 200), "tensor"]
    weights = {n: rows(2, seed=i) for i, n in enumerate(names)}
    nodes, last = [], "x"
    for i, name in enumerate(names):
        nodes.append(
            helper.make_node("Add", [last, name], [f"sum{i}" if name != names[-1] else "y"])
        )
        last = f"sum{i}"
    model = from_onnx(net(nodes, weights, (2,)))
    assert len(model.state_dict()) == len(names)
    assert all(n.isprintable() for n in model.state_dict())
    want = sum(weights.values()) + 1
    np.testing.assert_allclose(model(np.ones(2, np.float32)).numpy(), want, rtol=1e-5)


def test_numbers_stay_numbers() -> None:
    """A constant is not learnt, nor is an initializer without axes."""
    weights = {"p": np.array(2.0, np.float32), "w": rows(3)}
    constant = onnx.numpy_helper.from_array(rows(3, seed=1))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("Pow", ["x", "p"], ["a"]),
        helper.make_node("Add", ["a", "c"], ["b"]),
        helper.make_node("Mul", ["b", "w"], ["y"]),
    ]
    model = from_onnx(net(nodes, weights, (3,)))
    assert [n for n, _ in model.named_parameters()] == ["w"]
    assert [n for n, _ in model.named_buffers()] == ["c"]
    assert list(model.state_dict()) == ["w"]


def test_a_weight_that_gives_a_shape_is_looked_at_again() -> None:
    """What a trace took from a weight's values holds as long as they do."""
    weights = {"scales": np.array([1, 1, 2, 2], np.float32)}
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"])]
    model = from_onnx(net(nodes, weights, (1, 1, 2, 2)))
    x = rows(1, 1, 2, 2)
    assert model(x).shape == (1, 1, 4, 4)
    model.load_state_dict({"scales": np.array([1, 1, 3, 1], np.float32)})
    assert model(x).shape == (1, 1, 6, 2)


def test_a_convolution_times_a_number_of_the_input() -> None:
    """As dynamic quantisation writes it: a scale that is known when it runs."""
    weights = {"w": rows(4, 3, 3, 3), "s": np.array(0.5, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Mul", ["m", "s"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["y"]),
    ]
    x = rows(1, 3, 5, 5)
    want = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(weights["w"]))
    model = from_onnx(net(nodes, weights, (1, 3, 5, 5)))
    np.testing.assert_allclose(model(x).numpy(), want.numpy() * x.max() * 0.5, rtol=1e-4, atol=1e-5)


def test_what_depends_on_values_is_no_part_of_a_trace() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    model = from_onnx(net(nodes, {}, (3,)))
    assert model(np.array([0, 1, 2], np.float32)).tolist() == [[1, 2]]
    with pytest.raises(TraceError, match="NonZero"):
        weft.compile(lambda x: model(x))(rows(3))


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_linear_weights_are_packed(scheme: str) -> None:
    """Of MatMul [K, N] and Gemm either way; a weight that something else reads too stays."""
    weights = {n: rows(64, 64, seed=i) for i, n in enumerate(("a", "b.weight", "c", "d"))}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["1"]),
        helper.make_node("Gemm", ["1", "b.weight"], ["2"], transB=1, alpha=0.1),
        helper.make_node("Gemm", ["2", "c"], ["3"], alpha=0.1),
        helper.make_node("MatMul", ["3", "d"], ["4"]),
        helper.make_node("Add", ["4", "d"], ["y"]),
    ]
    model = from_onnx(net(nodes, weights, (64, 64)))
    small = quantize_imported(model, scheme)
    assert "d" in small.state_dict() and "a" not in small.state_dict()
    packed = {n.rpartition(".")[0] for n in small.state_dict() if n.endswith(".codes")}
    assert packed == {"a", "b.weight", "c"}
    dense = copy.deepcopy(model)
    for name in packed:  # what the codes stand for
        parts = small
        for part in name.split("."):
            parts = getattr(parts, part)
        form = Scheme(scheme).form(64)
        matrix = dequantized(form, *(getattr(parts, p) for p in form.parts)).numpy()
        matrix = matrix if name == "b.weight" else matrix.T
        dense.load_state_dict(dense.state_dict() | {name: matrix})
    x = rows(64, 64, seed=9)
    want, have = dense(x).numpy(), small(x).numpy()
    np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
    assert 1e-4 < np.abs(have - model(x).numpy()).max() / np.abs(want).max() < 0.5
    again = quantize_imported(model, scheme)
    again.load_state_dict(small.state_dict())
    np.testing.assert_array_equal(again(x).numpy(), have)
