"""A transposed convolution as plain ones: one for each phase of its stride.

Along an axis, every s-th element of the image is reached by every s-th element of the kernel only.
So these elements are a convolution of x with that part of the kernel, turned round. No product is
with an inserted zero and nothing is summed afterwards: the phases interleave.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from weft.core.records import dataclass
from weft.ops import functions as f
from weft.ops.functions import Value
from weft.ops.primitive import aval

PHASES = 16  # most of them: each is a convolution of its own
BROAD = 8  # channels of results from which on convolutions fill vectors


@dataclass(frozen=True)
class Axis:
    """One axis of a transposed convolution from `size` elements to `image` elements; `sides` are
    the elements that the result lacks before and after."""

    size: int
    kernel: int
    stride: int
    sides: tuple[int, int]
    dilation: int
    image: int

    @property
    def overlap(self) -> bool:
        """True if two elements of the kernel reach one element of the image."""
        return any(len(self.taps(q)) > 1 for q in range(self.stride))

    @property
    def count(self) -> int:
        """Elements of a phase, of which the last may be beyond the image."""
        return -(-self.image // self.stride)

    def taps(self, phase: int) -> range:
        """The elements of the kernel that reach a phase."""
        step = self.stride // math.gcd(self.stride, self.dilation)
        reach = (phase + self.sides[0]) % self.stride
        fits = (k for k in range(step) if k * self.dilation % self.stride == reach)
        return range(next(fits, self.kernel), self.kernel, step)

    def phase(self, number: int) -> _Phase | None:
        """A phase as a convolution; None where nothing reaches it."""
        taps = self.taps(number)
        if not taps:
            return None
        first, reach = divmod(number + self.sides[0], self.stride)
        first -= (taps[0] * self.dilation - reach) // self.stride  # of x, by tap 0, at element 0
        dilation = self.dilation // math.gcd(self.stride, self.dilation)
        low = dilation * (len(taps) - 1) - first
        high = self.count + first - self.size
        start, stop = max(-low, 0), self.size - max(-high, 0)
        if start >= stop:
            return None
        return _Phase(taps, (start, stop), (max(low, 0), max(high, 0)), dilation)


@dataclass(frozen=True)
class _Phase:
    """Along one axis: elements of the kernel, the part of x that they meet, zeros around it, and
    the distance of neighbouring elements of the kernel in x."""

    taps: range
    part: tuple[int, int]
    padding: tuple[int, int]
    dilation: int


def in_phases(x: Value, w: Value, axes: Sequence[Axis], groups: int) -> Value:
    """The transposed convolution of x[N, C, ...] by w[C, O / groups, ...]."""
    made = {
        at: _phase(x, w, axes, [a.phase(q) for a, q in zip(axes, at)], groups)
        for at in itertools.product(*(range(a.stride) for a in axes))
    }
    for i in reversed(range(len(axes))):  # the last axis first
        for at in itertools.product(*(range(a.stride) for a in axes[:i])):
            made[at] = _woven([made[(*at, q)] for q in range(axes[i].stride)], i + 2)
    whole = made[()]
    shape = (*aval(whole).shape[:2], *(a.image for a in axes))
    return f.slice_(whole, (0,) * len(shape), shape)


def _phase(
    x: Value, w: Value, axes: Sequence[Axis], phases: Sequence[_Phase | None], groups: int
) -> Value:
    (n, c, *_), per = aval(x).shape, aval(w).shape[1]
    found = [p for p in phases if p is not None]
    if len(found) < len(axes) or not n * c:
        zero = f.const(0.0, aval(x).dtype)
        return f.broadcast(zero, (n, per * groups, *(a.count for a in axes)))
    starts, stops = zip(*(p.part for p in found))
    part = f.slice_(x, (0, 0, *starts), (n, c, *stops))
    params: dict[str, Any] = {
        "stride": (1,) * len(axes), "padding": tuple(p.padding for p in found),
        "dilation": tuple(p.dilation for p in found), "groups": groups,
    }  # fmt: skip
    return f.call("conv", part, _turned(w, [p.taps for p in found], groups), **params)


def _turned(w: Value, taps: Sequence[range], groups: int) -> Value:
    """The weights [O, C / groups, ...] of a phase, its taps last to first."""
    c, per, *_ = aval(w).shape
    cut = f.slice_(
        w,
        (0, 0, *(t[-1] for t in taps)),
        (c, per, *(t[0] - t.step if t[0] >= t.step else -1 for t in taps)),
        (1, 1, *(-t.step for t in taps)),
    )
    kernel = aval(cut).shape[2:]
    parts = f.reshape(cut, (groups, c // groups, per, *kernel))
    turned = f.transpose(parts, (0, 2, 1, *range(3, 3 + len(kernel))))
    return f.reshape(turned, (groups * per, c // groups, *kernel))


def _woven(phases: Sequence[Value], axis: int) -> Value:
    """Values whose elements along an axis take turns."""
    if len(phases) == 1:
        return phases[0]
    shape = aval(phases[0]).shape
    lines = [f.reshape(p, (*shape[: axis + 1], 1, *shape[axis + 1 :])) for p in phases]
    made = f.concat(lines, axis + 1)
    return f.reshape(made, (*shape[:axis], shape[axis] * len(phases), *shape[axis + 1 :]))
