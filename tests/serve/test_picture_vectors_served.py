"""Vectors of pictures by OpenAI's route; they are those of the model alone."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image
from serve_kit import Running, serving

import weft

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from picture_zoo import picture
from vector_zoo import write_vectors

sys.path.append(str(Path(__file__).parents[1] / "robust"))
from robust_kit import BERT, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CLIP, DINOv2 and BERT, and a folder with two pictures."""
    made = tmp_path_factory.mktemp("models")
    for name in ("clip", "dinov2"):
        write_vectors(name, made / name)
    tiny(made / "bert", BERT)
    (made / "shown").mkdir()
    for k in range(2):
        Image.fromarray(picture(k, 40 + k, 61)).save(made / "shown" / f"{k}.png")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    paths = {name: str(folder / name) for name in ("clip", "dinov2", "bert")}
    with serving(paths, pictures=str(folder / "shown")) as running:
        yield running


def uri(folder: Path, k: int) -> str:
    data = base64.b64encode((folder / "shown" / f"{k}.png").read_bytes()).decode()
    return f"data:image/png;base64,{data}"


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_pictures_and_texts_have_the_models_vectors(server: Running, folder: Path) -> None:
    model: Any = weft.load(folder / "clip", device="cpu")
    seen = model.embed_images([folder / "shown" / f"{k}.png" for k in range(2)], normalize=True)
    said = model.embed(["a cat"], normalize=True)
    named = part(f"file://{folder}/shown/1.png")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    given: Any = [part(uri(folder, 0)), "a cat", {"content": [named]},
                  {"type": "text", "text": "a cat"}]  # fmt: skip
    made = client.embeddings.create(model="clip", input=given)
    want = [seen[0], said[0], seen[1], said[0]]
    np.testing.assert_allclose([d.embedding for d in made.data], want, atol=1e-6)
    assert made.usage.prompt_tokens == 2 * 16 + 2 * (len("a cat") + 2)
    for content, one in (([named], seen[1]), ("a cat", said[0])):  # in vLLM's form
        body = {"model": "clip", "messages": [{"role": "user", "content": content}]}
        status, found, _ = server.ask("POST", "/v1/embeddings", body)
        assert status == 200, found
        np.testing.assert_allclose(found["data"][0]["embedding"], one, atol=1e-6)


def test_a_model_without_texts(server: Running, folder: Path) -> None:
    model: Any = weft.load(folder / "dinov2", device="cpu")
    want = model.embed_images(folder / "shown" / "0.png", normalize=True)[0]
    body = {"model": "dinov2", "input": [part(uri(folder, 0))]}
    status, found, _ = server.ask("POST", "/v1/embeddings", body)
    assert status == 200, found
    np.testing.assert_allclose(found["data"][0]["embedding"], want, atol=1e-6)
    status, found, _ = server.ask("POST", "/v1/embeddings", {"model": "dinov2", "input": "x"})
    assert status == 400 and "pictures alone" in found["error"]["message"]
    for name, sees in (("dinov2", "vision"), ("clip", "embedding")):
        status, found, _ = server.ask("POST", "/api/show", {"model": name})
        assert status == 200 and sees in found["capabilities"]
    assert server.ask("GET", "/v1/models")[0] == server.ask("GET", "/api/ps")[0] == 200


@pytest.mark.parametrize(
    "body, said",
    [
        ({"input": [part("https://example.org/cat.png")]}, "fetches nothing"),
        ({"input": [part("file:///etc/passwd")]}, "not a file of the pictures' folder"),
        ({"input": [part("data:image/png;base64,AAAA")]}, "picture 1"),
        ({"input": [{"content": []}]}, "has 0 parts"),
        ({"input": [{"content": [part("x"), part("x")]}]}, "has 2 parts"),
        ({"input": [{"type": "input_audio", "input_audio": {}}]}, "input_audio"),
        ({"input": [{"content": 5}]}, "input is an integer"),
        ({"input": [[1, 2]]}, "not token ids"),
        ({"input": ["x"], "prompt_name": "query"}, "has no prompts"),
        ({}, "input or messages"),
        ({"input": "x", "messages": []}, "input or messages"),
        ({"input": [part("data:image/png;base64,AAAA")] * 65}, "65 pictures"),
        ({"model": "bert", "input": [part("data:image/png;base64,AAAA")]}, "no pictures"),
    ],
)  # fmt: skip
def test_bad_requests_are_named(server: Running, body: dict[str, Any], said: str) -> None:
    status, found, _ = server.ask("POST", "/v1/embeddings", {"model": "clip", **body})
    assert status == 400 and said in found["error"]["message"], found
