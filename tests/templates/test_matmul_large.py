"""Products of many rows pack their left operand: the same bits as for few rows, in every layout."""

from __future__ import annotations

import numpy as np
import pytest

import weft

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("shape", [(1024, 200, 256), (1291, 133, 307), (1153, 129, 1031)])
def test_many_rows(layout: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = (RNG.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    other = RNG.standard_normal((m, n)).astype(np.float32)

    def product(x: weft.Tensor, y: weft.Tensor, z: weft.Tensor) -> weft.Tensor:
        left = x.T if layout == "TN" else x
        return (left @ (y.T if layout == "NT" else y)).gelu() * z + z

    def run(rows: int) -> np.ndarray:
        x = np.ascontiguousarray(a[:rows].T) if layout == "TN" else a[:rows]
        y = np.ascontiguousarray(b.T) if layout == "NT" else b
        return np.array(weft.compile(product, "cpu")(x, y, other[:rows]).numpy())

    whole = run(m)
    plain = weft.tensor(a.astype(np.float64) @ b.astype(np.float64)).gelu().numpy() * other + other
    np.testing.assert_allclose(whole, plain, rtol=2e-4, atol=2e-4)
    assert np.array_equal(whole[:100], run(100)) and np.array_equal(whole[:600], run(600))
