"""One server for the tests of a session: a model that chats, one that embeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_kit import Running, chatty_box, serving

import weft
from weft.models.model import Decoder


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatty_box(tmp_path_factory.mktemp("models") / "box")


@pytest.fixture(scope="session")
def alone(chatty: Path) -> Decoder:
    """The model by itself: what the server has to equal."""
    model = weft.load(chatty, device="cpu")
    assert isinstance(model, Decoder)
    return model


@pytest.fixture(scope="session")
def server(chatty: Path) -> Iterator[Running]:
    with serving({"box": str(chatty)}) as running:
        yield running
