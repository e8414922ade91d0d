"""How models are served, and the memory that this takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.models.base import Model
from weft.models.inputs import PAGE
from weft.models.model import Decoder


@dataclass(frozen=True)
class Settings:
    """How models are served: `sequences` at once at most, `queue` answers that may wait, `memory`
    bytes for pages (None: what is free), the `parser` of tool calls (toolcalls.NAMES), the options
    of `weft.load`, the path of a `draft` model, and LoRA `adapters` of the first model: where each
    is, by the name that requests use."""

    sequences: int = 32
    queue: int = 256
    memory: int | None = None
    parser: str = "auto"
    load: Mapping[str, Any] | None = None
    draft: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)


def bytes_of(model: Model, settings: Settings, draft: Decoder | None = None) -> int:
    """What serving the model will hold, with the one that drafts for it."""
    made = model.nbytes + (0 if draft is None else draft.nbytes)
    if isinstance(model, Decoder):
        both = model.page_bytes + draft_page(draft)
        made += pages_of(model, settings, draft) * both
    return made


def draft_page(draft: Decoder | None) -> int:
    """Bytes of a page of the draft model's cache, of which there are as many as of the model's."""
    return 0 if draft is None else draft.page_bytes


def pages_of(model: Decoder, settings: Settings, draft: Decoder | None = None) -> int:
    """How many pages the cache gets: what is free, or what the settings allow; at least what one
    sequence of the whole context takes."""
    whole = -(-model.context // PAGE)
    both = max(model.page_bytes + draft_page(draft), 1)
    most = model.pages_that_fit(settings.sequences)
    if draft is not None:
        most = most * model.page_bytes // both
    if settings.memory is not None:
        most = min(most, settings.memory // both)
    return max(most, whole)
