"""The cuda device on a real GPU; skipped where there is none (`weft check` does more)."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends import drivers, registry
from weft.conform import device as contract
from weft.conform import kernels, templates
from weft.conform.gpt import Shape, Trainer
from weft.conform.report import Skip

LINES = drivers.probe_cuda()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not LINES[0].available, reason=f"no CUDA device: {LINES[0].reason}"),
]


@pytest.mark.parametrize("level", [contract, kernels, templates], ids=lambda m: m.__name__)
def test_conformance(level) -> None:  # type: ignore[no-untyped-def]
    for name, check in level.checks(registry.get("cuda")):
        try:
            check()
        except Skip:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


def test_training_steps_like_on_the_cpu() -> None:
    shape = Shape(layers=1, width=64, heads=2, context=32, batch=2, vocab=64)
    host, there = Trainer(shape, "cpu"), Trainer(shape, "cuda:0")
    want, got = ([t.step() for _ in range(6)] for t in (host, there))
    assert np.allclose(got, want, rtol=1e-4)
