"""What goes into the engine and what comes out of it.

An answer is a function of the model and the `Job`: never of what runs beside it, how its prompt is
cut into steps, what the cache held, whether it was preempted, or who proposed its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from weft.core.errors import WeftError
from weft.engine.sampler import Sampling

Finish = Literal["stop", "length", "eos", "cancelled"]


class Constraint(Protocol):
    """What the text of one answer must be: a grammar at one of its states."""

    def allowed(self) -> np.ndarray | None:
        """Which tokens may come next, bool [vocab]; None: every one."""

    def accept(self, token: int) -> None:
        """Goes on by a token that was allowed."""

    @property
    def ended(self) -> bool:
        """Whether nothing but the end of the text may follow."""

    def forced(self) -> list[int]:
        """Tokens of the text that must come next, in one of its spellings ([]: several may)."""

    def fits(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, the first ones, may follow one after the other."""


class TextStream(Protocol):
    """Turns tokens into text one by one. Where it has `start`, that is where the text of the last
    token begins, in characters of all text so far; else tokens begin where the text before ends."""

    def push(self, token: int) -> str:
        """The text that `token` completes; "" while a character is incomplete."""

    def flush(self) -> str:
        """What is still held back, when no token follows."""


Texts = Callable[[], TextStream | None]
"""A fresh stream for one answer; None where there is no tokenizer."""


@dataclass(frozen=True)
class Job:
    """One answer to be made.

    The answer draws from Philox's stream (seed, index). `stop` strings end the text and are not
    part of it; `eos` are tokens that end it. `logprobs` is how many of the most
    probable tokens come with each new one (None: not even its own), `prompt_logprobs` the same for
    the prompt's. `adapter` names one of the runner's ("" none). `salt` says whose prefixes this one
    may share: jobs of another salt never see its cache. `drafts` lets others propose tokens, which
    changes no token.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    index: int = 0
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    adapter: str = ""
    salt: bytes = b""
    drafts: bool = True
    decoded: bool = True  # whether outputs carry text
    constraint: Callable[[], Constraint] | None = None  # a fresh one, at the text's start
    texts: Texts | None = None  # what makes its text; None: what the engine has


@dataclass(frozen=True)
class Chosen:
    """A token and, where asked for, its natural logarithm of probability under the model (after
    temperature 1 and before any penalty or constraint), and the most probable tokens. at: where its
    text begins in the answer's, in characters; what holds a part of a character stands where that
    one does."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    at: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Usage:
    """Tokens of a job: of its prompt, of them found in the cache, new, of them proposed."""

    prompt: int
    cached: int
    new: int
    drafted: int = 0


@dataclass(frozen=True)
class Output:
    """What a step added to one answer: text that became final and the tokens behind it. The last
    one has `finish` or `error`, `usage`, and in `stopped` the stop string that ended it. `prompt`
    comes once, before the first token, where the job asked for `prompt_logprobs`: a Chosen for each
    token of the prompt (the first has none)."""

    text: str = ""
    tokens: tuple[Chosen, ...] = ()
    finish: Finish | None = None
    error: WeftError | None = None
    usage: Usage | None = None
    prompt: tuple[Chosen, ...] = ()
    stopped: str | None = None


Sink = Callable[[Output], None]
"""Takes a job's outputs, called between steps by whoever steps the engine; must not block."""


@runtime_checkable
class Movable(Protocol):
    """A runner whose pages can be copied to the host and back, bit for bit."""

    def read_pages(self, pages: Sequence[int]) -> Mapping[str, np.ndarray]:
        """What pages hold, by name; the first axis goes through the pages."""

    def write_pages(self, pages: Sequence[int], held: Mapping[str, np.ndarray]) -> None:
        """Fills pages with what `read_pages` gave."""


class PagedRunner(Protocol):
    """What the engine plays on: keys and values in `pages` pages of `page` positions, which
    `tables` gives to `slots` sequences. Every row's numbers are the same bits in any step.

    tables: int32 [slots, context / page], the page of each part of a slot's positions; the engine
    fills it in before a step. Pages that no row of a step writes keep what they hold.
    """

    slots: int
    context: int
    page: int
    pages: int
    tables: np.ndarray

    def knows(self, adapter: str) -> bool:
        """Whether there is an adapter of that name; "" is none, which always is."""

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; logits float32 [vocab] of the last one."""

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        """Feeds one token per row, several of one slot side by side in the order of positions;
        logits float32 [n, vocab] of every row, until the next step."""

    def resumes(self, fed: int, start: int) -> bool:
        """Whether a slot that was fed `fed` positions can go on from `start`: always where pages
        are all a sequence has; where it has a running state besides, only from its last."""
