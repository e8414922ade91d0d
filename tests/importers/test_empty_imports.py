"""Foreign graphs over a batch that holds nothing: shapes as PyTorch's and ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx_kit import MS, run, single

from weft.importers.aten import entry
from weft.tensor.core import Tensor

NONE = np.ones((0, 4, 3), np.float32)
TABLE = np.ones((4, 3), np.float32)
COLUMNS = np.ones((4, 1), np.float32)


@pytest.mark.parametrize(
    ("op", "arrays", "options", "want"),
    [
        ("LayerNormalization", {"x": NONE, "w": TABLE}, {"axis": 1}, (0, 4, 3)),
        ("LayerNormalization", {"x": NONE, "w": COLUMNS}, {"axis": 1}, (0, 4, 3)),
        ("RMSNormalization", {"x": NONE, "w": COLUMNS}, {"axis": 1}, (0, 4, 3)),
        ("GroupNormalization", {"x": NONE, "w": TABLE[:, 0], "b": TABLE[:, 0]},
            {"num_groups": 2}, (0, 4, 3)),
        ("GatherND", {"x": NONE, "i": np.ones((0, 2, 1), np.int64)}, {"batch_dims": 1}, (0, 2, 3)),
        ("ScatterND", {"x": TABLE[:, :0], "i": np.ones((2, 1), np.int64), "u": TABLE[:2, :0]},
            {}, (4, 0)),
    ],
)  # fmt: skip
def test_onnx(op: str, arrays: Any, options: dict[str, Any], want: tuple[int, ...]) -> None:
    model = single(op, arrays, [n for n in arrays if n in "wb"], **options)
    if op in ("RMSNormalization", "GroupNormalization"):
        model.opset_import[0].version = 23
        model.ir_version = 11
    (got,) = run(model, *(a for n, a in arrays.items() if n not in "wb"))
    assert got.shape == want


def test_quantised_softmax_of_all_axes_from_one_on() -> None:
    scale, zero = np.array(0.1, np.float32), np.array(3, np.uint8)
    arrays = {"x": np.ones((0, 4, 3), np.uint8), "sx": scale, "zx": zero, "sy": scale, "zy": zero}
    weights = ["sx", "zx", "sy", "zy"]
    model = single("QLinearSoftmax", arrays, weights, domain=MS, axis=1, opset=12)
    assert run(model, arrays["x"])[0].shape == (0, 4, 3)


def test_group_norm_of_aten_has_the_statistics_of_no_rows() -> None:
    args = (None, None, 0, 4, 3, 2, 1e-5)
    want = torch.ops.aten.native_group_norm(torch.ones(0, 4, 3), *args)
    found = entry("aten.native_group_norm.default")
    assert found is not None
    got = found.run(Tensor(NONE), *args)
    assert [g.shape for g in got] == [tuple(w.shape) for w in want]
