"""One sound while it is transcribed: windows, temperatures, segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.audio.mel import Features
from weft.audio.voice import passages
from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.engine.sampler import Sampling, choose, generator
from weft.models.run.hearing import Encode, Feed, Work
from weft.models.run.speech_rules import TASKS, allowed, language_id
from weft.models.run.transcript import Segment, compression, pieces
from weft.models.run.words import words_of

if TYPE_CHECKING:
    from weft.models.run.transcriber import Transcriber

HEAT = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Listening:
    """The options of `Transcriber.transcribe`."""

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    words: bool = False
    temperature: float | Sequence[float] = HEAT
    compression_ratio_threshold: float | None = 1.35
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous: bool = False
    batch: int | None = None
    vad: bool = False
    prompt: str | None = None
    max_new_tokens: int | None = None
    seed: int = 0

    def checked(self) -> Listening:
        """Returns the options. Raises UsageError for impossible ones."""
        if self.task not in TASKS:
            raise UsageError(f"task is {self.task!r:.40}; expected {' or '.join(TASKS)}")
        heat = self.heat
        if not heat or not all(isinstance(t, int | float) and 0 <= t <= 2 for t in heat):
            raise UsageError(f"temperature is {self.temperature!r:.60}; expected 0 to 2")
        if self.batch is not None and not 1 <= self.batch <= 64:
            raise UsageError(f"batch is {self.batch!r}; expected 1 to 64 passages at once")
        if self.condition_on_previous and self.apart:
            raise UsageError(
                "condition_on_previous reads the text so far; passages at once (batch, vad) have "
                "none: leave one out"
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}; expected 1 or more")
        return self

    @property
    def apart(self) -> bool:
        """True if the sound is cut into passages that know nothing of each other."""
        return self.batch is not None or self.vad

    @property
    def heat(self) -> tuple[float, ...]:
        t = self.temperature
        return (t,) if isinstance(t, int | float) else tuple(t)


class Heard(NamedTuple):
    """One window's tokens and how sure the model was."""

    tokens: list[int]
    temperature: float
    logprob: float
    ratio: float
    silence: float


class Listener:
    """One sound while it is transcribed: iterate over its segments, which come in order.

    `ready` are those that wait to be taken, `done` says that no further one will come, and `error`
    why not. `language` is known when the first segment comes. `show` is called with the text of a
    window after each token; the window may still be tried again at another temperature."""

    def __init__(self, model: Transcriber, features: Features, o: Listening) -> None:
        self.model, self.features, self.o = model, features, o
        self.s, self.duration = model.settings, features.duration
        self.language: str | None = None
        self.begin: list[int] | None = None  # a window's first tokens, once the language is known
        self.ready: deque[Segment] = deque()
        self.error: Exception | None = None
        self.show: Callable[[str], None] | None = None
        self.prompt: list[int] = []
        if o.prompt:
            tokenizer = model.need_tokenizer("a prompt needs one")
            self.prompt = tokenizer.encode(" " + o.prompt.strip(), special=False)
        self._known_language()
        self._passages = [(0, features.frames)]
        if o.apart:
            self._passages = passages(features.levels, features.config.frames, o.vad)
        self.done = not self._passages
        self._begun = self._told = 0  # passages
        self._held: dict[int, deque[Segment]] = {}  # by passage, until its turn
        self._over: set[int] = set()

    def __iter__(self) -> Iterator[Segment]:
        hearing = self.model.hearing
        hearing.add(self)
        try:
            while True:
                while self.ready:
                    yield self.ready.popleft()
                if self.error is not None:
                    raise self.error
                if self.done:
                    return
                hearing.turn()
        finally:
            hearing.remove(self)
            self.close()

    def close(self) -> None:
        """Lets the features go."""
        self.features.close()

    # -- as a source of work ----------------------------------------------------------------------

    def work(self) -> tuple[int, Work] | None:
        """Returns the next passage that may begin: the first finds the language for all."""
        at, together = self._begun, self._begun - len(self._over)
        waits = together > 0 and (self.begin is None or together >= (self.o.batch or 1))
        if self.error or waits or at >= len(self._passages):
            return None
        self._begun += 1
        return at, _Passage(self, *self._passages[at]).work()

    def came(self, number: int, segment: Segment) -> None:
        """Takes a segment of a passage."""
        self._held.setdefault(number, deque()).append(segment)
        self._tell()

    def ended(self, number: int, error: Exception | None) -> None:
        """Notes that a passage has ended."""
        self.error = self.error or error
        self._over.add(number)
        self._tell()

    def _tell(self) -> None:
        while True:
            self.ready.extend(self._held.pop(self._told, ()))
            if self._told not in self._over:
                break
            self._told += 1
        self.done = self.error is not None or self._told == len(self._passages)

    # -- the language -----------------------------------------------------------------------------

    def _known_language(self) -> None:
        """Records a language that is given or the only one. Raises UsageError."""
        s, o = self.s, self.o
        if not s.languages:
            if o.language is not None or o.task != "transcribe":
                raise UsageError(f"{self.model.folder} knows one language: no language, no task")
            self.begin = [s.start] if o.timestamps else [s.start, s.no_times]
        elif o.language is not None:
            self._speaks(o.language)

    def _speaks(self, language: str) -> None:
        s, o = self.s, self.o
        spoken = language_id(s, language)
        self.language = next(k for k, v in s.languages.items() if v == spoken)
        self.begin = [s.start, spoken, *([s.tasks[o.task]] if o.task in s.tasks else [])]
        if not o.timestamps:
            self.begin.append(s.no_times)

    def detect(self) -> Generator[Encode | Feed, Any, None]:
        """Finds the language in the first window that is heard."""
        s = self.s
        yield Encode(self.features.window(self._passages[0][0]))
        logits, _ = yield Feed([s.start], 0, [0])
        self._speaks(max(s.languages, key=lambda k: float(logits[0, s.languages[k]])))


class _Passage:
    """A part of a sound, from frame `start` up to `end`, window by window (transformers' sequential
    long-form algorithm)."""

    def __init__(self, whole: Listener, start: int, end: int) -> None:
        self.whole, self.start, self.end = whole, start, end
        self.model, self.s, self.o, self.features = whole.model, whole.s, whole.o, whole.features
        self._so_far = [whole.prompt] if whole.prompt else []
        self._conditions = bool(whole.prompt) or self.o.condition_on_previous
        self._begin: list[int] = []

    def work(self) -> Work:
        """Yields the steps of the model, and segments."""
        if self.whole.begin is None:
            yield from self.whole.detect()
        assert self.whole.begin is not None
        self._begin = self.whole.begin
        seek, window = self.start, self.features.config.frames
        while seek < self.end:
            frames = min(window, self.end - seek)
            yield Encode(self.features.window(seek, frames))
            heard = yield from self._with_fallback(self._prompt(), seek)
            if heard is None:
                seek += frames
                continue
            found, passed = pieces(self.s, heard.tokens, frames)
            at, last = seek * 0.01, self.end * 0.01 if self.o.apart else np.inf
            for start, end, tokens in found:
                self._so_far.append(tokens)
                words = None
                if self.o.words:
                    words = yield from words_of(self.model, self._begin, tokens, frames, at)
                yield Segment(
                    min(at + start, last), min(at + end, last), self.model.text_of(tokens), tokens,
                    heard.temperature, heard.logprob, heard.ratio, heard.silence, words,
                )  # fmt: skip
            seek += passed

    def _prompt(self) -> list[int]:
        """Returns the decoder's first tokens, with the text so far if it counts."""
        begin = self._begin
        if not (self._conditions and self._so_far):
            return begin
        so_far: list[int] = []
        for part in self._so_far:
            double = len(part) > 2 and part[-2] >= self.s.times
            so_far += part[:-1] if double else part
        so_far = so_far[-(self.model.config.max_positions // 2 - 1) :]
        self._so_far = self._so_far[-64:]
        return [*([] if self.s.previous is None else [self.s.previous]), *so_far, *begin]

    def _with_fallback(
        self, prompt: Sequence[int], seek: int
    ) -> Generator[Feed, Any, Heard | None]:
        """Returns a window's tokens at the first temperature whose result is good enough, or at
        the last; None for silence."""
        o, heard = self.o, None
        for i, temperature in enumerate(o.heat):
            rng = generator(o.seed, seek << 8 | i)
            heard = yield from self._decoded(prompt, temperature, rng)
            low = o.logprob_threshold is not None and heard.logprob < o.logprob_threshold
            most = o.compression_ratio_threshold
            repeats = most is not None and heard.ratio > most
            self._conditions = o.condition_on_previous and temperature < 0.5
            if low and o.no_speech_threshold is not None and heard.silence > o.no_speech_threshold:
                return None
            if not (low or repeats):
                break
        assert heard is not None
        kept = heard.tokens[:-1] if heard.tokens[-1:] == [self.s.end] else heard.tokens
        return heard._replace(tokens=kept) if kept else None

    def _decoded(
        self, prompt: Sequence[int], temperature: float, rng: np.random.Generator
    ) -> Generator[Feed, Any, Heard]:
        """Returns the tokens after a prompt, with the last special one."""
        model, s, c = self.model, self.s, self.model.config
        start = len(prompt) - len(self._begin)
        rows, _ = yield Feed(prompt, 0, sorted({start, len(prompt) - 1}))
        silence = float(_softmax(rows[0])[s.silence])
        logits, total, how = rows[-1], 0.0, Sampling(temperature=temperature)
        made: list[int] = []
        room = min(s.longest + min(c.max_positions // 2 - 1, len(prompt) - 1), c.max_positions)
        most = room - len(prompt)
        most = most if self.o.max_new_tokens is None else min(most, self.o.max_new_tokens)
        while True:
            x = allowed(s, logits, made, self.o.timestamps)
            if not np.isfinite(x.max()):
                raise model.explain_bad("the logits are")
            logs = np.log(_softmax(x) + np.float32(1e-45))
            token = choose(x, (), how, rng)
            made.append(token)
            total += float(logs[token])
            if self.whole.show is not None:
                self.whole.show(model.text_of(made))
            if token == s.end or len(made) >= most:
                break
            found, _ = yield Feed([token], len(prompt) + len(made) - 1, [0])
            logits = found[0]
        return Heard(made, temperature, total / len(made), compression(made, c.vocab), silence)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())
