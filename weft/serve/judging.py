"""Judging texts over HTTP: rerank in Jina's and Cohere's shapes, score and classify in vLLM's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import WeftError
from weft.models.run.judge import applied, ranked
from weft.serve.guard import key_of
from weft.serve.keys import spent
from weft.serve.openai.answers import AnswerFields
from weft.serve.openai.types import Priority, RequestFields
from weft.serve.routing import Described, route
from weft.serve.served import Served, ServedDecoder
from weft.serve.served_judge import ServedJudge, decoder_scores
from weft.serve.shelf import ModelShelf
from weft.serve.wire import HttpError, json_response, read, refusal, while_there

MAX_DOCUMENTS = 10_000

Documents = Annotated[list[Any], Meta(max_length=MAX_DOCUMENTS)]
Texts = str | Annotated[list[str], Meta(max_length=MAX_DOCUMENTS)]
Cut = Annotated[int, Meta(ge=-1, le=-1)]  # vLLM's: -1 cuts at the model's own limit


class Rerank(RequestFields, kw_only=True):
    """POST /rerank. Documents are texts, or objects with `text`; long ones are cut, unless
    `truncation` is false. `instruction` is for models that say yes or no."""

    query: str
    documents: Documents
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    truncation: bool | None = None
    truncate_prompt_tokens: Cut | None = None
    instruction: str | None = None
    priority: Priority | None = None


class Score(RequestFields, kw_only=True):
    """POST /score: one text with each of others, or two lists pair by pair."""

    text_1: Texts
    text_2: Texts
    model: str | None = None
    truncate_prompt_tokens: Cut | None = None
    instruction: str | None = None
    priority: Priority | None = None


class Classify(RequestFields, kw_only=True):
    """POST /classify."""

    input: Texts
    model: str | None = None
    truncate_prompt_tokens: Cut | None = None
    priority: Priority | None = None


class JudgedUsage(AnswerFields):
    prompt_tokens: int
    total_tokens: int


class RerankResult(AnswerFields, omit_defaults=True):
    """A document by its number in the request; `document` has its text if it was asked for."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RerankAnswer(AnswerFields):
    """The answer of POST /rerank, the best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RerankResult]
    usage: JudgedUsage
    meta: dict[str, Any]


class ScoreResult(AnswerFields):
    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(AnswerFields):
    """The answer of POST /score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreResult]
    usage: JudgedUsage


class ClassifyResult(AnswerFields):
    """The likeliest label, and the probabilities of all in their order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(AnswerFields):
    """The answer of POST /classify."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ClassifyResult]
    usage: JudgedUsage


async def rerank(request: Request) -> Response:
    """Ranks documents by how well they match a query."""
    body = await read(request, Rerank)
    documents = [_text(d, i) for i, d in enumerate(body.documents)]
    pairs = [(body.query, document) for document in documents]
    scores, model, usage = await _scored(
        request, body.model, pairs, body.truncation is not False, body.instruction
    )
    quiet = request.url.path.startswith("/v2/")  # Cohere's newer shape has no texts
    shown = not quiet if body.return_documents is None else body.return_documents
    results = [
        RerankResult(x.index, x.score, {"text": documents[x.index]} if shown else None)
        for x in ranked(scores, body.top_n)
    ]
    meta = {"api_version": {"version": "2"}}
    return json_response(RerankAnswer(_id("rerank"), "list", model, results, usage, meta))


async def score(request: Request) -> Response:
    """Scores pairs of texts."""
    body = await read(request, Score)
    first, second = (t if isinstance(t, list) else [t] for t in (body.text_1, body.text_2))
    if len(first) == 1 and not isinstance(body.text_1, list):
        first = first * len(second)
    if len(first) != len(second):
        raise HttpError(
            400, f"text_1 has {len(first)} texts, text_2 {len(second)}; give one, or as many",
            "text_1",
        )  # fmt: skip
    scores, model, usage = await _scored(
        request, body.model, list(zip(first, second)), body.truncate_prompt_tokens is not None,
        body.instruction,
    )  # fmt: skip
    data = [ScoreResult(i, "score", float(x)) for i, x in enumerate(scores)]
    return json_response(ScoreAnswer(_id("score"), "list", int(time.time()), model, data, usage))


async def classify(request: Request) -> Response:
    """Gives labels of texts."""
    body = await read(request, Classify)
    texts = body.input if isinstance(body.input, list) else [body.input]
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(body.model) as model:
        if not isinstance(model, ServedJudge):
            raise HttpError(400, f"{model.name} is not a classifier", "model")
        cut = body.truncate_prompt_tokens is not None
        try:
            logits, tokens = await while_there(request, model.logits(texts, cut))
        except WeftError as e:
            raise refusal(e) from None
        name, labels = model.name, model.model.labels
        scores = applied(model.model.judging.chosen, logits)
    data = [
        ClassifyResult(i, labels[int(row.argmax())], row.tolist(), len(labels))
        for i, row in enumerate(scores)
    ]
    usage = _used(request, tokens)
    made = ClassifyAnswer(_id("classify"), "list", int(time.time()), name, data, usage)
    return json_response(made)


async def _scored(
    request: Request, name: str | None, pairs: Sequence[tuple[str, str]], cut: bool,
    instruction: str | None,
) -> tuple[np.ndarray, str, JudgedUsage]:  # fmt: skip
    """The scores of pairs by the model called `name`, its name, and how many tokens they have."""
    shelf: ModelShelf = request.app.state.shelf
    async with shelf.use(name) as model:
        try:
            work = _work(request, model, pairs, cut, instruction)
            scores, usage = await while_there(request, work)
        except WeftError as e:
            raise refusal(e) from None
        return scores, model.name, usage


def _used(request: Request, tokens: int) -> JudgedUsage:
    spent(request.scope, tokens)
    return JudgedUsage(tokens, tokens)


async def _work(
    request: Request, model: Served, pairs: Sequence[tuple[str, str]], cut: bool,
    instruction: str | None,
) -> tuple[np.ndarray, JudgedUsage]:  # fmt: skip
    if isinstance(model, ServedDecoder):
        salt = key_of(request.scope)
        scores, tokens = await decoder_scores(model, pairs, cut, instruction, salt)
        return scores, JudgedUsage(tokens, tokens)  # the engine's jobs count for their key
    if not isinstance(model, ServedJudge):
        raise HttpError(400, f"{model.name} does not score pairs", "model")
    if instruction is not None:
        raise HttpError(400, f"{model.name} is not a language model; leave it out", "instruction")
    scores, tokens = await model.scores(pairs, cut)
    return scores, _used(request, tokens)


def _text(document: Any, i: int) -> str:
    """A document's text. Raises HttpError."""
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str) or (isinstance(document, dict) and len(document) > 1):
        raise HttpError(
            400, f"documents[{i}] is neither text nor an object of `text` alone", "documents"
        )
    return text


def _id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def routes() -> list[Described]:
    """Reranking, scores of pairs, labels."""
    made = [route(f"{at}/rerank", rerank, Rerank, answer=RerankAnswer) for at in ("", "/v1", "/v2")]
    made += [route(f"{at}/score", score, Score, answer=ScoreAnswer) for at in ("", "/v1")]
    return [*made, route("/classify", classify, Classify, answer=ClassifyAnswer)]
