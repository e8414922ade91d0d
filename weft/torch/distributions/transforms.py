"""torch.distributions.transforms: invertible functions and the logarithms of their slopes."""

from weft.torch.distributions.composed import (
    ComposeTransform as ComposeTransform,
    IndependentTransform as IndependentTransform,
    ReshapeTransform as ReshapeTransform,
    SoftmaxTransform as SoftmaxTransform,
    StackTransform as StackTransform,
    StickBreakingTransform as StickBreakingTransform,
    identity_transform as identity_transform,
)
from weft.torch.distributions.mappings import (
    AbsTransform as AbsTransform,
    AffineTransform as AffineTransform,
    ExpTransform as ExpTransform,
    PowerTransform as PowerTransform,
    SigmoidTransform as SigmoidTransform,
    SoftplusTransform as SoftplusTransform,
    TanhTransform as TanhTransform,
    Transform as Transform,
)
