"""The search for scales: tries a few candidates per group and keeps the one with the smallest loss.

A group's weights w become values v of codes, times a scale s. A candidate sets the range that codes
reach; v is then the nearest code, s the least-squares fit, and the loss sum h (w - s v)^2. Here h
is the mean square of a column's inputs (the diagonal of GPTQ's Hessian; Frantar et al.,
arXiv:2210.17323).

The fit's loss is sum h w^2 - (sum h w v)^2 / sum h v^2, so the best candidate has the largest last
term. The search is a compiled function, so it runs on every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.dtypes import DType, float32, uint8
from weft.core.errors import ModelError
from weft.core.packed import Form, packed_codes
from weft.host.mapped import release
from weft.quantize import super_blocks
from weft.tensor.compiling import compile as compile_
from weft.tensor.core import Tensor, tensor
from weft.tensor.functional import where

STEPS = {4: 9, 5: 6, 6: 4, 8: 2}  # candidates on either side of the range that just fits
STEP = 0.025  # step between candidates, as a share of the range
TINY = 1e-35  # smaller ranges count as 0, because their inverse would overflow
CHUNK = 1 << 22  # weights searched at a time


class Search:
    """Searches matrices of one form on a device; equal shapes share a Program."""

    def __init__(self, form: Form, scale: DType, device: Any = None) -> None:
        self.form, self.scale = form, scale
        self._run = compile_(self._search, device=device)

    def __call__(self, w: np.ndarray, h: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Returns the parts of w float[N, K]; h float[K] weights the columns (default: all equal).

        Raises ModelError if a weight is NaN or infinite, or a scale leaves its dtype's range.
        """
        n, k = w.shape
        weights = np.ones(k, np.float32) if h is None else _usable(h)
        rows = max(1, min(n, CHUNK // k))
        found: list[dict[str, np.ndarray]] = []
        for start in range(0, n, rows):
            piece = np.zeros((rows, k), np.float32)
            part = piece[: min(rows, n - start)]
            part[:] = w[start : start + rows]
            release(w[start : start + rows])
            if not np.isfinite(part).all():
                raise ModelError(f"row {start} and on hold NaN or infinities: not to be quantised")
            out = (
                self._nearest(piece)
                if self.form.bits == 8 and self.form.table
                else {
                    name: x.numpy() for name, x in self._run(tensor(piece), tensor(weights)).items()
                }
            )
            found.append({name: x[: len(part)] for name, x in out.items()})
        parts = {name: np.concatenate([f[name] for f in found]) for name in found[0]}
        return self._packed(parts)

    def _packed(self, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outer = "super_scales" if self.form.super_group else "scales"
        if not np.isfinite(parts[outer]).all():
            raise ModelError(f"scales overflow {self.scale.name}; use bfloat16 or float32 weights")
        return {**packed_codes(self.form, parts.pop("codes")), **parts}

    def _nearest(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the parts for 8-bit floats: the largest weight becomes 448, as every scale fits
        equally."""
        groups = w.reshape(len(w), -1, self.form.group)
        scale = (np.abs(groups).max(axis=2) / np.float32(448)).astype(self.scale.numpy)
        wide = scale.astype(np.float32)[:, :, None]
        values = np.divide(groups, wide, out=np.zeros_like(groups), where=wide != 0)
        codes = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        return {"codes": codes.reshape(w.shape), "scales": scale}

    # -- the compiled function

    def _search(self, w: Tensor, h: Tensor) -> dict[str, Tensor]:
        """Returns codes uint8 [N, K], scales [N, K / group] and the like for w[N, K] and h[K]."""
        form, (n, k) = self.form, w.shape
        if form.super_group:
            return super_blocks.search(form, self.scale, w, h, self._factors())
        groups = (-1, k // form.group, form.group)
        # Groups lie across lanes, because sums along lanes would cost more.
        x, weight = (v.reshape(groups).permute((2, 0, 1)) for v in (w, h))
        best: list[Tensor] = []
        for v, *zero in self._candidates(x):
            hv = weight * v
            across, square = (hv * x).sum(axis=0), (hv * v).sum(axis=0)
            scale = across / where(square == 0, 1.0, square)
            found = [across * scale, scale, *zero]
            if best:
                better = found[0] > best[0]
                found = [where(better, a, b) for a, b in zip(found, best)]
            best = found
        scale = best[1].astype(self.scale)
        wide = scale.astype(float32)
        inverse = where(wide == 0, 0.0, 1.0 / where(wide == 0, 1.0, wide))
        codes = self._code(x * inverse, *best[2:]).astype(uint8)
        out = {"codes": codes.permute((1, 2, 0)).reshape((n, k)), "scales": scale}
        return {**out, "zeros": best[2].astype(uint8)} if form.shift == "zero" else out

    def _factors(self) -> list[float]:
        steps = STEPS[self.form.bits]
        return [1 + STEP * j for j in range(-steps, steps + 1)]

    def _candidates(self, x: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yields the values of codes (and zero points) of each candidate range."""
        form = self.form
        high, low = x.max(axis=0), x.min(axis=0)
        factors = self._factors()
        if form.shift == "zero":
            top = (1 << form.bits) - 1
            high, low = where(high > 0, high, 0.0), where(low < 0, low, 0.0)
            for factor in factors:
                size = (high - low) / (factor * top)
                inverse = 1.0 / where(size < TINY, 1.0, size)
                zero = (-low * inverse).round().clip(0, top)
                yield (x * inverse).round().clip(-zero, top - zero), zero
            return
        table = form.table
        reach = -(1 << (form.bits - 1)) if table is None else max(table)
        furthest = where(high > -low, high, low)  # integers reach one further below zero
        furthest = where(furthest.abs() < TINY, 1.0, furthest)
        for factor in factors:
            yield (self._value(self._code(x * (reach * factor / furthest))),)

    def _code(self, x: Tensor, zero: Tensor | None = None) -> Tensor:
        """Returns the nearest code of x, float32; x is a weight over its scale."""
        form = self.form
        if form.table is None:
            shift = float(form.offset) if zero is None else zero
            return (x.round() + shift).clip(0, (1 << form.bits) - 1)
        order = sorted((t, i) for i, t in enumerate(form.table))
        code = x * 0.0 + float(order[0][1])
        for (a, _), (b, i) in pairwise(order):
            code = where(x > (a + b) / 2, float(i), code) if a != b else code
        return code

    def _value(self, code: Tensor) -> Tensor:
        table = self.form.table
        if table is None:
            return code - float(self.form.offset)
        value = code * 0.0
        for i, t in enumerate(table):
            value = where(code == float(i), t, value)
        return value


def _usable(h: np.ndarray) -> np.ndarray:
    """Returns column weights whose sums stay finite. None is 0, as such a column would be
    unconstrained."""
    h = np.asarray(h, np.float32)
    mean = float(h.mean(dtype=np.float64))
    if not np.isfinite(h).all() or (h < 0).any():
        raise ModelError("weights of columns are NaN, infinite or negative")
    return np.ones_like(h) if mean == 0 else np.maximum(h / np.float32(mean), np.float32(1e-6))
