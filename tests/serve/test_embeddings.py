"""Vectors of texts by OpenAI's and Ollama's clients; they are those of the model alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ollama
import openai
import pytest
from serve_kit import Running, serving

import weft
from weft.models.run.embedder import Encoder

sys.path.append(str(Path(__file__).parents[1] / "robust"))
from robust_kit import BERT, tiny

TEXTS = ["a text", "caf\u00e9"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("models") / "bert", BERT)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Running]:
    with serving({"bert": str(folder)}) as running:
        yield running


@pytest.fixture(scope="module")
def alone(folder: Path) -> Encoder:
    model = weft.load(folder, device="cpu")
    assert isinstance(model, Encoder)
    return model


@pytest.fixture(scope="module")
def expected(alone: Encoder) -> np.ndarray:
    found = alone.embed(TEXTS)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def client(embedder: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0)


def test_vectors_are_the_models_own(client: openai.OpenAI, expected: np.ndarray) -> None:
    coded = client.embeddings.create(model="bert", input=TEXTS)  # the client asks for base64
    plain = client.embeddings.create(model="bert", input=TEXTS, encoding_format="float")
    for made in (coded, plain):
        np.testing.assert_allclose([d.embedding for d in made.data], expected, atol=1e-6)
    assert [d.index for d in plain.data] == [0, 1]
    assert (
        plain.usage.prompt_tokens
        == sum(len(text.encode()) for text in TEXTS)
        == plain.usage.total_tokens
    )
    np.testing.assert_allclose(np.linalg.norm([d.embedding for d in plain.data], axis=1), 1, 1e-6)


def test_ids_are_texts_too(client: openai.OpenAI, alone: Encoder, expected: np.ndarray) -> None:
    ids = alone.need_tokenizer("a test").encode_batch(TEXTS)
    made = client.embeddings.create(model="bert", input=ids, dimensions=expected.shape[1])
    np.testing.assert_allclose([d.embedding for d in made.data], expected, atol=1e-6)


def test_dimensions_cut_vectors(client: openai.OpenAI, expected: np.ndarray) -> None:
    """The first numbers, of length 1 again, as OpenAI cuts them."""
    made = client.embeddings.create(model="bert", input=TEXTS, dimensions=5)
    want = expected[:, :5] / np.linalg.norm(expected[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose([d.embedding for d in made.data], want, atol=1e-6)


def test_prompts_by_name(folder: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(folder, tmp_path / "prompted"))
    settings = {"prompts": {"query": "find: ", "x": "a "}, "default_prompt_name": "x"}
    (home / "config_sentence_transformers.json").write_text(json.dumps(settings))
    model = weft.load(home, device="cpu")
    with serving({"bert": str(home)}) as running:
        for name in (None, "query", "x", "document"):
            body = {"input": TEXTS, "prompt_name": name}
            status, made, _ = running.ask("POST", "/v1/embeddings", body)
            want = model.embed(TEXTS, prompt_name=name, normalize=True)
            assert status == 200
            got = [d["embedding"] for d in made["data"]]
            np.testing.assert_allclose(got, want, atol=1e-6)
        status, made, _ = running.ask("POST", "/v1/embeddings", {"input": "x", "prompt_name": "y"})
        assert status == 400 and "defines the prompts" in made["error"]["message"]


def test_what_is_wrong_is_named(embedder: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="takes 32"):
        client.embeddings.create(model="bert", input="x" * 33)
    with pytest.raises(openai.BadRequestError, match="dimensions is 17; this model has 16"):
        client.embeddings.create(model="bert", input="x", dimensions=17)
    with pytest.raises(openai.BadRequestError, match="does not write"):
        client.chat.completions.create(model="bert", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="does not write"):
        client.responses.create(model="bert", input="x")
    with pytest.raises(openai.BadRequestError, match="does not write"):
        client.responses.input_tokens.count(model="bert", input="x")
    for given in ([], [[]], {"a": 1}, [1.5], [[10**9]], [-1]):
        status, body, _ = embedder.ask("POST", "/v1/embeddings", {"input": given})
        assert status == 400 and body["error"]["message"]


def test_ollamas_client(embedder: Running, expected: np.ndarray) -> None:
    client = ollama.Client(embedder.url)
    made = client.embed("bert:latest", TEXTS)
    np.testing.assert_allclose(made.embeddings, expected, atol=1e-6)
    assert made.prompt_eval_count == sum(len(text.encode()) for text in TEXTS)
    assert made.total_duration
    one = client.embeddings("bert", TEXTS[1])
    np.testing.assert_allclose(one.embedding, expected[1], atol=1e-6)
    assert client.show("bert").capabilities == ["embedding"]
    assert [model.details.family for model in client.list().models if model.details] == ["bert"]


def test_a_text_is_cut_where_its_request_says_so(embedder: Running) -> None:
    client, text = ollama.Client(embedder.url), "x" * 40
    for truncate in (None, False):
        with pytest.raises(ollama.ResponseError, match="takes 32"):
            client.embed("bert", text, truncate=truncate)
    cut = client.embed("bert", text, truncate=True)
    assert cut.embeddings == client.embed("bert", text[:32]).embeddings
    assert cut.prompt_eval_count == 32


def test_an_encoder_does_not_chat(embedder: Running) -> None:
    talk = [{"role": "user", "content": "x"}]
    for path, more in (("/v1/messages", {"max_tokens": 1}), ("/api/chat", {"model": "bert"})):
        status, body, _ = embedder.ask("POST", path, {"messages": talk, **more})
        assert status == 400 and "does not write" in str(body)
