"""Vectors over HTTP are the model's own, by OpenAI's and by Ollama's client; nothing is cut unless
the request says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest
from serve_kit import Running, serving

import weft
from weft.models.box import box_folder
from weft.models.embedder import Encoder
from weft.models.random_weights import random_folder

CONFIG = {
    "model_type": "bert", "vocab_size": 2048, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
TEXTS = ["def f(x):", "import os", "the rain"]
LONG = "word " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = random_folder(tmp_path_factory.mktemp("models") / "encoder", CONFIG, scale=0.2)
    shutil.copy(box_folder() / "tokenizer.json", made)
    return made


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Running]:
    with serving({"encoder": str(folder)}) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    model = weft.load(folder, device="cpu")
    assert isinstance(model, Encoder)
    vectors = model.embed([*TEXTS, LONG])
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_openais_client(embedder: Running, expected: np.ndarray) -> None:
    client = openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0)
    made = client.embeddings.create(model="encoder", input=TEXTS, encoding_format="float")
    found = np.array([entry.embedding for entry in made.data], np.float32)
    np.testing.assert_array_equal(found, expected[:3])
    packed = client.embeddings.create(model="encoder", input=TEXTS)  # base64 on the wire
    np.testing.assert_array_equal(np.array([e.embedding for e in packed.data]), found)
    with pytest.raises(openai.BadRequestError, match="takes 32"):
        client.embeddings.create(model="encoder", input=LONG)
    with pytest.raises(openai.BadRequestError, match="dimensions is 8; this model has 16"):
        client.embeddings.create(model="encoder", input=TEXTS, dimensions=8)


def test_ollamas_client(embedder: Running, expected: np.ndarray) -> None:
    client = ollama.Client(host=embedder.url)
    made = client.embed("encoder:latest", TEXTS)
    np.testing.assert_array_equal(np.array(made.embeddings, np.float32), expected[:3])
    assert made.prompt_eval_count and made.total_duration
    one = client.embeddings("encoder", TEXTS[1])
    np.testing.assert_array_equal(np.array(one.embedding, np.float32), expected[1])
    for truncate in (None, False):
        with pytest.raises(ollama.ResponseError, match="takes 32"):
            client.embed("encoder", LONG, truncate=truncate)
    cut = client.embed("encoder", [LONG], truncate=True)
    np.testing.assert_array_equal(np.array(cut.embeddings, np.float32), expected[3:])
    assert client.show("encoder").capabilities == ["embedding"]
    assert [model.details.family for model in client.list().models if model.details] == ["bert"]


def test_an_encoder_does_not_chat(embedder: Running) -> None:
    talk = [{"role": "user", "content": "x"}]
    for path, more in (("/v1/messages", {"max_tokens": 1}), ("/api/chat", {"model": "encoder"}),
                       ("/v1/chat/completions", {})):  # fmt: skip
        status, body, _ = embedder.ask("POST", path, {"messages": talk, **more})
        assert status == 400 and "embeds" in str(body)
