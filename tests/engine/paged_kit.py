"""A runner that really keeps what it is fed in pages, whose logits are a hash of all that a row can
see; and the oracle: the same numbers, one token after the other, without pages, batches or cache.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.engine.job import Job, SampledToken
from weft.engine.sampler import choose, generator
from weft.engine.windows import WindowPool

VOCAB = 32
LETTERS = "abcdefghijklmnopqrstuvwxyz .,:;é"


def logits_of(adapter: str, tokens: Sequence[int]) -> np.ndarray:
    """float32 [VOCAB] of the token after `tokens`; where token 1 is, what came five back is likely,
    so that texts repeat themselves and proposals are sometimes right."""
    packed = np.asarray(tokens, np.int64).tobytes()
    digest = hashlib.blake2b(adapter.encode() + b"/" + packed, digest_size=64).digest()
    out = np.frombuffer(digest, np.uint16).astype(np.float32) / 16384
    if 1 in tokens and len(tokens) > 5 and digest[0] % 8:
        out[tokens[-5]] += 6.0
    return out


class Fake:
    """See the module. `held(page)` tells how many sequences hold a page: one that is written must
    be held once. `fails` is called before each step and may raise. With `state`, sequences have a
    running state besides, which knows no earlier position."""

    windows: WindowPool | None = None
    window_tables = np.empty((0, 0), np.int32)

    def __init__(
        self, slots: int, pages: int, page: int, context: int, state: bool = False,
        see: Callable[[str, Sequence[int]], np.ndarray] = logits_of,
    ) -> None:  # fmt: skip
        self.slots, self.pages, self.page, self.context = slots, pages, page, context
        self.tables = np.full((slots, context // page), -1, np.int32)
        self.held: Callable[[int], int] = lambda page: 1
        self.fails: Callable[[], None] = lambda: None
        self.bad: Callable[[Sequence[int]], bool] = lambda tokens: False
        self.pause: Callable[[], None] | None = None
        self.most = 0  # rows of a step
        self.moved = 0  # pages read
        self._state, self._see = state, see
        self._last = [0] * slots
        self._tokens = np.full((pages, page), -1, np.int64)
        self._pos = np.full((pages, page), -1, np.int64)
        self._adapter: dict[tuple[int, int], str] = {}

    def knows(self, adapter: str) -> bool:
        return adapter in ("", "x", "y")

    def resumes(self, fed: int, start: int) -> bool:
        return not self._state or start in (0, fed)

    def read_pages(self, pages: Sequence[int], window: bool = False) -> dict[str, np.ndarray]:
        self.moved += len(pages)
        names = [[self._adapter.get((p, n)) for n in range(self.page)] for p in pages]
        held = {"tokens": self._tokens[list(pages)], "pos": self._pos[list(pages)]}
        return {**held, "adapters": np.array(names, object)}

    def write_pages(
        self, pages: Sequence[int], held: Mapping[str, np.ndarray], window: bool = False
    ) -> None:
        self.fails()
        assert len(pages) == len(held["tokens"]) > 0
        assert all(self.held(page) == 1 for page in pages)
        self._tokens[list(pages)], self._pos[list(pages)] = held["tokens"], held["pos"]
        for page, names in zip(pages, held["adapters"]):
            self._adapter |= {(page, n): name for n, name in enumerate(names)}

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        pos = range(start, start + len(ids))
        if self.pause is not None:
            self.pause()
        made = self.rows(ids, [slot] * len(ids), pos, [adapter] * len(ids))[-1].copy()
        if self.pause is not None:
            self.pause()
        return made

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        names = list(adapters) or [""] * len(ids)
        assert len(ids) == len(slots) == len(pos) == len(names) > 0
        self.fails()
        self.most = max(self.most, len(ids))
        self._check_order(slots, pos)
        for token, slot, at, name in zip(ids, slots, pos, names):
            page, offset = self._where(slot, at)
            assert self.held(page) == 1, f"page {page} is written, and held {self.held(page)} times"
            self._tokens[page, offset], self._pos[page, offset] = token, at
            self._adapter[page, offset] = name
        return np.stack([self._row(s, p, a) for s, p, a in zip(slots, pos, names)])

    def _where(self, slot: int, at: int) -> tuple[int, int]:
        assert 0 <= at < self.context and 0 <= slot < self.slots
        page = int(self.tables[slot, at // self.page])
        assert 0 <= page < self.pages
        return page, at % self.page

    def _check_order(self, slots: Sequence[int], pos: Sequence[int]) -> None:
        """The rows of a slot stand side by side, in the order of their positions."""
        for n, slot in enumerate(slots):
            if n and slots[n - 1] == slot:
                assert pos[n] == pos[n - 1] + 1
            else:
                assert slot not in slots[:n]
                assert not self._state or pos[n] in (0, self._last[slot])
            self._last[slot] = pos[n] + 1

    def _row(self, slot: int, at: int, adapter: str) -> np.ndarray:
        places = [self._where(slot, p) for p in range(at + 1)]
        assert [int(self._pos[place]) for place in places] == list(range(at + 1))
        assert {self._adapter[place] for place in places} == {adapter}
        tokens = [int(self._tokens[place]) for place in places]
        out = self._see(adapter, tokens)
        return np.full(VOCAB, np.nan, np.float32) if self.bad(tokens) else out


class Sliding(Fake):
    """A fake with layers beside the others that keep only their last `window` positions: the rows
    that a step sees must be in their pages. A step writes at most `rows` of a sequence."""

    def __init__(self, *given: Any, window: int, rows: int) -> None:
        super().__init__(*given)
        need = -(-(window - 1 + rows) // self.page) + 2
        count = min(self.pages, self.slots * need - (-window // self.page))
        self.windows = WindowPool(count, window, rows)
        self.window_tables = np.full(self.tables.shape, -1, np.int32)
        self._near = np.full((count, self.page, 2), -1, np.int64)

    def read_pages(self, pages: Sequence[int], window: bool = False) -> dict[str, np.ndarray]:
        return {"near": self._near[list(pages)]} if window else super().read_pages(pages)

    def write_pages(
        self, pages: Sequence[int], held: Mapping[str, np.ndarray], window: bool = False
    ) -> None:
        if not window:
            return super().write_pages(pages, held)
        self.fails()
        assert len(pages) == len(held["near"])
        self._near[list(pages)] = held["near"]

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        assert self.windows is not None
        assert max(Counter(slots).values()) <= self.windows.rows
        for token, slot, at in zip(ids, slots, pos):
            self._near[self._twin(slot, at)] = token, at
        return super().rows(ids, slots, pos, adapters)

    def _twin(self, slot: int, at: int) -> tuple[int, int]:
        assert self.windows is not None
        twin = int(self.window_tables[slot, at // self.page])
        assert 0 <= twin < self.windows.count
        return twin, at % self.page

    def _row(self, slot: int, at: int, adapter: str) -> np.ndarray:
        assert self.windows is not None
        for p in range(max(at - self.windows.window + 1, 0), at + 1):
            there = self._tokens[self._where(slot, p)], p
            assert tuple(self._near[self._twin(slot, p)].tolist()) == there
        return super()._row(slot, at, adapter)


class Letters:
    """Token n says LETTERS[n]; every fourth is held back until the next one comes, as a character
    whose bytes are spread over two tokens is."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token: int) -> str:
        text, self._held = self._held + LETTERS[token], ""
        if token % 4 == 3:
            text, self._held = text[:-1], text[-1]
        return text

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text


@dataclass
class Only:
    """A constraint: the next token differs from the last by an even number, at most `most` of
    them; then the text ends."""

    most: int
    count: int = 0
    last: int = 0

    def allowed(self) -> np.ndarray | None:
        if not self.count:
            return None
        return np.arange(VOCAB) % 2 == self.last % 2

    def accept(self, token: int) -> None:
        allowed = self.allowed()
        assert allowed is None or allowed[token]
        self.count, self.last = self.count + 1, token

    @property
    def ended(self) -> bool:
        return self.count >= self.most

    def forced(self) -> list[int]:
        """Wrong at times, as another spelling of the same text is."""
        return [(self.last + 2 * n) % VOCAB for n in (0, 1)] if self.last % 3 else []

    def fits(self, tokens: Sequence[int]) -> int:
        last = self.last if self.count else tokens[0]
        return next((n for n, t in enumerate(tokens) if t % 2 != last % 2), len(tokens))


@dataclass(frozen=True)
class Expected:
    text: str
    tokens: tuple[SampledToken, ...]
    finish: str
    prompt: tuple[SampledToken, ...] = ()


def _logprob(logits: np.ndarray, token: int, top: int | None) -> SampledToken:
    if top is None:
        return SampledToken(token)
    x = logits.astype(np.float64)
    logs = x - (x.max() + np.log(np.exp(x - x.max()).sum()))
    order = sorted(range(len(x)), key=lambda i: (-logits[i], i))[:top]
    return SampledToken(token, float(logs[token]), tuple((i, float(logs[i])) for i in order))


def oracle(job: Job, context: int, see: Callable[..., np.ndarray] = logits_of) -> Expected:
    """The answer, token by token."""
    tokens, made = list(job.prompt), list[SampledToken]()
    scored = [SampledToken(job.prompt[0])] if job.prompt_logprobs is not None else []
    for n in range(1, len(tokens) if scored else 0):
        scored.append(_logprob(see(job.adapter, tokens[:n]), tokens[n], job.prompt_logprobs))
    limit = min(job.max_new_tokens, context - len(tokens) + 1)
    if job.shift is not None:
        limit = min(job.max_new_tokens, 10 * context)
    near = list(tokens)  # those in the context
    stream = generator(job.seed, job.index)
    rule = job.constraint() if job.constraint else None
    finish = "length"
    while len(made) < limit:
        if rule is not None and rule.ended:
            finish = "eos"
            break
        logits = see(job.adapter, near)
        new, mask = [c.id for c in made], rule.allowed() if rule else None
        token = choose(logits, tokens, job.sampling, stream, new, mask)
        if token in job.eos:
            finish = "eos"
            break
        tokens.append(token)
        near.append(token)
        if job.shift is not None and len(near) > context:
            del near[job.shift : job.shift + (len(near) - job.shift) // 2]
        made.append(_logprob(logits, token, job.logprobs))
        if rule is not None:
            rule.accept(token)
        text = _text([c.id for c in made]) if job.decoded else ""
        if any(s in text for s in job.stop):
            finish = "stop"
            break
    else:
        if rule is not None and rule.ended and limit:
            finish = "eos"
    text = _text([c.id for c in made], whole=True) if job.decoded else ""
    cut = min((at for s in job.stop if (at := text.find(s)) >= 0), default=len(text))
    if cut < len(text) and finish in ("length", "stop"):
        finish = "stop"
    return Expected(text[:cut], tuple(made), finish, tuple(scored))


def _text(ids: Sequence[int], whole: bool = False) -> str:
    """What the ids say; less the last letter where it is held back, and not `whole`."""
    said = "".join(LETTERS[i] for i in ids)
    return said[:-1] if ids and ids[-1] % 4 == 3 and not whole else said
