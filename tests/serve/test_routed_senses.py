"""Pictures and uploads of sounds through `weft route`: the same answers as from a replica."""

from __future__ import annotations

import base64
import io
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image
from serve_kit import Listening, Routing, Running, routing, serving

from weft.serve import wire
from weft.serve.router import replica as looking

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from picture_zoo import picture, write_pictured
from speech_zoo import moonshine


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, chatty: Path) -> Iterator[list[Running]]:
    """Two with eyes and ears, and one with neither."""
    root = tmp_path_factory.mktemp("senses")
    moonshine(root / "ear")
    write_pictured("smolvlm", root / "eyes")
    models = {"ear": str(root / "ear"), "eyes": str(root / "eyes")}
    with serving(models) as one, serving(models) as two, serving({"box": str(chatty)}) as third:
        yield [third, one, two]


@pytest.fixture
def router(replicas: list[Running], monkeypatch: pytest.MonkeyPatch) -> Iterator[Routing]:
    monkeypatch.setattr(looking, "CHECK_SECONDS", 0.1)
    with routing(*replicas) as made:
        assert len(made.fleet.ready) == 3
        yield made


def client(to: Listening) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{to.url}/v1", api_key="none", max_retries=0)


def wav(rate: int, channels: int, seconds: float) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, 4, rate, 0, "NONE", ""))
        x = np.random.default_rng(0).normal(0, 2e8, int(seconds * rate) * channels)
        file.writeframes(x.astype("<i4").tobytes())
    return out.getvalue()


def test_sounds(router: Routing, replicas: list[Running]) -> None:
    """The form names the model, so a replica with it is asked; a file may be larger than a body of
    JSON. A stream has the same events."""
    data = wav(192_000, 2, 6.0)
    assert len(data) > wire.MAX_BODY
    said: dict[str, Any] = {"model": "ear", "file": ("talk.wav", data)}
    true = client(replicas[1]).audio.transcriptions.create(**said)
    for _ in range(3):
        assert client(router).audio.transcriptions.create(**said).text == true.text
    said["file"] = ("talk.wav", wav(16000, 1, 1.0))
    parts = [
        [(p.type, getattr(p, "delta", "")) for p in
         client(to).audio.transcriptions.create(**said, stream=True)]
        for to in (router, replicas[2])
    ]  # fmt: skip
    assert parts[0] == parts[1] and len(parts[0]) > 1
    with pytest.raises(openai.BadRequestError, match="take language"):
        client(router).audio.transcriptions.create(**said, language="de")
    with pytest.raises(openai.BadRequestError):
        client(router).audio.transcriptions.create(model="ear", file=("talk.wav", b"RIFF"))


def test_pictures(router: Routing, replicas: list[Running]) -> None:
    out = io.BytesIO()
    Image.fromarray(picture(5, 40, 61)).save(out, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    messages: Any = [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"},
    ]}]  # fmt: skip
    given: Any = {"model": "eyes", "messages": messages, "max_tokens": 8, "temperature": 0}
    made = [client(to).chat.completions.create(**given) for to in (replicas[1], router, router)]
    texts = {m.choices[0].message.content for m in made}
    assert len(texts) == 1
    parts = client(router).chat.completions.create(**given, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) in texts
