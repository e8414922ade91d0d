"""torch.nn.utils.parametrize and parametrizations, and the older norms, beside PyTorch's."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.errors import ShapeError, UsageError

LAYERS: dict[str, Any] = {
    "linear": (lambda m: m.nn.Linear(5, 3), (4, 5)),
    "square": (lambda m: m.nn.Linear(4, 4), (2, 4)),
    "tall": (lambda m: m.nn.Linear(3, 5, bias=False), (4, 3)),
    "conv": (lambda m: m.nn.Conv1d(2, 3, 3), (2, 2, 7)),
    "transposed": (lambda m: m.nn.ConvTranspose1d(2, 3, 3), (2, 2, 5)),
}
ORTHOGONAL = list(itertools.product(["matrix_exp", "cayley", "householder"], [True, False]))
CASES = [
    *((layer, f"{kind}_norm", {}) for layer in LAYERS for kind in ("weight", "spectral")),
    ("linear", "weight_norm", {"dim": None}), ("conv", "weight_norm", {"dim": 1}),
    ("linear", "spectral_norm", {"n_power_iterations": 3, "dim": 1}),
    *((layer, "orthogonal", {"orthogonal_map": kind, "use_trivialization": on})
      for layer in ("linear", "square", "tall") for kind, on in ORTHOGONAL),
]  # fmt: skip


def both(layer: str) -> tuple[Any, Any, np.ndarray]:
    """A layer in both libraries with the same weights, and an input."""
    make, shape = LAYERS[layer]
    mine, want = make(torch), make(theirs)
    mine.load_state_dict({k: v.numpy() for k, v in want.state_dict().items()})
    return mine, want, np.random.default_rng(2).standard_normal(shape).astype("f4")


def agree(mine: Any, want: Any, x: np.ndarray) -> None:
    """The same result and gradients."""
    for module, lib in ((mine, torch), (want, theirs)):
        module.zero_grad()
        (module(lib.tensor(x)) ** 2).sum().backward()
    got, known = mine(torch.tensor(x)), want(theirs.tensor(x))
    np.testing.assert_allclose(got.detach().numpy(), known.detach().numpy(), 1e-4, 2e-5)
    there = dict(want.named_parameters())
    assert [name for name, _ in mine.named_parameters()] == list(there)
    for name, p in mine.named_parameters():
        if there[name].grad is not None:
            np.testing.assert_allclose(p.grad.numpy(), there[name].grad.numpy(), 1e-3, 2e-4)


def carry(mine: Any, want: Any) -> None:
    state = want.state_dict()
    assert list(mine.state_dict()) == list(state)
    mine.load_state_dict({k: v.numpy() for k, v in state.items()})


@pytest.mark.parametrize(("layer", "name", "options"), CASES, ids=str)
def test_parametrizations(layer: str, name: str, options: dict[str, Any]) -> None:
    mine, want, x = both(layer)
    for module, lib in ((mine, torch), (want, theirs)):
        getattr(lib.nn.utils.parametrizations, name)(module, **options)
    if name == "weight_norm" or "householder" in options.values():
        np.testing.assert_allclose(  # the same start, before anything is carried over
            mine.weight.detach().numpy(), want.weight.detach().numpy(), 1e-5, 1e-6
        )
    theirs.manual_seed(1)
    with theirs.no_grad():
        for p in want.parameters():
            p.add_(0.2 * theirs.randn(p.shape))
    carry(mine, want)
    assert repr(mine) == repr(want)
    agree(mine, want, x)
    carry(mine, want)  # what spectral norm moved
    mine.eval(), want.eval()
    known = want(theirs.tensor(x)).detach().numpy()
    if options.get("orthogonal_map") not in ("matrix_exp", "cayley"):  # which run on the host
        with torch.no_grad():
            compiled = torch.compile(mine)(torch.tensor(x)).numpy()
        np.testing.assert_allclose(compiled, known, 1e-4, 2e-5)
    again = copy.deepcopy(mine)(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(again, known, 1e-4, 2e-5)
    for module, lib in ((mine, torch), (want, theirs)):
        lib.nn.utils.parametrize.remove_parametrizations(module, "weight")
        assert type(module) is type(LAYERS[layer][0](lib))
    assert list(mine.state_dict()) == list(want.state_dict())
    np.testing.assert_allclose(mine(torch.tensor(x)).detach().numpy(), known, 1e-4, 2e-5)


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("layer", LAYERS)
def test_older_norms(layer: str, name: str) -> None:
    mine, want, x = both(layer)
    for module, lib in ((mine, torch), (want, theirs)):
        getattr(lib.nn.utils, name)(module)
    carry_sorted = {k: v.numpy() for k, v in want.state_dict().items()}
    assert sorted(mine.state_dict()) == sorted(carry_sorted)
    mine.load_state_dict(carry_sorted)
    mine.eval(), want.eval()
    known = want(theirs.tensor(x)).detach().numpy()
    np.testing.assert_allclose(mine(torch.tensor(x)).detach().numpy(), known, 1e-4, 2e-5)
    getattr(torch.nn.utils, f"remove_{name}")(mine)
    np.testing.assert_allclose(mine(torch.tensor(x)).detach().numpy(), known, 1e-4, 2e-5)
    assert set(mine.state_dict()) == set(LAYERS[layer][0](torch).state_dict())


def symmetric(lib: Any) -> Any:
    class Symmetric(lib.nn.Module):  # type: ignore[misc]
        def forward(self, X: Any) -> Any:
            return X.triu() + X.triu(1).transpose(-1, -2)

        def right_inverse(self, A: Any) -> Any:
            return A.triu()

    return Symmetric()


def doubled(lib: Any) -> Any:
    class Doubled(lib.nn.Module):  # type: ignore[misc]
        def forward(self, X: Any) -> Any:
            return 2 * X

    return Doubled()


def test_ones_own_parametrizations_chain_and_train() -> None:
    mine, want, x = both("square")
    for module, lib in ((mine, torch), (want, theirs)):
        parametrize = lib.nn.utils.parametrize
        held = module.weight
        opt = lib.optim.SGD(module.parameters(), lr=0.1)
        assert parametrize.register_parametrization(module, "weight", symmetric(lib)) is module
        assert module.parametrizations.weight.original is held  # the optimiser's leaf
        parametrize.register_parametrization(module, "weight", doubled(lib))
        for _ in range(2):
            opt.zero_grad()
            module(lib.tensor(x)).square().mean().backward()
            opt.step()
        assert parametrize.is_parametrized(module, "weight")
        assert not parametrize.is_parametrized(module, "bias")
        assert parametrize.type_before_parametrizations(module) is lib.nn.Linear
        with parametrize.cached():
            assert module.weight is module.weight
    agree(mine, want, x)
    other, there, _ = both("square")
    for module, lib in ((other, torch), (there, theirs)):
        lib.nn.utils.parametrize.register_parametrization(module, "weight", symmetric(lib))
        module.weight = lib.tensor(np.diag([1.0, 2.0, 3.0, 4.0]).astype("f4"))
    np.testing.assert_array_equal(other.weight.detach().numpy(), there.weight.detach().numpy())
    torch.nn.utils.parametrize.remove_parametrizations(other, "weight", leave_parametrized=False)
    assert isinstance(other.weight, torch.nn.Parameter)


def test_what_cannot_be_parametrized_says_why() -> None:
    utils, layer = torch.nn.utils, torch.nn.Linear(3, 2)

    class Cut(torch.nn.Module):  # type: ignore[misc]
        def forward(self, X: Any) -> Any:
            return X[:1]

    with pytest.raises(ShapeError, match="unsafe=True"):
        utils.parametrize.register_parametrization(layer, "weight", Cut())
    assert list(layer.state_dict()) == ["bias", "weight"] or layer.weight.shape == (2, 3)
    for call in (
        lambda: utils.parametrize.register_parametrization(layer, "wieght", Cut()),
        lambda: utils.parametrizations.weight_norm(layer, "w"),
        lambda: utils.parametrizations.orthogonal(layer, "bias"),
        lambda: utils.parametrizations.orthogonal(layer, orthogonal_map="exp"),
        lambda: utils.parametrize.remove_parametrizations(layer, "weight"),
        lambda: utils.remove_weight_norm(layer),
        lambda: utils.parametrizations.spectral_norm(layer, n_power_iterations=0),
    ):
        with pytest.raises(UsageError):
            call()
    utils.parametrizations.orthogonal(layer, orthogonal_map="cayley", use_trivialization=False)
    with pytest.raises(UsageError, match="use_trivialization"):
        layer.weight = torch.ones(2, 3)
