"""Chooses the source of draft tokens for a Decoder: its own text, or a small model.

Drafts change no token (weft.engine.drafts).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError
from weft.engine.draft_model import ModelDrafts
from weft.engine.drafts import Drafts, Either, NoDrafts
from weft.engine.engine import Engine
from weft.engine.suffixes import Suffixes
from weft.models.arch.inputs import columns, remembers

if TYPE_CHECKING:
    from weft.models.run.model import Decoder


def drafts_by(model: Decoder, draft: Decoder | None, sequences: int, pages: int) -> Drafts:
    """Returns drafts for `sequences` sequences of `model`: from texts, and where these have none
    from `draft`, whose cache gets `pages` pages, or at least one context. Raises UsageError for a
    model that cannot draft for this one."""
    if draft is None:
        return Suffixes()
    check_pair(model, draft)
    whole = columns(draft.context)
    runner = draft.new_runner(sequences, min(max(pages, whole), sequences * whole))
    engine = Engine(runner, draft.config.vocab, queue=sys.maxsize, drafts=NoDrafts())
    return Either(Suffixes(), ModelDrafts(engine, lambda: draft.turn))


def check_pair(model: Any, draft: Any) -> None:
    """Raises UsageError unless `draft` is a decoder with the same tokens as `model`, and both can
    resume from any earlier token."""
    from weft.models.run.model import Decoder

    if draft is model:
        raise UsageError("draft is the model itself; expected another that generates text")
    for one in (model, draft):
        if not isinstance(one, Decoder):
            kind = type(one).__name__
            raise UsageError(f"drafts are of text, by a model that writes it; got a {kind}")
        if remembers(one.config):
            raise UsageError(
                f"{one.folder}: {one.config.family} keeps a running state, which knows no earlier "
                "token; drafts need a model with attention alone"
            )
    ours, theirs = model.tokenizer, draft.tokenizer
    if ours is None or theirs is None:
        same = ours is theirs and model.config.vocab == draft.config.vocab
    else:
        same = ours.same_tokens(theirs)
    if not same:
        raise UsageError(
            f"{draft.folder} has other tokens than {model.folder}; a draft model needs the same "
            "tokenizer: take one of the same family"
        )
