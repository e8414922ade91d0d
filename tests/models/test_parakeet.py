"""Parakeet with CTC beside transformers: features, logits, tokens of passages, options."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from speech_zoo import parakeet

import weft
from weft.audio.normed_mel import normed_mel
from weft.core.errors import ModelError, UsageError
from weft.models.run.parakeet import Parakeet

CASES = [("oracle", None, None, 1e-4), ("cpu", None, None, 1e-4), ("cpu", "bfloat16", None, 0.1),
         ("cpu", "float16", None, 0.03), ("cpu", None, "int8", 0.2)]  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("parakeet")
    return folder, parakeet(folder)


def noise(seconds: float) -> np.ndarray:
    n = int(seconds * 16000)
    x = np.random.default_rng(0).standard_normal(n) * 0.1 * np.abs(np.sin(np.arange(n) / 9000))
    return np.asarray(x, np.float32)


def given(x: np.ndarray) -> Any:
    from transformers import ParakeetFeatureExtractor

    return ParakeetFeatureExtractor(feature_size=24)(x, sampling_rate=16000, return_tensors="pt")


@pytest.mark.parametrize(("device", "dtype", "quant", "most"), CASES)
def test_logits(
    pair: tuple[Path, Any], device: str, dtype: str | None, quant: str | None, most: float
) -> None:
    folder, theirs = pair
    x = noise(1.237)
    inputs = given(x)
    with torch.no_grad():
        true = theirs(**inputs).logits[0].numpy()
    model = weft.load(folder, device=device, dtype=dtype, quant=quant)
    assert isinstance(model, Parakeet)
    features = normed_mel(x, *model.steps)
    count = int(inputs["attention_mask"].sum())
    assert features.shape == (count, 24)
    assert abs(features - inputs["input_features"][0, :count].numpy()).max() < 2e-4
    logits = model.runner.encode(0, features)
    assert abs(logits - true[: len(logits)]).max() < most * abs(true).max()
    assert len(logits) == int(theirs._get_subsampling_output_length(torch.tensor([count])))


def test_tokens_equal_transformers(pair: tuple[Path, Any]) -> None:
    """Each passage's tokens are those of transformers for its samples, for any batch."""
    folder, theirs = pair
    model, x = weft.load(folder, device="cpu"), noise(41.0)
    found = model.transcribe(x)
    assert len(found.segments) == 2 and found.language is None and found.text
    for s in found.segments:
        made = theirs.generate(**given(x[round(s.start * 16000) : round(s.end * 16000)]))
        made = made if torch.is_tensor(made) else made.sequences
        assert s.tokens == [i for i, _ in groupby(made[0].tolist()) if i != 130]
    assert found.segments == model.transcribe(x, batch=3).segments
    assert model.transcribe(noise(0.001)).duration == 0.001


def test_what_it_does_not_take_is_named(pair: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = pair
    model = weft.load(folder, device="cpu")
    for name in ("words", "condition_on_previous"):
        with pytest.raises(UsageError, match=f"parakeet does not take {name}"):
            model.transcribe(noise(0.5), **{name: True})
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "parakeet_tdt"}))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match="is a transducer; weft hears Parakeet with CTC"):
        weft.load(tmp_path, device="cpu")
