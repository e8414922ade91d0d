"""ONNX's losses at extremes against ONNX Runtime, in float32 and float16."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_kit import peer, run, single
from rows import covering

NUMBERS = [-1e30, -88.8, -1e-30, -0.0, 0.0, 0.5, 20.5, 1e30, np.inf, -np.inf, np.nan]
ROWS = [[a, b, 0.5] for a in NUMBERS for b in (0.0, 1.0, -1e30, 1e30)]
LOSSES = {"SoftmaxCrossEntropyLoss": ["y", "log_prob"], "NegativeLogLikelihoodLoss": ["y"]}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("loss", "weighted", "dtype"), covering(LOSSES, [True, False], [np.float32, np.float16])
)
def test_losses(loss: str, weighted: bool, dtype: type) -> None:
    x = np.array(ROWS, np.float32).astype(dtype)
    targets = np.arange(len(x), dtype=np.int64) % 3
    targets[::5] = -1
    arrays = {"x": x, "t": targets}
    if weighted:
        arrays["w"] = np.array([0.5, 2.0, 0.0], dtype)
    near = 2e-5 if dtype is np.float32 else 2e-3
    for reduction in ("none", "mean", "sum"):
        node = single(loss, arrays, outputs=LOSSES[loss], reduction=reduction, ignore_index=-1)
        rows = [slice(None)] if reduction == "none" else [slice(i, i + 2) for i in range(0, 44, 3)]
        for part in rows:
            given = [x[part], targets[part], *list(arrays.values())[2:]]
            if part != slice(None):
                node = single(loss, dict(zip(arrays, given)), outputs=LOSSES[loss],
                              reduction=reduction, ignore_index=-1)  # fmt: skip
            for device in (None, "cpu"):
                for got, want in zip(run(node, *given, device=device), peer(node, *given)):
                    np.testing.assert_allclose(got, want, rtol=near, atol=near)
