"""weft.func against torch.func and float64 differences: alone, nested, in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import func, nn
from weft.core.errors import GradientError, ShapeError, WeftError

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 3))
W = RNG.standard_normal((3, 5))
V = RNG.standard_normal((4, 3))


def layer(x: Any, w: Any) -> Any:
    """Of tensors of weft or PyTorch alike."""
    return ((x @ w).tanh() * 0.5 + (x @ w) * (x @ w)).sum(-1)


def loss(x: Any, w: Any) -> Any:
    return layer(x, w).sum()


def row(x: Any) -> Any:
    return (x * x).cumsum(-1).exp().log() * x


Make = Callable[[Any, Callable[[Any], Any]], Callable[..., Any]]
# name -> (makes the function of (x, w) of a library's transforms, given its constants)
NESTED: dict[str, Make] = {
    "grad": lambda F, _: F.grad(loss, argnums=1),
    "both": lambda F, _: F.grad(loss, argnums=(0, 1)),
    "grad and value": lambda F, _: F.grad_and_value(loss),
    "grad of grad": lambda F, _: F.grad(lambda x, w: (F.grad(loss)(x, w) ** 2).sum(), argnums=1),
    "third": lambda F, _: F.grad(
        lambda x, w: F.grad(lambda x: F.grad(loss)(x, w).sum())(x).sum(), argnums=1
    ),
    "vmap of grad": lambda F, _: F.vmap(F.grad(loss, argnums=1), in_dims=(0, None)),
    "vmap of grad by both": lambda F, _: F.vmap(F.grad(loss, argnums=(0, 1)), in_dims=(0, None)),
    "grad of vmap": lambda F, _: F.grad(
        lambda x, w: (F.vmap(loss, (0, None))(x, w) ** 2).sum(), argnums=1
    ),
    "grad of vmap of grad": lambda F, _: F.grad(
        lambda x, w: (F.vmap(F.grad(loss), (0, None))(x, w) ** 2).sum(), argnums=1
    ),
    "vmap of vmap": lambda F, _: F.vmap(
        F.vmap(lambda x, w: (x * w).sum(), (None, 1)), (0, None), out_dims=1
    ),
    "jacrev": lambda F, _: F.jacrev(layer, argnums=1),
    "jacfwd": lambda F, _: F.jacfwd(layer, argnums=(0, 1)),
    "jacobian of a vmap": lambda F, _: F.jacrev(lambda x, w: F.vmap(row)(x)),
    "vmap of jacobians": lambda F, _: lambda x, w: F.vmap(F.jacfwd(row))(x),
    "hessian": lambda F, _: F.hessian(loss),
    "hessian by both": lambda F, _: F.hessian(loss, argnums=(0, 1)),
    "vmap of hessian": lambda F, _: F.vmap(F.hessian(loss), (0, None)),
    "jacrev of jacfwd": lambda F, _: F.jacrev(F.jacfwd(loss)),
    "jvp": lambda F, c: lambda x, w: F.jvp(lambda x: layer(x, w), (x,), (c(V),)),
    "jvp of grad": lambda F, c: lambda x, w: F.jvp(
        lambda x: F.grad(loss)(x, w), (x,), (c(V),)
    ),
    "grad of jvp": lambda F, c: F.grad(
        lambda x, w: F.jvp(lambda x: layer(x, w), (x,), (c(V),))[1].sum(), argnums=1
    ),
    "jvp of jvp": lambda F, c: lambda x, w: F.jvp(
        lambda x: F.jvp(lambda x: layer(x, w), (x,), (c(V),))[1], (x,), (c(V),)
    ),
    "vmap of jvp": lambda F, c: lambda x, w: F.vmap(
        lambda x, v: F.jvp(row, (x,), (v,))
    )(x, c(V)),
    "jvp of vmap": lambda F, c: lambda x, w: F.jvp(F.vmap(row), (x,), (c(V),)),
    "vjp": lambda F, c: lambda x, w: F.vjp(layer, x, w)[1](c(V[:, 0])),
    "vmap of a pullback": lambda F, c: lambda x, w: F.vmap(F.vjp(layer, x, w)[1])(c(V.T)),
    "grad of a pullback": lambda F, c: F.grad(
        lambda x, w: sum((g**2).sum() for g in F.vjp(layer, x, w)[1](c(V[:, 0])))
    ),
    "linearize": lambda F, c: lambda x, w: F.vmap(F.linearize(row, x)[1])(
        c(np.stack([V, 2 * V]))
    ),
}  # fmt: skip


def flat(x: Any) -> list[np.ndarray]:
    if isinstance(x, list | tuple):
        return [a for part in x for a in flat(part)]
    return [np.asarray(x.detach().numpy())]


def close(got: Any, want: Any, rtol: float = 1e-4) -> None:
    got, want = flat(got), flat(want)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * max(1.0, np.abs(w).max()))


def in_weft(a: np.ndarray) -> Any:
    return weft.tensor(a.astype(np.float32))


@pytest.mark.parametrize("name", NESTED)
def test_nested_as_pytorch(name: str) -> None:
    theirs = NESTED[name](torch.func, torch.tensor)(torch.tensor(X), torch.tensor(W))
    ours = NESTED[name](func, in_weft)
    close(ours(in_weft(X), in_weft(W)), theirs)
    close(weft.compile(ours, "cpu")(in_weft(X), in_weft(W)), theirs)


@pytest.mark.parametrize("name", ["grad of vmap of grad", "vmap of hessian", "jvp of grad"])
def test_on_a_gpu(name: str) -> None:
    if not any(d.kind == "vulkan" and d.available for d in weft.devices()):
        pytest.skip("no vulkan")
    ours = NESTED[name](func, in_weft)
    want = ours(in_weft(X), in_weft(W))
    close(weft.compile(ours, "vulkan")(in_weft(X), in_weft(W)), want)
    if name == "grad of vmap of grad":
        close(ours(in_weft(X).to("vulkan"), in_weft(W).to("vulkan")), want)


def test_float64_differences() -> None:
    x, v, step = weft.tensor(X), weft.tensor(V), 1e-6

    def fn(x: Any) -> Any:
        return (x.sin() * x.exp() / (1 + x * x)).sum()

    near = [fn(weft.tensor(X + s * step * V)).item() for s in (1, -1)]
    by_difference = (near[0] - near[1]) / (2 * step)
    assert func.jvp(fn, (x,), (v,))[1].item() == pytest.approx(by_difference, rel=1e-8)
    slopes = [func.grad(fn)(weft.tensor(X + s * step * V)).numpy() for s in (1, -1)]
    turned = func.jvp(func.grad(fn), (x,), (v,))[1].numpy()
    np.testing.assert_allclose(turned, (slopes[0] - slopes[1]) / (2 * step), rtol=1e-6, atol=1e-8)


def test_with_the_tape_of_backward() -> None:
    """Tensors that require gradients outside get those of what transforms compute of them."""
    w, v = weft.tensor(W, requires_grad=True), torch.tensor(W, requires_grad=True)
    x, y = weft.tensor(X), torch.tensor(X)
    (func.vmap(func.grad(lambda x: loss(x, w)))(x) ** 2).sum().backward()
    (torch.func.vmap(torch.func.grad(lambda y: loss(y, v)))(y) ** 2).sum().backward()
    close(w.grad, v.grad, 1e-10)
    assert not func.grad(loss)(x, weft.tensor(W)).requires_grad
    with weft.no_grad():
        close(func.grad(loss)(x, w), torch.func.grad(loss)(y, v))
        assert not func.grad(loss)(x, w).requires_grad
    assert func.grad(loss)(x, w).requires_grad


def test_nested_arguments_and_aux() -> None:
    def fn(p: Any, x: Any) -> Any:
        y = x @ p["w"] + p["b"][0]
        return (y * y).sum(), {"y": y}

    p = {"w": in_weft(W), "b": [in_weft(W[0])]}
    (value, aux), slopes = func.value_and_grad(fn, has_aux=True)(p, in_weft(X))
    q = {"w": torch.tensor(W), "b": [torch.tensor(W[0])]}
    theirs, (_, their_aux) = torch.func.grad_and_value(fn, has_aux=True)(q, torch.tensor(X))
    close([slopes["w"], slopes["b"][0], aux["y"]], [theirs["w"], theirs["b"][0], their_aux["y"]])
    assert not aux["y"].requires_grad and value.size == 1
    found, aux = func.jacfwd(fn, has_aux=True)(p, in_weft(X))
    close(found["w"], torch.func.jacfwd(fn, has_aux=True)(q, torch.tensor(X))[0]["w"])
    found, aux = func.jacrev(fn, has_aux=True)(p, in_weft(X))
    close([found["b"][0], aux["y"]], [theirs["b"][0], their_aux["y"]])
    out, pull, aux = func.vjp(lambda x: (x * 2, x), in_weft(X), has_aux=True)
    close([out, aux, pull(in_weft(V))], [2 * torch.tensor(X), torch.tensor(X), 2 * torch.tensor(V)])


def test_compiled_functions_are_a_part() -> None:
    inner = weft.compile(loss, "cpu")
    close(func.grad(inner, 1)(in_weft(X), in_weft(W)), func.grad(loss, 1)(in_weft(X), in_weft(W)))
    rows = func.vmap(inner, (0, None))
    close(rows(in_weft(X), in_weft(W)), layer(in_weft(X), in_weft(W)))
    close(weft.compile(rows)(in_weft(X), in_weft(W)), layer(in_weft(X), in_weft(W)))


def test_checkpoint_inside() -> None:
    def kept(x: Any, w: Any) -> Any:
        return weft.checkpoint(layer, x, w).sum()

    x, w = in_weft(X), in_weft(W)
    close(func.grad(kept, 1)(x, w), func.grad(loss, 1)(x, w))
    rows = func.vmap(func.grad(kept, 1), (0, None))
    close(rows(x, w), func.vmap(func.grad(loss, 1), (0, None))(x, w))
    total = func.grad(lambda x, w: (func.vmap(kept, (0, None))(x, w) ** 2).sum(), 1)
    plain = func.grad(lambda x, w: (func.vmap(loss, (0, None))(x, w) ** 2).sum(), 1)
    close(total(x, w), plain(x, w))
    close(weft.compile(total, "cpu")(x, w), plain(x, w))
    close(func.hessian(kept)(x, w), func.hessian(loss)(x, w))


@pytest.mark.parametrize("make", [lambda: nn.LSTM(3, 4), lambda: nn.GRU(3, 4)])
def test_gradients_of_each_example_of_a_recurrent_net(make: Any) -> None:
    net = make()
    params = dict(net.named_parameters())

    def fn(p: Any, x: Any) -> Any:
        return (func.functional_call(net, p, x)[0] ** 2).sum()

    x = in_weft(RNG.standard_normal((4, 2, 3)))
    mapped = func.vmap(func.grad(fn), (None, 1))(params, x)
    for i in range(2):
        single = func.grad(fn)(params, x[:, i])
        for name, g in mapped.items():
            close(g[i], single[name])

    # a derivative through those of each example
    def spread(p: Any) -> Any:
        return sum((g**2).sum() for g in func.vmap(func.grad(fn), (None, 1))(p, x).values())

    def by_loop(p: Any) -> Any:
        each = [func.grad(fn)(p, x[:, i]) for i in range(2)]
        return sum((g**2).sum() for slopes in each for g in slopes.values())

    ours, want = func.grad(spread)(params), func.grad(by_loop)(params)
    for name in ours:
        close(ours[name], want[name], 1e-3)


def refused(fn: Any, *args: Any) -> str:
    with pytest.raises(WeftError) as error:
        fn(*args)
    return str(error.value)


def test_errors_name_what_to_do() -> None:
    x = in_weft(X)
    assert "reduce it to one element" in refused(func.grad(layer), x, in_weft(W))
    assert "argument 0 is not a Tensor" in refused(func.grad(lambda x: x), 3.0)
    assert "argnums 2 for 1" in refused(func.grad(lambda x: x.sum(), 2), x)
    assert "(x,) and (v,)" in refused(func.jvp, loss, x, x)
    assert "a tangent is" in refused(func.jvp, row, (x,), (x[0],))
    assert "cotangent" in refused(func.vjp(row, x)[1], x[0])
    with pytest.raises(GradientError, match="has_aux"):
        func.grad(lambda x: x.sum(), has_aux=True)(x)
    with pytest.raises(ShapeError, match="nest in another way"):
        func.vjp(row, x)[1]((x, x))


def test_checkpoint_of_a_function_that_holds_what_it_is_differentiated_by() -> None:
    x, w = in_weft(X), in_weft(W)

    def kept(w: Any) -> Any:
        return weft.checkpoint(lambda t: layer(t, w), x).sum()

    close(func.grad(kept)(w), func.grad(loss, 1)(x, w))
    close(func.hessian(kept)(w), func.hessian(loss, 1)(x, w))
    twice = func.grad(lambda w: (func.grad(kept)(w) ** 2).sum())
    close(twice(w), func.grad(lambda w: (func.grad(loss, 1)(x, w) ** 2).sum())(w))
    rows = func.vmap(lambda x: func.grad(lambda w: weft.checkpoint(layer, x, w).sum())(w))
    close(rows(x), func.vmap(func.grad(loss, 1), (0, None))(x, w))
