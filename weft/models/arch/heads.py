"""The heads of classifiers, rerankers and taggers as data, by family: what follows the token
vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.models.arch.pooling import Mode, Step


class Head(NamedTuple):
    """The token whose vector is judged (`mode`), and the steps after it, each with the name of its
    weights. The last one has a row for each label."""

    mode: Mode
    steps: tuple[tuple[Step, str], ...]


LABELS = (Step("dense"), "classifier")
_POOLER = (Step("dense", "tanh"), "pooler.dense")
_ROBERTA = Head(
    "cls", ((Step("dense", "tanh"), "classifier.dense"), (Step("dense"), "classifier.out_proj"))
)
_BERT = Head("cls", (_POOLER, LABELS))
_DECODER = Head("lasttoken", ((Step("dense"), "score"),))

# by EncoderConfig.family
TEXTS: Mapping[str, Head] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "distilbert": Head("cls", ((Step("dense", "relu"), "pre_classifier"), LABELS)),
    "electra": Head(
        "cls", ((Step("dense", "gelu"), "classifier.dense"), (Step("dense"), "classifier.out_proj"))
    ),
    "albert": Head("cls", ((Step("dense", "tanh"), "pooler"), LABELS)),
    "mpnet": _ROBERTA,
    "modernbert": Head(
        "cls",
        ((Step("dense", "gelu"), "head.dense"), (Step("norm"), "head.norm"), LABELS),
    ),
    "nomic_bert": _BERT,
    "gte": _BERT,
    "jina_embeddings_v3": _ROBERTA,
    "jina_v2": _BERT,
    "deberta": Head("cls", ((Step("dense", "gelu"), "pooler.dense"), LABELS)),
    "deberta-v2": Head("cls", ((Step("dense", "gelu"), "pooler.dense"), LABELS)),
}
_OUTPUTS = r"^(classifier|pre_classifier|score|head)\."
INERT = {_OUTPUTS: "the head, which is read by itself"}


def text_head(family: str, decoder: bool) -> Head | None:
    """Returns the head that judges whole texts; None if the family has none that weft knows."""
    return _DECODER if decoder else TEXTS.get(family)


def token_head(family: str, decoder: bool) -> Head | None:
    """Returns the head that labels tokens."""
    if decoder:
        return _DECODER
    head = TEXTS.get(family)
    if head is None or family == "modernbert":
        return head
    return Head(head.mode, (LABELS,))
