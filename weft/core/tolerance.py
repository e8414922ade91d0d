"""The tolerances of answers: one table, each entry with its reason.

Tests, `weft check` and docs/numerics.md all use it. An answer passes when |got - want| <= atol +
rtol * |want| everywhere, and NaN and infinities appear in the same places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.core import dtypes as dt
from weft.core.dtypes import DType


@dataclass(frozen=True)
class Tolerance:
    rtol: float
    atol: float
    reason: str


# Kind of comparison -> dtype name -> tolerance.
TABLE: dict[str, dict[str, Tolerance]] = {
    "exact": {
        "*": Tolerance(0, 0, "movement, indexing, integers and comparisons have one right answer"),
    },
    "elementwise": {
        "float32": Tolerance(
            4e-6, 1e-6, "own polynomials within a few ulp; a dialect may not fuse"
        ),
        "float16": Tolerance(2e-3, 1e-3, "one rounding to 11 bits at the end of a fused f32 chain"),
        "bfloat16": Tolerance(
            1.6e-2, 1e-2, "one rounding to 8 bits at the end of a fused f32 chain"
        ),
    },
    "reduce": {
        "float32": Tolerance(
            2e-5, 2e-5, "another summation order over up to some thousands of terms"
        ),
        "float16": Tolerance(4e-3, 2e-3, "f32 accumulation, rounded once to 11 bits"),
        "bfloat16": Tolerance(2e-2, 2e-2, "f32 accumulation, rounded once to 8 bits"),
    },
    "dot": {
        "float32": Tolerance(2e-4, 2e-4, "f32 accumulation over K terms of order one, any order"),
        "float16": Tolerance(4e-3, 4e-3, "f32 accumulation, rounded once to 11 bits"),
        "bfloat16": Tolerance(3e-2, 3e-2, "f32 accumulation, rounded once to 8 bits"),
    },
    "model": {
        "float32": Tolerance(1e-3, 1e-3, "logits after tens of layers in f32, other orders"),
        "float16": Tolerance(2e-2, 2e-2, "f16 weights and cache, f32 arithmetic"),
        "bfloat16": Tolerance(
            6e-2, 8e-2, "bf16 weights, cache and linear inputs, f32 accumulation"
        ),
    },
}


def tolerance(kind: str, dtype: DType) -> Tolerance:
    """The entry for a kind of comparison and the dtype of the result (exact when not listed)."""
    row = TABLE[kind]
    return row.get(dtype.name) or row.get("*") or TABLE["exact"]["*"]


@dataclass(frozen=True)
class Agreement:
    """The outcome of a comparison: the largest error and, when it failed, where and why."""

    ok: bool
    max_abs: float
    max_rel: float
    message: str = ""


def compare(got: np.ndarray, want: np.ndarray, kind: str, dtype: DType | None = None) -> Agreement:
    """Compares an answer with the reference of the same shape under the table's tolerance."""
    dtype = dtype or dt.as_dtype(got.dtype)
    tol = tolerance(kind, dtype)
    if got.shape != want.shape:
        return Agreement(False, np.inf, np.inf, f"shape {got.shape}, expected {want.shape}")
    if got.size == 0:
        return Agreement(True, 0.0, 0.0)
    g, w = np.asarray(got, np.float64), np.asarray(want, np.float64)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(same, 0.0, np.abs(g - w))
        error = np.where(np.isnan(error), np.inf, error)
        allowed = tol.atol + tol.rtol * np.abs(np.where(np.isfinite(w), w, 0))
        relative = error / np.maximum(np.abs(np.where(np.isfinite(w), w, 1)), 1e-30)
    bad = ~(error <= allowed)
    worst, rel = float(error.max()), float(relative.max())
    if not bad.any():
        return Agreement(True, worst, rel)
    at = np.unravel_index(int(np.argmax(np.where(bad, error, -1))), g.shape)
    where = "[" + ", ".join(str(int(i)) for i in at) + "]"
    message = (
        f"{int(bad.sum())} of {g.size} differ; worst at {where}: got {g[at]:.9g}, "
        f"expected {w[at]:.9g} (allowed {allowed[at]:.3g})"
    )
    return Agreement(False, worst, rel, message)
