"""Products with weights, norms, softmax, embeddings and rows written by number: weft's composites
with broadcasting and defaults filled in."""

from __future__ import annotations

from typing import Any, overload

from weft import ops
from weft.core import dtypes as dt
from weft.core.dtypes import DType
from weft.core.errors import ShapeError, UsageError
from weft.tensor.autocast import autocast_dtype, narrowed, widened
from weft.tensor.base import place, values
from weft.tensor.core import Tensor
from weft.tensor.create import full, placed
from weft.tensor.elementwise import Operand, as_tensor, method, wide
from weft.tensor.keys import as_index
from weft.tensor.sets import nonzero

gelu = method(Tensor.gelu, example=">>> F.gelu(weft.tensor([0.0, 1000.0])).tolist()\n[0.0, 1000.0]")
silu = method(Tensor.silu, example=">>> F.silu(weft.tensor([0.0, 1000.0])).tolist()\n[0.0, 1000.0]")
relu = method(Tensor.relu, example=">>> F.relu(weft.tensor([-1.0, 2.0])).tolist()\n[0.0, 2.0]")


@overload
def where(condition: Operand, /) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Operand, a: Operand, b: Operand, /) -> Tensor: ...
def where(condition: Operand, a: Operand = None, b: Operand = None, /) -> Any:
    """a where the condition (bool) holds, else b. Without them, as in NumPy and PyTorch, the
    indices where it holds (see `weft.nonzero`). Raises DTypeError, ShapeError.

    >>> F.where(weft.tensor([True, False]), 1.0, 2.0).tolist()
    [1.0, 2.0]
    """
    chosen = as_tensor(condition)
    return nonzero(chosen) if a is None and b is None else chosen.where(a, b)


def _ones_or_zeros(like: Tensor, number: int) -> Tensor:
    """A row of one number for the last axis of `like`, where `like` is."""
    return full(like.shape[-1:], number, like.dtype, place(like))


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) / sum along an axis, of floats of any shape.

    >>> F.softmax(weft.tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    return widened(x).softmax(axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)) along an axis, without overflow.

    >>> F.log_softmax(weft.tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    return widened(x).log_softmax(axis)


def softmin(x: Tensor, axis: int = -1) -> Tensor:
    """softmax(-x): the smallest element has the largest share.

    >>> F.softmin(weft.tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """
    return softmax(-x, axis)


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second (Dauphin et al.,
    arXiv:1612.08083). Raises UsageError for an axis of odd size.

    >>> F.glu(weft.tensor([4.0, 0.0])).tolist()
    [2.0]
    """
    if not x.ndim or x.shape[axis] % 2:
        raise UsageError(f"glu: axis {axis} of {list(x.shape)} does not have two equal halves")
    value, gate = x.chunk(2, axis)
    return wide(lambda value, gate: value * gate.sigmoid())(value, gate)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    axes: int = 1,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, or the last `axes` of them;
    weight and bias have their shape (Ba et al., arXiv:1607.06450). Narrow floats are computed in
    float32. Raises ShapeError for other shapes.

    >>> F.layer_norm(weft.tensor([[1.0, 3.0]]), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    rows, (w, b) = _joined("layer_norm", widened(x), axes, weight, bias)
    w = _ones_or_zeros(rows, 1) if w is None else w
    b = _ones_or_zeros(rows, 0) if b is None else b
    return rows._call("layer_norm", w, b, eps=float(eps)).reshape(x.shape)


def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float | None = None, offset: float = 0.0,
    axes: int = 1,
) -> Tensor:  # fmt: skip
    """x / sqrt(mean(x^2) + eps) * (offset + weight) over the last axis, or the last `axes` of them;
    weight has their shape (Zhang and Sennrich, arXiv:1910.07467). Narrow floats are computed in
    float32. Without an eps it is the distance from 1 to the next number of the dtype in which it
    computes, as in PyTorch: 2**-23 for float32. Raises ShapeError for other shapes.

    >>> F.rms_norm(weft.tensor([[3.0, -3.0]]), eps=0.0).tolist()
    [[1.0, -1.0]]
    """
    rows, (w,) = _joined("rms_norm", widened(x), axes, weight)
    w = _ones_or_zeros(rows, 1) if w is None else w
    eps = (2.0**-52 if x.dtype == dt.float64 else 2.0**-23) if eps is None else eps
    return rows._call("rms_norm", w, eps=float(eps), offset=float(offset)).reshape(x.shape)


def _joined(
    name: str, x: Tensor, axes: int, *weights: Tensor | None
) -> tuple[Tensor, list[Tensor | None]]:
    """x and weights with their last `axes` axes as one."""
    if any(w is not None and not isinstance(w, Tensor) for w in weights):
        raise UsageError(
            f"{name}: weight and bias are tensors; their shape is the normalized_shape of PyTorch"
        )
    if axes == 1:
        return x, list(weights)
    last = x.shape[-axes:]
    if not 1 <= axes <= x.ndim or any(w is not None and w.shape != last for w in weights):
        shapes = [list(w.shape) for w in weights if w is not None]
        raise ShapeError(f"{name}: x {list(x.shape)}, {axes} axes, weights {shapes}")
    rows = x.flatten(x.ndim - axes)
    return rows, [None if w is None else w.reshape(-1) for w in weights]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: DType | str | None = None
) -> Tensor:
    """x[..., K] @ weight[N, K]^T + bias[N], weight as in checkpoints (never repacked). The
    result has the operands' dtype, or `out_dtype`. Raises ShapeError for shapes that do not agree.

    >>> F.linear(weft.tensor([[1.0, 2.0]]), weft.tensor([[3.0, 4.0]])).tolist()
    [[11.0]]
    """
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: x {list(x.shape)}, weight {list(weight.shape)}; expected [..., K] and [N, K]"
        )
    narrow = autocast_dtype()
    # Cast the weight in its stored order: a transposed copy would cost more.
    (weight,) = narrowed(weight)
    if narrow is None or out_dtype is not None or bias is None:
        out = x.matmul(weight.T, out_dtype)
        return out if bias is None else out + bias
    return (x.matmul(weight.T, dt.float32) + bias).cast(narrow)  # rounded once, after the bias


def embedding(ids: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight[V, D] at integer ids[...] -> [..., D], as `weft.take` has them: -V..-1 count
    from the end, and an id beyond that gives a row of NaN. Row `padding_idx` gets no gradient.

    >>> F.embedding(weft.tensor([1, 0]), weft.tensor([[5.0], [7.0]])).tolist()
    [[7.0], [5.0]]
    """
    out = weight.take(ids, 0)
    if padding_idx is None:
        return out
    count = weight.shape[0]
    if not -count <= padding_idx < count:
        raise UsageError(f"embedding: padding_idx {padding_idx} of {count} rows")
    row = padding_idx % count
    at = as_index(ids)
    padded = ((at == row) | (at == row - count)).unsqueeze(-1)
    return padded.where(out.detach(), out)


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotary embedding: pairs of elements of x[N, H, D] rotated by angles given as cos and sin [N,
    D/2]. The pairs are (i, i + D/2) as in Hugging Face checkpoints, or (2i, 2i + 1) when
    interleaved (Su et al., arXiv:2104.09864).

    >>> quarter = weft.zeros((1, 1)), weft.ones((1, 1))
    >>> F.rope(weft.tensor([[[2.0, 3.0]]]), *quarter).tolist()
    [[[-3.0, 2.0]]]
    """
    return x._call("rope", cos, sin, interleaved=bool(interleaved))


def update(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with row index[r] (int32) of axis 0 replaced by rows[r]; where index[r] is not in 0..n-1
    the row is dropped.

    >>> F.update(weft.zeros((2, 1)), weft.tensor([1]), weft.ones((1, 1))).tolist()
    [[0.0], [1.0]]
    """
    return Tensor(ops.update(*values("update", (x, index, rows))))


def scatter_add(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with rows[r] added to row index[r] (int32) of axis 0; where index[r] is not in 0..n-1 the
    row is dropped.

    >>> F.scatter_add(weft.ones((2, 1)), weft.tensor([1, 1]), weft.ones((2, 1))).tolist()
    [[1.0], [3.0]]
    """
    return Tensor(ops.scatter_add(*values("scatter_add", (x, index, rows))))


def one_hot(ids: Tensor, classes: int, dtype: DType | str | None = None) -> Tensor:
    """1 at each id (an integer) and 0 elsewhere (float32 by default), along a new last axis; an id
    that is not in 0..classes-1 gives zeros only.

    >>> F.one_hot(weft.tensor([1, 5]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    shape = (*ids.shape, classes)
    line = as_index(ids).unsqueeze(-1).expand(shape)
    count = placed(ops.iota(shape, len(shape) - 1, dt.int32), place(ids))
    return (line == count).cast(dt.float32 if dtype is None else dtype)
