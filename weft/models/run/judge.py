"""The Judge class: classifiers and rerankers of texts and pairs of texts, and taggers of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.core.records import dataclass
from weft.host.boundary import guard_methods
from weft.models.arch.pooling import Pooling, activated, pool, stepped
from weft.models.run.reader import Body, Reader

if TYPE_CHECKING:
    from weft.models.text.tokenizer import TokenRow

Activation = Literal["identity", "sigmoid", "softmax", "tanh", "gelu", "relu", "silu"]
Text = str | tuple[str, str]


class Label(NamedTuple):
    """A label of a text, and its score."""

    label: str
    score: float


@dataclass(frozen=True)
class Ranked:
    """The number of a document, and its score."""

    index: int
    score: float


class Entity(NamedTuple):
    """Characters start .. end of a text that have one label, and its mean probability."""

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Judging:
    """The part of a judge after its token vectors: the head (`pooling` has its steps), the labels
    of its results, and the functions on them. `ends` is the id that a decoder's head passes over at
    a text's end. `tokens`: it labels tokens, not texts."""

    pooling: Pooling
    labels: tuple[str, ...]
    chosen: Activation  # of labels' scores
    scored: Activation  # of a pair's score
    tokens: bool = False
    ends: int | None = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class Judge(Reader):
    """A model that judges texts or pairs of texts, or labels tokens."""

    _instead = "a judge of texts: use classify, rerank or entities"

    def __init__(self, body: Body, judging: Judging, typed: bool) -> None:
        super().__init__(body)
        self.judging, self.typed = judging, typed

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.judging.labels

    def embed(self, texts: Any, *options: Any, **more: Any) -> Any:
        """Raises UsageError: a judge gives no vectors."""
        raise UsageError(f"{self.config.family} is {self._instead}")

    def classify(  # type: ignore[override]
        self, texts: Text | Sequence[Text], top: int | None = None, truncate: bool = True
    ) -> list[list[Label]]:
        """Returns the `top` labels (None: all) of each text or pair, the best first, with
        probabilities: softmax over the labels, or sigmoid where several may apply or there is one.

        Texts are cut at `max_length` tokens; without `truncate`, longer ones raise LimitError.
        """
        if self.judging.tokens:
            raise UsageError(f"{self.called} labels tokens: use entities(texts)")
        _check_top(top)
        scores = applied(self.judging.chosen, self.logits_of(listed(texts), truncate))
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        return [
            [Label(self.labels[i], float(row[i])) for i in best] for row, best in zip(scores, order)
        ]

    def score(
        self, pairs: Sequence[tuple[str, str]], truncate: bool = True, raw: bool = False
    ) -> np.ndarray:
        """Returns how well the texts of each pair match, float32 [N], as sentence-transformers'
        CrossEncoder does: sigmoid of the logit unless the model's files say otherwise; with `raw`
        the logit. Raises UsageError for a model of several labels."""
        self.check_reranker()
        logits = self.logits_of(list(pairs), truncate)[:, 0]
        return logits if raw else applied(self.judging.scored, logits)

    def check_reranker(self) -> None:
        """Raises UsageError for a model that does not give one score."""
        if self.judging.tokens or len(self.labels) != 1:
            raise UsageError(
                f"{self.called} has {len(self.labels)} labels; a reranker has one: use "
                f"{'entities' if self.judging.tokens else 'classify'}(texts)"
            )

    def rerank(  # type: ignore[override]
        self, query: str, documents: Sequence[str], top: int | None = None, truncate: bool = True
    ) -> list[Ranked]:
        """Returns the `top` documents (None: all) by their scores with the query, best first."""
        return ranked(self.score(paired(query, documents), truncate), top)

    def entities(
        self, texts: str | Sequence[str], grouped: bool = True, truncate: bool = True
    ) -> list[list[Entity]]:
        """Returns the labelled parts of each text, except those labelled O: adjacent tokens of one
        label together (B- begins another), or with `grouped` False token by token."""
        if not self.judging.tokens:
            raise UsageError(f"{self.called} labels whole texts: use classify(texts)")
        texts = [texts] if isinstance(texts, str) else list(texts)
        rows, how = self.rows(texts, truncate), self.judging
        found: list[list[Entity]] = [[] for _ in rows]
        for group, hidden, lengths in self._vectors(rows):
            for i, vectors, n in zip(group, hidden, lengths):
                logits = self._finite(stepped(how.pooling, vectors[:n], how.arrays))
                found[i] = self._entities(texts[i], rows[i], applied("softmax", logits), grouped)
        return found

    def logits_of(self, texts: Sequence[Text], truncate: bool = True) -> np.ndarray:
        """Returns float32 [N, labels] of texts or pairs, before any function of them."""
        return self.logits_of_rows(self.rows(texts, truncate))

    def rows(self, texts: Sequence[Text], truncate: bool = True) -> list[TokenRow]:
        """Returns the tokens of texts or pairs. Raises LimitError for those longer than
        `max_length` tokens, unless they are to be cut."""
        tokenizer = self.need_tokenizer("judging text needs one")
        rows = (tokenizer if truncate else tokenizer.unlimited()).read(texts)
        for i, row in enumerate(rows):
            if len(row.ids) > self.max_length:
                raise LimitError(
                    f"text {i} has {len(row.ids)} tokens; the model takes {self.max_length}"
                )
        return rows

    def logits_of_rows(self, rows: Sequence[TokenRow]) -> np.ndarray:
        """Returns float32 [N, labels] of the tokens of texts."""
        how = self.judging
        out = np.empty((len(rows), len(self.labels)), np.float32)
        for group, hidden, lengths in self._vectors(rows):
            if how.ends is not None:
                lengths = np.array([_end(rows[i].ids, how.ends) for i in group], np.int32)
            out[group] = pool(how.pooling, hidden, lengths, arrays=how.arrays)
        return self._finite(out)

    def _vectors(self, rows: Sequence[TokenRow]) -> Any:
        return self.token_vectors([row.ids for row in rows], [row.types for row in rows])

    def _finite(self, out: np.ndarray) -> np.ndarray:
        if not np.isfinite(out).all():
            raise self.explain_bad("the scores are")
        return out

    def _entities(
        self, text: str, row: TokenRow, scores: np.ndarray, grouped: bool
    ) -> list[Entity]:
        """Returns the entities of one text, from probabilities [T, labels] of its tokens."""
        groups: list[list[Entity]] = []
        for span, special, probabilities in zip(row.spans, row.special, scores):
            if special:
                continue
            best = int(probabilities.argmax())
            label, (start, end) = self.labels[best], span
            one = Entity(label, float(probabilities[best]), start, end, text[start:end])
            goes_on = grouped and groups and not label.startswith("B-")
            if goes_on and _kind(label) == _kind(groups[-1][-1].label):
                groups[-1].append(one)
            else:
                groups.append([one])
        return [e for e in map(_joined(text, grouped), groups) if e.label != "O"]


guard_methods(Judge)


def listed(texts: Text | Sequence[Text]) -> list[Text]:
    """Returns the texts as a list: one text or pair alone is a list of one. A pair is a tuple."""
    return [texts] if isinstance(texts, str | tuple) else list(texts)


def paired(query: str, documents: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the query with each document. Raises UsageError for what is not a list of texts."""
    if isinstance(documents, str):
        raise UsageError("documents is one text; give a list of texts")
    return [(query, document) for document in documents]


def ranked(scores: np.ndarray, top: int | None) -> list[Ranked]:
    """Returns the `top` numbers of scores [N], best first; equal ones in their order."""
    _check_top(top)
    order = np.argsort(-scores, kind="stable")[:top]
    return [Ranked(int(i), float(scores[i])) for i in order]


def _check_top(top: Any) -> None:
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise UsageError(f"top is {top!r:.60}; expected a positive integer or None")


def applied(name: Activation, x: np.ndarray) -> np.ndarray:
    """Returns a function of logits float32 [..., labels]."""
    if name != "softmax":
        return np.asarray(activated(name, x))
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _end(ids: Sequence[int], pad: int) -> int:
    """Returns the number of tokens up to the last that is not padding's id; at least 1."""
    n = len(ids)
    while n > 1 and ids[n - 1] == pad:
        n -= 1
    return n if ids[n - 1] != pad else 1


def _kind(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _joined(text: str, grouped: bool) -> Callable[[Sequence[Entity]], Entity]:
    def join(parts: Sequence[Entity]) -> Entity:
        label = parts[0].label.split("-", 1)[-1] if grouped else parts[0].label
        start, end = parts[0].start, parts[-1].end
        score = float(np.mean([e.score for e in parts]))
        return Entity(label, score, start, end, text[start:end])

    return join
