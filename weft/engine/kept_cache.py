"""The cache of one sequence, taken out of an engine and put into another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.core.errors import LimitError, UsageError
from weft.core.records import dataclass
from weft.engine.engine import Engine
from weft.engine.job import Movable
from weft.engine.pages import Chain, root


@dataclass(frozen=True)
class KeptCache:
    """The planes of whole pages, by name, the pages along the first axis, and the `tokens` that
    they hold."""

    tokens: tuple[int, ...]
    planes: Mapping[str, np.ndarray]


def take_out(engine: Engine, tokens: Sequence[int], salt: bytes, adapter: str) -> KeptCache:
    """A copy of the whole pages in which the cache has the beginning of `tokens`, of jobs with this
    salt and adapter; of no tokens, the planes of no page. Raises UsageError where sequences do not
    consist of their pages alone."""
    with engine._playing:
        runner = _movable(engine)
        pages, size = engine._pages, engine.runner.page
        held = pages.find(Chain(root(salt, adapter), size), tokens, len(tokens))
        try:
            planes = runner.read_pages(held)
        finally:
            pages.release(held)
        return KeptCache(tuple(tokens[: len(held) * size]), planes)


def put_in(engine: Engine, kept: KeptCache, salt: bytes, adapter: str) -> None:
    """Lets jobs with this salt and adapter find the pages of `kept`, between two steps. Pages that
    the cache has already stay. Raises LimitError if too few are free, UsageError if the pages are
    of another model."""
    with engine._playing:
        runner = _movable(engine)
        pages, size = engine._pages, engine.runner.page
        chain, tokens = Chain(root(salt, adapter), size), kept.tokens
        held = pages.find(chain, tokens, len(tokens))
        known, whole = len(held), len(tokens) // size
        new = pages.take(whole - known)
        try:
            if new is None:
                raise LimitError(f"{whole - known} pages of the cache are needed; "
                                 f"{pages.idle} are free")  # fmt: skip
            held += new
            if new:
                planes = {name: plane[known:whole] for name, plane in kept.planes.items()}
                runner.write_pages(new, planes)
            for n, page in enumerate(new, known):
                parent, digest = chain.at(n, tokens), chain.at(n + 1, tokens)
                pages.fill(page, parent, digest, tokens[n * size : (n + 1) * size])
        finally:
            pages.release(held)


def _movable(engine: Engine) -> Movable:
    runner = engine.runner
    if not (isinstance(runner, Movable) and runner.windows is None and engine._schedule.shared):
        raise UsageError("this model's sequences have more than pages (windows, a running state): "
                         "they are not kept on a disk")  # fmt: skip
    return runner
