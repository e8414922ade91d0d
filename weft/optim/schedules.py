"""Learning rates as functions of the number of steps done (int32 []), in tensor ops: the rate
changes from run to run of one compiled step. Step 0 is the first."""

from __future__ import annotations

import math

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.optim.optimizer import Schedule
from weft.tensor.core import Tensor


def want_counts(name: str, **counts: int) -> None:
    """Raises UsageError for a number of steps below 1."""
    for what, count in counts.items():
        if not count >= 1:
            raise UsageError(f"{name}: {what} {count}; give 1 or more")


def want_shares(name: str, **shares: float) -> None:
    """Raises UsageError for a factor that is not from 0 to 1."""
    for what, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"{name}: {what} {share}; give a number from 0 to 1")


def _check(name: str, steps: int, warmup: int) -> None:
    if not 0 <= warmup <= steps or steps < 1:
        raise UsageError(
            f"{name}: warmup {warmup} of {steps} steps; 0 <= warmup <= steps, 1 or more"
        )


def _warmed(lr: float, warmup: int, done: Tensor, after: Tensor) -> Tensor:
    """lr (done + 1) / warmup for the first `warmup` steps."""
    if not warmup:
        return after
    return (done < warmup).where((done + 1.0) * (lr / warmup), after)


def _progress(done: Tensor, steps: int, warmup: int) -> Tensor:
    return ((done - float(warmup)) * (1.0 / max(steps - warmup, 1))).clip(0.0, 1.0)


def constant(lr: float, warmup: int = 0) -> Schedule:
    """lr, reached in `warmup` equal steps. Raises UsageError for a negative number of steps.

    >>> optim.constant(0.5, warmup=2)(weft.tensor(0)).item()
    0.25
    """
    _check("constant", max(warmup, 1), warmup)

    def rate(count: Tensor) -> Tensor:
        done = count.cast(dt.float32)
        return _warmed(lr, warmup, done, done * 0.0 + lr)

    return rate


def linear(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Warm-up to lr, then a straight line to `final` at step `steps`, and `final` from there.
    Raises UsageError for a warm-up that does not fit into the steps.

    >>> optim.linear(0.5, steps=4)(weft.tensor(2)).item()
    0.25
    """
    _check("linear", steps, warmup)

    def rate(count: Tensor) -> Tensor:
        done = count.cast(dt.float32)
        return _warmed(lr, warmup, done, _progress(done, steps, warmup) * (final - lr) + lr)

    return rate


def cosine(lr: float, steps: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Warm-up to lr, then half a cosine to `final` at step `steps` (Loshchilov and Hutter 2017),
    and `final` from there. Raises UsageError as `linear` does.

    >>> optim.cosine(0.5, steps=4)(weft.tensor(0)).item()
    0.5
    """
    _check("cosine", steps, warmup)

    def rate(count: Tensor) -> Tensor:
        done = count.cast(dt.float32)
        wave = ((_progress(done, steps, warmup) * math.pi).cos() + 1.0) * 0.5
        return _warmed(lr, warmup, done, wave * (lr - final) + final)

    return rate
