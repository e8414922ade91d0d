"""Families that see by transformers' own code, traced, and kin of LLaVA that see by weft's, beside
transformers with its own processors: prompts, logits and greedy tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_zoo import greedy
from PIL import Image
from rows import few
from seeing_zoo import CASES, MARK, _ovis2, write_seeing
from test_pictures import PICTURES, close
from transformers import AutoProcessor

import weft
from weft.core.errors import ModelError, UsageError
from weft.models.run.eyes import Eyes
from weft.models.run.traced_eyes import KNOWN, TracedEyes
from weft.vision.films import Video
from weft.vision.steps import steps_of
from weft.vision.tiles import prepare

OWN = ("llava_next_video", "video_llava", "vipllava")  # families with eyes in weft


def test_every_family_is_tested() -> None:
    assert set(CASES) == {*KNOWN, *OWN}


@pytest.mark.parametrize("name", few(CASES, "deepseek_vl", *OWN))
def test_family(name: str, tmp_path: Path) -> None:
    reference = write_seeing(name, tmp_path)
    processor: Any = AutoProcessor.from_pretrained(tmp_path)
    mark = MARK.get(name, "<image>")
    text = f"user: {mark * 2}what are these?\nassistant:"
    shown = [Image.fromarray(one) for one in PICTURES[:2]]
    inputs = dict(processor(images=shown, text=[text], return_tensors="pt"))
    wanted, logits = greedy(reference, inputs, 16)
    model = weft.load(tmp_path, device="cpu", context=1024)
    assert isinstance(model.need_eyes(), Eyes if name in OWN else TracedEyes)
    parts = [{"type": "image", "image": one} for one in PICTURES[:2]]
    said = [{"role": "user", "content": [*parts, {"type": "text", "text": "what are these?"}]}]
    prompt = model.chat_ids(said)
    assert list(prompt) == inputs["input_ids"][0].tolist()
    rows: list[np.ndarray] = []
    made = model.generate(prompt, max_new_tokens=16,
                          logits=lambda ids, row: rows.append(row) or row)  # fmt: skip
    close(np.stack(rows), logits)
    assert list(made.ids) == wanted
    black = {k: v * 0 if k.endswith("pixel_values") else v for k, v in inputs.items()}
    assert np.abs(greedy(reference, black, 1)[1][0] - logits[0]).max() > 1e-2  # pictures matter
    again = model.generate(prompt, max_new_tokens=16)
    assert again.ids == made.ids and again.reused
    if name in ("deepseek_vl", "vipllava"):
        _narrow(tmp_path, said, logits[0])
    if name == "deepseek_vl":
        _wrong(model, mark)


def test_video_llavas_own_steps() -> None:
    from transformers.models.video_llava import image_processing_video_llava as own

    processor = own.VideoLlavaImageProcessor()
    want = processor(images=PICTURES[0], return_legacy_image_output=False)["pixel_values"][0]
    (got,) = prepare(steps_of("here", processor.to_dict()), PICTURES[0]).pixels
    np.testing.assert_array_equal(got, want)


def _narrow(folder: Path, said: Any, logits: np.ndarray) -> None:
    for options in ({"dtype": "bfloat16"}, {"quant": "int8"}):
        rows: list[np.ndarray] = []
        model = weft.load(folder, device="cpu", context=512, **options)
        model.generate(messages=said, max_new_tokens=1,
                       logits=lambda ids, row, rows=rows: rows.append(row) or row)  # fmt: skip
        assert 1e-7 < np.abs(rows[0] - logits).max() / np.abs(logits).max() < 0.1


def _wrong(model: Any, mark: str) -> None:
    eyes, tokenizer = model.need_eyes(), model.tokenizer
    with pytest.raises(UsageError, match=r"1 places for a picture .*2 were given"):
        eyes.prompt(f"see {mark}", PICTURES[:2], tokenizer, False)
    with pytest.raises(UsageError, match="reads pictures, no videos"):
        eyes.prompt(mark, [Video(PICTURES[:2])], tokenizer, False)


@pytest.mark.slow
def test_what_is_not_proved_is_refused(tmp_path: Path) -> None:
    """Ovis 2 also puts vectors in place of marks around pictures."""
    write_seeing("ovis2", tmp_path, _ovis2())
    with pytest.raises(ModelError, match="ovis2"):
        weft.load(tmp_path, device="oracle")


@pytest.mark.slow
def test_a_broken_processor_is_named(tmp_path: Path) -> None:
    write_seeing("deepseek_vl", tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_mean": "grey"}))
    model = weft.load(tmp_path, device="oracle")
    with pytest.raises(ModelError, match="pictures: architecture deepseek_vl is not supported"):
        model.look("what?", PICTURES[:1])
