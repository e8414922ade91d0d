"""One server for the tests of a session: a model that chats, one that embeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Process, Running, chatty_box, process, serving

import weft
from weft.models.run.model import Decoder
from weft.serve import chatting
from weft.serve.tooling import Follow


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


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the model write these texts, token by token, a chat each; the last one then always.
    They replace what a request's tools or schema would have it write."""
    begin_ids = chatting.begin_ids

    def say(*texts: str) -> None:
        left = list(texts)

        async def begin(
            model: Any, prompts: Sequence[Any], options: chatting.AnswerOptions, *more: Any
        ) -> list[chatting.Choice]:
            text = left.pop(0) if len(left) > 1 else left[0]
            options = replace(options, constraint=Follow(lambda grammar: grammar.choice([text])))
            return await begin_ids(model, prompts, options, *more[:2])

        monkeypatch.setattr(chatting, "begin_ids", begin)

    return say


@pytest.fixture
def started(chatty: Path) -> Iterator[Process]:
    """`weft serve` as a process, to be killed."""
    with process("serve", f"box={chatty}", "--device", "cpu") as made:
        yield made
