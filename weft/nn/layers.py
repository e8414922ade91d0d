"""Linear maps, embeddings, activations and other small layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from weft.core.errors import ShapeError, UsageError
from weft.nn import init, tree
from weft.nn.activations import Along, InPlace, Plain
from weft.nn.module import Module, Parameter, lacks
from weft.ops.rules import axis_of
from weft.tensor import functional as F
from weft.tensor.convolution import Sizes
from weft.tensor.core import Tensor


def empty(*shape: int) -> Parameter:
    """A float32 parameter of zeros, to be initialised."""
    return Parameter(np.zeros(shape, np.float32))


class Linear(Module):
    """x[..., in] -> x weight^T + bias: [..., out]; weight [out, in], bias [out]. Both start uniform
    in +- 1/sqrt(in). x is floats. Raises ShapeError where its last axis is not `in_features`.

    >>> nn.Linear(3, 2)(weft.ones((5, 3))).shape
    (5, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty(out_features, in_features)
        self.bias = empty(out_features) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values."""
        bound = 1.0 / math.sqrt(self.in_features) if self.in_features else 0.0
        for p in (self.weight, self.bias):
            if p is not None:
                init.uniform_(p, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class EmbeddingRows(Module):
    """The base of modules with a weight [count, dim] of which ids pick rows. `_OPTIONS` names the
    constructor's arguments after these two."""

    _OPTIONS: ClassVar[str]

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, *args: Any, **options: Any
    ) -> Self:
        """A module with a copy of `embeddings` [count, dim], float, as its weight; not trained with
        `freeze`. Other arguments are the constructor's after the sizes. Raises ShapeError.

        >>> nn.Embedding.from_pretrained(weft.eye(3))(weft.tensor([2])).tolist()
        [[0.0, 0.0, 1.0]]
        """
        if len(embeddings.shape) != 2:
            raise ShapeError(f"from_pretrained: {list(embeddings.shape)}; expected [count, dim]")
        names = cls._OPTIONS.split()
        if len(args) > len(names):
            raise UsageError(f"from_pretrained: {len(args)} options; expected {', '.join(names)}")
        made = cls(*embeddings.shape, **dict(zip(names, args, strict=False)), **options)
        made.weight = type(made.weight)(embeddings, requires_grad=not freeze)
        return made

    def _rows(self, count: int, dim: int, padding_idx: int | None) -> None:
        """Makes the weight. Raises UsageError for a padding_idx that is not a row."""
        if padding_idx is not None and not -count <= padding_idx < count:
            name = type(self).__name__
            raise UsageError(f"{name}: padding_idx {padding_idx} of {count} rows")
        self.num_embeddings, self.embedding_dim = count, dim
        self.padding_idx = None if padding_idx is None else padding_idx % count
        self.weight = empty(count, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            rows = np.array(self.weight.numpy())
            rows[self.padding_idx] = 0
            init._set(self.weight, Tensor(rows))


class Embedding(EmbeddingRows):
    """Rows of weight [count, dim] at integer ids[...]: [..., dim]. The weight starts standard
    normal; row `padding_idx` starts as zeros and gets no gradient. Raises UsageError for a
    padding_idx that is not a row, DTypeError for ids that are not integers.

    >>> nn.Embedding(10, 4)(weft.tensor([1, 2])).shape
    (2, 4)
    """

    _OPTIONS = "padding_idx max_norm norm_type scale_grad_by_freq sparse"

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ):  # fmt: skip
        lacks(self, max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
        self._rows(num_embeddings, embedding_dim, padding_idx)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        return tree.options(self)


class Identity(Module):
    """x as it is. The arguments are ignored.

    >>> nn.Identity()(weft.tensor([3.0])).tolist()
    [3.0]
    """

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x


class Flatten(Module):
    """Axes start_dim..end_dim merged into one. x has any shape and dtype.

    >>> nn.Flatten()(weft.zeros((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)


class Unflatten(Module):
    """Axis `dim` split into axes of the sizes `unflattened_size`, of which one may be -1. x has any
    shape and dtype. Raises ShapeError for sizes that do not fit.

    >>> nn.Unflatten(1, (2, -1))(weft.zeros((3, 8))).shape
    (3, 2, 4)
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        d = axis_of("Unflatten", self.dim, x.ndim)
        return x.reshape(*x.shape[:d], *self.unflattened_size, *x.shape[d + 1 :])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class ReLU(InPlace):
    """max(x, 0). `inplace` changes nothing: tensors are values. x is floats of any shape; the
    result is like x. See weft.functional.relu.

    >>> nn.ReLU()(weft.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    _apply = staticmethod(F.relu)


class GELU(Module):
    """x Phi(x): exact, or approximate="tanh". x is floats of any shape; the result is like x. See
    weft.functional.gelu.

    >>> nn.GELU()(weft.tensor([0.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """

    def __init__(self, approximate: str = "none"):
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)


class SiLU(InPlace):
    """x sigmoid(x). `inplace` changes nothing: tensors are values. x is floats of any shape; the
    result is like x. See weft.functional.silu.

    >>> nn.SiLU()(weft.tensor([0.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """

    _apply = staticmethod(F.silu)


class Hardsigmoid(InPlace):
    """min(max(x + 3, 0), 6) / 6. `inplace` changes nothing: tensors are values. x is floats of any
    shape; the result is like x. See weft.functional.hardsigmoid.

    >>> nn.Hardsigmoid()(weft.tensor([-4.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    _apply = staticmethod(F.hardsigmoid)


class Hardswish(InPlace):
    """x min(max(x + 3, 0), 6) / 6. `inplace` changes nothing: tensors are values. x is floats of
    any shape; the result is like x. See weft.functional.hardswish.

    >>> nn.Hardswish()(weft.tensor([-5.0, 4.0])).tolist()
    [-0.0, 4.0]
    """

    _apply = staticmethod(F.hardswish)


class Tanh(Plain):
    """The hyperbolic tangent. x is floats of any shape; the result is like x. See
    weft.functional.tanh.

    >>> nn.Tanh()(weft.tensor([0.0, 1000.0])).tolist()
    [0.0, 1.0]
    """

    _apply = staticmethod(F.tanh)


class Sigmoid(Plain):
    """1 / (1 + exp(-x)). x is floats of any shape; the result is like x. See
    weft.functional.sigmoid.

    >>> nn.Sigmoid()(weft.tensor([0.0, 1000.0])).tolist()
    [0.5, 1.0]
    """

    _apply = staticmethod(F.sigmoid)


class Softmax(Along):
    """exp(x - max) / sum along an axis. x is floats of any shape; the result is like x. See
    weft.functional.softmax.

    >>> nn.Softmax()(weft.tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """

    _apply = staticmethod(F.softmax)


class LogSoftmax(Along):
    """log(softmax(x)) along an axis. x is floats of any shape; the result is like x. See
    weft.functional.log_softmax.

    >>> nn.LogSoftmax()(weft.tensor([5.0])).tolist()
    [0.0]
    """

    _apply = staticmethod(F.log_softmax)


class Unfold(Module):
    """The blocks of x[N, C, H, W] as columns [N, C kh kw, L]; see weft.functional.unfold. Raises
    ShapeError if no block fits.

    >>> nn.Unfold(2)(weft.ones((1, 3, 4, 4))).shape
    (1, 12, 9)
    """

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ):
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Module):
    """The sums of columns x[N, C kh kw, L] at their places in images [N, C, H, W] of output_size;
    see weft.functional.fold. Raises ShapeError for other sizes.

    >>> nn.Fold((3, 3), 2)(weft.ones((1, 4, 4))).shape
    (1, 1, 3, 3)
    """

    def __init__(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
        stride: Sizes = 1,
    ):  # fmt: skip
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, x: Tensor) -> Tensor:
        blocks = (self.kernel_size, self.dilation, self.padding, self.stride)
        return F.fold(x, self.output_size, *blocks)
