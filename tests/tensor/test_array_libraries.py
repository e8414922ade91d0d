"""Libraries that compute with any array: array-api-compat, einops, scikit-learn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft

A = np.random.default_rng(2).normal(size=(2, 3, 4)).astype(np.float32)


def test_array_api_compat_knows_the_namespace() -> None:
    compat = pytest.importorskip("array_api_compat")
    x = weft.tensor(A)
    assert compat.array_namespace(x) is weft is compat.array_namespace(x, weft.ones(2))
    assert compat.is_array_api_obj(x) and compat.is_writeable_array(x)
    assert not compat.is_lazy_array(x)
    assert compat.device(x) == "cpu" and compat.size(x) == A.size
    assert compat.to_device(x, "interp").device == "interp:0"
    with pytest.raises(TypeError):
        compat.array_namespace(x, A)


@pytest.mark.parametrize("device", [None, "cpu", "interp"])
def test_einops_rearranges_reduces_and_repeats(device: str | None) -> None:
    api = pytest.importorskip("einops.array_api")
    einops = pytest.importorskip("einops")

    def fn(x: Any) -> Any:
        return (
            api.rearrange(x, "a b (c d) -> b (a d) c", d=2),
            api.reduce(x, "a b c -> a c", "mean"),
            api.reduce(x, "a b c -> b", "max"),
            api.repeat(x, "a b c -> a b c n", n=2),
        )

    got = fn(weft.tensor(A)) if device is None else weft.compile(fn, device=device)(weft.tensor(A))
    want = (
        einops.rearrange(A, "a b (c d) -> b (a d) c", d=2), A.mean(1), A.max((0, 2)),
        einops.repeat(A, "a b c -> a b c n", n=2),
    )  # fmt: skip
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-6)


def test_scikit_learn_computes_with_tensors() -> None:
    pytest.importorskip("sklearn", minversion="1.9")
    here = str(Path(weft.__file__).parents[1])
    child = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "sklearn_calls.py")],
        env=os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONPATH": here},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert len(found) > 50
    assert not {k: v for k, v in found.items() if isinstance(v, str) or v > 3e-5}
