"""Requests to a model whose author advises how to sample: each protocol takes the advice where the
request says nothing, before its own defaults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_kit import Running, serving

import weft
from weft.models.run.model import Decoder

ADVICE = {
    "do_sample": True, "temperature": 0.9, "top_k": 30, "repetition_penalty": 1.2,
    "eos_token_id": 0, "max_new_tokens": 12, "stop_strings": ["return"],
}  # fmt: skip
HELLO = [{"role": "user", "content": "Write a loop."}]
OWN = {"temperature": 0.9, "top_k": 30, "repetition_penalty": 1.2, "stop": "return"}


@pytest.fixture(scope="module")
def advised(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advised") / "box"
    shutil.copytree(chatty, folder)
    (folder / "generation_config.json").write_text(json.dumps(ADVICE))
    return folder


@pytest.fixture(scope="module")
def server(advised: Path) -> Iterator[Running]:
    with serving({"box": str(advised)}) as made:
        yield made


def own(model: Decoder, seed: int, **more: Any) -> str:
    """The text of the model alone, with every option given."""
    given: Any = {"max_new_tokens": 12, "seed": seed, **OWN, **more}
    return model.generate(model.chat_ids(HELLO), **given).text  # type: ignore[union-attr]


def asked(server: Running, path: str, body: dict[str, Any]) -> Any:
    status, made, _ = server.ask("POST", path, {"model": "box", **body})
    assert status == 200, made
    return made


def chat(server: Running, **body: Any) -> str:
    made = asked(server, "/v1/chat/completions", {"messages": HELLO, **body})
    return made["choices"][0]["message"]["content"]


def test_openai(server: Running, alone: Decoder) -> None:
    assert chat(server, seed=3) == own(alone, 3)
    assert chat(server, seed=3, top_k=0) == own(alone, 3, top_k=0)
    assert chat(server, seed=3, stop=[]) == own(alone, 3, stop=())
    assert chat(server, seed=3, max_tokens=5) == own(alone, 3, max_new_tokens=5)
    assert chat(server, temperature=0) == own(alone, 0, temperature=0)
    body = {"prompt": "def f(x):", "seed": 5}
    made = asked(server, "/v1/completions", body)["choices"][0]
    text: Any = alone.generate("def f(x):", seed=5, max_new_tokens=12, **OWN)  # type: ignore
    assert made["text"] == text.text


def test_responses_show_what_was_used(server: Running, alone: Decoder) -> None:
    made = asked(server, "/v1/responses", {"input": "Write a loop.", "seed": 3, "top_p": 0.8})
    assert made["output"][0]["content"][0]["text"] == own(alone, 3, top_p=0.8)
    assert (made["temperature"], made["top_p"]) == (0.9, 0.8)


def test_anthropic(server: Running, alone: Decoder) -> None:
    made = asked(server, "/v1/messages", {"messages": HELLO, "max_tokens": 9, "seed": 3})
    assert made["content"][0]["text"] == own(alone, 3, max_new_tokens=9)


def test_ollama_keeps_its_own_defaults_for_the_rest(server: Running, alone: Decoder) -> None:
    options = {"seed": 3}
    made = asked(server, "/api/chat", {"messages": HELLO, "options": options, "stream": False})
    assert made["message"]["content"] == own(alone, 3, top_p=0.9)  # Ollama's top_p
    options = {"seed": 3, "top_p": 1, "repeat_last_n": 0}
    made = asked(server, "/api/chat", {"messages": HELLO, "options": options, "stream": False})
    assert made["message"]["content"] == own(alone, 3, repetition_penalty=1.0)


def test_it_is_said_and_can_be_turned_off(server: Running, advised: Path, alone: Decoder) -> None:
    model = server.shelf.decoders()[0]
    (line,) = [one for one in model.summary() if "sampling" in one]
    assert "generation_config.json says: temperature 0.9, top_k 30" in line
    load = {"device": "cpu", "generation_config": "off"}
    with serving({"box": str(advised)}, load=load) as other:
        assert chat(other, seed=3, max_tokens=12) == own(
            alone, 3, temperature=1.0, top_k=0, repetition_penalty=1.0, stop=()
        )
        off = other.shelf.decoders()[0]
        assert off.print != model.print and not [x for x in off.summary() if "sampling" in x]


def test_a_prompt_beyond_max_length(chatty: Path, tmp_path: Path) -> None:
    folder = tmp_path / "box"
    shutil.copytree(chatty, folder)
    (folder / "generation_config.json").write_text('{"max_length": 12, "eos_token_id": 0}')
    with serving({"box": str(folder)}) as server:
        body = {"model": "box", "prompt": [5] * 12}
        status, made, _ = server.ask("POST", "/v1/completions", body)
        assert status == 400 and "max_length 12" in made["error"]["message"]
        made = asked(server, "/v1/completions", {"prompt": [5] * 10})
        assert made["usage"]["completion_tokens"] <= 2
        made = asked(server, "/v1/completions", {"prompt": [5] * 10, "max_tokens": 5})
        assert made["usage"]["completion_tokens"] == 5


def test_weft_loads_it(advised: Path) -> None:
    made = weft.load(advised, device="cpu")
    assert isinstance(made, Decoder) and made.defaults.stop == ("return",)
