"""Turns conversations into token ids: a chat template writes them, and each token is marked if the
model says it.

The ids match those at inference: the template's prompt for an answer, then the answer including the
token that ends it. The loss ignores the template's text after that token, and all messages of
others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.errors import ModelError
from weft.models.text.parts import with_places
from weft.models.text.tokenizer import Tokenizer
from weft.training.conversations import SAYS, Conversation
from weft.training.pictures import PictureWriter, about

Span = tuple[int, int]  # range of characters, first to last (not included)


class ConversationEncoder:
    """An encoder of conversations with a tokenizer that has a chat template. `ends` are the ids
    that end the model's answers; `seen` has the pictures in conversations."""

    def __init__(
        self, tokenizer: Tokenizer, ends: Sequence[int], seen: PictureWriter | None = None
    ) -> None:
        self._tokenizer, self._ends, self._seen = tokenizer, set(ends), seen

    def encode(self, one: Conversation) -> list[np.ndarray]:
        """Returns the ids of a conversation, int32, ~id where the model does not say the token.
        Returns one row per conversation; one row per answer if the template rewrites earlier turns
        (by dropping the reasoning, say). Raises UsageError, ModelError."""
        with about(one.where):
            return [self._row(*written, one) for written in self._written(one)]

    def _written(self, one: Conversation) -> list[tuple[str, list[Span], int]]:
        """Returns texts, the spans in each that the model says, and its number of messages."""
        answers = [i for i, m in enumerate(one.messages) if m["role"] == SAYS]
        upto = {i: self._text(one, i + 1, False) for i in answers}
        spans, whole = {}, upto[answers[-1]]
        for i in answers:
            prompt = self._text(one, i, True)
            if not upto[i].startswith(prompt):
                raise ModelError(
                    "the chat template does not go on from its own prompt for an "
                    f"answer, {prompt[-40:]!r}; give another: [data] template"
                )
            spans[i] = (len(prompt), len(upto[i]))
        counted = [i for i in answers if one.said[i]]
        if all(whole.startswith(upto[i]) for i in answers):
            return [(whole, [spans[i] for i in counted], answers[-1] + 1)]
        return [(upto[i], [spans[i]], i + 1) for i in counted]

    def _text(self, one: Conversation, count: int, prompt: bool) -> str:
        more = {} if one.tools is None else {"tools": one.tools}
        if self._seen is None:
            return self._tokenizer.chat(one.messages[:count], prompt, **more)
        said, pictures = with_places(one.messages[:count], self._seen.lists)
        return self._seen.spelled(self._tokenizer.chat(said, prompt, **more), pictures)

    def _row(self, text: str, spans: list[Span], count: int, one: Conversation) -> np.ndarray:
        cuts = [at for span in spans for at in span]
        ids, places = self._cut(text, cuts)
        said = np.zeros(len(ids), np.bool_)
        for start, stop in zip(places[::2], places[1::2]):
            last = next((k for k in reversed(range(start, stop)) if ids[k] in self._ends), None)
            if last is None:
                raise ModelError(
                    "the chat template ends the answer with "
                    f"{text[: spans[-1][1]][-20:]!r}, where the model's end token is expected: it "
                    "would never learn to stop; give another: [data] template"
                )
            said[start : last + 1] = True
        coded = np.asarray(ids, np.int32)
        if self._seen is not None:
            coded = self._seen.placed(ids, with_places(one.messages[:count])[1])
        return np.where(said, coded, ~coded)[: np.flatnonzero(said)[-1] + 1]

    def _cut(self, text: str, cuts: list[int]) -> tuple[list[int], list[int]]:
        """Returns the ids of a text, and the number of ids before each cut. If a token would cross
        a cut, the parts are encoded separately, as at inference."""
        encode = self._tokenizer.encode_batch
        whole, *heads = encode([text, *(text[:c] for c in cuts)], special=False)
        if all(whole[: len(head)] == head for head in heads):
            return whole, [len(head) for head in heads]
        edges = [0, *cuts]
        parts = encode([text[a:b] for a, b in zip(edges, cuts)], special=False)
        places = np.cumsum([len(part) for part in parts]).tolist()
        return [i for part in parts for i in part], places
