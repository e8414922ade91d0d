"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core import dtypes as dt
from weft.core.errors import ShapeError
from weft.nn import init
from weft.nn.layers import empty
from weft.nn.module import Module, lacks
from weft.tensor import functional as F
from weft.tensor.autograd import no_grad
from weft.tensor.core import Tensor
from weft.tensor.create import ones, zeros
from weft.tensor.recomputing import once


class _RowNorm(Module):
    """The base of the norms over the last axes; weight (and bias) have their shape."""

    weight: Tensor | None

    eps: Any  # a float; None in an RMSNorm without one

    def _make(self, shape: int | Sequence[int], eps: float | None, affine: bool) -> None:
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if not self.normalized_shape or min(self.normalized_shape) < 1:
            raise ShapeError(f"{type(self).__name__}: normalized_shape {self.normalized_shape}")
        self.eps = eps
        self.weight = init.ones_(empty(*self.normalized_shape)) if affine else None

    def _fit(self, x: Tensor) -> int:
        """The number of axes that are normalised. Raises ShapeError if x ends in other axes."""
        axes = len(self.normalized_shape)
        if x.shape[-axes:] != self.normalized_shape:
            raise ShapeError(
                f"{type(self).__name__}: x {list(x.shape)}; expected the last axes to be "
                f"{list(self.normalized_shape)}"
            )
        return axes

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class LayerNorm(_RowNorm):
    """(x - mean) / sqrt(var + eps) weight + bias over the last axes, those of normalized_shape (Ba
    et al., arXiv:1607.06450). Raises ShapeError for an x with other last axes.

    >>> nn.LayerNorm(2, eps=0.0)(weft.tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5,
        elementwise_affine: bool = True, bias: bool = True,
    ):  # fmt: skip
        self._make(normalized_shape, eps, elementwise_affine)
        self.bias = empty(*self.normalized_shape) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias, self.eps, self._fit(x))


class RMSNorm(_RowNorm):
    """x / sqrt(mean(x^2) + eps) weight over the last axes, those of normalized_shape; without an
    eps F.rms_norm's (Zhang and Sennrich, arXiv:1910.07467). Raises ShapeError for an x with other
    last axes.

    >>> nn.RMSNorm(2, eps=0.0)(weft.tensor([2.0, 2.0])).tolist()
    [1.0, 1.0]
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None,
        elementwise_affine: bool = True,
    ):  # fmt: skip
        self._make(normalized_shape, eps, elementwise_affine)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight, self.eps, axes=self._fit(x))


class _BatchNorm(Module):
    """Normalisation per channel (Ioffe and Szegedy 2015): by the batch's statistics in training, by
    the buffers running_mean and running_var in evaluation.

    Training moves the buffers towards the batch's statistics by `momentum`; when it is None, they
    are the average over all batches. The buffers stay float32 when the module is cast: in 16 bits
    they would stop moving.
    """

    RANKS: tuple[int, ...] = ()
    _wide = frozenset(("running_mean", "running_var"))
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, bias: bool = True,
    ):  # fmt: skip
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = init.ones_(empty(num_features)) if affine else None
        self.bias = empty(num_features) if affine and bias else None
        tracked = track_running_stats
        size = (num_features,)
        self.register_buffer("running_mean", zeros(size) if tracked else None)
        self.register_buffer("running_var", ones(size) if tracked else None)
        self.register_buffer("num_batches_tracked", zeros((), dt.int32) if tracked else None)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.RANKS or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: x {list(x.shape)}; expected {self.num_features} channels "
                f"on axis 1 of {' or '.join(map(str, self.RANKS))}"
            )
        training = self.training
        momentum: float | Tensor = 0.0 if self.momentum is None else self.momentum
        tracked = self.num_batches_tracked
        if training and tracked is not None:
            count: Tensor = once(lambda: _next(tracked))
            if self.momentum is None:
                momentum = 1.0 / count.cast(dt.float32)
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training, momentum,
            self.eps,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


def _next(count: Tensor) -> Tensor:
    """Counts one more batch; returns their number."""
    with no_grad():
        now = count + 1
        count.assign(now)
    return now


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of x[N, C] or x[N, C, L] (Ioffe and Szegedy, arXiv:1502.03167). Raises
    ShapeError for other shapes. See weft.functional.batch_norm.

    >>> nn.BatchNorm1d(3)(weft.zeros((2, 3))).shape
    (2, 3)
    """

    RANKS = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of x[N, C, H, W] (Ioffe and Szegedy, arXiv:1502.03167). Raises ShapeError
    for other shapes. See weft.functional.batch_norm.

    >>> nn.BatchNorm2d(3)(weft.zeros((2, 3, 4, 4))).shape
    (2, 3, 4, 4)
    """

    RANKS = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of x[N, C, D, H, W] (Ioffe and Szegedy, arXiv:1502.03167). Raises
    ShapeError for other shapes. See weft.functional.batch_norm.

    >>> nn.BatchNorm3d(3)(weft.zeros((2, 3, 4, 4, 4))).shape
    (2, 3, 4, 4, 4)
    """

    RANKS = (5,)


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of x[N, C, ...] by the statistics of all processes. weft trains in one
    process, whose statistics these are. Raises UsageError for a process_group, ShapeError for an x
    of one axis or of other channels.

    >>> nn.SyncBatchNorm(3)(weft.zeros((2, 3, 4))).shape
    (2, 3, 4)
    """

    RANKS = (2, 3, 4, 5)

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, process_group: Any = None,
        bias: bool = True,
    ):  # fmt: skip
        lacks(self, process_group=process_group)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module with a SyncBatchNorm in the place of each BatchNorm1d, 2d and 3d at or below
        it, with the same parameters and buffers."""
        for inside in list(module.modules()):
            for name, child in list(inside.named_children()):
                if (made := cls._converted(child, process_group)) is not child:
                    setattr(inside, name, made)
        return cls._converted(module, process_group)

    @classmethod
    def _converted(cls, module: Module, process_group: Any) -> Module:
        if not isinstance(module, _BatchNorm) or isinstance(module, SyncBatchNorm):
            return module
        affine, tracked = module.weight is not None, module.running_mean is not None
        sizes = (module.num_features, module.eps, module.momentum)
        options = {"process_group": process_group, "bias": module.bias is not None}
        made = cls(*sizes, affine, tracked, **options)
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(module, name))
        return made.train(module.training)


class GroupNorm(Module):
    """Normalisation over runs of channels of each image; see functional.group_norm. x is [N, C,
    ...] (Wu and He, arXiv:1803.08494). Raises ShapeError where groups do not divide channels.

    >>> nn.GroupNorm(2, 4)(weft.zeros((1, 4, 3))).shape
    (1, 4, 3)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        bias: bool = True,
    ):  # fmt: skip
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(f"GroupNorm: {num_groups} groups of {num_channels} channels")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = init.ones_(empty(num_channels)) if affine else None
        self.bias = empty(num_channels) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


class _InstanceNorm(Module):
    """Normalisation per channel of each image; see functional.instance_norm. It keeps no running
    statistics."""

    RANKS: tuple[int, ...] = ()

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, bias: bool = True,
    ):  # fmt: skip
        lacks(self, track_running_stats=track_running_stats)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = init.ones_(empty(num_features)) if affine else None
        self.bias = empty(num_features) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self.RANKS or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: x {list(x.shape)}; expected {self.num_features} channels "
                f"on axis 1 of {' or '.join(map(str, self.RANKS))}"
            )
        return F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of x[N, C, L] (Ulyanov et al., arXiv:1607.08022). Raises ShapeError
    for other shapes. See weft.functional.instance_norm.

    >>> nn.InstanceNorm1d(3)(weft.zeros((2, 3, 4))).shape
    (2, 3, 4)
    """

    RANKS = (3,)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of x[N, C, H, W] (Ulyanov et al., arXiv:1607.08022). Raises ShapeError
    for other shapes. See weft.functional.instance_norm.

    >>> nn.InstanceNorm2d(3)(weft.zeros((2, 3, 4, 4))).shape
    (2, 3, 4, 4)
    """

    RANKS = (4,)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of x[N, C, D, H, W] (Ulyanov et al., arXiv:1607.08022). Raises
    ShapeError for other shapes. See weft.functional.instance_norm.

    >>> nn.InstanceNorm3d(3)(weft.zeros((2, 3, 4, 4, 4))).shape
    (2, 3, 4, 4, 4)
    """

    RANKS = (5,)


class LocalResponseNorm(Module):
    """x / (k + alpha mean)^beta, with the mean of squares over `size` neighbouring channels. x is
    [N, C, ...] (Krizhevsky et al. 2012). See weft.functional.local_response_norm.

    >>> nn.LocalResponseNorm(3)(weft.zeros((1, 4, 5, 5))).shape
    (1, 4, 5, 5)
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)
