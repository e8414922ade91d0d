"""Moonshine beside transformers: encoder, logits, tokens of passages, options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from speech_zoo import moonshine

import weft
from weft.audio.samples import Samples
from weft.core.errors import FileFormatError, ModelError, UsageError
from weft.models.run.moonshine import Moonshine

CASES = [("oracle", None, None, 1e-4), ("cpu", None, None, 1e-4), ("cpu", "bfloat16", None, 0.3),
         ("cpu", "float16", None, 0.03), ("cpu", None, "int8", 0.2)]  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("moonshine")
    return folder, moonshine(folder)


def noise(seconds: float) -> np.ndarray:
    n = int(seconds * 16000)
    x = np.random.default_rng(0).standard_normal(n) * 0.1 * np.abs(np.sin(np.arange(n) / 9000))
    return np.asarray(x, np.float32)


@pytest.mark.parametrize(("device", "dtype", "quant", "most"), CASES)
def test_logits(
    pair: tuple[Path, Any], device: str, dtype: str | None, quant: str | None, most: float
) -> None:
    """A padded sound has the vectors of the sound alone."""
    folder, theirs = pair
    x, ids = noise(1.23), [1, 91, 95, 124, 13, 60]
    with torch.no_grad():
        out = theirs(torch.tensor(x)[None], decoder_input_ids=torch.tensor([ids]))
    model = weft.load(folder, device=device, dtype=dtype, quant=quant)
    assert isinstance(model, Moonshine)
    found, hidden = model.runner.encode(0, x), out.encoder_last_hidden_state[0].numpy()
    assert found.shape == hidden.shape
    assert abs(found - hidden).max() < most * abs(hidden).max()
    logits, _ = model.prefill(0, ids, range(len(ids)))
    true = out.logits[0].numpy()
    assert abs(logits - true).max() < most * abs(true).max()
    one, _ = model.runner.step([ids[5]], [0], [5])
    assert abs(one[0] - true[5]).max() < most * abs(true).max()


def test_tokens_equal_transformers(pair: tuple[Path, Any]) -> None:
    """Each passage's tokens are those of transformers for its samples, for any batch."""
    folder, theirs = pair
    model, x = weft.load(folder, device="cpu"), noise(41.0)
    found = model.transcribe(x, max_new_tokens=16)
    assert len(found.segments) == 2 and found.language is None and found.duration == 41.0
    assert found.segments[0].end == found.segments[1].start and found.segments[1].end == 41.0
    for s in found.segments:
        part = torch.tensor(x[round(s.start * 16000) : round(s.end * 16000)])[None]
        made = theirs.generate(part, max_new_tokens=16, do_sample=False)[0].tolist()[1:]
        assert s.tokens == [i for i in made if i != 2]
    assert found.text and found.segments == model.transcribe(x, batch=3, max_new_tokens=16).segments


def test_what_it_does_not_take_is_named(pair: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = pair
    model = weft.load(folder, device="cpu")
    for options, said in (
        ({"language": "de"}, "moonshine does not take language = 'de'; it takes batch"),
        ({"words": True}, "does not take words"), ({"task": "translate"}, "does not take task"),
        ({"temperature": 0.5}, "does not take temperature"),
        ({"condition_on_previous": True}, "does not take condition_on_previous"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            model.transcribe(noise(0.5), **options)
    assert model.transcribe(noise(0.001)).duration == 0.001  # shorter than a position
    with pytest.raises(FileFormatError, match="no samples"):
        model.transcribe(np.zeros(0, np.float32))
    with np.errstate(all="raise"):
        Samples([np.full(999, 3e38, np.float32)]).close()
    (folder / "preprocessor_config.json").write_text('{"do_normalize": true}')
    with pytest.raises(ModelError, match="normalised samples"):
        model.transcribe(noise(0.5))
    (folder / "preprocessor_config.json").unlink()
