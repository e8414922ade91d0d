"""The Kullback-Leibler divergence of two distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.core.errors import UsageError
from weft.host.boundary import users
from weft.torch import linalg
from weft.torch.arithmetic import where
from weft.torch.distributions.base import Distribution, Independent, parameters, summed
from weft.torch.distributions.continuous import Exponential, Laplace, Normal, Uniform
from weft.torch.distributions.counts import Binomial, Geometric
from weft.torch.distributions.crossed import CROSSED
from weft.torch.distributions.discrete import Bernoulli, Categorical
from weft.torch.distributions.gammas import Beta, Chi2, Dirichlet, Gamma, Poisson
from weft.torch.distributions.multivariate import LowRankMultivariateNormal, MultivariateNormal
from weft.torch.distributions.powers import EULER, Gumbel, Pareto
from weft.torch.distributions.relaxed import ContinuousBernoulli, OneHotCategorical
from weft.torch.distributions.tails import Cauchy, HalfNormal
from weft.torch.distributions.transformed import TransformedDistribution
from weft.torch.gamma import digamma, lgamma
from weft.torch.joining import stack
from weft.torch.nn import functional as F
from weft.torch.tensor import public


def _normals(p: Any, q: Any) -> Any:
    ratio = p.scale / q.scale
    shift = (p.loc - q.loc) / q.scale
    return 0.5 * (ratio * ratio + shift * shift - 1) - ratio.log()


def _bernoullis(p: Any, q: Any) -> Any:
    logits, probs = parameters(q.logits, p.probs)
    return F.binary_cross_entropy_with_logits(logits, probs, reduction="none") - p.entropy()


def _gammas(p: Any, q: Any) -> Any:
    a, b = p.concentration, q.concentration
    return (
        b * (p.rate / q.rate).log() + lgamma(b) - lgamma(a) + (a - b) * digamma(a)
        + (q.rate - p.rate) * (a / p.rate)
    )  # fmt: skip


def _dirichlets(p: Any, q: Any) -> Any:
    a, b = p.concentration, q.concentration
    whole = lgamma(a.sum(-1)) - lgamma(b.sum(-1)) - (lgamma(a) - lgamma(b)).sum(-1)
    return whole + ((a - b) * (digamma(a) - digamma(a.sum(-1, True)))).sum(-1)


def _betas(p: Any, q: Any) -> Any:
    one, other = ([d.concentration1, d.concentration0] for d in (p, q))
    return _dirichlets(Dirichlet(stack(one, -1)), Dirichlet(stack(other, -1)))


def _multivariates(p: Any, q: Any) -> Any:
    away = (q.loc - p.loc).unsqueeze(-1)
    between = linalg.solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    z = linalg.solve_triangular(q.scale_tril, away, upper=False)
    squares = (between * between).sum((-2, -1)) + (z * z).sum((-2, -1))
    return q._half_log_det() - p._half_log_det() + 0.5 * (squares - p.event_shape[0])


def _binomials(p: Any, q: Any) -> Any:
    made = p.total_count * (
        p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    )
    return where(p.total_count > q.total_count, math.inf, made)


def _cauchys(p: Any, q: Any) -> Any:
    wide, away = p.scale + q.scale, p.loc - q.loc
    return ((wide * wide + away * away) / (4 * p.scale * q.scale)).log()


def _continuous_bernoullis(p: Any, q: Any) -> Any:
    one = p.mean * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    return one + p._log_constant() - q._log_constant()


def _gumbels(p: Any, q: Any) -> Any:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    rest = (-shift + lgamma(ratio + 1)).exp() - (1 + EULER)
    return -ratio.log() + shift + ratio * EULER + rest


def _laplaces(p: Any, q: Any) -> Any:
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + away / q.scale + ratio * (-away / p.scale).exp() - 1


def _paretos(p: Any, q: Any) -> Any:
    ratio, powers = p.scale / q.scale, q.alpha / p.alpha
    made = q.alpha * ratio.log() - powers.log() + powers - 1
    return where(p.scale < q.scale, math.inf, made)


def _transformed(p: Any, q: Any) -> Any:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise UsageError("kl_divergence: two distributions of different transforms or events")
    axes = len(p.event_shape) - len(p.base_dist.event_shape)
    return summed(_divergence(p.base_dist, q.base_dist), axes)


_DIVERGENCES: dict[type, Callable[[Any, Any], Any]] = {
    Normal: _normals,
    Bernoulli: _bernoullis,
    Categorical: lambda p, q: (p.probs * (p.logits - q.logits)).sum(-1),
    Exponential: lambda p, q: q.rate / p.rate - (q.rate / p.rate).log() - 1,
    Uniform: lambda p, q: where(
        (q.low <= p.low) & (p.high <= q.high),
        ((q.high - q.low) / (p.high - p.low)).log(), math.inf,
    ),
    Gamma: _gammas, Chi2: _gammas, Dirichlet: _dirichlets, Beta: _betas,
    MultivariateNormal: _multivariates,
    Poisson: lambda p, q: p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate),
    Independent: lambda p, q: p.summed(_divergence(p.base_dist, q.base_dist)),
    Binomial: _binomials, Cauchy: _cauchys, ContinuousBernoulli: _continuous_bernoullis,
    Geometric: lambda p, q: -p.entropy() - (-q.probs).log1p() / p.probs - q.logits,
    Gumbel: _gumbels, HalfNormal: lambda p, q: _normals(p.base_dist, q.base_dist),
    Laplace: _laplaces, LowRankMultivariateNormal: _multivariates, Pareto: _paretos,
    OneHotCategorical: lambda p, q: _divergence(p._categorical, q._categorical),
    TransformedDistribution: _transformed,
}  # fmt: skip


_PAIRS = CROSSED | {(kind, kind): of for kind, of in _DIVERGENCES.items()}
_PAIRS[MultivariateNormal, LowRankMultivariateNormal] = _multivariates
_PAIRS[LowRankMultivariateNormal, MultivariateNormal] = _multivariates


def _divergence(p: Any, q: Any) -> Any:
    for one in type(p).__mro__:  # the nearest base of p first
        for other in type(q).__mro__:
            if (of := _PAIRS.get((one, other))) is not None:
                return of(p, q)
    raise UsageError(
        f"kl_divergence({type(p).__name__}, {type(q).__name__}): no formula is known; give one by "
        "register_kl, or take the mean of p.log_prob - q.log_prob over samples of p"
    )


def register_kl(type_p: type, type_q: type) -> Callable[[Any], Any]:
    """Decorates a function of (p, q) that is to be their `kl_divergence`, for two classes and
    their subclasses."""
    for kind in (type_p, type_q):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise UsageError(f"register_kl: {kind!r}; expected a class of distributions")

    def register(function: Any) -> Any:
        _PAIRS[type_p, type_q] = users(function)
        return function

    return register


@public
def kl_divergence(p: Any, q: Any) -> Any:
    """The expected value under p of p.log_prob - q.log_prob. Raises UsageError for two kinds of
    distributions whose formula is not here."""
    return _divergence(p, q)
