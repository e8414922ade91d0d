"""torch.distributions: distributions with samples, log-probabilities and entropies.

A distribution's parameters broadcast to `batch_shape`. `sample(n)` has the shape
n + batch_shape + event_shape; `log_prob` and `entropy` sum over the event. `rsample` is a function
of the parameters, so gradients flow through it.
"""

from typing import Any

from weft.host.boundary import guard_methods
from weft.torch.distributions import constraints as constraints, transforms as transforms
from weft.torch.distributions.base import (
    Distribution as Distribution,
    ExponentialFamily as ExponentialFamily,
    Independent as Independent,
)
from weft.torch.distributions.continuous import (
    Exponential as Exponential,
    Laplace as Laplace,
    Normal as Normal,
    Uniform as Uniform,
)
from weft.torch.distributions.counts import (
    Binomial as Binomial,
    Geometric as Geometric,
    Multinomial as Multinomial,
    NegativeBinomial as NegativeBinomial,
)
from weft.torch.distributions.discrete import (
    Bernoulli as Bernoulli,
    Categorical as Categorical,
)
from weft.torch.distributions.divergence import (
    kl_divergence as kl_divergence,
    register_kl as register_kl,
)
from weft.torch.distributions.gammas import (
    Beta as Beta,
    Chi2 as Chi2,
    Dirichlet as Dirichlet,
    Gamma as Gamma,
    Poisson as Poisson,
)
from weft.torch.distributions.mixture import MixtureSameFamily as MixtureSameFamily
from weft.torch.distributions.multivariate import (
    LowRankMultivariateNormal as LowRankMultivariateNormal,
    MultivariateNormal as MultivariateNormal,
)
from weft.torch.distributions.powers import (
    GeneralizedPareto as GeneralizedPareto,
    Gumbel as Gumbel,
    InverseGamma as InverseGamma,
    Kumaraswamy as Kumaraswamy,
    LogisticNormal as LogisticNormal,
    Pareto as Pareto,
    Weibull as Weibull,
)
from weft.torch.distributions.registry import biject_to as biject_to, transform_to as transform_to
from weft.torch.distributions.relaxed import (
    ContinuousBernoulli as ContinuousBernoulli,
    OneHotCategorical as OneHotCategorical,
    OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough,
    RelaxedBernoulli as RelaxedBernoulli,
    RelaxedOneHotCategorical as RelaxedOneHotCategorical,
)
from weft.torch.distributions.tails import (
    Cauchy as Cauchy,
    FisherSnedecor as FisherSnedecor,
    HalfCauchy as HalfCauchy,
    HalfNormal as HalfNormal,
    StudentT as StudentT,
    VonMises as VonMises,
)
from weft.torch.distributions.transformed import (
    LogNormal as LogNormal,
    TransformedDistribution as TransformedDistribution,
)
from weft.torch.distributions.transforms import (
    AbsTransform as AbsTransform,
    AffineTransform as AffineTransform,
    ComposeTransform as ComposeTransform,
    ExpTransform as ExpTransform,
    IndependentTransform as IndependentTransform,
    PowerTransform as PowerTransform,
    ReshapeTransform as ReshapeTransform,
    SigmoidTransform as SigmoidTransform,
    SoftmaxTransform as SoftmaxTransform,
    SoftplusTransform as SoftplusTransform,
    StackTransform as StackTransform,
    StickBreakingTransform as StickBreakingTransform,
    TanhTransform as TanhTransform,
    Transform as Transform,
    identity_transform as identity_transform,
)

_NAMES = """AbsTransform AffineTransform Bernoulli Beta Binomial Categorical Cauchy Chi2
ComposeTransform ContinuousBernoulli Dirichlet Distribution ExpTransform Exponential
ExponentialFamily FisherSnedecor Gamma GeneralizedPareto Geometric Gumbel HalfCauchy HalfNormal
Independent IndependentTransform InverseGamma Kumaraswamy Laplace LogNormal
LogisticNormal LowRankMultivariateNormal MixtureSameFamily Multinomial
MultivariateNormal NegativeBinomial Normal OneHotCategorical
OneHotCategoricalStraightThrough Pareto Poisson PowerTransform RelaxedBernoulli
RelaxedOneHotCategorical ReshapeTransform SigmoidTransform SoftmaxTransform
SoftplusTransform StackTransform StickBreakingTransform StudentT TanhTransform
Transform TransformedDistribution Uniform VonMises Weibull biject_to constraints
identity_transform kl_divergence register_kl transform_to transforms"""


for _name in _NAMES.split():
    if isinstance(_kind := globals()[_name], type):
        guard_methods(_kind)


def __dir__() -> list[str]:
    return _NAMES.split()


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)
