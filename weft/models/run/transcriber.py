"""Whisper: what is said in a sound, window by window (Radford et al., arXiv:2212.04356)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from weft.audio.mel import Features, MelConfig
from weft.audio.sound import open_sound
from weft.core.errors import UsageError
from weft.host.boundary import guard_methods
from weft.models.run.hearing import Hearing
from weft.models.run.listener import Listener, Listening
from weft.models.run.seq2seq import Seq2Seq
from weft.models.run.speech_rules import SpeechSettings, read_settings
from weft.models.run.transcript import Transcript


class Transcriber(Seq2Seq):
    """A model of speech."""

    @cached_property
    def settings(self) -> SpeechSettings:
        return read_settings(self.folder, self.config)

    @cached_property
    def hearing(self) -> Hearing:
        """The player of all sounds of this model."""
        return Hearing(self)

    def transcribe(self, sound: Any, sample_rate: int | None = None, **options: Any) -> Transcript:
        """Returns what is said in a sound: the path of a file, or an array of floats [n] or [n,
        channels] in -1 .. 1 with its sample_rate in Hz (default 16000).

        Options: `language` (a code such as "de"; default: detected in the first 30 seconds), `task`
        ("transcribe", or "translate" to English), `timestamps`, `words` (times of words too),
        `prompt` (a text that came before), `condition_on_previous` (each window reads the text so
        far), `temperature` (one, or several to try where a threshold fails), the thresholds
        `compression_ratio_threshold`, `logprob_threshold` and `no_speech_threshold` (None: off),
        `max_new_tokens` per window and `seed`. With `batch` the sound is cut at quiet moments into
        passages of a window or less, of which `batch` are heard at once; the segments are the same
        for any `batch`. `vad` leaves out what is too quiet to be speech, and cuts too.

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


guard_methods(Transcriber)
