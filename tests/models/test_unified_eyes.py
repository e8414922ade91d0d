"""Gemma 4 without a tower against transformers: prompts, logits, greedy tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from picture_zoo import GEMMA4, ID, IDS4, TEXT, greedy, picture, tokenizer
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

import weft

PICTURES = [picture(1, 37, 53), picture(2, 90, 41)]
STEPS = {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70}
SEES = {"patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 20, "mm_posemb_size": 72,
        "output_proj_dims": 20}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<soft>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}assistant:"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("unified")
    torch.manual_seed(0)
    text = {k: v for k, v in (TEXT | GEMMA4).items() if "per_layer" not in k}
    config = transformers.Gemma4UnifiedConfig(
        text_config=text | {"use_bidirectional_attention": "vision"}, vision_config=SEES,
        audio_config=None, **IDS4,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.Gemma4UnifiedForConditionalGeneration(config).eval().float()
    for parameter in model.parameters():
        flat = parameter.ndim < 2
        torch.nn.init.normal_(parameter, parameter.mean().item() * flat, 0.3 if flat else 0.25)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    steps = Gemma4ImageProcessorPil(**STEPS).to_dict()
    steps["image_processor_type"] = "Gemma4UnifiedImageProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(steps, default=str))
    return folder, model


def inputs() -> dict[str, Any]:
    """What Gemma4UnifiedProcessor makes (it needs torchvision): Gemma 4's patches, four in one."""
    small = Gemma4ImageProcessorPil(**STEPS)(PICTURES, return_tensors="np")
    pixels, places, text = [], [], "user: "
    for rows, at in zip(small["pixel_values"], small["image_position_ids"]):
        at = at[at[:, 0] >= 0]
        wide, tall = at.max(0) + 1
        whole = rows[: len(at)].reshape(tall, wide, 4, 4, 3).transpose(0, 2, 1, 3, 4)
        whole = whole.reshape(tall // 2, 8, wide // 2, 8, 3).transpose(0, 2, 1, 3, 4)
        y, x = np.mgrid[: tall // 2, : wide // 2]
        count = x.size
        pad = ((0, 70 - count), (0, 0))
        pixels.append(np.pad(whole.reshape(count, -1), pad))
        places.append(np.pad(np.stack([x, y], -1).reshape(-1, 2), pad, constant_values=-1))
        text += "<start_of_image>" + "<soft>" * count + "<end_of_image>"
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer())
    ids = own(f"{text}what are these?\nassistant:", return_tensors="pt")["input_ids"]
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.from_numpy(np.stack(pixels)).float(),
        "image_position_ids": torch.from_numpy(np.stack(places)),
        "mm_token_type_ids": (ids == ID["<soft>"]).long(),
    }  # fmt: skip


def talk() -> list[dict[str, Any]]:
    shown = [{"type": "image", "image": p} for p in PICTURES]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": "what are these?"}]}]


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 2e-4),
        ({"device": "oracle"}, 2e-4),
        ({"dtype": "bfloat16"}, 0.1),
        ({"quant": "int8"}, 0.1),
    ],
)
def test_pictures_without_a_tower(
    made: tuple[Path, Any], options: dict[str, Any], most: float
) -> None:
    folder, reference = made
    given = inputs()
    count = 16 if not options else 1
    tokens, logits = greedy(reference, given, count)
    model = weft.load(folder, **{"device": "cpu", "context": 1024, **options})
    prompt = model.chat_ids(talk())
    assert list(prompt) == given["input_ids"][0].tolist()
    rows: list[np.ndarray] = []
    got = model.generate(
        prompt, max_new_tokens=count, logits=lambda ids, row: rows.append(row) or row
    )
    assert np.abs(np.stack(rows) - logits).max() < most * np.abs(logits).max()
    black = {**given, "pixel_values": given["pixel_values"] * 0}
    assert np.abs(logits[0] - greedy(reference, black, 1)[1][0]).max() > 1e-2
    assert options or list(got.ids) == tokens
