"""Divergences of two kinds of distributions: -entropy(p) - E[log q] by the moments of p."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.torch.arithmetic import where
from weft.torch.creation import full
from weft.torch.distributions.continuous import Exponential, Laplace, Normal, Uniform
from weft.torch.distributions.counts import Binomial
from weft.torch.distributions.discrete import Bernoulli
from weft.torch.distributions.gammas import Beta, Gamma, Poisson
from weft.torch.distributions.powers import EULER, Gumbel, Pareto
from weft.torch.distributions.relaxed import ContinuousBernoulli
from weft.torch.gamma import digamma, lgamma
from weft.torch.special import xlogy


def _mean_log(p: Any) -> Any:
    """The expected value of log x."""
    if isinstance(p, Beta):
        return digamma(p.concentration1) - digamma(p.concentration1 + p.concentration0)
    if isinstance(p, Exponential):
        return -p.rate.log() - EULER
    if isinstance(p, Pareto):
        return p.scale.log() + 1 / p.alpha
    return (xlogy(p.high, p.high) - xlogy(p.low, p.low)) / (p.high - p.low) - 1


def _mean_exp(p: Any, s: Any) -> Any:
    """The expected value of exp(-x / s)."""
    if isinstance(p, Normal):
        wide = p.scale / s
        return (0.5 * wide * wide - p.loc / s).exp()
    if isinstance(p, Uniform):
        return s / (p.high - p.low) * ((-p.low / s).exp() - (-p.high / s).exp())
    a = p.concentration if isinstance(p, Gamma) else 1.0
    return (1 + 1 / (p.rate * s)) ** -a


def _in_normal(p: Any, q: Any) -> Any:
    away = p.mean - q.loc
    square = (p.variance + away * away) / (2 * q.scale * q.scale)
    return -square - q.scale.log() - 0.5 * math.log(2 * math.pi)


def _in_laplace(p: Any, q: Any) -> Any:
    away, z = p.loc - q.loc, (p.loc - q.loc) / p.scale
    size = (
        p.scale * math.sqrt(2 / math.pi) * (-0.5 * z * z).exp() + away * (z * math.sqrt(0.5)).erf()
    )
    return -size / q.scale - (2 * q.scale).log()


def _in_gumbel(p: Any, q: Any) -> Any:
    s = q.scale
    return (q.loc - p.mean) / s - (q.loc / s).exp() * _mean_exp(p, s) - s.log()


def _in_exponential(p: Any, q: Any) -> Any:
    return q.rate.log() - q.rate * p.mean


def _in_gamma(p: Any, q: Any) -> Any:
    a = q.concentration
    return a * q.rate.log() - lgamma(a) + (a - 1) * _mean_log(p) - q.rate * p.mean


def _in_pareto(p: Any, q: Any) -> Any:
    inside = p.low >= q.scale
    made = q.alpha.log() + q.alpha * q.scale.log() - (q.alpha + 1) * _mean_log(p)
    return where(inside, made, -math.inf)


def _in_beta(p: Any, q: Any) -> Any:
    a, b = q.concentration1, q.concentration0
    other = Uniform(1 - p.high, 1 - p.low, validate_args=False)
    made = (a - 1) * _mean_log(p) + (b - 1) * _mean_log(other)
    return _in_unit(p, made + lgamma(a + b) - lgamma(a) - lgamma(b))


def _in_continuous(p: Any, q: Any) -> Any:
    made = p.mean * q.logits + (-q.probs).log1p() + q._log_constant()
    return _in_unit(p, made) if isinstance(p, Uniform) else made


def _in_unit(p: Any, made: Any) -> Any:
    return where((p.low >= 0) & (p.high <= 1), made, -math.inf)


def _in_uniform(p: Any, q: Any) -> Any:
    return where((q.low <= 0) & (q.high >= 1), -(q.high - q.low).log(), -math.inf)


def _positive(of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """For a uniform p: minus infinity if it has values below 0."""
    return lambda p, q: where(p.low >= 0, of(p, q), -math.inf)


def _in_poisson(p: Any, q: Any) -> Any:
    return p.probs * q.rate.log() - q.rate


_EXPECTED: dict[Any, list[tuple[Callable[[Any, Any], Any], tuple[type, ...]]]] = {
    Normal: [(_in_normal, (Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Laplace, Pareto,
                           Uniform))],
    Laplace: [(_in_laplace, (Normal,))],
    Gumbel: [(_in_gumbel, (Normal, Uniform, Exponential, Gamma))],
    Exponential: [(_in_exponential, (Beta, ContinuousBernoulli, Gamma, Pareto)),
                  (_positive(_in_exponential), (Uniform,))],
    Gamma: [(_in_gamma, (Beta, Exponential, Pareto)), (_positive(_in_gamma), (Uniform,))],
    Pareto: [(_in_pareto, (Uniform,))],
    Beta: [(_in_beta, (Uniform,))],
    ContinuousBernoulli: [(_in_continuous, (Beta, Uniform))],
    Uniform: [(_in_uniform, (Beta, ContinuousBernoulli))],
    Poisson: [(_in_poisson, (Bernoulli,))],
}  # fmt: skip
_INFINITE: dict[Any, tuple[type, ...]] = {  # p has values that q cannot have
    Beta: (Pareto,), ContinuousBernoulli: (Pareto,),
    Exponential: (Uniform, Pareto, ContinuousBernoulli, Beta),
    Gamma: (Uniform, Pareto, ContinuousBernoulli, Beta),
    Gumbel: (Uniform, Pareto, Gamma, Exponential, ContinuousBernoulli, Beta),
    Laplace: (Uniform, Pareto, Gamma, Exponential, ContinuousBernoulli, Beta),
    Normal: (Uniform, Pareto, Gamma, Exponential, ContinuousBernoulli, Beta),
    Pareto: (Uniform, ContinuousBernoulli, Beta),
    Poisson: (Binomial, Bernoulli),
}  # fmt: skip


def _divergence_by(of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda p, q: -p.entropy() - of(p, q)


def _infinite(p: Any, q: Any) -> Any:
    return full(np.broadcast_shapes(p.batch_shape, q.batch_shape), math.inf)


CROSSED: dict[Any, Callable[[Any, Any], Any]] = {
    (kind, other): _divergence_by(of)
    for other, rows in _EXPECTED.items()
    for of, kinds in rows
    for kind in kinds
} | {(kind, other): _infinite for kind, others in _INFINITE.items() for other in others}
