"""Settings of the served models, and the memory that they take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weft.models.arch.inputs import PAGE
from weft.models.run.base import Model
from weft.models.run.model import Decoder
from weft.models.run.seq2seq import Seq2Seq


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the served models. `sequences` run at once at most, `queue` answers may wait,
    `memory` bytes are for pages (None: the free memory). `parser` reads tool calls
    (toolcalls.NAMES), `load` has the options of `weft.load`, `draft` is the path of a draft model.
    `adapters` are LoRA adapters of the first model: paths by the names that requests use. Further
    ones in `adapter_folder` may be loaded later (None: none). A request waits `load_seconds` at
    most for its model to be loaded. A model that is not used for `keep_alive` seconds goes (None:
    only where another needs its memory). Requests may name pictures in the folder `pictures`
    (None: none). Models that requests make of others are kept in `model_folder` (None:
    none may be made), conversations of slots in `sessions` (None: nowhere)."""

    sequences: int = 32
    queue: int = 256
    memory: int | None = None
    parser: str = "auto"
    load: Mapping[str, Any] | None = None
    draft: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_folder: str | None = None
    load_seconds: float = 300.0
    keep_alive: float | None = None
    pictures: str | None = None
    model_folder: str | None = None
    sessions: str | None = None


def bytes_of(model: Model, settings: ServeSettings, draft: Decoder | None = None) -> int:
    """The bytes that serving the model will hold, including its draft model."""
    made = model.nbytes + (0 if draft is None else draft.nbytes)
    if isinstance(model, Decoder):
        pages = pages_of(model, settings, draft)
        made += caches(model, draft, settings.sequences, pages)
    if isinstance(model, Seq2Seq):
        made += model.cache_bytes
    return made


def caches(model: Decoder, draft: Decoder | None, slots: int, pages: int) -> int:
    """Bytes of the cache of `pages` pages for `slots` sequences, and of the draft model's, which
    has as many."""
    more = 0 if draft is None else draft.cache_bytes(slots, pages)
    return model.cache_bytes(slots, pages) + more


def pages_of(model: Decoder, settings: ServeSettings, draft: Decoder | None = None) -> int:
    """The number of pages in the cache: as many as are free or as the settings allow, at least
    enough for one sequence of the whole context."""
    whole = -(-model.context // PAGE)
    taken = partial(caches, model, draft, settings.sequences)
    most = model.pages_that_fit(settings.sequences)
    if draft is not None:
        free = model.cache_bytes(settings.sequences, most)
        most = bisect_right(range(1, most + 1), free, key=taken)
    if settings.memory is not None:
        most = bisect_right(range(1, most + 1), settings.memory, key=taken)
    return max(most, whole)
