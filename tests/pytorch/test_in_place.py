"""In-place methods and functions of weft.torch do what PyTorch's do, and return their argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft.torch

# in place in PyTorch, without a counterpart here
LACKING = {"embedding_renorm_", "feature_dropout_", "resize_as_sparse_", "as_strided_"}
# drawn, or of another shape
APART = {"alpha_dropout_", "dropout_", "feature_alpha_dropout_", "rrelu_", "resize_as_"}
X = np.linspace(-2, 2, 9, dtype=np.float32).reshape(3, 3)
METHODS = """arctan2 digamma erfinv greater greater_equal heaviside less less_equal lgamma not_equal
nextafter mvlgamma polygamma sgn hardshrink prelu"""
ALONE = "digamma erfinv lgamma mvlgamma polygamma sgn hardshrink"  # take no second tensor
ARGUMENTS: list[tuple[Any, ...]] = [(), (1.5,), (X + 1.25,), (0.25, 0.5)]


def functions(home: Any) -> list[str]:
    return [n for n in dir(home) if n[-1] == "_" and n[0] != "_" and n not in LACKING]


def result(lib: Any, function: Any, args: tuple[Any, ...], x: np.ndarray) -> Any:
    """What a call leaves in a tensor, seen through a view; None if it raises."""
    to, given = lib.tensor(x), [lib.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
    view = to.view(-1)
    try:
        made = function(to, *given)
    except (RuntimeError, TypeError, IndexError):
        return None
    assert made is to
    return view.numpy()


def test_every_function_that_is_in_place_is_there() -> None:
    functional = [n for n in functions(torch.nn.functional) if hasattr(torch.nn.functional, n)]
    assert [n for n in functions(torch) if n not in vars(weft.torch)] == []
    assert [n for n in functional if not hasattr(weft.torch.nn.functional, n)] == []


@pytest.mark.parametrize("name", [n for n in functions(torch) if n not in APART])
def test_functions(name: str) -> None:
    compared = 0
    for x in (X, np.arange(1, 7).reshape(2, 3)):
        for args in (*ARGUMENTS, (np.full(x.shape, 2),)):
            expected = result(torch, getattr(torch, name), args, x)
            if expected is None or (name == "logit_" and args == (1.5,)):  # eps beyond 1/2
                continue
            found = result(weft.torch, getattr(weft.torch, name), args, x)
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
            compared += 1
    assert compared or name in ("addmv_", "index_put_")


def test_methods() -> None:
    for name in METHODS.split():
        method = name if name in ("hardshrink", "prelu") else f"{name}_"
        x = np.abs(X) / 3 + (1.25 if name == "mvlgamma" else 0.125)
        args: tuple[Any, ...] = {"mvlgamma": (2,), "polygamma": (1,)}.get(name, ())
        if name not in ALONE.split():
            args = (np.full(3, 0.25, np.float32),)
        found, expected = (
            getattr(lib.tensor(x), method)(*[
                lib.tensor(a) if isinstance(a, np.ndarray) else a for a in args
            ]).numpy()
            for lib in (weft.torch, torch)
        )  # fmt: skip
        np.testing.assert_allclose(found, expected, rtol=2e-5, err_msg=name)


def test_gradients_and_views() -> None:
    def run(lib: Any) -> Any:
        x = lib.tensor(X, requires_grad=True)
        y = x * 2
        lib.nn.functional.leaky_relu_(lib.neg_(y[1:]))
        y.sum().backward()
        return y.detach().numpy(), x.grad.numpy()

    for found, expected in zip(run(weft.torch), run(torch)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_refusals() -> None:
    with pytest.raises(TypeError, match="the result is"):
        weft.torch.exp_(weft.torch.tensor([1, 2]))
    with pytest.raises(RuntimeError):
        weft.torch.nn.functional.leaky_relu_(weft.torch.ones(2, requires_grad=True))
