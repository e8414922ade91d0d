"""Phi-4-multimodal against transformers: tiles, prompts, vectors of pictures, greedy tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from phi4_kit import MOST, PATCH, SIDE, STEPS, inputs_of, steps, write_phi4
from picture_zoo import greedy, picture

import weft
from weft.core.errors import ModelError, UsageError
from weft.vision.steps import steps_of
from weft.vision.tiles import prepare

PICTURES = [picture(1, 37, 53), picture(2, 90, 41), picture(3, 25, 27)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("phi4")
    return folder, write_phi4(folder)


def talk(count: int = 3) -> list[dict[str, Any]]:
    shown = [{"type": "image", "image": p} for p in PICTURES[:count]]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": "what are these?"}]}]


def wanted(count: int = 3) -> dict[str, Any]:
    text = f"user: {'<image>' * count}what are these?\nassistant:"
    return inputs_of(text, PICTURES[:count])


def close(got: np.ndarray, want: np.ndarray, tol: float = 2e-4) -> None:
    np.testing.assert_allclose(got, want, atol=tol * max(1.0, np.abs(want).max()), rtol=tol)


@pytest.mark.parametrize("size", [(37, 53), (90, 41), (28, 28), (21, 200), (12, 100), (57, 29)])
@pytest.mark.parametrize("side, patch, most", [(SIDE, PATCH, MOST), (448, 14, 6)])
def test_tiles(size: tuple[int, int], side: int, patch: int, most: int) -> None:
    said = {**STEPS, "size": {"height": side, "width": side}, "patch_size": patch,
            "dynamic_hd": most}  # fmt: skip
    shown = picture(5, *size)
    got = prepare(steps_of("here", said), shown)
    tiles, mask, sheet = steps(shown, side, patch, most)
    assert (got.rows * side, got.columns * side) == sheet
    n = side // patch
    masks = mask.unfold(0, n, n).unfold(1, n, n).reshape(-1, n, n).numpy()
    for filled, want in zip(got.filled, [np.ones((n, n)), *masks], strict=True):
        inner = np.zeros((n, n))
        inner[: filled[0], : filled[1]] = 1
        np.testing.assert_array_equal(inner, want)
    np.testing.assert_allclose(np.stack(got.pixels), tiles.numpy(), atol=2e-6)


def test_a_picture_too_long() -> None:
    with pytest.raises(UsageError, match=r"400 x 3 pixels is too long"):
        prepare(steps_of("here", STEPS), picture(1, 3, 400))
    with pytest.raises(ModelError, match="resample is 2; expected 3"):
        steps_of("here", {**STEPS, "resample": 2})


def test_tokens_and_logits(made: tuple[Path, Any]) -> None:
    folder, reference = made
    inputs = wanted()
    model = weft.load(folder, device="cpu", context=1024, max_batch=2)
    prompt = model.chat_ids(talk())
    assert list(prompt) == inputs["input_ids"][0].tolist()
    tokens, logits = greedy(reference, inputs, 16)
    rows: list[np.ndarray] = []
    got = model.generate(
        messages=talk(), max_new_tokens=16, logits=lambda ids, row: rows.append(row) or row
    )
    close(np.stack(rows), logits)
    assert list(got.ids) == tokens
    black = {**inputs, "image_pixel_values": inputs["image_pixel_values"] * 0}
    assert np.abs(logits[0] - greedy(reference, black, 1)[1][0]).max() > 1e-2
    again = model.generate([prompt, "hello"], max_new_tokens=16)
    assert again[0].ids == got.ids


@pytest.mark.parametrize("which", range(3))
def test_vectors_of_the_tower(made: tuple[Path, Any], which: int) -> None:
    folder, reference = made
    tiles, mask, sheet = steps(PICTURES[which])
    n = SIDE // PATCH
    masks = mask.unfold(0, n, n).unfold(1, n, n).reshape(-1, n, n)
    masks = torch.cat([torch.ones(1, n, n), masks])
    embed = reference.model.embed_tokens_extend.image_embed
    model = weft.load(folder, device="oracle", context=256)
    got = model.need_eyes().see(PICTURES[which]).vectors
    ids = torch.full((1, len(got)), embed.config.vision_config.image_token_id)
    with torch.no_grad():
        want = embed(
            ids, torch.zeros(1, len(got), 72), image_pixel_values=tiles[None],
            image_sizes=torch.tensor([sheet]), image_attention_mask=masks[None],
        )  # fmt: skip
    close(got, want[0].numpy())


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quant": "int8"}])
def test_narrow_numbers(made: tuple[Path, Any], options: dict[str, Any]) -> None:
    folder, reference = made
    _, logits = greedy(reference, wanted(), 1)
    model = weft.load(folder, device="cpu", context=512, **options)
    rows: list[np.ndarray] = []
    model.generate(
        messages=talk(), max_new_tokens=1, logits=lambda ids, row: rows.append(row) or row
    )
    off = np.abs(rows[0] - logits[0]).max() / np.abs(logits[0]).max()
    assert 1e-7 < off < 0.1, off


def test_pictures_take_the_adapter_of_the_folder(made: tuple[Path, Any], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = tmp_path / "phi4"
    shutil.copytree(made[0], folder)
    reference = transformers.Phi4MultimodalForCausalLM.from_pretrained(folder).eval()
    plain = weft.load(folder, device="cpu", context=512).generate("hello", max_new_tokens=8)
    targets = r"model\.layers.*(self_attn\.(qkv_proj|o_proj)|mlp\.(gate_up|down)_proj)"
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets)
    adapted = peft.get_peft_model(reference, config, adapter_name="vision").eval()
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, 0.0, 0.3)
    adapted.save_pretrained(tmp_path / "low", selected_adapters=["vision"])
    (tmp_path / "low" / "vision").rename(folder / "vision-lora")
    _, before = greedy(made[1], wanted(), 1)
    tokens, logits = greedy(adapted, wanted(), 8)
    assert np.abs(logits[0] - before[0]).max() > 0.1
    model = weft.load(folder, device="cpu", context=512, max_batch=2)
    assert model.adapters == ("vision-lora",)
    seen, said = model.generate([model.chat_ids(talk()), "hello"], max_new_tokens=8)
    assert (list(seen.ids), said.ids) == (tokens, plain.ids)
