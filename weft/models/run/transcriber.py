"""Whisper: what is said in a sound, window by window (Radford et al., arXiv:2212.04356)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.audio.mel import Features, MelConfig
from weft.audio.sound import open_sound
from weft.core.errors import UsageError
from weft.core.records import dataclass
from weft.host.boundary import guard_methods
from weft.models.run.seq2seq import Seq2Seq
from weft.models.run.speech_rules import (
    TASKS,
    SpeechSettings,
    allowed,
    language_id,
    read_settings,
)
from weft.models.run.transcript import Segment, Transcript, compression, pieces
from weft.models.run.words import words_of

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
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}; expected 1 or more")
        return self

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


class Transcriber(Seq2Seq):
    """A model of speech."""

    @cached_property
    def settings(self) -> SpeechSettings:
        return read_settings(self.folder, self.config)

    def transcribe(self, sound: Any, sample_rate: int | None = None, **options: Any) -> Transcript:
        """Returns what is said in a sound: the path of a file, or an array of floats [n] or [n,
        channels] in -1 .. 1 with its sample_rate in Hz (default 16000).

        Options: `language` (a code such as "de"; default: detected in the first 30 seconds), `task`
        ("transcribe", or "translate" to English), `timestamps`, `words` (times of words too),
        `prompt` (a text that came before), `condition_on_previous` (each window reads the text so
        far), `temperature` (one, or several to try where a threshold fails), the thresholds
        `compression_ratio_threshold`, `logprob_threshold` and `no_speech_threshold` (None: off),
        `max_new_tokens` per window and `seed`.

        Raises FileFormatError for what is no sound, UsageError for an unknown option."""
        heard = self.listen(sound, sample_rate, **options)
        segments = list(heard)
        text = "".join(s.text for s in segments)
        return Transcript(text.strip(), heard.language, heard.duration, segments, heard.o.task)

    def listen(self, sound: Any, sample_rate: int | None = None, **options: Any) -> Listener:
        """Does `transcribe` piece by piece: iterate over the segments as they are found."""
        try:
            o = Listening(**options).checked()
        except TypeError:
            known = ", ".join(Listening.__annotations__)
            unknown = ", ".join(sorted(set(options) - set(Listening.__annotations__)))
            raise UsageError(f"transcribe does not take {unknown}; expected {known}") from None
        c = MelConfig(self.config.mels, frames=2 * self.config.source)
        features = Features(open_sound(sound, sample_rate).mono(c.rate), c)
        return Listener(self, features, o)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Returns the text of a window's tokens without timestamps and special ones."""
        if self.tokenizer is None:
            return ""
        kept = [t for t in tokens if t < self.settings.times]
        return self.tokenizer.decode(kept)


class Listener:
    """One sound while it is transcribed (transformers' sequential long-form algorithm)."""

    def __init__(self, model: Transcriber, features: Features, o: Listening) -> None:
        self.model, self.features, self.o = model, features, o
        self.s, self.duration = model.settings, features.duration
        self.language: str | None = None
        self._so_far: list[list[int]] = []
        self._conditions = o.condition_on_previous
        if o.prompt:
            tokenizer = model.need_tokenizer("a prompt needs one")
            self._so_far = [tokenizer.encode(" " + o.prompt.strip(), special=False)]
            self._conditions = True
        self._begin = self._first_tokens()

    def __iter__(self) -> Iterator[Segment]:
        seek, total, window = 0, self.features.frames, self.features.config.frames
        while seek < total:
            frames = min(window, total - seek)
            self.model.runner.encode(0, self.features.window(seek))
            prompt = self._prompt()
            heard = self._with_fallback(prompt, seek)
            if heard is None:
                seek += frames
                continue
            found, passed = pieces(self.s, heard.tokens, frames)
            at = seek * 0.01
            for start, end, tokens in found:
                self._so_far.append(tokens)
                words = None
                if self.o.words:
                    words = words_of(self.model, self._begin, tokens, frames, at)
                yield Segment(
                    at + start, at + end, self.model.text_of(tokens), tokens, heard.temperature,
                    heard.logprob, heard.ratio, heard.silence, words,
                )  # fmt: skip
            seek += passed
        self.features.close()

    def _first_tokens(self) -> list[int]:
        """Returns the tokens before a window's own: start, language, task."""
        s, o = self.s, self.o
        out = [s.start]
        if s.languages:
            if o.language is None:
                self.model.runner.encode(0, self.features.window(0))
                logits, _ = self.model.runner.step([s.start], [0], [0])
                found = max(s.languages, key=lambda k: float(logits[0, s.languages[k]]))
            else:
                found = o.language.lower().strip("<|>")
            out.append(language_id(s, found))
            self.language = found
            if o.task in s.tasks:
                out.append(s.tasks[o.task])
        elif o.language is not None or o.task != "transcribe":
            raise UsageError(f"{self.model.folder} knows one language: no language, no task")
        return out if o.timestamps else [*out, s.no_times]

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

    def _with_fallback(self, prompt: Sequence[int], seek: int) -> Heard | None:
        """Returns a window's tokens at the first temperature whose result is good enough, or at
        the last; None for silence."""
        o, heard = self.o, None
        for i, temperature in enumerate(o.heat):
            rng = np.random.default_rng((o.seed, seek, i))
            heard = self._decoded(prompt, temperature, rng)
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
    ) -> Heard:
        """Returns the tokens after a prompt, with the last special one."""
        model, s, c = self.model, self.s, self.model.config
        start = len(prompt) - len(self._begin)
        rows, _ = model.prefill(0, prompt, sorted({start, len(prompt) - 1}))
        silence = float(_softmax(rows[0])[s.silence])
        logits, total = rows[-1], 0.0
        made: list[int] = []
        room = min(s.longest + min(c.max_positions // 2 - 1, len(prompt) - 1), c.max_positions)
        most = room - len(prompt)
        most = most if self.o.max_new_tokens is None else min(most, self.o.max_new_tokens)
        while True:
            x = allowed(s, logits, made, self.o.timestamps)
            if not np.isfinite(x.max()):
                raise model.explain_bad("the logits are")
            logs = np.log(_softmax(x) + np.float32(1e-45))
            if temperature:
                token = int(rng.choice(len(x), p=_softmax(x.astype(np.float64) / temperature)))
            else:
                token = int(x.argmax())
            made.append(token)
            total += float(logs[token])
            if token == s.end or len(made) >= most:
                break
            found, _ = model.runner.step([token], [0], [len(prompt) + len(made) - 1])
            logits = found[0]
        return Heard(made, temperature, total / len(made), compression(made, c.vocab), silence)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


guard_methods(Transcriber)
