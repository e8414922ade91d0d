"""The inputs and outputs of the engine.

An answer is a function of the model and the `Job`. It never depends on other jobs, how the prompt
is cut into steps, the cache, preemption, or who proposed its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from weft.core.errors import WeftError
from weft.core.records import dataclass
from weft.engine.insets import Insets
from weft.engine.sampler import Sampling
from weft.engine.windows import WindowPool

Finish = Literal["stop", "length", "eos", "cancelled"]


class Constraint(Protocol):
    """A constraint on the text of one answer: a grammar at one of its states."""

    def allowed(self) -> np.ndarray | None:
        """Returns the tokens that may come next, bool [vocab]; None if all may."""

    def accept(self, token: int) -> None:
        """Advances by an allowed token."""

    @property
    def ended(self) -> bool:
        """True if only the end of the text may follow."""

    def forced(self) -> list[int]:
        """Returns tokens of the text that must come next, in one of its spellings ([] if the text
        is open)."""

    def fits(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first `tokens` may follow one after the other."""


class TextStream(Protocol):
    """A stream that turns tokens into text one by one. `start`, if present, is where the text of
    the last token begins, in characters of all text so far. Without it, tokens begin where the text
    before ends."""

    def push(self, token: int) -> str:
        """Returns the text that `token` completes; "" while a character is incomplete."""

    def flush(self) -> str:
        """Returns the text still held back when no more tokens follow."""


Texts = Callable[[], TextStream | None]
"""A fresh stream for one answer; None where there is no tokenizer."""

LogitsFunction = Callable[[list[int], np.ndarray], np.ndarray]
"""Takes the ids so far, prompt included, and a copy of the model's logits for the next one, float32
[vocab]. Returns the logits to choose from: -inf excludes a token."""


@dataclass(frozen=True)
class Job:
    """One requested answer.

    The answer draws random numbers from Philox's stream (seed, index). `stop` strings end the text
    and are not part of it; `eos` tokens end it. `logprobs` is the number of most probable tokens to
    return with each new one (None: not even its own); `prompt_logprobs` is the same for the prompt.
    `logits` changes each row before the sampling rule; logprobs are those of the unchanged row.
    Before `min_new_tokens` new tokens, no `eos` token may be chosen, unless the constraint allows
    nothing else, and stop strings are not looked for.
    `adapter` names one of the runner's adapters ("": none). Jobs share cached prefixes only with
    jobs of the same `salt`, whose first 32 bytes say whose they are. The owner with the fewest
    running jobs is next, and of its jobs the one with the lowest `priority`. `drafts`
    allows draft tokens. Neither changes a result. `insets` are vectors in place of some tokens.
    `shift`: where the context is full, half of the tokens leave it, after this number of
    first ones (None: the answer ends there).
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
    decoded: bool = True  # True if outputs carry text
    # makes a fresh one, at the start of the text
    constraint: Callable[[], Constraint] | None = None
    texts: Texts | None = None  # makes the text stream; None: the engine's default
    logits: LogitsFunction | None = None
    min_new_tokens: int = 0
    priority: int = 0
    insets: Insets | None = None
    shift: int | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, and if requested its natural log-probability under the model, its rank by it (1: the
    most probable; ties by id) and the most probable tokens. Log-probabilities are at temperature 1,
    before any penalty or constraint. `at` is where its text begins in the answer's text, in
    characters; a token inside a character has that character's."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    at: int = field(default=0, compare=False)
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of a job: prompt, prompt tokens found in the cache, new, new ones from drafts,
    and those that left the full context (`Job.shift`)."""

    prompt: int
    cached: int
    new: int
    drafted: int = 0
    shifted: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """The additions of a step to one answer: text that became final and its tokens.

    The last output has `finish` or `error`, `usage`, and in `stopped` the stop string that ended
    the text. `prompt` comes once, before the first token, if the job asked for `prompt_logprobs`:
    one Chosen per prompt token, without a value for the first.
    """

    text: str = ""
    tokens: tuple[SampledToken, ...] = ()
    finish: Finish | None = None
    error: WeftError | None = None
    usage: TokenUsage | None = None
    prompt: tuple[SampledToken, ...] = ()
    stopped: str | None = None


Sink = Callable[[Output], None]
"""Takes a job's outputs, called between steps by whoever steps the engine; must not block."""


@runtime_checkable
class Movable(Protocol):
    """A runner whose pages can be copied to the host and back, bit for bit."""

    def read_pages(self, pages: Sequence[int], window: bool = False) -> Mapping[str, np.ndarray]:
        """Returns the contents of pages (with `window`, of window layers' pages), by name; the
        first axis of each array runs over the pages."""

    def write_pages(
        self, pages: Sequence[int], held: Mapping[str, np.ndarray], window: bool = False
    ) -> None:
        """Fills pages with arrays from `read_pages`."""


@runtime_checkable
class Inserting(Protocol):
    """A runner that takes vectors in place of tokens' embeddings: `insets` has those of each slot's
    prompt, and the engine fills it in before a step."""

    insets: dict[int, Insets]

    def takes(self, insets: Insets) -> str:
        """Returns "" if the model takes them, else why not."""


@runtime_checkable
class Pausing(Protocol):
    """A runner whose `prefill` calls `pause`, if it is set, now and then while it works. Other
    slots may be fed there by `rows`; that changes no bit."""

    pause: Callable[[], None] | None


class PagedRunner(Protocol):
    """A model as the engine runs it. Keys and values lie in `pages` pages of `page` positions,
    which `tables` assigns to `slots` sequences. Every row has the same bits in any step.

    tables: int32 [slots, context / page], the page that holds each block of a slot's positions; the
    engine fills it in before a step. Pages that a step does not write keep their contents.
    `windows` is the pool of layers that keep only their window, if any, and `window_tables` their
    table. Only positions that a step writes or sees need a page in it.
    """

    slots: int
    context: int
    page: int
    pages: int
    tables: np.ndarray
    windows: WindowPool | None
    window_tables: np.ndarray

    def knows(self, adapter: str) -> bool:
        """Returns True if the adapter exists; "" (no adapter) always does."""

    def prefill(
        self, slot: int, ids: Sequence[int], start: int = 0, adapter: str = ""
    ) -> np.ndarray:
        """Feeds ids to a slot from position `start`; returns logits float32 [vocab] of the last
        one."""

    def rows(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        pos: Sequence[int],
        adapters: Sequence[str] = (),
    ) -> np.ndarray:
        """Feeds one token per row; rows of one slot are adjacent, in the order of positions.
        Returns logits float32 [n, vocab] of every row, valid until the next step."""

    def resumes(self, fed: int, start: int) -> bool:
        """Returns True if a slot that was fed `fed` positions can continue from `start`. With pages
        only it always can; with a running state it can continue only from its last position."""
