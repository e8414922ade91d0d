"""GPTQ (Frantar et al., arXiv:2210.17323): columns still to be rounded make up for the error of
each rounded column, weighted by the inputs' second moments H = X^T X.

Groups go in the order of their largest moments, and columns within a group likewise (group-aware
order). So the most important columns are rounded first. Scales still belong to neighbours along K,
so a reader needs no permutation.
"""

from __future__ import annotations

import numpy as np

from weft.core.errors import ModelError
from weft.core.packed import Form, packed_codes
from weft.quantize.search import Search

# Share of the mean moment that is added to each moment; ten times more if that is too little.
DAMPING = 0.05
BLOCK = 128  # columns whose errors are applied to the rest of the matrix together


class Moments:
    """Second moments of a linear layer's inputs, X^T X float64 [K, K], prepared for forms with
    groups of `group`. Raises ModelError if they are NaN or infinite."""

    def __init__(self, moments: np.ndarray, group: int) -> None:
        if not np.isfinite(moments).all():
            raise ModelError("inputs of a linear layer are NaN or infinite: not to be quantised")
        self.diagonal = np.diagonal(moments).astype(np.float32)
        self.dead = self.diagonal <= 0  # inputs that are always 0
        self.order = _order(self.diagonal, group)
        self.upper = _inverse_root(moments, self.dead, self.order)


def gptq(w: np.ndarray, inputs: Moments, search: Search) -> dict[str, np.ndarray]:
    """Returns the parts of w float[N, K] in the form of `search`. Raises ModelError for a weight
    that is NaN or infinite."""
    n, k = w.shape
    w = np.array(w, np.float32)
    if not np.isfinite(w).all():
        raise ModelError("weights hold NaN or infinities: not to be quantised")
    w[:, inputs.dead] = 0
    order, upper = inputs.order, inputs.upper
    found = _Columns(search, w, np.where(inputs.dead, np.float32(1e-6), inputs.diagonal))
    for start in range(0, k, BLOCK):
        block, rest = order[start : start + BLOCK], order[start + BLOCK :]
        errors = np.empty((n, len(block)), np.float32)
        for j, column in enumerate(block):
            at = start + j
            error = (w[:, column] - found.round(column)) / upper[at, at]
            inside = upper[at, at + 1 : start + len(block)]
            w[:, block[j + 1 :]] -= error[:, None] * inside
            errors[:, j] = error
        if len(rest):
            w[:, rest] -= errors @ upper[start : start + len(block), start + len(block) :]
    return found.parts()


def _order(diagonal: np.ndarray, group: int) -> np.ndarray:
    """Returns the columns in order of rounding: groups and columns within them by largest
    moment."""
    by_group = diagonal.reshape(-1, group)
    groups = np.argsort(-by_group.max(axis=1), kind="stable")
    inside = np.argsort(-by_group, axis=1, kind="stable")
    return (groups[:, None] * group + inside[groups]).reshape(-1)


def _inverse_root(moments: np.ndarray, dead: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the upper Cholesky factor float32 of the inverse of the damped moments, in column
    order."""
    h = np.array(moments, np.float64)
    h[dead, dead] = 1.0
    h = h[np.ix_(order, order)]
    mean = float(np.diagonal(h).mean())
    damping = DAMPING
    while True:
        try:
            damped = h + np.eye(len(h)) * (damping * mean)
            inverse = np.linalg.inv(np.linalg.cholesky(damped))
            return np.linalg.cholesky(inverse.T @ inverse).T.astype(np.float32)
        except np.linalg.LinAlgError:
            damping *= 10
            if damping > 1e6:
                raise ModelError("the inputs' moments cannot be inverted") from None


def unit_of(form: Form) -> int:
    """Returns how many columns share one search for scales."""
    return form.super_group or form.group


class _Columns:
    """A rounder of the columns of `w`, which change meanwhile. It searches for the scales of a
    group (or of all groups that share a scale) when their first column comes."""

    def __init__(self, search: Search, w: np.ndarray, weights: np.ndarray) -> None:
        self.form, self.search, self.w, self.weights = search.form, search, w, weights
        self.codes = np.zeros(w.shape, np.uint8)
        self.unit = unit_of(search.form)
        self.groups: list[dict[str, np.ndarray] | None] = [None] * (w.shape[1] // self.unit)

    def round(self, column: int) -> np.ndarray:
        """Rounds a column and returns its new values, float32 [N]."""
        form = self.form
        found, at = self._group(column // self.unit), column % self.unit // form.group

        def wide(part: str) -> np.ndarray:
            one = found[part][:, at].astype(np.float32)
            outer = found.get(f"super_{part}")
            return one if outer is None else one * outer[:, 0].astype(np.float32)

        scale = wide("scales")
        low = wide("lows") if "lows" in found else np.float32(0)
        moved = self.w[:, column] - low
        x = np.divide(moved, scale, out=np.zeros_like(scale), where=scale != 0)
        zero = wide("zeros") if "zeros" in found else form.offset
        if form.table is None:
            codes = np.clip(np.round(x) + zero, 0, (1 << form.bits) - 1)
            self.codes[:, column] = codes
            rounded: np.ndarray = (codes - zero) * scale + low
            return rounded
        values, names = zip(*sorted((t, i) for i, t in enumerate(form.table)))
        order = np.asarray(values, np.float32)
        at = np.searchsorted((order[1:] + order[:-1]) / 2, x)
        self.codes[:, column] = np.asarray(names, np.uint8)[at]
        return np.asarray(order[at] * scale)

    def _group(self, g: int) -> dict[str, np.ndarray]:
        found = self.groups[g]
        if found is None:
            here = slice(g * self.unit, (g + 1) * self.unit)
            found = self.groups[g] = self.search(self.w[:, here], self.weights[here])
        return found

    def parts(self) -> dict[str, np.ndarray]:
        done = [g for g in self.groups if g is not None]
        names = [p for p in self.form.parts if p not in ("codes", "high")]
        joined = {p: np.concatenate([g[p] for g in done], axis=1) for p in names}
        return {**packed_codes(self.form, self.codes), **joined}
