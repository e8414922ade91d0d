"""Generation: prompts in, tokens and text out, over a Runner's slots.

Sequences are independent: the tokens of a prompt depend on the prompt, the options, the seed and
its index in the call, never on what runs beside it. Prompt i of a call with one `seed` draws from
the stream (seed, i); with a list of seeds, prompt i draws from (seeds[i], 0), just as it would
alone with that seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from weft.core.errors import UsageError
from weft.engine.sampler import Sampling, choose, generator
from weft.models.runner import Runner

if TYPE_CHECKING:
    from weft.models.tokenizer import StreamDecoder, Tokenizer

Finish = Literal["stop", "length", "eos"]


class Generation:
    """What one prompt gave. `ids` are the new tokens only, without the end-of-text token that
    ended them; `text` is their text without the stop string ("" without a tokenizer). `reused`
    counts the prompt's first tokens that an earlier call had left in the cache.
    finish_reason: "eos" (end-of-text token), "stop" (stop string) or "length" (max_new_tokens or
    the context is full)."""

    def __init__(
        self,
        text: str | Callable[[], str],
        ids: tuple[int, ...],
        finish_reason: Finish,
        reused: int = 0,
    ) -> None:
        self._text = text
        self.reused = reused
        self.ids = ids
        self.finish_reason = finish_reason

    @property
    def text(self) -> str:
        if not isinstance(self._text, str):  # decoded when first read: ids may be all one wants
            self._text = self._text()
        return self._text

    def _key(self) -> tuple[object, ...]:
        return self.ids, self.finish_reason, self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Generation) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.ids, self.finish_reason))

    def __repr__(self) -> str:
        return f"Generation({self.text!r}, ids={self.ids}, finish_reason={self.finish_reason!r})"


class Piece(str):
    """Text that became final, one piece per token: "" while a character or a possible stop string
    is held back. `ids` are the tokens behind the text, `prompt` is the prompt's number."""

    prompt: int
    ids: tuple[int, ...]

    def __new__(cls, text: str, prompt: int = 0, ids: tuple[int, ...] = ()) -> Piece:
        made = super().__new__(cls, text)
        made.prompt, made.ids = prompt, ids
        return made


@dataclass(frozen=True)
class Request:
    """The options of one call, checked by `Model.generate`."""

    max_new_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    eos: frozenset[int]


@dataclass
class Sequence_:
    """One prompt on its way. `pos` is the position that the next token takes."""

    index: int
    prompt: list[int]
    limit: int  # new tokens at most
    stream: np.random.Generator | None
    text: TextEnd
    ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    reused: int = 0

    @property
    def pos(self) -> int:
        return len(self.prompt) + len(self.ids) - 1


class TextEnd:
    """Text of one sequence as it grows, held back where a stop string may be forming."""

    def __init__(
        self, tokenizer: Callable[[], Tokenizer | None], stop: tuple[str, ...], decoded: bool
    ) -> None:
        self._tokenizer, self._stop, self.decoded = tokenizer, stop, decoded
        self._decoder: StreamDecoder | None = None
        self._held = ""
        self._unsent: list[int] = []
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> tuple[str, tuple[int, ...]]:
        """Adds a token; the text that is now final, and the tokens behind it."""
        if self._decoder is None and self.decoded:  # only now: prompts of ids need not wait for it
            tokenizer = self._tokenizer()
            self._decoder = tokenizer.stream() if tokenizer else None
        self._unsent.append(token)
        if self._decoder is None:
            return self._send("")
        return self._grow(self._decoder.push(token), False)

    def whole(self, ids: Sequence[int]) -> str:
        """The text of a finished sequence that was not decoded on the way."""
        self.decoded = True
        for token in ids:
            self.push(token)
        self.finish()
        return self.text

    def finish(self) -> tuple[str, tuple[int, ...]]:
        """The rest, when no token follows."""
        rest = "" if self._decoder is None or self.stopped else self._decoder.flush()
        return self._grow(rest, True)

    def _grow(self, new: str, last: bool) -> tuple[str, tuple[int, ...]]:
        whole = self._held + new
        found = [(at, s) for s in self._stop if (at := whole.find(s)) >= 0]
        if found and not self.stopped:
            self.stopped, self._held = True, ""
            return self._send(whole[: min(found)[0]])
        keep = 0 if last else self._overlap(whole)
        self._held = whole[len(whole) - keep :]
        final = whole[: len(whole) - keep]
        if not final and not last:
            return "", ()
        return self._send(final)

    def _overlap(self, text: str) -> int:
        """Characters at the end of `text` that a stop string could begin with."""
        most = max((len(s) for s in self._stop), default=1) - 1
        for n in range(min(most, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stop):
                return n
        return 0

    def _send(self, text: str) -> tuple[str, tuple[int, ...]]:
        self.text += text
        ids, self._unsent = tuple(self._unsent), []
        return text, ids


def run(
    runner: Runner,
    request: Request,
    sequences: Sequence[Sequence_],
    check: Callable[[np.ndarray, int], None],
) -> Iterator[Piece]:
    """Plays `sequences` to their end, as many at once as the runner has slots, yielding pieces as
    they become final. `check(logits, token)` is called for each new token, before it counts."""
    waiting = list(sequences)[::-1]
    active: dict[int, Sequence_] = {}
    while waiting or active:
        free = [s for s in range(runner.slots) if s not in active]
        while waiting and free:
            seq, slot = waiting.pop(), free.pop(0)
            if seq.limit <= 0:
                seq.finish = "length"
                continue
            seq.reused = runner.kept(slot, seq.prompt)
            logits = runner.prefill(slot, seq.prompt[seq.reused :], seq.reused)
            yield from _advance(seq, logits, request, check)
            if seq.finish is None:
                active[slot] = seq
            else:
                free.insert(0, slot)
        if not active:
            continue
        slots = sorted(active)
        rows = [active[s] for s in slots]
        logits = runner.decode([q.ids[-1] for q in rows], slots, [q.pos for q in rows])
        for i, slot in enumerate(slots):
            yield from _advance(active[slot], logits[i], request, check)
            if active[slot].finish is not None:
                del active[slot]


def _advance(
    seq: Sequence_,
    logits: np.ndarray,
    request: Request,
    check: Callable[[np.ndarray, int], None],
) -> Iterator[Piece]:
    """Chooses the sequence's next token from its logits and settles whether it ends."""
    history = seq.prompt + seq.ids if request.sampling.repetition_penalty != 1.0 else ()
    token = choose(logits, history, request.sampling, seq.stream)
    check(logits, token)
    if token in request.eos:
        seq.finish = "eos"
    else:
        seq.ids.append(token)
        sent = seq.text.push(token)
        if seq.text.stopped:
            seq.finish = "stop"
        elif len(seq.ids) >= seq.limit:
            seq.finish = "length"
        yield Piece(sent[0], seq.index, sent[1])
    if seq.finish is not None:
        rest, ids = seq.text.finish()
        if seq.text.stopped and seq.finish == "length":
            seq.finish = "stop"  # the last token's held-back bytes completed a stop string
        if rest or ids:
            yield Piece(rest, seq.index, ids)


def sequences(
    prompts: Sequence[list[int]],
    request: Request,
    context: int,
    seeds: Sequence[tuple[int, int]],
    tokenizer: Callable[[], Tokenizer | None],
    decoded: bool,
) -> list[Sequence_]:
    """The state of each prompt at its start; `seeds` gives each its (seed, index), `tokenizer`
    the tokenizer for the new text, if there is one. Without `decoded` pieces carry no text."""
    made = []
    for i, prompt in enumerate(prompts):
        limit = min(request.max_new_tokens, context - len(prompt) + 1)
        stream = generator(*seeds[i]) if request.sampling.temperature > 0 else None
        text = TextEnd(tokenizer, request.stop, decoded)
        made.append(Sequence_(i, prompt, limit, stream, text))
    return made


def result(seq: Sequence_) -> Generation:
    """The finished sequence as a Generation."""
    if seq.finish is None:
        raise UsageError("the generation has not finished")
    end, ids = seq.text, tuple(seq.ids)
    text = end.text if end.decoded else lambda: end.whole(ids)
    return Generation(text, ids, seq.finish, seq.reused)


class Stream(Iterator[Piece]):
    """Pieces as they come; after the last one `results` holds a Generation per prompt."""

    def __init__(self, pieces: Iterator[Piece], parts: Sequence[Sequence_]) -> None:
        self._pieces, self._parts = pieces, parts

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def results(self) -> list[Generation]:
        return [result(seq) for seq in self._parts]
