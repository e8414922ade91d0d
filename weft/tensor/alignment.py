"""Connectionist temporal classification: the loss of a sequence whose places in time are unknown
(Graves et al. 2006). The forward variables are logarithms; one step of time is one kernel."""

from __future__ import annotations

import math

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import DTypeError, ShapeError, UsageError
from weft.ops.steps import apart
from weft.tensor.base import place
from weft.tensor.core import Tensor
from weft.tensor.create import arange, full_like, zeros
from weft.tensor.elementwise import derivative, log1p
from weft.tensor.keys import Lengths, as_index, lengths_of
from weft.tensor.losses import inside_classes, reduced
from weft.tensor.shapes import cat, stack


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths,
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """-log of the probability of all alignments of each target with its sequence, float32.

    `log_probs` are [T, N, C], as log_softmax gives them; integer `targets` are [N, S], or all
    targets one after another [their total length]. Lengths are integers [N], as a tensor or a
    sequence. Without N each length is one number. An alignment has a class at each step; without
    repetitions and then without `blank` it is the target. A target that does not fit has an
    infinite loss and gradients of NaN, or zeros with `zero_infinity`. A mean divides each loss by
    the length of its target (at least 1) first. A class that does not exist gives NaN. The gradient
    is PyTorch's: exp(log_probs) minus the probability of each class at each step, which is exact
    behind log_softmax. Raises ShapeError, DTypeError, UsageError.

    >>> flat = weft.full((3, 1, 2), math.log(0.5))
    >>> F.ctc_loss(flat, weft.tensor([[1]]), [3], [1])  # 6 of 8 alignments
    Tensor(0.28768206)
    """
    if not log_probs.dtype.is_float or not targets.dtype.is_int:
        raise DTypeError(
            f"ctc_loss: log_probs {log_probs.dtype.name} and targets {targets.dtype.name}; "
            "expected floats and integers"
        )
    single = log_probs.ndim == 2
    x = log_probs.unsqueeze(1) if single else log_probs
    if x.ndim != 3 or targets.ndim not in (1, 2) or (single and targets.ndim != 1):
        raise ShapeError(
            f"ctc_loss: log_probs {list(log_probs.shape)} with targets {list(targets.shape)}; "
            "expected [T, N, C] with [N, S] or [total], or [T, C] with [S]"
        )
    steps, count, classes = x.shape
    if not 0 <= blank < classes:
        raise UsageError(f"ctc_loss: blank {blank} is not one of {classes} classes")
    times = lengths_of("ctc_loss: input_lengths", input_lengths, x, count, steps)
    flat = targets.ndim == 1 and not single
    most = targets.shape[-1]
    sizes = lengths_of("ctc_loss: target_lengths", target_lengths, x, count, most)
    rows = targets.reshape(1, -1) if single else targets
    if flat:
        rows, most = _one_each(rows, sizes, target_lengths, count)
    if rows.shape[0] != count:
        raise ShapeError(f"ctc_loss: targets {list(targets.shape)} for {count} sequences")
    loss = -_likelihoods(
        _paired(x.cast(dt.compute_dtype(x.dtype))), as_index(rows), times, sizes, blank,
        zero_infinity,
    )  # fmt: skip
    if zero_infinity:
        loss = (loss == math.inf).where(0.0, loss)
    if reduction == "mean":
        loss = loss / sizes.maximum(1).cast(loss.dtype)
    return reduced(loss.reshape(()) if single else loss, reduction)


def _one_each(flat: Tensor, sizes: Tensor, given: Lengths, count: int) -> tuple[Tensor, int]:
    """Targets that lie one after another as rows [N, S]; S is the largest length, or the total
    where the lengths are data."""
    total = flat.shape[0]
    known = None if isinstance(given, Tensor) else np.asarray(given).reshape(-1)
    if known is not None and known.sum() > total:
        raise ShapeError(f"ctc_loss: {total} targets for target_lengths {known.tolist()}")
    most = total if known is None else int(known.max(initial=0))
    if not most:
        return zeros((count, 0), dt.int32, place(flat)), 0
    starts = sizes.cumsum(0) - sizes
    at = starts.unsqueeze(1) + _upto(most, flat)
    return flat.take(at.minimum(total - 1).reshape(-1), 0).reshape(count, most), most


@derivative(lambda g, out, x: g - x.exp() * g.sum(-1, keepdims=True))
def _paired(x: Tensor) -> Tensor:
    """x; its gradient is that of log_softmax by its own result, as in PyTorch."""
    return x


def _likelihoods(
    x: Tensor, targets: Tensor, times: Tensor, sizes: Tensor, blank: int, quiet: bool
) -> Tensor:
    """The logarithm [N] of the probability of each target. Between, before and after its classes
    stand blanks; a step goes on by one, or by two from a class to another."""
    count, most = targets.shape
    width, classes = 2 * most + 1, x.shape[2]
    column = full_like(sizes, blank).unsqueeze(1)
    here = _upto(most, targets) < sizes.unsqueeze(1)
    spaced = stack([column.expand(count, most), here.where(targets, blank)], -1)
    labels = cat([spaced.reshape(count, 2 * most), column], 1)
    inside = inside_classes(labels, classes)
    index = inside.unsqueeze(0).expand(x.shape[0], count, width)
    picked = (labels == inside).where(x.take_along_axis(index, 2), math.nan)
    apart2 = (labels != blank) & (labels != _moved(labels, 2, blank))
    jump = apart2.where(0.0, -math.inf).cast(x.dtype)
    state = (_upto(width, sizes) == 0).where(0.0, -math.inf).cast(x.dtype).expand(count, width)
    for t, row in enumerate(apart(picked.value)):
        near = _either(state, _moved(state, 1, -math.inf))
        new = _either(near, _moved(state, 2, -math.inf) + jump) + picked._wrap(row)
        state = (times > t).unsqueeze(1).where(new, state)
    ends = stack([sizes * 2, (sizes * 2 - 1).maximum(0)], 1)
    last, before = (v.squeeze(1) for v in state.take_along_axis(ends, 1).chunk(2, 1))
    both = _either if quiet else _either_or_nan
    return both(last, (sizes > 0).where(before, -math.inf))


def _upto(count: int, like: Tensor) -> Tensor:
    return arange(count, dtype=dt.int32, device=place(like)).unsqueeze(0)


def _moved(x: Tensor, by: int, value: float) -> Tensor:
    """x[N, L] moved to the right, with `value` in the gap."""
    return x.pad([(0, 0), (by, 0)], value).narrow(1, 0, x.shape[1])


def _sum(a: Tensor, b: Tensor) -> Tensor:
    top = a.maximum(b)
    return (top == -math.inf).where(top, top + log1p((-(a - b).abs()).exp()))


def _share(none: float, g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    """The gradient of one of the two: its part of the sum, or `none` g where both are nothing."""
    return g * (out == -math.inf).where(none, (x - out).exp())


@derivative(
    lambda g, out, a, b: _share(0.0, g, out, a), lambda g, out, a, b: _share(0.0, g, out, b)
)
def _either(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b))."""
    return _sum(a, b)


@derivative(
    lambda g, out, a, b: _share(math.nan, g, out, a),
    lambda g, out, a, b: _share(math.nan, g, out, b),
)
def _either_or_nan(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)), with a gradient of NaN where it is -inf."""
    return _sum(a, b)
