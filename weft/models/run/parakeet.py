"""Parakeet: what is said in a passage of up to 30 seconds, a token or none for each moment (CTC:
Graves et al. 2006)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.audio.mel import MelConfig
from weft.audio.normed_mel import normed_mel
from weft.audio.samples import HOP, Samples
from weft.audio.sound import Sound
from weft.audio.voice import passages
from weft.core.errors import ModelError
from weft.host.boundary import guard_methods
from weft.host.progress import progress
from weft.importers.hf_config import Fields, read_object
from weft.models.arch.conformer_config import ConformerConfig, read_conformer
from weft.models.arch.family_parts import refuse
from weft.models.arch.weights import Weights
from weft.models.run.compiled_runner import model_caps
from weft.models.run.hearing import Encode, Work
from weft.models.run.listener import Listener, Listening
from weft.models.run.placed import Placed
from weft.models.run.transcriber import Transcriber
from weft.models.run.transcript import Segment, compression
from weft.models.text.maker import tokenizer_maker
from weft.models.weights.conformer_names import conformer_layout
from weft.models.weights.placement import Placement
from weft.models.weights.reading import read_weights
from weft.models.weights.weight_dtypes import ready, wanted

if TYPE_CHECKING:
    from weft.graph.ir import Graph
    from weft.models.text.tokenizer import Tokenizer
    from weft.program.device import Device
    from weft.program.session import Session

TAKEN = ("batch", "vad", "seed")  # nothing is drawn by a seed
RATE, SECONDS = 16000, 30  # Hz; the longest passage
FRAMES = SECONDS * RATE // HOP
SIZES = (500, 1500, FRAMES)  # frames of the Programs


class Parakeet(Transcriber):
    """A model that hears passages of a sound, of 30 seconds or less."""

    config: ConformerConfig  # type: ignore[assignment]
    _instead = "a model of speech: use transcribe(sound)"

    def __init__(
        self, folder: Path, config: ConformerConfig, weights: Weights, placed: Placed,
        make_tokenizer: Callable[[], Tokenizer | None], slots: int,
    ) -> None:  # fmt: skip
        super().__init__(folder, config, weights, placed.device, make_tokenizer)  # type: ignore[arg-type]
        self.placed, self.slots = placed, slots

    @cached_property
    def steps(self) -> tuple[MelConfig, float]:
        """The features, and the share of a sample that the next one loses
        (preprocessor_config.json)."""
        return _read_steps(self.folder / "preprocessor_config.json", self.config.mels)

    @cached_property
    def runner(self) -> Recogniser:
        """The runner of the model, made on first use."""
        return Recogniser(self.config, self.placed)

    def check(self) -> None:
        """Reads the steps before the encoder. Raises ModelError."""
        assert self.steps

    def warm(self) -> None:
        """Runs each size once."""
        for size in SIZES:
            self.runner.encode(0, np.zeros((size, self.config.mels), np.float32))

    def listener(self, sound: Sound, o: Listening) -> Listener:
        """Returns the listener of a sound. Raises UsageError for options of other families."""
        o.only(TAKEN, "parakeet")
        self.check()
        kept = Samples(sound.mono(RATE))
        return _Listener(self, kept, o, passages(kept.levels, FRAMES, o.vad))

    def _name(self, role: str) -> str:
        return conformer_layout(self.config).weights[role].name


class Recogniser:
    """The steps of a model, by NumPy or by compiled Programs."""

    def __init__(self, config: ConformerConfig, placed: Placed) -> None:
        self.config, self.placed = config, placed
        self._sessions: dict[int, Session] = {}

    def encode(self, slot: int, features: np.ndarray) -> np.ndarray:
        """Returns logits float32 [positions, vocab] of features float32 [frames, mels], valid until
        the next call. No slot holds anything."""
        frames = len(features)
        size = next(n for n in SIZES if frames <= n)
        given = np.zeros((size, self.config.mels), np.float32)
        given[:frames] = features
        inputs = {"features": given, "length": np.array([frames], np.int32)}
        if self.placed.device is None:
            from weft.models.arch.conformer import recognise

            logits = np.asarray(recognise(self.config, self.placed.weights, *inputs.values()))
        else:
            logits = self._session(size).run(inputs)[0]
        return logits[: self.config.positions(frames)]

    def _session(self, frames: int) -> Session:
        from weft.tensor.program_cache import program_for

        if frames in self._sessions:
            return self._sessions[frames]
        c, placed = self.config, self.placed
        avals = placed.avals

        def graph() -> Graph:
            from weft.models.arch.conformer import conformer_graph

            return conformer_graph(c, avals, frames)

        with progress(f"compiling {c.family}.{frames} for {placed.target.info.id}"):
            what = c, sorted(avals.items()), frames
            program = program_for(what, model_caps(placed.target.caps), graph, placed.target)
            session = placed.session(program, {})
        placed.keep()
        self._sessions[frames] = session
        return session


class _Listener(Listener):
    model: Parakeet
    kept: Samples

    def passage(self, start: int, end: int) -> Work:
        """Yields the step of the model for a passage, and its segment."""
        model, (mel, emphasis) = self.model, self.model.steps
        logits = yield Encode(normed_mel(self.kept.window(start, end), mel, emphasis))
        best = logits.argmax(1)
        top = np.take_along_axis(logits, best[:, None], 1)
        if not np.isfinite(top).all():
            raise model.explain_bad("the logits are")
        logprob = -float(np.log(np.exp(logits - top).sum(1)).mean())
        ids = [int(i) for i, _ in groupby(best) if i != model.config.blank]
        if not ids:
            return
        text = "" if model.tokenizer is None else model.tokenizer.decode(ids).strip()
        ratio, last = compression(ids, model.config.vocab), min(end * HOP / RATE, self.duration)
        yield Segment(start * HOP / RATE, last, f" {text}", ids, 0.0, logprob, ratio, 0.0)


def _read_steps(path: Path, mels: int) -> tuple[MelConfig, float]:
    f = Fields(read_object(path), str(path)) if path.exists() else Fields({}, str(path))
    for name, value in (("hop_length", HOP), ("win_length", 400), ("sampling_rate", RATE)):
        refuse(f.having({name: value, **f.data}), name, value, f"{name} other than {value}")
    if f.integer("feature_size", 1, 1024, mels) != mels:
        raise ModelError(f"{path}: feature_size is not the model's {mels}")
    fft = f.integer("n_fft", 400, 1 << 14, 512)
    return MelConfig(mels, RATE, fft, HOP), f.number("preemphasis", 0.0, 1.0, 0.97)


def load_parakeet(folder: Path, raw: Fields, device: Device | None, place: Placement) -> Parakeet:
    """Returns the model in a folder, whose config.json is `raw`. Raises ModelError,
    FileFormatError, UsageError."""
    config = read_conformer(raw)
    weights: Any = read_weights(folder, raw, conformer_layout(config), wanted(place.dtype))
    if place.quant is not None:
        from weft.quantize.kept import quantised

        config, weights = quantised(folder, config, weights, place.quant)
    config, arrays = ready(folder, config, weights, place, device)
    placed, tokenizer = Placed(arrays, device), tokenizer_maker(folder, config.vocab)
    return Parakeet(folder, config, arrays, placed, tokenizer, min(place.max_batch, 8))


guard_methods(Parakeet)
