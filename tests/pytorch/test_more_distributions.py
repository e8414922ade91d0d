"""torch.distributions' heavy tails, counts, relaxations and mixtures beside PyTorch's: one table
of parameters and values."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft
import weft.torch as torch
from weft.core.errors import UsageError

A, B, LOC = [0.8, 1.5, 5.0], [0.5, 2.0, 3.0], [-1.0, 0.2, 2.5]
P, LOGITS = [0.2, 0.5, 0.9], [-1.0, 0.3, 2.0]
ROWS = [[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]]
HOT = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
COUNTS = [0.0, 1.0, 4.0]
# name: (parameters, a value, the attributes that PyTorch has)
CASES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "StudentT": ({"df": [1.5, 2.5, 5.0], "loc": LOC, "scale": B}, LOC, "entropy mode"),
    "Cauchy": ({"loc": LOC, "scale": B}, B, "entropy mode cdf icdf"),
    "HalfNormal": ({"scale": B}, A, "entropy mode cdf icdf"),
    "HalfCauchy": ({"scale": B}, A, "entropy mode cdf icdf"),
    "FisherSnedecor": ({"df1": [1.5, 3.0, 5.0], "df2": [1.5, 3.0, 9.0]}, B, "mode"),
    "VonMises": ({"loc": LOC, "concentration": A}, LOGITS, "mode"),
    "GeneralizedPareto": (
        {"loc": LOC, "scale": B, "concentration": [0.3, -0.4, 0.1]}, [0.5, 1.0, 4.0],
        "entropy mode cdf icdf",
    ),
    "Gumbel": ({"loc": LOC, "scale": B}, A, "entropy mode cdf icdf"),
    "Weibull": ({"scale": B, "concentration": [1.2, 1.5, 5.0]}, A, "entropy mode cdf icdf"),
    "Pareto": ({"scale": B, "alpha": A}, [0.7, 2.5, 4.0], "entropy mode cdf icdf"),
    "InverseGamma": ({"concentration": A, "rate": B}, B, "entropy mode"),
    "Kumaraswamy": ({"concentration1": A, "concentration0": B}, P, "entropy cdf icdf"),
    "LogisticNormal": ({"loc": LOC, "scale": B}, [0.1, 0.2, 0.3, 0.4], ""),
    "Geometric": ({"probs": P}, COUNTS, "entropy mode"),
    "Binomial": ({"total_count": 5, "probs": P}, COUNTS, "entropy mode"),
    "NegativeBinomial": ({"total_count": B, "logits": LOGITS}, COUNTS, "mode"),
    "Multinomial": ({"total_count": 4, "probs": ROWS}, [[1.0, 0.0, 3.0], [2.0, 2.0, 0.0]],
                    "entropy"),
    "OneHotCategorical": ({"logits": ROWS}, HOT, "entropy mode"),
    "OneHotCategoricalStraightThrough": ({"probs": ROWS}, HOT, "entropy mode"),
    "RelaxedBernoulli": ({"temperature": 0.7, "logits": LOGITS}, P, ""),
    "RelaxedOneHotCategorical": ({"temperature": 0.7, "probs": ROWS}, ROWS, ""),
    "ContinuousBernoulli": ({"probs": P}, [0.1, 0.4, 0.7], "entropy cdf icdf"),
    "LowRankMultivariateNormal": (
        {"loc": LOC, "cov_factor": [[1.0, 0.2], [0.3, -0.5], [0.1, 0.9]], "cov_diag": B},
        ROWS, "entropy mode covariance_matrix precision_matrix"),
}  # fmt: skip
NO_MOMENTS = {"LogisticNormal", "RelaxedBernoulli", "RelaxedOneHotCategorical"}


def _made(m: Any, name: str, grad: bool = False) -> tuple[Any, list[Any]]:
    given = {
        k: m.tensor(v, requires_grad=grad) if isinstance(v, list) or k == "temperature" else v
        for k, v in CASES[name][0].items()
    }
    leaves = [v for v in given.values() if not isinstance(v, int)]
    return getattr(m.distributions, name)(**given), leaves


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients_against_pytorch(name: str) -> None:
    at, attributes = CASES[name][1:]

    def run(m: Any) -> list[Any]:
        made, leaves = _made(m, name, grad=True)
        score = made.log_prob(m.tensor(at))
        total, found = score.sum(), [score]
        for attribute in attributes.split():
            held = getattr(made, attribute)
            if attribute == "cdf":
                found.append(held(m.tensor(at)))
            elif attribute == "icdf":
                found.append(held(m.tensor(P)))
            else:
                found.append(held() if attribute == "entropy" else held)
            if attribute in ("entropy", "cdf", "icdf"):
                total = total + 0.5 * found[-1].sum()
        total.backward()
        if name not in NO_MOMENTS:
            found += [made.mean, made.variance, made.stddev]
        return [x.detach().numpy() for x in found] + [x.grad.numpy() for x in leaves]

    for k, (a, b) in enumerate(zip(run(torch), run(theirs), strict=True)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5, err_msg=f"{name} {k}")


@pytest.mark.parametrize("name", CASES)
def test_shapes_samples_and_expansion(name: str) -> None:
    (mine, _), (want, _) = _made(torch, name), _made(theirs, name)
    torch.manual_seed(4)
    assert mine.batch_shape == tuple(want.batch_shape), name
    assert mine.event_shape == tuple(want.event_shape)
    assert mine.has_rsample == want.has_rsample
    drawn = mine.sample((4000,))
    assert tuple(drawn.shape) == tuple(want.sample((4000,)).shape) and not drawn.requires_grad
    assert drawn.dtype == torch.float32
    mine.log_prob(drawn)  # each is in the support
    wider = mine.expand((2, *mine.batch_shape))
    assert wider.sample((5,)).shape == (5, 2, *mine.batch_shape, *mine.event_shape)
    np.testing.assert_allclose(
        wider.log_prob(drawn[0]).numpy()[1], mine.log_prob(drawn[0]).numpy(), rtol=1e-6
    )  # fmt: skip
    if name in NO_MOMENTS:
        spread = want.sample((4000,)).numpy()
        mean, width = spread.mean(0), spread.std(0)
    else:
        mean, width = want.mean.numpy(), want.stddev.numpy()
    if name != "VonMises":  # whose variance is circular
        with np.errstate(invalid="ignore"):
            off = np.abs(drawn.numpy().mean(0) - mean) / width
        steady = np.isfinite(off) & np.isfinite(width)
        assert (off[steady] < 0.1).all(), off
    if mine.has_enumerate_support:
        np.testing.assert_array_equal(
            mine.enumerate_support().numpy(), want.enumerate_support().numpy())  # fmt: skip
    if mine.has_rsample:
        made, leaves = _made(torch, name, grad=True)
        made.rsample((3,)).sum().backward()
        assert all(x.grad is not None and np.isfinite(x.grad.numpy()).all() for x in leaves)


def test_samples_of_heavy_tails_by_their_distribution() -> None:
    for name in ("Cauchy", "HalfCauchy", "Pareto", "Gumbel", "Kumaraswamy", "Weibull"):
        torch.manual_seed(2)
        made, _ = _made(torch, name)
        shares = made.cdf(made.sample((4000,))).numpy()  # uniform if they are right
        np.testing.assert_allclose(shares.mean(0), 0.5, atol=0.02, err_msg=name)
        np.testing.assert_allclose(shares.var(0), 1 / 12, atol=0.004, err_msg=name)


def test_the_same_are_of_the_exponential_family() -> None:
    for name in {*CASES, *CROSSED, "Dirichlet", "Chi2"}:
        mine, want = (
            issubclass(getattr(d, name), d.ExponentialFamily)
            for d in (torch.distributions, theirs.distributions)
        )
        assert mine == want, name


def test_the_mode_of_kumaraswamy() -> None:
    """PyTorch's is NaN for every b above 1: the highest density on a grid instead."""
    made = torch.distributions.Kumaraswamy(torch.tensor([1.5, 5.0]), torch.tensor([2.0, 3.0]))
    grid = torch.linspace(0.001, 0.999, 999).unsqueeze(-1)
    best = made.log_prob(grid).argmax(0).numpy() / 1000 + 0.001
    np.testing.assert_allclose(made.mode.numpy(), best, atol=0.001)


def _mixture(m: Any) -> Any:
    d = m.distributions
    parts = d.Independent(d.Normal(m.tensor([ROWS, ROWS]), m.tensor(B)), 1)
    return d.MixtureSameFamily(d.Categorical(m.tensor([[0.3, 0.7], [0.9, 0.1]])), parts)


def test_mixtures() -> None:
    mine, want = _mixture(torch), _mixture(theirs)
    found = [(d.log_prob(m.tensor(ROWS)), d.mean, d.variance) for d, m in
             ((mine, torch), (want, theirs))]  # fmt: skip
    for a, b in zip(*found):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    torch.manual_seed(1)
    drawn = mine.sample((4000,)).numpy()
    np.testing.assert_allclose(drawn.mean(0), want.mean.numpy(), atol=0.2)
    np.testing.assert_allclose(drawn.std(0), want.stddev.numpy(), rtol=0.1)
    assert mine.expand((5, 2)).sample().shape == (5, 2, 3)
    d = torch.distributions
    plain = d.MixtureSameFamily(d.Categorical(torch.ones(3)), d.Normal(torch.tensor(LOC), 1.0))
    assert plain.cdf(torch.tensor(50.0)).item() == pytest.approx(1)
    with pytest.raises(UsageError, match="Categorical"):
        d.MixtureSameFamily(d.Normal(0.0, 1.0), d.Normal(torch.zeros(3), 1.0))


OTHER: dict[str, dict[str, Any]] = {
    "HalfNormal": {"scale": A}, "Gumbel": {"loc": A, "scale": A},
    "Pareto": {"scale": [0.4, 3.0, 1.0], "alpha": B}, "Cauchy": {"loc": A, "scale": A},
    "Geometric": {"probs": [0.4, 0.3, 0.5]},
    "Binomial": {"total_count": 5, "probs": [0.4, 0.3, 0.5]},
    "ContinuousBernoulli": {"probs": [0.4, 0.3, 0.5]}, "OneHotCategorical": {"probs": ROWS[::-1]},
    "LowRankMultivariateNormal": {
        "loc": A, "cov_factor": [[0.5], [0.3], [-0.1]], "cov_diag": A},
    "LogisticNormal": {"loc": A, "scale": A},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_divergences(name: str) -> None:
    def run(m: Any) -> Any:
        given = {k: m.tensor(v) if isinstance(v, list) else v for k, v in OTHER[name].items()}
        other = getattr(m.distributions, name)(**given)
        return m.distributions.kl_divergence(_made(m, name)[0], other).numpy()

    np.testing.assert_allclose(run(torch), run(theirs), rtol=2e-5, atol=1e-5)


CROSSED: dict[str, list[list[float]]] = {
    "Beta": [A, B], "ContinuousBernoulli": [P], "Exponential": [A], "Gamma": [A, B],
    "Gumbel": [A, B], "Laplace": [A, B], "Normal": [A, B], "Pareto": [[0.1, 2.0, 3.0], A],
    "Poisson": [A], "Uniform": [[0.1, -0.2, -0.5], [0.5, 1.5, 3.0]], "Bernoulli": [P],
}  # fmt: skip


def test_divergences_of_two_kinds() -> None:
    """Every pair of these that PyTorch has a formula for, and no other. (PyTorch has infinity for a
    ContinuousBernoulli in Uniform(0, 1), whose divergence is finite.)"""
    seen = 0
    for one in CROSSED:
        for other in CROSSED:
            if one == other:
                continue

            def run(m: Any, one: str = one, other: str = other) -> Any:
                d = m.distributions
                p, q = (getattr(d, k)(*map(m.tensor, CROSSED[k])) for k in (one, other))
                return d.kl_divergence(p, q).numpy()

            try:
                want = run(theirs)
            except NotImplementedError:
                with pytest.raises(UsageError, match="register_kl"):
                    run(torch)
                continue
            seen += 1
            np.testing.assert_allclose(
                run(torch), want, rtol=1e-4, atol=1e-5, err_msg=f"{one} {other}"
            )
    assert seen > 50


def test_a_registered_divergence() -> None:
    d = torch.distributions

    class Mine(d.Normal):
        pass

    a = Mine(0.0, 1.0)
    assert d.kl_divergence(a, d.Normal(1.0, 1.0)).item() == pytest.approx(0.5)
    d.register_kl(Mine, Mine)(lambda p, q: 7.0)
    assert d.kl_divergence(a, a) == 7.0
    with pytest.raises(UsageError, match="class of distributions"):
        d.register_kl(Mine, int)


def test_compiled_scores() -> None:
    for name in ("StudentT", "Gumbel", "NegativeBinomial", "Weibull"):
        given = [torch.tensor(v) for v in CASES[name][0].values()]
        names, at = list(CASES[name][0]), torch.tensor(CASES[name][1])

        def score(at: Any, *given: Any, name: str = name, names: Any = names) -> Any:
            return getattr(torch.distributions, name)(**dict(zip(names, given))).log_prob(at)

        compiled = weft.compile(score)(at, *given)
        np.testing.assert_allclose(compiled.numpy(), score(at, *given).numpy(), rtol=1e-5)


REFUSED = """
d.StudentT(-1.0)
d.HalfNormal(1.0).log_prob(t.tensor(-1.0))
d.HalfCauchy(0.0)
d.Gumbel(0.0, -1.0)
d.Weibull(1.0, 1.0).log_prob(t.tensor(-1.0))
d.Pareto(1.0, 1.0).log_prob(t.tensor(0.5))
d.Kumaraswamy(1.0, 1.0).log_prob(t.tensor(1.5))
d.InverseGamma(-1.0, 1.0)
d.Geometric(t.tensor(0.0))
d.Geometric(t.tensor(0.5)).log_prob(t.tensor(0.5))
d.Binomial(3, t.tensor(1.5))
d.Binomial(3, t.tensor(0.5)).log_prob(t.tensor(4.0))
d.NegativeBinomial(3, t.tensor(0.5)).log_prob(t.tensor(-1.0))
d.Multinomial(3, t.ones(2)).log_prob(t.tensor([2.0, 2.0]))
d.OneHotCategorical(t.ones(2)).log_prob(t.tensor([1.0, 1.0]))
d.RelaxedBernoulli(t.tensor(1.0), t.tensor(0.5)).log_prob(t.tensor(1.5))
d.RelaxedOneHotCategorical(t.tensor(1.0), t.ones(2)).log_prob(t.tensor([0.5, 0.7]))
d.ContinuousBernoulli(t.tensor(0.5)).log_prob(t.tensor(1.5))
d.LowRankMultivariateNormal(t.zeros(2), t.ones(2, 1), -t.ones(2))
d.VonMises(t.tensor(0.0), t.tensor(-1.0))
d.Binomial(3)
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_pytorch_refuses_is_refused(line: str) -> None:
    with pytest.raises((ValueError, theirs.linalg.LinAlgError)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eval(line, {"t": theirs, "d": theirs.distributions})
    with pytest.raises(UsageError):
        eval(line, {"t": torch, "d": torch.distributions})


def test_transforms_to_constraints() -> None:
    found = []
    for m in (theirs, torch):
        c, rows = m.distributions.constraints, []
        for to in (m.distributions.biject_to, m.distributions.transform_to):
            for constraint in (
                c.positive, c.nonnegative, c.unit_interval, c.interval(-1.0, 3.0), c.real,
                c.greater_than(2.0), c.less_than(1.0), c.simplex, c.independent(c.positive, 1),
                c.stack([c.positive, c.real, c.unit_interval]),
            ):  # fmt: skip
                transform, x = to(constraint), m.tensor([0.3, -0.7, 1.2])
                rows += [transform(x), transform.inv(transform(x))]
                assert bool(constraint.check(transform(x)).all())
        found.append([row.numpy() for row in rows])
    for want, got in zip(*found):
        np.testing.assert_allclose(got, want, 1e-5)
    registry = torch.distributions.biject_to
    with pytest.raises(UsageError, match="register one"):
        registry(torch.distributions.constraints.boolean)


def test_the_excess_without_curvature_is_exponential() -> None:
    c = torch.tensor(0.0, requires_grad=True)
    p = torch.distributions.GeneralizedPareto(0.0, 2.0, c)
    plain = torch.distributions.Exponential(0.5)
    x = torch.tensor([0.3, 4.0])
    assert p.log_prob(x).tolist() == pytest.approx(plain.log_prob(x).tolist())
    p.log_prob(x).sum().backward()  # -z + z^2 / 2 for z = x / 2
    assert c.grad.item() == pytest.approx(-0.15 + 0.15**2 / 2 - 2.0 + 2.0)
