"""Gradients at the edges (zeros, ties, ends of domains, infinities, NaN) and between them, against
PyTorch in float64 and finite differences: eagerly, compiled, on devices, and once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from present import opened
from rows import covering

import weft
from weft.core.errors import GradientError
from weft.tensor import functional as F

INF, NAN = np.inf, np.nan
ANY = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.3, 9.0, -9.0, 1e-30, -1e-30, 1e-10, INF, -INF,
       NAN]  # fmt: skip
INNER = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1e-30,
    -1e-30,
    0.9999,
    -0.9999,
    1e-10,
    1.5,
    -1.5,
    INF,
    NAN,
]
ONE: dict[str, list[float]] = {
    **dict.fromkeys(
        ("abs", "sign", "ceil", "floor", "round", "trunc", "exp", "expm1", "sin", "cos", "tan"), ANY
    ),
    **dict.fromkeys(("erf", "sinh", "cosh", "atan", "asinh", "square"), ANY),
    "sigmoid": [v for v in ANY if abs(v) != 9],  # 1 - out cancels, as 1 - out² does
    "tanh": [v for v in ANY if abs(v) != 9],
    **dict.fromkeys(("reciprocal", "sqrt", "rsqrt", "log", "log2", "log10"), ANY),
    **dict.fromkeys(("asin", "acos", "atanh", "log1p"), INNER),
    "acosh": [1.0, 1.0 + 2**-20, 1.5, 9.0, 1e10, INF, NAN, 0.5],
}
TWO = ("maximum", "minimum", "pow", "divide", "multiply", "logaddexp", "hypot", "atan2")


DEVICES = ("eager", "cpu", "interp", "vulkan")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param if request.param == "eager" else opened(request.param).kind)


def ours(fn: Callable[..., Any], *xs: np.ndarray, device: str = "eager") -> list[np.ndarray]:
    both = weft.value_and_grad(lambda *ts: fn(*ts).sum(), argnums=tuple(range(len(xs))))
    run = both if device == "eager" else weft.compile(both, device=device)
    return [g.numpy() for g in run(*map(weft.tensor, xs))[1]]


def theirs(fn: Callable[..., Any], *xs: np.ndarray) -> list[np.ndarray]:
    ts = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in xs]
    fn(*ts).sum().backward()
    return [t.grad.numpy() for t in ts]


def check(got: np.ndarray, want: np.ndarray, rtol: float, *xs: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        right = np.isclose(got, want, rtol=rtol, atol=0, equal_nan=True)
        flushed = (np.abs(want) < 2e-38) & (np.abs(got) < 2e-38)  # a device may lose subnormals
    at = np.flatnonzero(~(right | flushed & (rtol > 1e-6)))
    where = [x.ravel()[at[:5]].tolist() for x in xs]
    assert not at.size, f"at {where}: {got.ravel()[at[:5]]}, not {want.ravel()[at[:5]]}"


@pytest.mark.parametrize("name", ONE)
def test_one_operand(name: str) -> None:
    x = np.array(ONE[name])
    check(ours(getattr(weft, name), x)[0], theirs(getattr(torch, name), x)[0], 1e-9, x)


@pytest.mark.parametrize("name,device", covering(ONE, DEVICES), indirect=["device"])
def test_one_operand_in_float32(name: str, device: str) -> None:
    x = np.array(ONE[name], np.float32)
    with np.errstate(over="ignore"):
        want = theirs(getattr(torch, name), x)[0].astype(np.float32)
    check(ours(getattr(weft, name), x, device=device)[0], want, 2e-5, x)


def pairs(values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("name", TWO)
def test_two_operands(name: str) -> None:
    x, y = pairs(ANY)
    fn, other = getattr(weft, name), getattr(torch, name, None) or torch.div
    if name == "atan2":  # PyTorch has 0 * inf there, and overflow of squares
        small = np.isfinite(x) & np.isfinite(y) & (np.abs(x) != 1e-30) & (np.abs(y) != 1e-30)
        x, y = x[small], y[small]
    for got, want in zip(ours(fn, x, y), theirs(other, x, y)):
        check(got, want, 1e-9, x, y)


@pytest.mark.parametrize(
    "name,device",
    covering(("logaddexp", "hypot", "atan2", "maximum", "minimum"), DEVICES),
    indirect=["device"],
)
def test_two_operands_in_float32(name: str, device: str) -> None:
    x, y = pairs([0.0, 1.0, -1.0, 0.5, 3.0, -20.0, 1e-3, 1e4])
    x, y = x.astype(np.float32), y.astype(np.float32)
    for got, want in zip(ours(getattr(weft, name), x, y, device=device), theirs(
        getattr(torch, name), x, y
    )):  # fmt: skip
        check(got, want, 2e-5, x, y)


def test_far_from_one_in_float32() -> None:
    """Where squares overflow or vanish in float32, and PyTorch's formulas with them."""
    x = np.float32([1e20, -1e25, 1e30])
    check(ours(weft.asinh, x)[0], 1.0 / np.abs(x.astype(np.float64)), 1e-5, x)
    check(ours(weft.acosh, np.abs(x))[0], 1.0 / np.abs(x.astype(np.float64)), 1e-5, x)
    y, x = np.float32([1e-30, 1e25, -3e-25]), np.float32([2e-30, 1e25, 4e-25])
    a, b = y.astype(np.float64), x.astype(np.float64)
    for got, want in zip(ours(weft.atan2, y, x), (b / (a * a + b * b), -a / (a * a + b * b))):
        check(got, want, 1e-5, y, x)


@pytest.mark.parametrize("name", ["tan", "atan", "asin", "acos", "sinh", "cosh", "asinh", "atanh",
                                  "expm1", "log1p"])  # fmt: skip
def test_twice_against_differences(name: str) -> None:
    fn, h = getattr(weft, name), 1e-5
    x = np.array([-0.8, -0.2, 0.0, 1e-8, 0.3, 0.7])

    def slope(at: np.ndarray, create_graph: bool = False) -> Any:
        t = weft.tensor(at, requires_grad=True)
        return t, weft.grad(fn(t).sum(), [t], create_graph=create_graph)[0]

    t, first = slope(x, create_graph=True)
    numeric = (fn(weft.tensor(x + h)).numpy() - fn(weft.tensor(x - h)).numpy()) / (2 * h)
    np.testing.assert_allclose(first.numpy(), numeric, rtol=1e-7, atol=1e-7)
    (second,) = weft.grad(first.sum(), [t])
    numeric = (slope(x + h)[1].numpy() - slope(x - h)[1].numpy()) / (2 * h)
    np.testing.assert_allclose(second.numpy(), numeric, rtol=1e-6, atol=1e-6)


def test_numbers_shapes_and_narrow_floats() -> None:
    """The rule sees operands of one shape and dtype; what made them so is differentiated too."""
    x = weft.tensor([[0.5], [2.0]], requires_grad=True)
    y = weft.tensor(np.float32([0.5, 1.0, 2.0]), requires_grad=True)
    weft.logaddexp(x, y).sum().backward()
    want = theirs(torch.logaddexp, x.detach().numpy(), y.detach().numpy())
    for t, w in zip((x, y), want):
        np.testing.assert_allclose(t.grad.numpy(), w, rtol=1e-6)
    for number in (2, 0.5):
        (g,) = ours(lambda t, n=number: weft.logaddexp(n, t), np.float32([0.5]))
        np.testing.assert_allclose(g, 1 / (1 + np.exp(number - 0.5)), rtol=1e-6)
    half = weft.tensor([0.0, 1.0], dtype="f16", requires_grad=True)
    weft.acos(half).sum().backward()
    assert half.grad.dtype == weft.float16 and half.grad.numpy().tolist() == [-1.0, -INF]


def test_copysign_and_sign_have_a_slope_alone() -> None:
    x, y = np.array([2.0, -2.0, 0.0, INF]), np.array([-1.0, -1.0, 1.0, -1.0])
    got = ours(weft.copysign, x, y)
    assert got[0].tolist() == [-1.0, 1.0, 0.0, -1.0] and not got[1].any()
    assert ours(weft.sign, np.array([0.0, 3.0, NAN]))[0].tolist() == [0.0, 0.0, 0.0]


ROWS = np.array([[1.0, 1, 1], [0, 0, 0], [-0.0, 0, 1], [3, 4, 0], [1e-200, 0, 0], [-INF, 0, 1]])
Y = np.array([[0.0, 1, 0.5]])
FOLDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "std": (lambda x: x.std(-1), lambda x: x.std(-1, correction=0)),
    "std sample": (lambda x: x.std(-1, correction=1), lambda x: x.std(-1)),
    "normalize": (F.normalize, torch.nn.functional.normalize),
    "max": (lambda x: x.max(-1), lambda x: x.amax(-1)),
    "min": (lambda x: x.min(-1), lambda x: x.amin(-1)),
    "prod": (lambda x: x.prod(-1), lambda x: x.prod(-1)),
    "clip": (lambda x: x.clip(0, 1), lambda x: x.clamp(0, 1)),
    "root": (lambda x: (x * x) ** 0.5, lambda x: (x * x) ** 0.5),
    "powers": (lambda x: x**3 + x**-1 + 2**x, lambda x: x**3 + x**-1 + 2**x),
    "log_softmax": (lambda x: x.log_softmax(-1)[:, :1], lambda x: x.log_softmax(-1)[:, :1]),
    "bce": (
        lambda x: F.binary_cross_entropy_with_logits(x, weft.tensor(Y)),
        lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, torch.tensor(Y)),
    ),
    "l1": (
        lambda x: F.l1_loss(x, weft.tensor(Y)),
        lambda x: torch.nn.functional.l1_loss(x, torch.tensor(Y)),
    ),
}


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize("name", FOLDS)
def test_rows_of_equals_and_zeros(name: str, row: int) -> None:
    fn, other = FOLDS[name]
    x = ROWS[row : row + 1]
    check(ours(fn, x)[0], theirs(other, x)[0], 1e-8, x)


@pytest.mark.parametrize("name", ["std", "normalize", "max", "clip"])
def test_rows_of_equals_compiled(name: str, device: str) -> None:
    fn, other = FOLDS[name]
    for x in ROWS[:4].astype(np.float32):
        check(ours(fn, x[None], device=device)[0], theirs(other, x[None])[0], 2e-5, x)


def test_a_nan_is_the_largest() -> None:
    """It has the gradient, as what PyTorch's max along an axis and its max_pool2d choose."""
    x = np.array([[NAN, 1.0, 2.0]])
    assert ours(lambda t: t.max(-1), x)[0].tolist() == [[1.0, 0.0, 0.0]]
    pooled = ours(lambda t: F.max_pool2d(t.reshape(1, 1, 1, 3), (1, 2)), x)[0]
    assert pooled.tolist() == [[1.0, 0.0, 0.0]]
    assert ours(lambda t: t.clip(0, 1), x)[0].tolist() == [[0.0, 1.0, 0.0]]
    y = weft.tensor([[0.0, 1.0, 0.5]])
    lost = ours(lambda t: F.binary_cross_entropy_with_logits(t, y), x.astype(np.float32))[0]
    assert np.isnan(lost[0, 0]) and np.isfinite(lost[0, 1:]).all()


def test_an_operand_written_since_is_named() -> None:
    state = weft.tensor(np.float32([0.5])).to("interp")
    state.requires_grad_()
    step = weft.compile(lambda: state.assign(state * 2.0), device="interp")
    with weft.no_grad():
        step()
    y = weft.log1p(state).sum()
    with weft.no_grad():
        step()
    with pytest.raises(GradientError, match="backward through log1p"):
        y.backward()
