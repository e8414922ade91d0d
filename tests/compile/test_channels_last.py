"""Convolutions get channels last and frozen weights become formulas, and nothing changes but speed:
against the eager oracle, over what may stand around a convolution."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rows import by_turns

import weft
from weft.compile.passes import groups_of
from weft.core.caps import PRESETS
from weft.core.errors import FileFormatError, ShapeError
from weft.kernel.printer import text
from weft.program import serial
from weft.program.formula import Formula, FormulaStep

F = weft.functional


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


W, V, B = (weft.tensor(numbers(*s)) for s in ((6, 4, 3, 3), (6, 1, 3, 3), (6,)))
X = numbers(2, 4, 8, 6)


def conv(x: Any, **more: Any) -> Any:
    return F.conv2d(x, W, B, padding=1, **more)


AROUND: dict[str, Callable[[Any], Any]] = {
    "alone": conv,
    "two": lambda x: F.conv2d(conv(x).relu(), V, padding=1, groups=6),
    "residual": lambda x: (conv(x) + conv(x * 2)).relu(),
    "mixed order": lambda x: conv(x) + x.reshape(2, 4, 48).sum(1).reshape(2, 1, 8, 6),
    "pools": lambda x: F.avg_pool2d(F.max_pool2d(conv(x), 3, 2, 1), 2),
    "mean": lambda x: conv(x).mean((2, 3)),
    "mean of channels": lambda x: conv(x).mean(1),
    "mean of rows": lambda x: conv(x).sum(2) - conv(x).max(3).sum(2, keepdims=True),
    "concat": lambda x: weft.cat([conv(x), x], 1),
    "slice": lambda x: conv(x)[:, 1:4, ::2, 1:],
    "pad": lambda x: conv(x).pad([(0, 0), (1, 2), (0, 1), (3, 0)], 2.5),
    "gate": lambda x: conv(x) * conv(x).mean((2, 3), keepdims=True).sigmoid(),
    "shuffle": lambda x: F.pixel_shuffle(conv(x)[:, :4], 2),
    "resize": lambda x: F.interpolate(conv(x), scale_factor=2, mode="bilinear"),
    "transposed": lambda x: conv(x).permute(0, 2, 3, 1),
    "softmax": lambda x: conv(x).softmax(1),
    "windows": lambda x: F.adaptive_avg_pool2d(conv(x), (4, 3)),
    "one window": lambda x: F.adaptive_avg_pool2d(conv(x), 1).flatten(1),
    "places": lambda x: conv(x).flatten(2).softmax(1),
    "places of one": lambda x: conv(x[:1]).reshape(6, 48).sum(1),
    "channels cut": lambda x: conv(x).reshape(2, 2, 3, 8, 6).sum(2),
    "mixed axes": lambda x: conv(x).reshape(2, 12, 24).sum(1),
    "line": lambda x: F.conv1d(x[:, :, 0], W[:, :, 0], padding=1),
    "volume": lambda x: F.conv3d(x.unsqueeze(2), W.unsqueeze(2)),
    "groups": lambda x: F.conv2d(conv(x), W[:, :3], groups=2),
    "own weights": lambda x: F.conv2d(x, x[:, :, :3, :3]),
    "two results": lambda x: (conv(x), conv(x).relu()),
    "no batch": lambda x: conv(x[:0]),
}


@pytest.mark.parametrize("name,frozen", by_turns(AROUND, [False, True]))
def test_meaning(name: str, frozen: bool) -> None:
    want = AROUND[name](weft.tensor(X))
    got = weft.compile(AROUND[name], frozen=frozen)(X)
    both = zip(got, want) if isinstance(got, tuple) else [(got, want)]
    for a, b in both:
        assert a.shape == b.shape
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=2e-5)


SCALES = [numbers(6) + 2, numbers(6) - 1]
STATE = [weft.tensor(v) for v in (numbers(6), np.abs(numbers(6)) + 1, *SCALES)]


def test_a_batch_norm_goes_into_the_weights() -> None:
    def net(x: Any) -> Any:
        return F.batch_norm(conv(x), *STATE).relu()

    fn = weft.compile(net, frozen=True)
    np.testing.assert_allclose(fn(X).numpy(), net(weft.tensor(X)).numpy(), rtol=1e-5, atol=2e-5)
    (program,) = fn.programs()
    labels = [s.label for s in program.steps]
    assert sum("conv_last" in s for s in labels) == 1 and not any("mul" in s for s in labels)
    assert len(program.formulas) == 2  # weights and shift
    fn(X[:1])
    first, second = fn.sessions()
    shared = [first.weights[n] is second.weights[n] for n in program.formulas]
    assert all(shared)


def test_what_is_not_promised_is_computed_in_each_run() -> None:
    w = weft.tensor(W.numpy().copy())
    fn = weft.compile(lambda x: F.conv2d(x, w))
    fn(X)
    w.assign(w * 2)
    np.testing.assert_allclose(fn(X).numpy(), F.conv2d(weft.tensor(X), w).numpy(), atol=2e-5)
    assert not fn.programs()[0].formulas


def test_a_mean_of_places_reads_channels_side_by_side() -> None:
    """An adaptive pool cuts axes into windows; that keeps the channels last."""
    fn = weft.compile(lambda x: F.adaptive_avg_pool2d(conv(x), 1), frozen=True)
    fn(X)
    (program,) = fn.programs()
    (found,) = [text(k) for k in program.kernels if k.name.startswith("reduce")]
    assert "load" in found and not re.search(r"let at\w*: i32x", found)  # no places gathered


def test_gradients_go_through() -> None:
    def step(x: Any) -> Any:
        w = W.detach().requires_grad_()
        return weft.grad((F.conv2d(x, w, padding=1) ** 2).sum(), [w])[0]

    got, want = weft.compile(step)(X).numpy(), step(weft.tensor(X)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_frozen_windows_of_3_by_3_take_fewer_products() -> None:
    """Where the CPU has registers for it, and then in every batch alike."""
    x, w = numbers(3, 16, 9, 10), weft.tensor(numbers(24, 16, 3, 3) * 0.1)
    shift = [weft.tensor(v) for v in (numbers(24), np.abs(numbers(24)) + 1)]

    def net(x: Any) -> Any:
        return F.batch_norm(F.conv2d(x, w, padding=1), *shift).relu().mean((2, 3))

    fn = weft.compile(net, frozen=True)
    got = fn(x).numpy()
    np.testing.assert_allclose(got, net(weft.tensor(x)).numpy(), rtol=1e-5, atol=2e-5)
    labels = " ".join(s.label for s in fn.programs()[0].steps)
    wanted = weft.backends.registry.host().caps.registers >= 32
    assert ("winograd_last" in labels) == wanted and ("conv_last" in labels) != wanted
    np.testing.assert_array_equal(fn(x[1:2]).numpy(), got[1:2])


# -- formulas -------------------------------------------------------------------------------------


def formula() -> Formula:
    steps = (
        FormulaStep("reshape", (0,), {"shape": (2, 1)}),
        FormulaStep("broadcast", (1,), {"shape": (2, 3)}),
        FormulaStep("const", (), {"value": 2.0, "dtype": "float32", "shape": ()}),
        FormulaStep("broadcast", (3,), {"shape": (2, 3)}),
        FormulaStep("mul", (2, 4), {}),
        FormulaStep("transpose", (5,), {"perm": (1, 0)}),
        FormulaStep("pad", (6,), {"low": (0, 0), "high": (1, 0), "value": 0.0}),
        FormulaStep("reshape", (7,), {"shape": (4, 1, 2)}),
        FormulaStep("sum", (8,), {"axes": (1,)}),
    )
    return Formula((("w", (2,), "float32"),), steps)


def test_a_formula() -> None:
    made, w = formula(), np.array([1, -3], np.float32)
    want = np.array([[2, -6]] * 3 + [[0, 0]], np.float32)
    np.testing.assert_array_equal(made.value({"w": w}), want)
    assert made.check((4, 2), weft.float32) is None
    assert Formula.read(made.plain()) == made
    with pytest.raises(ShapeError, match="'w'"):
        made.value({"w": w[:1]})


@pytest.mark.parametrize("number,op,operands,attrs", [
    (0, "reshape", (0,), {"shape": (3, 1)}), (0, "reshape", (9,), {"shape": (2, 1)}),
    (0, "reshape", (0,), {"shape": (-2, -1)}), (1, "broadcast", (1,), {"shape": (1 << 40, 3)}),
    (1, "broadcast", (1,), {"shape": (2,)}), (4, "mul", (2, 3), {}), (4, "mul", (2,), {}),
    (4, "system", (2, 4), {}), (5, "transpose", (5,), {"perm": (0, 0)}), (5, "transpose", (5,), {}),
    (6, "pad", (6,), {"low": (-1, 0), "high": (1, 0), "value": 0.0}),
    (8, "sum", (8,), {"axes": (3,)}), (8, "sum", (8,), {"axes": (1, 1)}),
    (8, "sum", (8,), {"axes": (0, 1)}), (8, "sum", (7, 8), {"axes": (1,)}),
    (2, "const", (), {"value": [1, 2], "dtype": "float32", "shape": ()}),
    (2, "const", (), {"value": 1, "dtype": "nothing", "shape": ()}),
])  # fmt: skip
def test_a_formula_that_lies(number: int, op: str, operands: Any, attrs: Any) -> None:
    made = formula()
    steps = list(made.steps)
    steps[number] = FormulaStep(op, operands, attrs)
    assert made._replace(steps=tuple(steps)).check((4, 2), weft.float32) is not None


def test_a_program_whose_formula_lies_is_refused() -> None:
    fn = weft.compile(lambda x: F.batch_norm(conv(x), *STATE), frozen=True)
    fn(X)
    (program,) = fn.programs()
    name = next(iter(program.formulas))
    broken = program.formulas[name]._replace(steps=())
    program.meta["formulas"][name] = broken  # type: ignore[index]
    with pytest.raises(FileFormatError, match="formula"):
        serial.loads(serial.dumps(program))


def test_a_transposed_convolution_is_convolutions_of_its_phases() -> None:
    """Without inserted zeros or sums of windows, also where it is a convolution's gradient, and
    where a run computes the weights."""
    given = [weft.tensor(numbers(*s)) for s in ((2, 16, 20, 20), (16, 16, 4, 4))]

    def back(x: Any, w: Any) -> Any:
        return F.conv_transpose2d(x, w, stride=2, padding=1)

    def grad(x: Any, w: Any) -> Any:
        return weft.func.grad(lambda x: F.conv2d(x, w, stride=2, padding=1).sin().sum())(x)

    for fn in (back, grad):
        compiled = weft.compile(fn)
        found = compiled(*given)
        (program,) = compiled.programs()
        labels = [s.label for s in program.steps]
        assert sum("conv_last" in label for label in labels) == 4 + (fn is grad), labels
        assert not any("sum" in label for label in labels), labels
        np.testing.assert_allclose(found.numpy(), fn(*given).numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_depthwise_gradient_reads_its_image_channels_last(transposed: bool) -> None:
    """As its convolution does: the kernel's rows lie in memory as the results' gradient does."""
    name = "conv_transpose2d" if transposed else "conv2d"
    x, w = numbers(2, 8, 6, 6), numbers(8, 1, 3, 3)

    more = {"stride": 2} if transposed else {}
    weight = weft.tensor(w, requires_grad=True)

    def slope(x: Any) -> Any:
        y = getattr(F, name)(x, weight, padding=1, groups=8, **more)
        return weft.grad((y * y).sum(), [weight])[0]

    graph = weft.trace(slope, [weft.Spec(x.shape)])
    groups = groups_of(graph, PRESETS["cpu-avx512"])
    sums = [g for g in groups if g.kind == "reduce" and g.outputs[0].size == w.size]
    read = [tuple(n.shape) for g in sums for n in g.inputs if n.size > w.size]
    assert read and all(shape[-1] == 8 for shape in read), read
    got = weft.compile(slope)(weft.tensor(x)).numpy()
    double = [torch.tensor(a, dtype=torch.float64) for a in (x, w)]
    double[1].requires_grad_()
    made = getattr(torch.nn.functional, name)(*double, padding=1, groups=8, **more)
    made.square().sum().backward()
    np.testing.assert_allclose(got, double[1].grad.numpy(), rtol=2e-5, atol=2e-5)
