"""Multimodal models against transformers: prompts, vectors of pictures, logits, greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from picture_zoo import FAMILIES, MARK, greedy, picture, write_pictured

import weft

PICTURES = [picture(1, 37, 53), picture(2, 90, 41), picture(3, 60, 61)]
Pictured = Callable[[str], tuple[Path, Any, Any]]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Pictured:
    """Family -> (folder, transformers' model, its processor)."""
    made: dict[str, tuple[Path, Any, Any]] = {}

    def get(name: str) -> tuple[Path, Any, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = (folder, *write_pictured(name, folder))
        return made[name]

    return get


def talk(name: str, count: int = 3) -> list[dict[str, Any]]:
    """A conversation with several pictures."""
    first = [{"type": "image", "image": p} for p in PICTURES[: count - 1]]
    return [
        {"role": "user", "content": [*first, {"type": "text", "text": "what are these?"}]},
        {"role": "assistant", "content": "things"},
        {"role": "user", "content": [{"type": "text", "text": "and "},
                                     {"type": "image", "image": PICTURES[count - 1]}]},
    ]  # fmt: skip


def inputs_of(name: str, processor: Any, count: int = 3) -> dict[str, Any]:
    """What transformers' processor makes of that conversation."""
    mark = MARK[name]
    text = f"user: {mark * (count - 1)}what are these?\nassistant: things\nuser: and {mark}\n"
    made = processor(images=PICTURES[:count], text=[text + "assistant:"], return_tensors="pt")
    return {k: v for k, v in made.items() if k != "num_crops" and k != "num_patches"}


def close(got: np.ndarray, want: np.ndarray, tol: float = 2e-4) -> None:
    np.testing.assert_allclose(got, want, atol=tol * max(1.0, np.abs(want).max()), rtol=tol)


def blind(model: Any, inputs: dict[str, Any]) -> np.ndarray:
    """transformers' logits of the same prompt with black pictures."""
    black = {k: v * 0 if k == "pixel_values" else v for k, v in inputs.items()}
    if "pixel_attention_mask" in inputs:
        black["pixel_values"] = black["pixel_values"] + 1e-3
    return greedy(model, black, 1)[1][0]


@pytest.mark.parametrize("name", FAMILIES)
def test_family(pictured: Pictured, name: str) -> None:
    folder, reference, processor = pictured(name)
    inputs = inputs_of(name, processor)
    model = weft.load(folder, device="cpu", context=1024, max_batch=2)
    prompt = model.chat_ids(talk(name))
    assert list(prompt) == inputs["input_ids"][0].tolist()
    wanted, logits = greedy(reference, inputs, 16)
    rows: list[np.ndarray] = []

    def kept(ids: list[int], row: np.ndarray) -> np.ndarray:
        rows.append(row)
        return row

    made = model.generate(messages=talk(name), max_new_tokens=16, logits=kept)
    close(rows[0], logits[0])
    assert np.abs(logits[0] - blind(reference, inputs)).max() > 1e-2  # pictures matter
    assert list(made.ids) == wanted
    close(np.stack(rows), logits)
    # a second time most of it is in the cache, and beside another it is the same
    again = model.generate([prompt, "hello"], max_new_tokens=16)
    assert again[0].ids == made.ids
    other = [*PICTURES[1:], PICTURES[0]]
    moved = [{"role": "user", "content": [{"type": "image", "image": p} for p in other]}]
    model.generate(messages=moved, max_new_tokens=4)
    assert model.generate(prompt, max_new_tokens=16).ids == made.ids
    assert torch.is_grad_enabled()
