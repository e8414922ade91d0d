"""Moonshine: what is said in a passage of up to 30 seconds, from its samples (Jeffries et al.,
arXiv:2410.15608)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from weft.audio.samples import HOP, Samples
from weft.audio.sound import Sound
from weft.audio.voice import passages
from weft.core.errors import ModelError
from weft.host.boundary import guard_methods
from weft.importers.hf_config import Fields, read_object
from weft.models.arch.family_parts import refuse
from weft.models.arch.seq2seq_config import MAX_SECONDS, RATE
from weft.models.run.hearing import Encode, Feed, Work
from weft.models.run.listener import Listener, Listening
from weft.models.run.seq2seq import Seq2Seq
from weft.models.run.seq2seq_runner import SOUNDS
from weft.models.run.transcriber import Transcriber
from weft.models.run.transcript import Segment, compression

TAKEN = ("batch", "vad", "max_new_tokens", "seed")  # nothing is drawn by a seed
FRAMES = MAX_SECONDS * RATE // HOP


class Moonshine(Transcriber, Seq2Seq):
    """A model that hears passages of a sound, of 30 seconds or less."""

    @cached_property
    def longest(self) -> int:
        """The most tokens of a passage (generation_config.json)."""
        most = self.config.max_positions
        path = self.folder / "generation_config.json"
        said = Fields(read_object(path), str(path)) if path.exists() else Fields({}, str(path))
        longest: int = said.integer("max_length", 2, 1 << 20, most)
        return min(most, longest) - 1

    def check(self) -> None:
        """Reads the steps before the encoder. Raises ModelError for those of other models."""
        _check_steps(self.folder / "preprocessor_config.json")
        assert self.longest

    def warm(self) -> None:
        """Runs each kind of step once."""
        for size in SOUNDS:
            self.runner.encode(0, np.zeros(size, np.float32))
        self._warm_steps()

    def listener(self, sound: Sound, o: Listening) -> Listener:
        """Returns the listener of a sound. Raises UsageError for options of other families."""
        o.only(TAKEN, "moonshine")
        self.check()
        kept = Samples(sound.mono(RATE))
        return _Listener(self, kept, o, passages(kept.levels, FRAMES, o.vad))


class _Listener(Listener):
    model: Moonshine
    kept: Samples

    def passage(self, start: int, end: int) -> Work:
        """Yields the steps of the model for a passage, and its segment: the likeliest token each
        time."""
        model, c = self.model, self.model.config
        tokenizer = model.tokenizer
        yield Encode(self.kept.window(start, end))
        most = min(model.longest, self.o.max_new_tokens or model.longest)
        token, total = c.start_id, 0.0
        made: list[int] = []
        text = ""
        while len(made) < most:
            logits, _ = yield Feed([token], len(made), [0])
            token = int(logits[0].argmax())
            if not np.isfinite(logits[0, token]):
                raise model.explain_bad("the logits are")
            total -= float(np.log(np.exp(logits[0] - logits[0, token]).sum()))
            made.append(token)
            if token in c.end_ids:
                break
            if tokenizer is not None and self.show is not None:
                self.show(tokenizer.decode(made))
        logprob, ratio = total / len(made), compression(made, c.vocab)
        kept = [t for t in made if t not in c.end_ids]
        text = tokenizer.decode(kept).strip() if tokenizer is not None else ""
        last = min(end * HOP / RATE, self.duration)
        if kept:
            yield Segment(start * HOP / RATE, last, f" {text}", kept, 0.0, logprob, ratio, 0.0)


def _check_steps(path: Path) -> None:
    """Raises ModelError if the samples would be changed before the encoder."""
    if not path.exists():
        return
    f = Fields(read_object(path), str(path))
    refuse(f.having({"do_normalize": True, **f.data}), "do_normalize", False, "normalised samples")
    if f.integer("sampling_rate", 1, 1 << 20, RATE) != RATE:
        raise ModelError(f"{path}: sampling_rate is not {RATE} Hz")


guard_methods(Moonshine)
