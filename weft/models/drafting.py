"""Who proposes the tokens of a Decoder's answers: their own text, a small model.

What is proposed changes no token (weft.engine.drafts)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError
from weft.engine.draft_model import ModelDrafts
from weft.engine.drafts import Drafts, Either, NoDrafts
from weft.engine.engine import Engine
from weft.engine.suffixes import Suffixes
from weft.models.inputs import columns, remembers

if TYPE_CHECKING:
    from weft.models.model import Decoder


def drafts_by(model: Decoder, draft: Decoder | None, sequences: int, pages: int) -> Drafts:
    """Proposals for as many sequences of `model` at once: from texts, and where these have none by
    `draft`, whose cache gets so many pages, or what its context takes. Raises UsageError for a
    model that cannot draft for this one."""
    if draft is None:
        return Suffixes()
    check_pair(model, draft)
    whole = columns(draft.context)
    runner = draft.paged_runner(sequences, min(max(pages, whole), sequences * whole))
    engine = Engine(runner, draft.config.vocab, queue=sys.maxsize, drafts=NoDrafts())
    return Either(Suffixes(), ModelDrafts(engine, lambda: draft.turn))


def check_pair(model: Any, draft: Any) -> None:
    """Raises UsageError unless `draft` is a decoder with the tokens of `model`, and both can go
    on from any earlier token."""
    from weft.models.model import Decoder

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


class Drafting:
    """What a Decoder has to do with drafts."""

    _drafting: dict[tuple[object, int], Engine]

    def drafting_engine(self: Any, draft: Decoder | bool, sequences: int) -> Engine:
        """What plays so many sequences at once with drafts (True: from texts alone): an engine on
        pages, where rows of several sequences go in one step. Raises UsageError for a `draft` that
        does not fit, and where the model is a file of compiled Programs."""
        by = None if isinstance(draft, bool) else draft
        slots = 1 << (min(sequences, self.max_batch) - 1).bit_length()
        made: Engine | None = self._drafting.get((by, slots))
        if made is None:
            pages = slots * columns(self.context)
            drafts = drafts_by(self, by, slots, pages)
            runner = self.paged_runner(slots, pages)
            made = self._drafting[by, slots] = Engine(
                runner, self.config.vocab, self._texts, lambda: self.explain_bad("the logits are"),
                queue=sys.maxsize, drafts=drafts,
            )  # fmt: skip
        return made
