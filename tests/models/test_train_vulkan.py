"""Training on a Vulkan device (a software one will do): the run that the CPU makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_zoo import VOCAB, write_model
from present import opened

from weft.training import TrainableDecoder
from weft.training.model import folder_weights
from weft.training.settings import OptimizerSettings, TrainSettings
from weft.training.step import make_optimizer, make_step

opened("vulkan")

BATCHES = np.random.default_rng(0).integers(0, VOCAB, (3, 1, 2, 13)).astype(np.int32)


def run(folder: Path, device: str, steps: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and the weights at the end."""
    config, weights = folder_weights(folder)
    model = TrainableDecoder(config, weights, 12, dropout=0.1)
    settings = TrainSettings(steps=steps, batch=2, context=12)
    o = OptimizerSettings(warmup=2)
    step = make_step(model, make_optimizer(model, o, steps), settings, o, device)
    losses = []
    for i in range(steps):
        ids = BATCHES[i % 3]
        key = np.array([1, i], np.uint32)
        out = step(ids[..., :-1].copy(), ids[..., 1:].copy(), key)
        losses.append(float(out["loss"].item()))
    return losses, model.arrays()


@pytest.mark.parametrize("steps", [6, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["llama2", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_vulkan_trains_as_the_cpu_does(name: str, steps: int, tmp_path: Path) -> None:
    write_model(name, tmp_path)
    losses, weights = run(tmp_path, "vulkan", steps)
    want, _ = run(tmp_path, "cpu", steps)
    np.testing.assert_allclose(losses, want, atol=1e-3)
    again, same = run(tmp_path, "vulkan", steps)
    assert again == losses
    for role, value in weights.items():
        np.testing.assert_array_equal(value, same[role], err_msg=role)
