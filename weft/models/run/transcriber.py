"""Models of speech: they write down what is said in a sound."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from weft.audio.sound import Sound, open_sound
from weft.core.errors import UsageError
from weft.models.run.base import Model
from weft.models.run.hearing import Hearing
from weft.models.run.listener import Listener, Listening
from weft.models.run.transcript import Transcript


class Transcriber(Model):
    """A model of speech. Families are classes of this one and of their kind of model."""

    slots: int  # sounds, or passages, that are heard at once
    cache_bytes = 0  # bytes of what is kept between steps, for all slots
    unsaid = "und"  # the language where a transcript has none (ISO 639: undetermined)

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
        for any `batch`. `vad` leaves out what is too quiet to be speech, and cuts too. Families
        other than Whisper take fewer options, and refuse others (docs/speech.md).

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
        return self.listener(open_sound(sound, sample_rate), o)

    def listener(self, sound: Sound, o: Listening) -> Listener:
        """Returns the listener of a sound. Raises UsageError for options of other families."""
        raise NotImplementedError

    def check(self) -> None:
        """Reads what transcribing needs besides the weights. Raises ModelError."""

    def warm(self) -> None:
        """Runs each kind of step once, so that later calls find compiled Programs."""
        raise NotImplementedError
