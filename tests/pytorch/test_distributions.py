"""torch.distributions: densities, entropies and divergences beside PyTorch's, samples by their
moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import UsageError
from weft.torch.distributions.gammas import _slope

LOC, SCALE = [-1.0, 0.0, 2.5], [0.5, 1.0, 3.0]
P = [[0.2, 0.3, 0.5], [0.0, 0.25, 0.75]]
COVARIANCE = [[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 1.5]]
MADE: dict[str, tuple[Any, Any]] = {
    "Normal": (lambda m: m.distributions.Normal(m.tensor(LOC), m.tensor(SCALE)), LOC),
    "LogNormal": (lambda m: m.distributions.LogNormal(m.tensor(LOC), m.tensor(SCALE)), SCALE),
    "Laplace": (lambda m: m.distributions.Laplace(m.tensor(LOC), m.tensor(SCALE)), LOC),
    "Uniform": (lambda m: m.distributions.Uniform(m.tensor(LOC), 3.0), [0.0, 0.5, 2.75]),
    "Exponential": (lambda m: m.distributions.Exponential(m.tensor(SCALE)), SCALE),
    "Bernoulli": (lambda m: m.distributions.Bernoulli(m.tensor(P[0])), [0.0, 1.0, 1.0]),
    "BernoulliLogits": (
        lambda m: m.distributions.Bernoulli(logits=m.tensor(LOC)), [0.0, 1.0, 1.0]),
    "Categorical": (lambda m: m.distributions.Categorical(m.tensor(P)), [2, 0]),
    "CategoricalLogits": (lambda m: m.distributions.Categorical(logits=m.tensor(P)), [2, 0]),
    "Gamma": (lambda m: m.distributions.Gamma(m.tensor(SCALE), m.tensor([2.0, 0.5, 1.0])), SCALE),
    "Chi2": (lambda m: m.distributions.Chi2(m.tensor(SCALE)), SCALE),
    "Beta": (lambda m: m.distributions.Beta(m.tensor(SCALE), m.tensor([2.0, 0.5, 1.0])), P[0]),
    "Dirichlet": (lambda m: m.distributions.Dirichlet(m.tensor([SCALE, [1.0, 2.0, 7.0]])),
                  [P[0], [0.1, 0.6, 0.3]]),
    "Poisson": (lambda m: m.distributions.Poisson(m.tensor(SCALE)), [0.0, 1.0, 4.0]),
    "MultivariateNormal": (lambda m: m.distributions.MultivariateNormal(
        m.tensor([LOC, SCALE]), m.tensor(COVARIANCE)), P),
    "MultivariatePrecision": (lambda m: m.distributions.MultivariateNormal(
        m.tensor(LOC), precision_matrix=m.tensor(COVARIANCE)), P),
    "MultivariateFactor": (lambda m: m.distributions.MultivariateNormal(
        m.tensor(LOC), scale_tril=m.tensor(COVARIANCE).tril()), P),
    "Independent": (
        lambda m: m.distributions.Independent(
            m.distributions.Normal(m.tensor(P), m.tensor(SCALE)), 1), P),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_against_pytorch(name: str) -> None:
    make, at = MADE[name]
    mine, want = make(torch), make(theirs)
    assert mine.batch_shape == tuple(want.batch_shape)
    assert mine.event_shape == tuple(want.event_shape)
    pairs = [(mine.log_prob(torch.tensor(at)), want.log_prob(theirs.tensor(at))),
             *([] if name == "Poisson" else [(mine.entropy(), want.entropy())])]  # fmt: skip
    if "Categorical" not in name:
        pairs += [(mine.mean, want.mean), (mine.variance, want.variance)]
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=1e-6)
    torch.manual_seed(3)
    drawn = mine.sample((4000,))
    assert tuple(drawn.shape) == tuple(want.sample((4000,)).shape)
    assert str(drawn.dtype) == str(want.sample().dtype).removeprefix("torch.")
    if "Categorical" in name:
        shares = np.stack([(drawn.numpy() == k).mean(0) for k in range(3)], -1)
        np.testing.assert_allclose(shares, want.probs.numpy(), atol=0.03)
    elif name != "LogNormal":  # whose tail is too long for means of 4,000
        off = np.abs(drawn.numpy().mean(0) - want.mean.numpy()) / want.stddev.numpy()
        assert off.max() < 0.08


DIVERGE = """Normal Bernoulli Categorical Exponential Uniform Independent Gamma Chi2 Beta Dirichlet
Poisson MultivariateNormal"""


@pytest.mark.parametrize("name", DIVERGE.split())
def test_divergence(name: str) -> None:
    def run(m: Any) -> Any:
        p = MADE[name][0](m)
        q = {
            "Uniform": lambda: m.distributions.Uniform(-2.0, m.tensor([4.0, 2.0, 3.0])),
            "Normal": lambda: m.distributions.Normal(0.0, m.tensor([1.0, 2.0, 0.1])),
            "Exponential": lambda: m.distributions.Exponential(2.0),
            "Bernoulli": lambda: m.distributions.Bernoulli(0.4),
            "Categorical": lambda: m.distributions.Categorical(logits=m.tensor([0.0, 1.0, -1.0])),
            "Independent": lambda: m.distributions.Independent(
                m.distributions.Normal(m.zeros(2, 3), 1.0), 1),
            "Gamma": lambda: m.distributions.Gamma(m.tensor([2.0, 0.3, 1.0]), m.tensor(SCALE)),
            "Chi2": lambda: m.distributions.Chi2(m.tensor([2.0, 0.3, 1.0])),
            "Beta": lambda: m.distributions.Beta(m.tensor([2.0, 0.3, 1.0]), m.tensor(SCALE)),
            "Dirichlet": lambda: m.distributions.Dirichlet(m.tensor([2.0, 0.3, 1.0])),
            "Poisson": lambda: m.distributions.Poisson(m.tensor([2.0, 0.3, 1.0])),
            "MultivariateNormal": lambda: m.distributions.MultivariateNormal(
                m.tensor(SCALE), m.eye(3)),
        }[name]()  # fmt: skip
        return m.distributions.kl_divergence(p, q).numpy()

    np.testing.assert_allclose(run(torch), run(theirs), rtol=1e-5, atol=1e-6)


def test_gradients_flow_through_samples_and_scores() -> None:
    def run(m: Any, noise: Any) -> list[Any]:
        loc, scale = (m.tensor(v, requires_grad=True) for v in (LOC, SCALE))
        policy = m.distributions.Normal(loc, scale)
        (policy.log_prob(m.tensor([0.1, 0.2, 0.3])) * m.tensor([1.0, -2.0, 0.5])).sum().backward()
        logits = m.tensor(P, requires_grad=True)
        chosen = m.distributions.Categorical(logits=logits)
        (chosen.log_prob(m.tensor([1, 2])) + 0.1 * chosen.entropy()).sum().backward()
        return [loc.grad, scale.grad, logits.grad]

    for a, b in zip(run(torch, None), run(theirs, None)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    scale = torch.tensor(SCALE, requires_grad=True)
    drawn = torch.distributions.Normal(torch.tensor(LOC), scale).rsample()
    drawn.sum().backward()
    z = (drawn.detach().numpy() - LOC) / SCALE
    np.testing.assert_allclose(scale.grad.numpy(), z, rtol=1e-5, atol=1e-6)
    assert not torch.distributions.Normal(torch.tensor(LOC), scale).sample().requires_grad


NEWER: dict[str, list[Any]] = {
    "Gamma": [SCALE, [2.0, 0.5, 1.0]], "Beta": [SCALE, [2.0, 0.5, 1.0]], "Chi2": [SCALE],
    "Dirichlet": [SCALE], "Poisson": [SCALE], "MultivariateNormal": [LOC, COVARIANCE],
}  # fmt: skip


@pytest.mark.parametrize("name", NEWER)
def test_gradients_of_scores_and_entropies(name: str) -> None:
    def run(m: Any) -> list[Any]:
        given = [m.tensor(v, requires_grad=True) for v in NEWER[name]]
        # counts that are not whole are refused
        found = getattr(m.distributions, name)(*given, validate_args=name != "Poisson")
        total = found.log_prob(m.tensor([0.5, 0.2, 0.3])).sum()
        (total if name == "Poisson" else total + 0.5 * found.entropy().sum()).backward()
        return [x.grad.numpy() for x in given]

    for a, b in zip(run(torch), run(theirs)):
        a, b = (x + x.T if name == "MultivariateNormal" and x.ndim == 2 else x for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_samples_follow_the_seed_and_broadcast() -> None:
    d = torch.distributions
    for made in (d.Gamma(torch.ones(2, 1), torch.ones(3)), d.Beta(torch.tensor(0.01), 0.01)):
        torch.manual_seed(5)
        first = made.sample((7,))
        torch.manual_seed(5)
        np.testing.assert_array_equal(first.numpy(), made.sample((7,)).numpy())
        assert tuple(first.shape) == (7, *made.batch_shape) and np.isfinite(first.numpy()).all()


def test_refusals() -> None:
    d = torch.distributions
    with pytest.raises(UsageError, match="either probs or logits"):
        d.Bernoulli()
    with pytest.raises(UsageError, match="kl_divergence"):
        d.kl_divergence(d.Cauchy(0.0, 1.0), d.Uniform(0.0, 1.0))
    with pytest.raises(UsageError, match="rsample"):
        d.Categorical(torch.tensor(P)).rsample()
    with pytest.raises(AttributeError, match="did you mean Normal"):
        d.Norml  # noqa: B018


def test_slopes_of_gamma_samples() -> None:
    a = np.array([0.05, 0.4, 1.0, 2.5, 30.0, 900.0])[:, None] * np.ones(3)
    x = np.maximum(a + np.sqrt(a) * np.array([-0.6, 0.1, 1.8]), 0.01 * a)
    want = theirs._standard_gamma_grad(theirs.tensor(a), theirs.tensor(x)).numpy()
    np.testing.assert_allclose(_slope(a, x), want, rtol=3e-4)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet"])
def test_gradients_through_gamma_samples(name: str) -> None:
    """The gradient of the expected value of x^2 beside that of its formula."""
    start = [[0.7, 2.0, 5.0], [1.5, 0.5, 2.0]]
    torch.manual_seed(1)
    given = [torch.tensor(row, requires_grad=True) for row in start]
    exact = [theirs.tensor(row, dtype=theirs.float64, requires_grad=True) for row in start]
    mine, theory = (
        getattr(m.distributions, name)(*(p[:1] if name == "Dirichlet" else p))
        for m, p in ((torch, given), (theirs, exact))
    )
    drawn = mine.rsample((40000,))
    assert mine.has_rsample and drawn.requires_grad and not mine.sample().requires_grad
    (drawn * drawn).mean(0).sum().backward()
    (theory.mean**2 + theory.variance).sum().backward()
    for p, q in zip(given[: 1 if name == "Dirichlet" else 2], exact):
        off = np.abs(p.grad.numpy() - q.grad.numpy())
        assert (off < 0.05 * np.abs(q.grad.numpy()) + 0.004).all(), (p.grad, q.grad)
