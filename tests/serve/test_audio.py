"""Speech over HTTP, by OpenAI's client and by hostile forms: it is what the model hears alone."""

from __future__ import annotations

import io
import re
import sys
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from serve_kit import Running, serving, until

import weft
from weft.audio.sound import sound_of
from weft.audio.subtitles import srt, vtt
from weft.models.run.transcriber import Transcriber
from weft.serve import served_speech
from weft.serve.keys import ApiKeys

sys.path.append(str(Path(__file__).parents[1] / "models"))
from speech_zoo import moonshine, parakeet, whisper

KEY = b"a key of a test"
PATH = "/v1/audio/transcriptions"


def wav(seconds: float, seed: int = 0, rate: int = 16000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        x = np.random.default_rng(seed).normal(0, 3000, int(seconds * rate))
        file.writeframes(x.astype("<i2").tobytes())
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models") / "ear"
    whisper(found)
    return found


@pytest.fixture(scope="module")
def ear(folder: Path, chatty: Path) -> Iterator[Running]:
    with serving({"ear": str(folder), "box": str(chatty)}, ApiKeys.of(KEY)) as running:
        yield running


@pytest.fixture(scope="module")
def alone(folder: Path) -> Transcriber:
    model = weft.load(folder, device="cpu")
    assert isinstance(model, Transcriber)
    return model


@pytest.fixture(scope="module")
def client(ear: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{ear.url}/v1", api_key=KEY.decode(), max_retries=0)


def heard(alone: Transcriber, data: bytes, **options: Any) -> Any:
    return alone.transcribe(sound_of(io.BytesIO(data), "a test"), **options)


def test_every_form(client: openai.OpenAI, alone: Transcriber) -> None:
    data = wav(5.0)
    true = heard(alone, data, words=True, language="de", prompt="ab")
    given: Any = {"model": "ear", "file": ("talk.wav", data), "language": "de", "prompt": "ab"}
    create = client.audio.transcriptions.create
    assert true.text and create(**given).text == true.text
    assert create(**given, response_format="text") == true.text + "\n"
    assert create(**given, response_format="vtt") == "".join(vtt(true.segments))
    assert create(**given, response_format="srt") == "".join(srt(true.segments))
    made = create(
        **given, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert (made.language, made.duration, made.text) == ("de", 5.0, true.text)
    assert [(s.start, s.tokens) for s in made.segments] == [
        (s.start, s.tokens) for s in true.segments
    ]
    words = [w for s in true.segments for w in s.words]
    assert [(w.word, w.start, w.end) for w in made.words] == [
        (w.text.strip(), w.start, w.end) for w in words
    ]
    translated = client.audio.translations.create(model="ear", file=("talk.wav", data))
    assert translated.text == heard(alone, data, task="translate").text


def test_streams_and_several_at_once(
    client: openai.OpenAI, alone: Transcriber, ear: Running
) -> None:
    sounds = [wav(1.0 + i, i) for i in range(10)]  # more than the model has slots
    true = [heard(alone, data).text for data in sounds]
    assert len(set(true)) > 5

    def ask(i: int) -> str:
        events = client.audio.transcriptions.create(
            model="ear", file=("talk.wav", sounds[i]), stream=True
        )
        *deltas, done = list(events)
        assert done.type == "transcript.text.done"
        assert "".join(d.delta for d in deltas) == done.text
        return str(done.text)

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, range(10))) == true
    told = ear.ask("GET", "/metrics", headers={"x-api-key": KEY.decode()})[1]
    assert 'weft_heard_seconds_total{model="ear"}' in told
    assert ear.ask("POST", PATH, b"")[0] == 401


def form(*parts: tuple[str, bytes | str], name: str = "talk.wav") -> tuple[bytes, dict[str, str]]:
    """A body by hand; bytes are a file."""
    out = b""
    for field, value in parts:
        more = f'; filename="{name}"' if isinstance(value, bytes) else ""
        data = value if isinstance(value, bytes) else value.encode()
        out += f'--B\r\nContent-Disposition: form-data; name="{field}"{more}\r\n\r\n'.encode()
        out += data + b"\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=B", "x-api-key": KEY.decode()}
    return out + b"--B--\r\n", headers


SOUND = ("file", wav(0.5))
WRONG: list[tuple[list[tuple[str, Any]], str]] = [
    ([], "has no file"), ([("model", "ear")], "has no file"), ([("file", "text")], "has no file"),
    ([SOUND, SOUND], "Too many files"), ([SOUND, ("model", "box")], "does not hear"),
    ([SOUND, ("model", "ear"), ("model", "ear")], "2 times"), ([SOUND, ("nme", "x")], "'nme'"),
    ([SOUND, ("temperature", "nan")], "temperature"), ([SOUND, ("temperature", "2")], "0 to 1"),
    ([SOUND, ("response_format", "xml")], "xml"), ([SOUND, ("language", "xx")], "has: de, en"),
    ([SOUND, ("timestamp_granularities[]", "word")], "needs response_format"),
    ([SOUND, ("stream", "true"), ("response_format", "srt")], "json or text"),
    ([SOUND, ("stream", "maybe")], "stream"), ([SOUND, ("include[]", "logprobs")], "logprobs"),
    ([SOUND, *[("prompt", "x")] * 20], "Too many fields"),
    ([SOUND, ("prompt", "x" * 100_000)], "maximum size"),
    ([("file", b"")], "is empty"), ([("file", b"RIFF\0\0\0\0WAVE")], "without a format"),
    ([("file", SOUND[1][:200])], "truncated"), ([("file", b"\xff\xfb" * 99)], "WAV|soundfile"),
    ([("file", wav(0))], "no samples"), ([("file", wav(1, rate=1000))], "4000 to 192000"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "said"), WRONG, ids=range(len(WRONG)))
def test_wrong_forms_are_named(ear: Running, parts: list[tuple[str, Any]], said: str) -> None:
    status, found, _ = ear.ask("POST", PATH, *form(*parts))
    assert status == 400 and re.search(said, found["error"]["message"]), found


def test_hostile_forms(ear: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    body, headers = form(SOUND, name="../../etc/\x01'passwd" + "x" * 500)
    assert ear.ask("POST", PATH, body, headers)[0] == 200
    status, found, _ = ear.ask("POST", PATH, *form(("file", b"x"), name="../\x01" + "x" * 500))
    assert status == 400 and "\x01" not in found["error"]["message"]
    for cut in (body[:50], body[:-9], body[10:], b"--B" * 999, b"--B\r\n" + b"x" * 9999):
        assert ear.ask("POST", PATH, cut, headers)[0] == 400
    assert ear.ask("POST", PATH, body, {**headers, "Content-Type": "text/plain"})[0] == 400
    big = {**headers, "Content-Length": str(1 << 40)}
    assert ear.ask("POST", PATH, b"", big)[0] == 413
    chunked = {**headers, "Transfer-Encoding": "chunked"}
    assert ear.ask("POST", PATH, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), chunked)[0] == 200
    monkeypatch.setattr(served_speech, "MAX_SECONDS", 0.1)
    status, found, _ = ear.ask("POST", PATH, body, headers)
    assert status == 400 and "longer than" in found["error"]["message"]
    assert ear.ask("GET", "/health", headers=headers)[0] == 200


def test_a_client_that_leaves_frees_its_place(ear: Running, client: openai.OpenAI) -> None:
    model = next(m for m in ear.shelf.loaded() if m.name == "ear")
    with client.audio.transcriptions.create(
        model="ear", file=("talk.wav", wav(200.0)), stream=True
    ) as events:
        next(iter(events))
    until(lambda: model.idle and not model.model.hearing.busy)  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", [moonshine, parakeet])
def test_other_families(tmp_path: Path, family: Any) -> None:
    """They answer as alone, and refuse by name what they do not take; hostile sounds too."""
    family(tmp_path)
    data = wav(1.5)
    true = weft.load(tmp_path, device="cpu").transcribe(sound_of(io.BytesIO(data), "a test"))
    with serving({"ear": str(tmp_path)}) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        create = client.audio.transcriptions.create
        made = create(model="ear", file=("talk.wav", data), response_format="verbose_json")
        assert true.text and made.text == true.text and made.language == "und"
        parts = create(model="ear", file=("talk.wav", data), stream=True)
        assert "".join(p.delta for p in parts if p.type.endswith("delta")) == true.text
        for options in ({"language": "de"}, {"prompt": "ab"}, {"temperature": 0.5}):
            with pytest.raises(openai.BadRequestError, match=f"take {next(iter(options))}"):
                create(model="ear", file=("talk.wav", data), **options)
        for bad in (b"", data[:40], data[:-7], b"RIFF" + data[4:20], b"\0" * 999):
            with pytest.raises(openai.BadRequestError):
                create(model="ear", file=("talk.wav", bad))
        for rate in (4000, 192_000):
            assert create(model="ear", file=("talk.wav", wav(0.3, rate=rate))).usage.seconds == 1
