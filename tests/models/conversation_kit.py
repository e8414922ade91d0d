"""Conversations, a model that reads them, and settings of a run on both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from train_kit import LINE

from weft.models.text.tokenizer import Tokenizer
from weft.models.weights.writing import write_model
from weft.training.model import config_of, fresh_weights
from weft.training.prepare import new_config
from weft.training.settings import ModelSettings
from weft.training.tokens import train_tokenizer

MARKS = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def lines(path: Path, *talks: Any) -> Path:
    path.write_text("".join(json.dumps({"messages": list(t)}) + "\n" for t in talks))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with marks as tokens and a chat template."""
    folder = tmp_path_factory.mktemp("base")
    train_tokenizer([LINE], 300, folder, MARKS)
    tokenizer = Tokenizer(folder, 1 << 30)
    end = tokenizer.encode("<|end|>", special=False)[0]
    raw = new_config(ModelSettings(hidden=16, layers=1, heads=2), tokenizer.size, 64, end)
    from weft.importers.hf_config import Fields

    config = config_of(Fields(raw, "base"))
    write_model(folder, config, raw, folder, fresh_weights(config, 0))
    (folder / "chat_template.jinja").write_text(PLAIN)
    return folder


_BASES: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _keep(base: Path) -> None:
    _BASES[:] = [base]
