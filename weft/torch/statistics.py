"""PyTorch's quantiles, modes, histograms and sets, and other functions of whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import dtypes as dt
from weft.core.errors import UsageError
from weft.ops.rules import axis_of
from weft.tensor import signs
from weft.tensor.core import Tensor
from weft.torch.elementwise import isnan
from weft.torch.expected import want, want_floats, want_integers, want_one_of
from weft.torch.joining import cat
from weft.torch.picking import gather, known
from weft.torch.reductions import Picked, at_index
from weft.torch.results import Histogram, Parts
from weft.torch.tensor import function_only, public, real, together, whole


def _quantile(
    input: Tensor, q: Any, dim: int | None, keepdim: bool, how: str, ignore: bool
) -> Tensor:
    """Values between the sorted elements at q (n - 1)."""
    x, a = (
        (input.reshape(-1), 0)
        if dim is None
        else (input, axis_of("quantile", dim, input.ndim or 1))
    )
    x = x if x.ndim else x.reshape(1)
    share = q.cast(x.dtype) if isinstance(q, Tensor) else Tensor(np.asarray(q, x.dtype.numpy))
    at = known(share)
    if at is not None and not bool(np.all((at >= 0) & (at <= 1))):
        raise UsageError("quantile: q is 0..1")
    ordered = x.sort(a).transpose(a, -1)
    spoiled = isnan(x).transpose(a, -1)
    held = (~spoiled).cast(dt.int32).sum(-1, True)
    n = held.cast(x.dtype) if ignore else held.cast(x.dtype) * 0 + x.shape[a]
    places = (n - 1) * share.reshape(-1)
    if how == "nearest":
        places = places.round()
    low = places.floor() if how != "higher" else places.ceil()
    high = places.ceil() if how not in ("lower", "nearest") else low
    last = x.shape[a] - 1
    first, second = (
        gather(ordered, -1, p.maximum(0.0).minimum(float(last)).cast(dt.int32)) for p in (low, high)
    )
    weight = 0.5 if how == "midpoint" else places - low
    between = first + (second - first) * weight
    made = (first == second).where(first, between) if how in ("linear", "midpoint") else first
    if ignore:
        made = (held == 0).where(math.nan, made)
    else:
        made = spoiled.any(-1, True).where(math.nan, made)
    made = made.transpose(a, -1)  # q along axis a
    made = _front(made, a)
    if dim is None and keepdim:
        made = made.reshape((made.shape[0], *[1] * input.ndim))
    elif keepdim and dim is not None and input.ndim:
        made = made.unsqueeze(a + 1)
    return made if share.ndim else made.squeeze(0)


def _front(x: Tensor, axis: int) -> Tensor:
    """An axis moved to the front."""
    return x.permute([axis, *(i for i in range(x.ndim) if i != axis)])


@public
def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear",
) -> Tensor:  # fmt: skip
    """The quantiles q along an axis (of all by default); NaN spoils them."""
    _want_quantiles("quantile", input, interpolation)
    return _quantile(input, q, dim, keepdim, interpolation, False)


@public
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear",
) -> Tensor:  # fmt: skip
    """The quantiles of what is not NaN."""
    _want_quantiles("nanquantile", input, interpolation)
    return _quantile(input, q, dim, keepdim, interpolation, True)


def _want_quantiles(name: str, input: Tensor, interpolation: str) -> None:
    want_floats(name, input)
    ways = ("linear", "lower", "higher", "midpoint", "nearest")
    want_one_of(name, "interpolation", interpolation, ways)


@public
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Picked:
    """The most frequent value along an axis (the smallest of several), and an index of it."""
    x = input if input.ndim else input.reshape(1)
    a = axis_of("mode", dim, x.ndim)
    moved = x.transpose(a, -1)
    same = moved.unsqueeze(-1) == moved.unsqueeze(-2)
    count = same.cast(dt.int32).sum(-1)
    most = count == count.max(-1, True)
    values = moved.cast(dt.float64) if not x.dtype.is_float else moved
    least = most.where(values, math.inf).min(-1, True)
    chosen = most & (values == least)
    n = x.shape[a]
    place = chosen.where(Tensor(np.arange(n, dtype=np.int32)), -1).max(-1, True)
    return at_index(input, place.transpose(a, -1), dim, keepdim)


# -- sets; the length of the results depends on values


@public
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """The different elements (slices along an axis), sorted."""
    array = input.detach().numpy()
    found: Any = np.unique(
        array.astype(np.float32) if input.dtype == dt.bfloat16 else array,
        return_inverse=True, return_counts=True, axis=dim, equal_nan=False,
    )  # fmt: skip
    values, inverse, counts = found
    shape = array.shape if dim is None else (-1,)
    made = [Tensor(values.astype(array.dtype))]
    width = whole().numpy
    made += [Tensor(inverse.reshape(shape).astype(width))] if return_inverse else []
    made += [Tensor(counts.astype(width))] if return_counts else []
    return tuple(made) if len(made) > 1 else made[0]


@public
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """The elements (slices along an axis) that differ from those before them."""
    array = input.detach().numpy()
    x = array.reshape(-1) if dim is None else np.moveaxis(array, dim, 0)
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    new = np.ones(len(x), bool)
    if x.size:
        new[1:] = (rows[1:] != rows[:-1]).any(1)
    at = np.flatnonzero(new)
    counts = np.diff(np.append(at, len(x)))
    values = x[at] if dim is None else np.moveaxis(x[at], 0, dim)
    inverse = (np.cumsum(new) - 1).reshape(array.shape if dim is None else (-1,))
    made, width = [Tensor(np.ascontiguousarray(values))], whole().numpy
    made += [Tensor(inverse.astype(width))] if return_inverse else []
    made += [Tensor(counts.astype(width))] if return_counts else []
    return tuple(made) if len(made) > 1 else made[0]


@public
def histogram(
    input: Tensor, bins: Any, *, range: tuple[float, float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> Histogram:  # fmt: skip
    """The sums of weights (1 each) between edges, and the edges."""
    x = input.detach().numpy().reshape(-1)
    edges: Any = bins.numpy() if isinstance(bins, Tensor) else _edges(x, bins, range)
    w = None if weight is None else weight.numpy().reshape(-1)
    counts, _ = np.histogram(x, edges, weights=w, density=density)
    return Histogram(Tensor(counts.astype(x.dtype)), Tensor(edges.astype(x.dtype)))


def _edges(x: np.ndarray, bins: int, span: tuple[float, float] | None) -> np.ndarray:
    want(bins > 0, "histogram", f"{bins} bins", "one or more")
    low, high = span or ((float(x.min()), float(x.max())) if x.size else (0.0, 1.0))
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1).astype(x.dtype)


# -- differences


@function_only
def gradient(
    input: Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """The derivatives along axes by differences of second order inside."""
    axes = range_(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    spaces = spacing if isinstance(spacing, Sequence) else [1.0 if spacing is None else spacing]
    spaces = list(spaces) * (len(axes) if len(spaces) == 1 else 1)
    return tuple(_slope(input, a, s, edge_order) for a, s in zip(axes, spaces))


range_ = range


def _slope(x: Tensor, axis: int, space: Any, order: int) -> Tensor:
    x = real(x)
    n = x.shape[axis]
    at = (
        space.cast(x.dtype) if isinstance(space, Tensor) and space.ndim
        else Tensor(np.arange(n).astype(x.dtype.numpy)) * space
    )  # fmt: skip
    line = [1] * x.ndim
    line[axis] = -1

    def part(t: Tensor, first: int, count: int) -> Tensor:
        return t.narrow(axis, first, count)

    step = (at.narrow(0, 1, n - 1) - at.narrow(0, 0, n - 1)).reshape(line)
    rise = (part(x, 1, n - 1) - part(x, 0, n - 1)) / step
    before, after = part(step, 0, n - 2), part(step, 1, n - 2)
    inner = (part(rise, 0, n - 2) * after + part(rise, 1, n - 2) * before) / (before + after)
    first, last = part(rise, 0, 1), part(rise, n - 2, 1)
    if order == 2:
        h0, h1 = part(step, 0, 1), part(step, 1, 1)
        first = first + (first - part(rise, 1, 1)) * h0 / (h0 + h1)
        g0, g1 = part(step, n - 2, 1), part(step, n - 3, 1)
        last = last + (last - part(rise, n - 3, 1)) * g0 / (g0 + g1)
    return cat([first, inner, last], axis)


# -- whole numbers


@public
def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor, by Euclid's steps."""
    for x in (input, other):
        want_integers("gcd", x)
    a, b = together(input, other)
    a, b = a.expand(_shape(a, b)), b.expand(_shape(a, b))
    a, b = _size(a), _size(b)
    for _ in range_(8 * a.dtype.itemsize * 3 // 2):
        done = b == 0
        rest = done.where(0, a % done.where(1, b))
        a, b = done.where(a, b), rest
    return a


def _size(x: Tensor) -> Tensor:
    return x.abs() if x.dtype.kind == "int" else x


def _shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    return np.broadcast_shapes(a.shape, b.shape)


@public
def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple."""
    a, b = together(input, other)
    common = gcd(a, b)
    none = common == 0
    return none.where(0, _size(a // none.where(1, common) * b))


@public
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above, `values` at zero."""
    x, at = together(input, values)
    made = (x > 0).cast(x.dtype)
    out: Tensor = (x == 0).where(at, made)
    return isnan(x).where(at * 0 + math.nan, out) if x.dtype.is_float else out


@public
def frexp(input: Tensor) -> Any:
    """The mantissa in [0.5, 1) and the exponent of 2."""
    x = real(input)
    size = x.abs()
    fine = (size > 0) & (size < math.inf)
    power = fine.where(size, 1.0).log() * (1 / math.log(2))
    exponent = power.floor() + 1
    two = Tensor(np.float32(2).reshape(()))
    part = x / two.cast(x.dtype) ** exponent
    low, high = part.abs() < 0.5, part.abs() >= 1.0
    exponent = exponent - low.cast(x.dtype) + high.cast(x.dtype)
    part = low.where(part * 2, high.where(part * 0.5, part))
    return Parts(fine.where(part, x), fine.where(exponent, 0.0).cast(dt.int32))


@public
def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    return real(input) * (math.pi / 180)


@public
def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    return real(input) * (180 / math.pi)


@public
def angle(input: Tensor) -> Tensor:
    """0 of positive numbers, pi of negative ones, NaN of NaN."""
    x = real(input)
    made = (x < 0).cast(x.dtype) * math.pi
    return isnan(x).where(x, made)


@public
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next float from input towards other."""
    x, y = together(input, other)
    return signs.nextafter(x, y)
