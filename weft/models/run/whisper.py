"""Whisper: what is said in a sound, window by window (Radford et al., arXiv:2212.04356)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.audio.mel import Features, MelConfig
from weft.audio.sound import Sound
from weft.audio.voice import passages
from weft.core.errors import UsageError
from weft.engine.sampler import Sampling, choose, generator
from weft.host.boundary import guard_methods
from weft.models.run.hearing import Encode, Feed, Work
from weft.models.run.listener import Listener, Listening
from weft.models.run.seq2seq import Seq2Seq
from weft.models.run.speech_rules import SpeechSettings, allowed, language_id, read_settings
from weft.models.run.transcriber import Transcriber
from weft.models.run.transcript import Segment, compression, pieces
from weft.models.run.words import words_of


class Whisper(Transcriber, Seq2Seq):
    """A model that hears windows of 30 seconds."""

    unsaid = "en"  # models of one language

    @cached_property
    def settings(self) -> SpeechSettings:
        return read_settings(self.folder, self.config)

    def check(self) -> None:
        """Reads the settings. Raises ModelError."""
        assert self.settings

    def warm(self) -> None:
        """Runs each kind of step once."""
        c = self.config
        self.runner.encode(0, np.zeros((2 * c.source, c.mels), np.float32))
        self._warm_steps()

    def listener(self, sound: Sound, o: Listening) -> WhisperListener:
        """Returns the listener of a sound."""
        c = MelConfig(self.config.mels, frames=2 * self.config.source)
        return WhisperListener(self, Features(sound.mono(c.rate), c), o)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Returns the text of a window's tokens without timestamps and special ones."""
        if self.tokenizer is None:
            return ""
        kept = [t for t in tokens if t < self.settings.times]
        return self.tokenizer.decode(kept)


class Heard(NamedTuple):
    """One window's tokens and how sure the model was."""

    tokens: list[int]
    temperature: float
    logprob: float
    ratio: float
    silence: float


class WhisperListener(Listener):
    """One sound while Whisper transcribes it; the first window finds the language for all."""

    model: Whisper
    kept: Features

    def __init__(self, model: Whisper, kept: Features, o: Listening) -> None:
        spans = [(0, kept.frames)]
        if o.apart:
            spans = passages(kept.levels, kept.config.frames, o.vad)
        super().__init__(model, kept, o, spans)
        self.s = model.settings
        self.begin: list[int] | None = None  # a window's first tokens, once the language is known
        self.prompt: list[int] = []
        if o.prompt:
            tokenizer = model.need_tokenizer("a prompt needs one")
            self.prompt = tokenizer.encode(" " + o.prompt.strip(), special=False)
        self._known_language()

    @property
    def settled(self) -> bool:
        """True once the language is known."""
        return self.begin is not None

    def passage(self, start: int, end: int) -> Work:
        """Yields the steps of the model for a passage, and its segments."""
        return _Passage(self, start, end).work()

    def _known_language(self) -> None:
        """Records a language that is given or the only one. Raises UsageError."""
        s, o = self.s, self.o
        if not s.languages:
            if o.language is not None or o.task != "transcribe":
                raise UsageError(f"{self.model.called} knows one language: no language, no task")
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
        yield Encode(self.kept.window(self.spans[0][0]))
        logits, _ = yield Feed([s.start], 0, [0])
        self._speaks(max(s.languages, key=lambda k: float(logits[0, s.languages[k]])))


class _Passage:
    """A part of a sound, from frame `start` up to `end`, window by window (transformers' sequential
    long-form algorithm)."""

    def __init__(self, whole: WhisperListener, start: int, end: int) -> None:
        self.whole, self.start, self.end = whole, start, end
        self.model, self.s, self.o, self.features = whole.model, whole.s, whole.o, whole.kept
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


guard_methods(Whisper)
