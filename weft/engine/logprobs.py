"""Log-probabilities under the model, computed in float64 from the unmodified float32 logits."""

from __future__ import annotations

import numpy as np

from weft.engine.job import SampledToken


def chosen(logits: np.ndarray, token: int, top: int | None, at: int = 0) -> SampledToken:
    """Returns the token with its natural log-probability, its rank and the `top` most probable
    tokens, most probable first (ties by id). With `top` None, returns the token alone. logits:
    float32 [vocab]; at: where its text begins."""
    if top is None:
        return SampledToken(token, at=at)
    wide = logits.astype(np.float64)
    most = wide.max()
    shares = wide - most
    total = most + np.log(np.exp(shares, out=shares).sum())
    found = leading(wide, top)
    pairs = tuple((int(i), float(wide[i] - total)) for i in found)
    above = int((wide > wide[token]).sum() + (wide[:token] == wide[token]).sum())
    return SampledToken(token, float(wide[token] - total), pairs, at, above + 1)


def leading(values: np.ndarray, n: int) -> np.ndarray:
    """Returns the indices of the n largest values, largest first, ties by index."""
    if n <= 0:
        return np.empty(0, np.int64)
    if n < len(values):
        ids = np.flatnonzero(values >= np.partition(values, len(values) - n)[len(values) - n])
    else:
        ids = np.arange(len(values))
    return ids[np.argsort(-values[ids], kind="stable")][:n]
