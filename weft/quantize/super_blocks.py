"""The search for scales in two levels (GGUF's K types). The scales of a block of 256 weights are
integers of a few bits, times a scale of the block.

First every group gets its best-fitting scale (and low). Among a few block scales, the search keeps
the one with the smallest weighted rounding error. Then two steps alternate: each group takes the
best integers near its own, measured on its weights, and the block's scale (and low) becomes the
least-squares fit to the integers of all its groups.

Arrays are [group, groups of a block, blocks of a row, rows]. Sums run along the first axis or the
first two; lanes run along rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from weft.core.dtypes import DType, float32, int8, uint8
from weft.core.packed import Form
from weft.tensor.core import Tensor
from weft.tensor.functional import where

TINY = 1e-35
LOSSES = 6  # steps by which a block's scale may shrink the integers' range
ROUNDS = 2  # rounds of choosing integers and refitting the block


@dataclass(frozen=True)
class Fit:
    """The fit of each group: its scale, the low subtracted from it (never negative), and their
    weights in the loss. The weights are the sums of h v^2, h v and h over its values v."""

    scale: Tensor
    low: Tensor
    squares: Tensor
    values: Tensor
    weights: Tensor


def search(
    form: Form, dtype: DType, w: Tensor, h: Tensor, factors: list[float]
) -> dict[str, Tensor]:
    """Returns the parts of w[N, K] with `codes` uint8 [N, K] and block scales in `dtype`; h[K]
    weights the columns. `factors` give the candidates, relative to the range that just fits."""
    n, k = w.shape
    inside = form.super_group // form.group
    x, weight = (
        v.reshape((-1, k // form.super_group, inside, form.group)).permute((3, 2, 1, 0))
        for v in (w, h)
    )
    block = _Block(form, x, weight)
    fit = block.best(factors)
    top, low = block.outer(fit)
    for last in (False,) * ROUNDS + (True,):
        top, low = (v.astype(dtype).astype(float32) for v in (top, low))
        scales, lows = block.near(fit, top, low)
        if not last:
            top, low = block.refit(top * scales, low * lows, scales, lows)
    codes = block.codes(top * scales, low * lows)
    numbers = int8 if form.shift == "none" else uint8
    out = {
        "codes": codes.astype(uint8).permute((3, 2, 1, 0)).reshape((n, k)),
        "scales": _by_row(scales).astype(numbers),
        "super_scales": _by_row(top).astype(dtype),
    }
    if form.shift == "low":
        out |= {"lows": _by_row(lows).astype(numbers), "super_lows": _by_row(-low).astype(dtype)}
    return out


def _by_row(v: Tensor) -> Tensor:
    """Returns [groups of a block, blocks, rows] as [rows, groups], or [blocks, rows] as [rows,
    blocks]."""
    return v.permute(tuple(range(v.ndim))[::-1]).reshape((v.shape[-1], -1))


def _over(a: Tensor, b: Tensor) -> Tensor:
    """Returns a / b, or 0 where b is nearly 0."""
    none = b.abs() < TINY
    return where(none, 0.0, a / where(none, 1.0, b))


class _Block:
    """The data of a search: x[group, inside, blocks, rows], weighted by h[group, inside, blocks,
    1]."""

    def __init__(self, form: Form, x: Tensor, h: Tensor) -> None:
        self.form, self.x, self.h = form, x, h
        self.shifted = form.shift == "low"
        self.most = (1 << form.bits) - 1
        # range of the scales' integers; those of lows have the same six bits
        self.least_scale, self.most_scale = (0, 63) if self.shifted else (-128, 127)
        self.hx, self.sum_h = h * x, h.sum(axis=0)

    def codes(self, scale: Tensor, low: Tensor) -> Tensor:
        """Returns the nearest codes, float32, for scales and lows of groups."""
        inverse = _over(scale * 0.0 + 1.0, scale)
        moved = self.x + low if self.shifted else self.x
        return ((moved * inverse).round() + float(self.form.offset)).clip(0, self.most)

    def values(self, scale: Tensor, low: Tensor) -> Tensor:
        return self.codes(scale, low) - float(self.form.offset)

    def best(self, factors: list[float]) -> Fit:
        """Returns the best fit of each group with unrestricted scale and low."""
        best: list[Tensor] = []
        for v in self._candidates(factors):
            hv = self.h * v
            squares, across = (hv * v).sum(axis=0), (self.hx * v).sum(axis=0)
            scale, values = _over(across, squares), squares * 0.0
            low, gain = values, scale * across
            if self.shifted:
                values, weights, sums = hv.sum(axis=0), self.sum_h, self.hx.sum(axis=0)
                apart = squares * weights - values * values
                free = _over(values * across - squares * sums, apart)
                shifted = (free > 0) & (apart > squares * weights * 1e-6)
                low = where(shifted, free, 0.0)
                scale = where(shifted, _over(weights * across - values * sums, apart), scale)
                gain = scale * across - low * sums
            found = [gain, scale, low, squares, values]
            if best:
                better = gain > best[0]
                found = [where(better, a, b) for a, b in zip(found, best)]
            best = found
        return Fit(best[1], best[2], best[3], best[4], self.sum_h)

    def _candidates(self, factors: list[float]) -> Iterator[Tensor]:
        high, low = self.x.max(axis=0), self.x.min(axis=0)
        if self.shifted:
            low = where(low < 0, low, 0.0)
            size = where(high - low < TINY, 1.0, high - low)
            for factor in factors:
                yield ((self.x - low) * (self.most * factor / size)).round().clip(0, self.most)
            return
        furthest = where(high > -low, high, low)  # integers reach one further below zero
        furthest = where(furthest.abs() < TINY, 1.0, furthest)
        for factor in factors:
            yield self.values(furthest / (-self.form.offset * factor), low)

    def outer(self, fit: Fit) -> tuple[Tensor, Tensor]:
        """Returns the scales of the blocks, and their lows."""
        high, low = fit.scale.max(axis=0), fit.scale.min(axis=0)
        if self.shifted:
            top = _rounded_least(fit.scale, fit.squares, high, 63)
        else:
            top = _rounded_least(fit.scale, fit.squares, where(high > -low, high, low), -128)
        return top, _rounded_least(fit.low, fit.weights, fit.low.max(axis=0), 63)

    def near(self, fit: Fit, top: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the best integers for scales and lows of groups, near those of the fit."""
        scale = self._whole(fit.scale, top)
        # the best-fitting low for that scale
        sums = fit.values * (scale * top - fit.scale)
        lows = self._whole(fit.low + _over(sums, fit.weights), low, 0, 63)
        best: list[Tensor] = []
        for i, j in product((0, -1, 1), (0, -1, 1) if self.shifted else (0,)):
            s = (scale + float(i)).clip(self.least_scale, self.most_scale)
            m = (lows + float(j)).clip(0, 63)
            wide, taken = s * top, m * low
            error = self.x - self.values(wide, taken) * wide
            error = error + taken if self.shifted else error
            found = [(self.h * error * error).sum(axis=0), s, m]
            if best:
                better = found[0] < best[0]
                found = [where(better, a, b) for a, b in zip(found, best)]
            best = found
        return best[1], best[2]

    def _whole(self, v: Tensor, step: Tensor, least: int | None = None, most: int = 0) -> Tensor:
        low, high = (self.least_scale, self.most_scale) if least is None else (least, most)
        return _over(v, step + v * 0.0).round().clip(low, high)

    def refit(
        self, scale: Tensor, low: Tensor, scales: Tensor, lows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the least-squares scale (and low) of each block for the chosen codes and
        integers."""
        v = self.values(scale, low) * scales
        hv = self.h * v
        squares, across = _total(hv * v), _total(self.hx * v)
        if not self.shifted:
            return _over(across, squares), low.sum(axis=0) * 0.0
        m = lows + v * 0.0
        values, weights, sums = _total(hv * m), _total(self.h * m * m), _total(self.hx * m)
        apart = squares * weights - values * values
        free = apart > squares * weights * 1e-6
        lowest = _over(values * across - squares * sums, apart)
        free = free & (lowest > 0)
        top = where(free, _over(weights * across - values * sums, apart), _over(across, squares))
        return top, where(free, lowest, 0.0)


def _total(v: Tensor) -> Tensor:
    return v.sum(axis=0).sum(axis=0)


def _rounded_least(v: Tensor, weight: Tensor, furthest: Tensor, most: int) -> Tensor:
    """Returns the step with the smallest rounding error of v, among the steps that bring `furthest`
    to an integer up to `most`."""
    best: list[Tensor] = []
    sign = 1 if most > 0 else -1
    for less in range(LOSSES):
        step = furthest * (1.0 / (most - sign * less))
        error = _over(v, step + v * 0.0).round() * step - v
        found = [(weight * error * error).sum(axis=0), step]
        if best:
            better = found[0] < best[0]
            found = [where(better, a, b) for a, b in zip(found, best)]
        best = found
    return best[1]
