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
    Independent as Independent,
)
from weft.torch.distributions.continuous import (
    Exponential as Exponential,
    Laplace as Laplace,
    Normal as Normal,
    Uniform as Uniform,
)
from weft.torch.distributions.discrete import (
    Bernoulli as Bernoulli,
    Categorical as Categorical,
)
from weft.torch.distributions.divergence import (
    kl_divergence as kl_divergence,
)
from weft.torch.distributions.gammas import (
    Beta as Beta,
    Chi2 as Chi2,
    Dirichlet as Dirichlet,
    Gamma as Gamma,
    Poisson as Poisson,
)
from weft.torch.distributions.multivariate import (
    MultivariateNormal as MultivariateNormal,
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

_NAMES = """AbsTransform AffineTransform Bernoulli Beta Categorical Chi2 ComposeTransform Dirichlet
Distribution ExpTransform Exponential Gamma Independent IndependentTransform Laplace LogNormal
MultivariateNormal Normal Poisson PowerTransform ReshapeTransform SigmoidTransform
SoftmaxTransform SoftplusTransform StackTransform StickBreakingTransform TanhTransform Transform
TransformedDistribution Uniform constraints identity_transform kl_divergence transforms"""


for _name in _NAMES.split():
    if isinstance(_kind := globals()[_name], type):
        guard_methods(_kind)


def __dir__() -> list[str]:
    return _NAMES.split()


def __getattr__(name: str) -> Any:
    from weft.core.missing import missing

    raise missing(__name__, name)
