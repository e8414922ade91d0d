"""The Kullback-Leibler divergence of two distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.core.errors import UsageError
from weft.torch import linalg
from weft.torch.arithmetic import where
from weft.torch.distributions.base import Independent, parameters
from weft.torch.distributions.continuous import Exponential, Normal, Uniform
from weft.torch.distributions.discrete import Bernoulli, Categorical
from weft.torch.distributions.gammas import Beta, Chi2, Dirichlet, Gamma, Poisson
from weft.torch.distributions.multivariate import MultivariateNormal
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
}  # fmt: skip


def _divergence(p: Any, q: Any) -> Any:
    of = _DIVERGENCES.get(type(p))
    if of is None or type(p) is not type(q):
        names = f"{type(p).__name__}, {type(q).__name__}"
        raise UsageError(
            f"kl_divergence({names}): known for two {', '.join(k.__name__ for k in _DIVERGENCES)}"
        )
    return of(p, q)


@public
def kl_divergence(p: Any, q: Any) -> Any:
    """The expected value under p of p.log_prob - q.log_prob. Raises UsageError for two kinds of
    distributions whose formula is not here."""
    return _divergence(p, q)
