"""What many of these tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import train_kit
from robust_kit import BERT, tiny

from weft.training import loop


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("bert"), BERT)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_kit.text_file(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def base(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("base") / "run"
    loop.train(train_kit.tiny(text, run))
    return run / "model"
