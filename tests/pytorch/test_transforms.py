"""torch.distributions' transforms and constraints beside PyTorch's: values, inverses, slopes,
shapes, transformed distributions and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft
import weft.torch as torch
from weft.core.errors import ShapeError, UsageError

X = [[-1.5, 0.2, 0.9], [2.0, -0.3, 0.4]]
UP = [[0.5, 0.2, 0.9], [2.0, 1.3, 0.4]]
MADE: dict[str, tuple[Any, Any]] = {
    "affine": (lambda d, m: d.AffineTransform(m.tensor([1.0, 2.0, 3.0]), -2.0), X),
    "affine_event": (lambda d, m: d.AffineTransform(0.5, m.tensor([1.0, -2.0, 3.0]), 1), X),
    "exp": (lambda d, m: d.ExpTransform(), X),
    "power": (lambda d, m: d.PowerTransform(m.tensor([2.0, -0.5, 3.0])), UP),
    "sigmoid": (lambda d, m: d.SigmoidTransform(), X),
    "tanh": (lambda d, m: d.TanhTransform(), X),
    "softplus": (lambda d, m: d.SoftplusTransform(), X),
    "stick": (lambda d, m: d.StickBreakingTransform(), X),
    "reshape": (lambda d, m: d.ReshapeTransform((3,), (3, 1)), X),
    "logit": (lambda d, m: d.SigmoidTransform().inv, [[0.1, 0.5, 0.8]]),
    "compose": (lambda d, m: d.ComposeTransform(
        [d.AffineTransform(1.0, 0.5), d.StickBreakingTransform()]), X),
    "compose_inverse": (lambda d, m: d.ComposeTransform(
        [d.ExpTransform(), d.AffineTransform(1.0, 2.0)]).inv, [[1.5, 2.0, 4.0]]),
    "independent": (lambda d, m: d.IndependentTransform(d.TanhTransform(), 1), X),
    "stack": (lambda d, m: d.StackTransform(
        [d.ExpTransform(), d.TanhTransform(), d.AffineTransform(1.0, 2.0)], 1), X),
    "identity": (lambda d, m: d.identity_transform, X),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_transforms_against_pytorch(name: str) -> None:
    def run(m: Any) -> tuple[list[Any], list[Any]]:
        made, x = MADE[name][0](m.distributions, m), m.tensor(MADE[name][1], requires_grad=True)
        y = made(x)
        slope = made.log_abs_det_jacobian(x, y)
        (y.sin().sum() + slope.sum()).backward()
        shapes = [
            made.domain.event_dim, made.codomain.event_dim, made.bijective,
            tuple(made.forward_shape(x.shape)), tuple(made.inverse_shape(y.shape)),
        ]  # fmt: skip
        return [v.detach().numpy() for v in (y, made.inv(y), slope, x.grad)], shapes

    (values, shapes), (wanted, wanted_shapes) = run(torch), run(theirs)
    for a, b in zip(values, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)
    if name != "stack":  # PyTorch's stack counts its events otherwise
        assert shapes == wanted_shapes


def test_transforms_without_a_slope_and_their_caches() -> None:
    d, x = torch.distributions, torch.tensor(X)
    for name in ("AbsTransform", "SoftmaxTransform"):
        mine, want = getattr(d, name)(), getattr(theirs.distributions, name)()
        y = mine(x)
        np.testing.assert_allclose(y.numpy(), want(theirs.tensor(X)).numpy(), rtol=1e-6)
        np.testing.assert_allclose(
            mine.inv(y).numpy(), want.inv(theirs.tensor(y.numpy())).numpy(), rtol=1e-5)  # fmt: skip
        with pytest.raises(UsageError, match="log_abs_det_jacobian"):
            mine.log_abs_det_jacobian(x, y)
    cached = d.TanhTransform(cache_size=1)
    assert cached.inv(cached(x)) is x and d.TanhTransform().inv(cached(x)) is not x
    assert d.AffineTransform(1.0, 2.0) == d.AffineTransform(1.0, 2.0) != d.AffineTransform(1.0, 3.0)
    assert d.ExpTransform().inv.inv == d.ExpTransform() != d.TanhTransform()
    for wrong in (lambda: d.ReshapeTransform((2,), (3,)), lambda: d.ReshapeTransform((2,), (2,))(x),
                  lambda: d.StackTransform([d.ExpTransform()])(x)):  # fmt: skip
        with pytest.raises(ShapeError):
            wrong()


def _logistic(m: Any, loc: Any, scale: Any) -> Any:
    d = m.distributions
    base = d.Uniform(m.zeros(3), m.ones(3))
    moves = [d.SigmoidTransform().inv, d.AffineTransform(loc, scale)]
    return d.TransformedDistribution(base, moves)


def _squashed(m: Any, loc: Any, scale: Any) -> Any:
    d = m.distributions
    return d.Independent(d.TransformedDistribution(d.Normal(loc, scale), d.TanhTransform()), 1)


def _shares(m: Any, loc: Any, scale: Any) -> Any:
    d = m.distributions
    return d.TransformedDistribution(d.Normal(loc, scale), d.StickBreakingTransform())


@pytest.mark.parametrize("make, at", [
    (_logistic, X), (_squashed, [0.5, -0.2, 0.9]), (_shares, [0.1, 0.2, 0.3, 0.4])],
    ids=["logistic", "squashed", "shares"])  # fmt: skip
def test_transformed_distributions(make: Any, at: Any) -> None:
    def run(m: Any) -> tuple[list[Any], Any]:
        given = [m.tensor(v, requires_grad=True) for v in ([0.5, 1.0, -0.2], [1.0, 2.0, 0.5])]
        made = make(m, *given)
        score = made.log_prob(m.tensor(at))
        score.sum().backward()
        found = [score.detach(), *(p.grad for p in given)]
        if make is _logistic:
            found += [
                made.cdf(m.tensor(at)).detach(),
                made.icdf(m.tensor([0.1, 0.5, 0.9])).detach(),
            ]
        return [v.numpy() for v in found], made

    (values, mine), (wanted, want) = run(torch), run(theirs)
    for a, b in zip(values, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)
    assert mine.batch_shape == tuple(want.batch_shape)
    assert mine.event_shape == tuple(want.event_shape)
    drawn = mine.rsample((5,))
    assert tuple(drawn.shape) == tuple(want.rsample((5,)).shape) and drawn.requires_grad
    mine.log_prob(drawn)  # a sample is in the support
    assert not mine.sample().requires_grad
    wider = mine.expand((4, *mine.batch_shape))
    assert wider.sample().shape == (4, *mine.batch_shape, *mine.event_shape)


def test_a_compiled_policy() -> None:
    @weft.compile
    def score(loc: Any, scale: Any, at: Any) -> Any:
        return _squashed(torch, loc, scale).log_prob(at)

    given = [torch.tensor(v) for v in ([0.5, 1.0, -0.2], [1.0, 2.0, 0.5], [0.5, -0.2, 0.9])]
    want = _squashed(torch, *given[:2]).log_prob(given[2])
    np.testing.assert_allclose(score(*given).numpy(), want.numpy(), rtol=1e-6)


FITS: dict[str, Any] = {
    "boolean": [0.0, 1.0, 0.5], "real": [1.0, float("nan")], "positive": [0.0, 1.0],
    "nonnegative": [0.0, -1.0], "unit_interval": [0.0, 1.0, 1.1],
    "nonnegative_integer": [0.0, 2.5, -1.0], "positive_integer": [0.0, 1.0],
    "simplex": [[0.5, 0.5], [0.5, 0.6]], "one_hot": [[0.0, 1.0], [1.0, 1.0]],
    "real_vector": [[0.0, 1.0], [float("nan"), 1.0]], "lower_cholesky": [[1.0, 0.0], [2.0, 3.0]],
    "lower_triangular": [[1.0, 1.0], [2.0, 3.0]], "symmetric": [[1.0, 2.0], [2.0, 3.0]],
    "positive_definite": [[1.0, 2.0], [2.0, 3.0]],
    "positive_semidefinite": [[1.0, 1.0], [1.0, 1.0]],
    "corr_cholesky": [[1.0, 0.0], [0.6, 0.8]],
}  # fmt: skip


def test_constraints_against_pytorch() -> None:
    mine, want = torch.distributions.constraints, theirs.distributions.constraints
    for name, value in FITS.items():
        a, b = (getattr(m, name) for m in (mine, want))
        found = a.check(torch.tensor(value)).numpy()
        np.testing.assert_array_equal(found, b.check(theirs.tensor(value)).numpy(), name)
        assert (a.event_dim, a.is_discrete) == (b.event_dim, b.is_discrete), name
    for name, bounds in (("greater_than", (1,)), ("greater_than_eq", (1,)), ("less_than", (1,)),
                         ("interval", (0, 1)), ("half_open_interval", (0, 1)),
                         ("integer_interval", (0, 1))):  # fmt: skip
        a, b = (getattr(m, name)(*bounds) for m in (mine, want))
        at = [-0.5, 0.0, 0.5, 1.0, 1.5]
        found = a.check(torch.tensor(at)).numpy()
        np.testing.assert_array_equal(found, b.check(theirs.tensor(at)).numpy(), name)


REFUSED = """
d.Normal(0.0, 1.0).log_prob(t.tensor(float("nan")))
d.Normal(t.zeros(3), 1.0).log_prob(t.zeros(2))
d.Bernoulli(t.tensor(0.5)).log_prob(t.tensor(0.5))
d.Categorical(t.ones(3)).log_prob(t.tensor(3))
d.LogNormal(0.0, 1.0).log_prob(t.tensor(-1.0))
d.Exponential(1.0).log_prob(t.tensor(-1.0))
d.Uniform(0.0, 1.0).log_prob(t.tensor(2.0))
d.Uniform(0.0, 1.0).cdf(t.tensor(2.0))
d.Dirichlet(t.ones(2)).log_prob(t.tensor([0.5, 0.6]))
d.Poisson(t.tensor(1.0)).log_prob(t.tensor(0.5))
d.Gamma(1.0, 1.0).log_prob(t.tensor(-0.5))
d.Beta(1.0, 1.0).log_prob(t.tensor(1.5))
d.MultivariateNormal(t.zeros(2), t.eye(2)).log_prob(t.zeros(3))
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_values_out_of_the_support_are_refused(line: str) -> None:
    with pytest.raises(ValueError):
        eval(line, {"t": theirs, "d": theirs.distributions})
    with pytest.raises((UsageError, ShapeError)):
        eval(line, {"t": torch, "d": torch.distributions})
    d = torch.distributions
    assert np.isfinite(d.Bernoulli(torch.tensor(0.5), validate_args=False)
                       .log_prob(torch.tensor(0.5)).numpy())  # fmt: skip
