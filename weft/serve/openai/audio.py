"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from weft.audio.subtitles import srt, vtt
from weft.core.errors import WeftError
from weft.models.run.listener import HEAT, Listener
from weft.models.run.transcript import Segment, Transcript
from weft.serve import errors
from weft.serve.fields import seed_of
from weft.serve.forms import form_of
from weft.serve.keys import spent
from weft.serve.openai.answers import AnswerFields
from weft.serve.routing import FORM, Described, route
from weft.serve.served_speech import ServedTranscriber
from weft.serve.shelf import ModelShelf
from weft.serve.wire import (
    HttpError,
    Streamed,
    event,
    json_response,
    mistaken,
    refusal,
    while_there,
)

Form = Literal["json", "text", "srt", "verbose_json", "vtt"]
Unit = Literal["word", "segment"]
TOGETHER = 4  # passages of a sound at once, of the model's eight
_LISTS = {"timestamp_granularities[]", "include[]"}
_PLAIN = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}


class Translate(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/audio/translations: a form. `seed` and `stream` are not OpenAI's here."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    model: str | None = None
    prompt: str | None = None
    response_format: Form = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0
    stream: bool = False
    seed: int = 0


class Transcribe(Translate, kw_only=True, rename={"units": "timestamp_granularities[]",
                                                  "include": "include[]"}):  # fmt: skip
    """POST /v1/audio/transcriptions: a form. With `chunking_strategy` the sound is cut at pauses
    into passages that are heard at once."""

    language: str | None = None
    chunking_strategy: Literal["auto"] | None = None
    units: list[Unit] = []
    include: list[str] = []


class HeardUsage(AnswerFields):
    type: Literal["duration"]
    seconds: int


class HeardWord(AnswerFields):
    word: str
    start: float
    end: float


class HeardSegment(AnswerFields):
    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class AudioAnswer(AnswerFields, omit_defaults=True):
    """The answer for response_format json, and with more fields verbose_json. `language` is a code;
    times are in seconds."""

    text: str
    usage: HeardUsage
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[HeardSegment] | None = None
    words: list[HeardWord] | None = None


async def transcriptions(request: Request) -> Response:
    """Writes what is said in a sound."""
    return await _answer(request, Transcribe, "transcribe")


async def translations(request: Request) -> Response:
    """Writes in English what is said in a sound."""
    return await _answer(request, Translate, "translate")


async def _answer(request: Request, kind: type[Translate], task: str) -> Response:
    """Answers a form; the model, the file and the listener are let go with the response."""
    known = [f.encode_name for f in msgspec.structs.fields(kind)]
    async with contextlib.AsyncExitStack() as stack:
        form, file = await stack.enter_async_context(form_of(request, known, 16))
        body = _read(form, kind)
        options = _options(body, task)
        shelf: ModelShelf = request.app.state.shelf
        where = f"{file.filename or 'file'!r:.100}"

        async def begun() -> tuple[ServedTranscriber, Listener]:
            model = await stack.enter_async_context(shelf.use(body.model))
            if not isinstance(model, ServedTranscriber):
                raise HttpError(400, f"{model.name} does not hear", "model")
            heard = model.listening(file.file, where, options)
            return model, await stack.enter_async_context(heard)

        try:
            model, listener = await while_there(request, begun())
            shelf.metrics.heard.labels(model.name).inc(listener.duration)
            if body.stream:
                parts = _Parts(_events(request, model, listener), stack.pop_all())
                return Streamed(parts)
            segments = await while_there(request, _all(model, listener))
        except WeftError as e:
            raise refusal(e) from None
        spent(request.scope, _tokens(segments))
        text = "".join(s.text for s in segments).strip()
        made = Transcript(text, listener.language, listener.duration, segments, task)
        return _written(made, body, model.model.unsaid)
    raise AssertionError  # an exit stack swallows nothing


def _read(form: FormData, kind: type[Translate]) -> Any:
    """The fields of a form. Raises HttpError."""
    given: dict[str, Any] = {"file": ""}
    for name in form:
        values = form.getlist(name)
        if name not in _LISTS and len(values) > 1:
            raise HttpError(400, f"the form has {name} {len(values)} times; give it once", name)
        if name != "file":
            given[name] = values if name in _LISTS else values[0]
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as e:
        raise mistaken(e, kind) from None


def _options(body: Any, task: str) -> dict[str, Any]:
    """The options of `Transcriber.listen`. Raises HttpError."""
    units, include = getattr(body, "units", ()), getattr(body, "include", ())
    if include:
        raise HttpError(400, f"include[] is {include[0]!r:.40}; this server gives no logprobs of "
                        "tokens: leave it out", "include[]")  # fmt: skip
    if units and body.response_format != "verbose_json":
        raise HttpError(400, "timestamp_granularities[] needs response_format verbose_json",
                        "timestamp_granularities[]")  # fmt: skip
    if body.stream and body.response_format not in ("json", "text"):
        raise HttpError(400, f"a stream has no response_format {body.response_format}; expected "
                        "json or text", "response_format")  # fmt: skip
    apart = getattr(body, "chunking_strategy", None) is not None
    return {
        "batch": TOGETHER if apart else None, "vad": apart, "task": task,
        "language": getattr(body, "language", None) or None,
        "prompt": body.prompt, "words": "word" in units, "seed": seed_of(body.seed),
        # OpenAI's 0 means: as sure as can be, and warmer where that fails
        "temperature": body.temperature or HEAT,
    }  # fmt: skip


async def _all(model: ServedTranscriber, listener: Listener) -> list[Segment]:
    return [segment async for segment in model.segments(listener)]


def _tokens(segments: list[Segment]) -> int:
    return sum(len(s.tokens) for s in segments)


def _written(made: Transcript, body: Any, unsaid: str) -> Response:
    """The response in the form that was asked for; `unsaid` is the language of a transcript without
    one."""
    usage = HeardUsage("duration", ceil(made.duration))
    if body.response_format == "json":
        return json_response(AudioAnswer(made.text, usage))
    if body.response_format == "verbose_json":
        units = getattr(body, "units", ()) or ("segment",)
        return json_response(_verbose(made, usage, units, unsaid))
    parts = {"text": [made.text, "\n"], "srt": srt(made.segments), "vtt": vtt(made.segments)}
    text = "".join(parts[body.response_format])
    return Response(text, media_type=_PLAIN[body.response_format])


def _verbose(made: Transcript, usage: HeardUsage, units: Any, unsaid: str) -> AudioAnswer:
    names = HeardSegment.__struct_fields__[2:]
    segments = [
        HeardSegment(i, 0, *(getattr(s, name) for name in names))
        for i, s in enumerate(made.segments)
    ]
    words = [
        HeardWord(w.text.strip(), w.start, w.end) for s in made.segments for w in s.words or ()
    ]
    return AudioAnswer(
        made.text, usage, made.task, made.language or unsaid, made.duration,
        segments if "segment" in units else None, words if "word" in units else None,
    )  # fmt: skip


async def _events(
    request: Request, model: ServedTranscriber, listener: Listener
) -> AsyncIterator[bytes]:
    """The segments' texts as events; together they are the text of the last event."""
    raw, said, tokens = "", "", 0
    async for segment in model.segments(listener):
        tokens += len(segment.tokens)
        raw += segment.text
        now = raw.strip()
        if len(now) > len(said):
            yield event({"type": "transcript.text.delta", "delta": now[len(said) :]})
        said = now
    spent(request.scope, tokens)
    heard = ceil(listener.duration * 100) // 2  # positions of the encoder
    usage = {"type": "tokens", "input_tokens": heard, "output_tokens": tokens,
             "total_tokens": heard + tokens}  # fmt: skip
    yield event({"type": "transcript.text.done", "text": said, "usage": usage})


class _Parts:
    """The parts of a stream. `aclose` ends the listener, also where nothing was taken yet."""

    def __init__(self, parts: AsyncIterator[bytes], held: contextlib.AsyncExitStack) -> None:
        self._parts, self._held = parts, held

    def __aiter__(self) -> _Parts:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except (HttpError, WeftError) as e:
            error = e if isinstance(e, HttpError) else refusal(e)
            return event({"type": "error", **errors.openai(error)})

    async def aclose(self) -> None:
        """Lets the model and the file go."""
        async with self._held:
            await self._parts.aclose()  # type: ignore[attr-defined]


def routes() -> list[Described]:
    """Those of sounds."""
    return [
        route("/v1/audio/transcriptions", transcriptions, Transcribe, answer=AudioAnswer,
              media=FORM),
        route("/v1/audio/translations", translations, Translate, answer=AudioAnswer, media=FORM),
    ]  # fmt: skip
