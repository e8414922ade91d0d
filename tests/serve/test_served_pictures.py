"""Pictures by every protocol: one conversation has one answer, the model's own."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from PIL import Image
from serve_kit import Running, serving

import weft
from weft.models.run.model import Decoder
from weft.models.run.tower_runner import Tower
from weft.vision.films import Video

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from picture_zoo import picture, write_pictured

TEXT = "what is this?"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    write_pictured("smolvlm", folder)
    return folder


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a picture."""
    folder = tmp_path_factory.mktemp("pictures")
    Image.fromarray(picture(5, 40, 61)).save(folder / "cat.png")
    Image.fromarray(picture(6, 9, 9)).save(folder.parent / "secret.png")
    return folder


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes videos, whose chat template has places for them."""
    folder = tmp_path_factory.mktemp("watching")
    write_pictured("qwen2_vl", folder)
    path = folder / "tokenizer_config.json"
    said = path.read_text().replace(
        "{% if p.type", "{% if p.type == 'video' %}<|video_pad|>{% elif p.type"
    )
    path.write_text(said)
    return folder


@pytest.fixture(scope="module")
def running(seeing: Path, watching: Path, chatty: Path, shown: Path) -> Iterator[Running]:
    models = {"eyes": str(seeing), "films": str(watching), "box": str(chatty)}
    with serving(models, pictures=str(shown)) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(seeing: Path, shown: Path) -> str:
    model = weft.load(seeing, device="cpu")
    assert isinstance(model, Decoder)
    made = model.generate(model.look(TEXT, [shown / "cat.png"]), max_new_tokens=9)
    return model.need_tokenizer("").decode(made.ids, skip_special=False)


@pytest.fixture(scope="module")
def data(shown: Path) -> str:
    return base64.b64encode((shown / "cat.png").read_bytes()).decode()


def test_no_picture_waits_for_a_program(seeing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    session = Tower._session

    def noted(tower: Tower, *given: Any) -> Any:
        made.append(given)
        return session(tower, *given)

    monkeypatch.setattr(Tower, "_session", noted)
    with serving({"eyes": str(seeing)}) as server:
        assert server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
        assert made


def by_openai(running: Running, url: str, model: str = "eyes") -> str:
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0)
    parts: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": TEXT}]
    made = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": parts}], max_tokens=9, temperature=0
    )
    return made.choices[0].message.content or ""


def by_responses(running: Running, url: str) -> str:
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0)
    parts: Any = [{"type": "input_image", "image_url": url, "detail": "auto"},
                  {"type": "input_text", "text": TEXT}]  # fmt: skip
    made = client.responses.create(
        model="eyes", input=[{"role": "user", "content": parts}], max_output_tokens=9,
        temperature=0,
    )  # fmt: skip
    return made.output_text


def by_anthropic(running: Running, url: str) -> str:
    client = anthropic.Anthropic(base_url=running.url, api_key="x", max_retries=0)
    source: Any = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    parts: Any = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    made = client.messages.create(
        model="eyes",
        max_tokens=9,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": parts}],
    )
    return "".join(block.text for block in made.content if block.type == "text")


def by_ollama(running: Running, url: str) -> str:
    client = ollama.Client(host=running.url)
    said = {"role": "user", "content": TEXT, "images": [url.partition(",")[2]]}
    made = client.chat("eyes", [said], options={"num_predict": 9, "temperature": 0})
    return made.message.content or ""


@pytest.mark.parametrize("ask", [by_openai, by_responses, by_anthropic, by_ollama])
def test_one_picture_has_one_answer(
    running: Running, ask: Callable[[Running, str], str], data: str, wanted: str
) -> None:
    assert ask(running, f"data:image/png;base64,{data}").strip() == wanted.strip()


def test_files_are_of_the_folder_alone(running: Running, shown: Path, wanted: str) -> None:
    assert by_openai(running, (shown / "cat.png").as_uri()).strip() == wanted.strip()
    for path in ("/etc/passwd", str(shown.parent / "secret.png"), f"{shown}/../secret.png", ""):
        with pytest.raises(openai.BadRequestError, match="is not a file of the pictures' folder"):
            by_openai(running, f"file://{path}")


@pytest.mark.parametrize(("url", "match"), [
    ("https://some.org/cat.png", "weft fetches nothing"),
    ("data:image/png;base64,@@@@", "not valid base64"),
    ("data:image/png,abc", "expected data:image/png;base64"),
    ("data:image/png;base64,aGVsbG8=", "is not a picture that weft reads"),
])  # fmt: skip
def test_bad_pictures_are_named(running: Running, url: str, match: str) -> None:
    with pytest.raises(openai.BadRequestError, match=match):
        by_openai(running, url)


def test_a_model_without_eyes_says_so(running: Running, data: str) -> None:
    with pytest.raises(openai.BadRequestError, match="reads text alone, and a picture was given"):
        by_openai(running, f"data:image/png;base64,{data}", "box")


def test_roles_other_than_the_users_show_nothing(running: Running, data: str) -> None:
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0)
    parts: Any = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
    with pytest.raises(openai.BadRequestError, match="text alone"):
        client.chat.completions.create(
            model="eyes", messages=[{"role": "system", "content": parts}], max_tokens=1
        )


def test_videos(running: Running, watching: Path, shown: Path) -> None:
    """An animation in a data URI, frames with commas between them, and a file of the folder."""
    frames = [Image.fromarray(picture(k, 30, 41)) for k in range(4)]
    path = shown / "cat.gif"
    frames[0].save(path, "GIF", save_all=True, append_images=frames[1:], duration=500)
    encoded = base64.b64encode(path.read_bytes()).decode()
    model = weft.load(watching, device="cpu")
    assert isinstance(model, Decoder)
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0)

    def answer(url: Any, name: str = "films") -> str:
        parts: Any = [{"type": "video_url", "video_url": url}, {"type": "text", "text": TEXT}]
        made = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": parts}], max_tokens=9, temperature=0
        )
        return made.choices[0].message.content or ""

    found = model.generate(model.look(TEXT, [Video(path)]), max_new_tokens=9)
    want = model.need_tokenizer("").decode(found.ids, skip_special=False)
    assert answer({"url": f"data:image/gif;base64,{encoded}"}) == want
    assert answer({"url": path.as_uri()}) == want
    parts = [base64.b64encode(p.read_bytes()).decode() for p in (shown / "cat.png",) * 2]
    assert answer({"url": "data:video/jpeg;base64," + ",".join(parts), "fps": 1})
    for url, name, said in (
        ({"url": "https://some.org/a.mp4"}, "films", "weft fetches nothing"),
        ({"url": "data:video/mp4;base64,AAAA"}, "films", "not a video that weft reads"),
        ({"url": (shown.parent / "secret.gif").as_uri()}, "films", "not a file of the pictures"),
        ({"url": f"data:image/gif;base64,{encoded}", "fps": -1}, "films", "fps is -1"),
        ({"url": f"data:image/gif;base64,{encoded}"}, "eyes", "no videos"),
        ({"url": 7}, "films", "a video is"),
    ):
        with pytest.raises(openai.BadRequestError, match=said):
            answer(url, name)
