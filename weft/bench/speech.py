"""`weft bench speech`: from samples to text, with other libraries that are installed.

The sound is noise, so a model of any weights has the same work: windows of 30 seconds, or passages,
with at most this number of tokens each, the likeliest, in one try.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weft.audio.mel import Features, MelConfig
from weft.audio.normed_mel import normed_mel
from weft.audio.samples import Samples
from weft.audio.sound import open_sound
from weft.bench.turns import Call, in_turns
from weft.core.errors import UsageError
from weft.models.run.parakeet import Parakeet
from weft.models.run.transcriber import Transcriber
from weft.models.run.whisper import Whisper

RATE = 16000
PEERS = ("transformers", "faster-whisper")
# One try at the lowest temperature, whatever comes of it.
ONCE: dict[str, Any] = {
    "temperature": 0.0, "logprob_threshold": None, "compression_ratio_threshold": None,
    "no_speech_threshold": None, "timestamps": False,
}  # fmt: skip


def run(
    model: Any, seconds: float, tokens: int, batches: Sequence[int], repeats: int, threads: int,
    beside: Sequence[str], tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Returns, for each side, its seconds and its real-time factor (median seconds of work for a
    second of sound), and the features' share of weft's. Raises UsageError."""
    if not isinstance(model, Transcriber):
        raise UsageError(f"{model.folder} does not hear; expected a model of speech")
    n = round(seconds * RATE)
    x = (np.random.default_rng(0).standard_normal(n) * 0.1).astype(np.float32)
    sides = {"weft": _ours(model, x, tokens)}
    sides |= {f"weft, batch {b}": _ours(model, x, tokens, batch=b) for b in batches}
    sides["features"] = _features(model, x)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        for name in beside:
            made = (_transformers if name == PEERS[0] else _faster_whisper)(
                model, x, tokens, threads, Path(folder)
            )
            sides |= {} if made is None else {name: made}
        found = in_turns(sides, repeats, tell)
    features = found.pop("features")
    for row in found.values():
        row["real_time_factor"] = round(row["median_s"] / seconds, 5)
    share = round(features["median_s"] / found["weft"]["median_s"], 4)
    return {"model": model.folder.name, "precision": model.precision, "sound_s": seconds,
            "features_s": features["median_s"], "features_share": share,
            "results": found}  # fmt: skip


def _ours(model: Transcriber, x: np.ndarray, tokens: int, **more: Any) -> Call:
    if isinstance(model, Whisper):
        more |= {**ONCE, "max_new_tokens": tokens, "language": _language(model)}
    elif not isinstance(model, Parakeet):
        more["max_new_tokens"] = tokens
    return lambda: model.transcribe(x, **more)


def _language(model: Whisper) -> str | None:
    known = model.settings.languages
    return "en" if "en" in known else next(iter(known), None)


def _features(model: Transcriber, x: np.ndarray) -> Call:
    """Returns a call that makes what the encoder reads of the whole sound."""

    def call() -> None:
        if isinstance(model, Whisper):
            c = MelConfig(model.config.mels, frames=2 * model.config.source)
            Features(open_sound(x).mono(RATE), c).close()
            return
        kept = Samples(open_sound(x).mono(RATE))
        if isinstance(model, Parakeet):
            for start in range(0, kept.frames, 3000):
                normed_mel(kept.window(start, start + 3000), *model.steps)
        kept.close()

    return call


def _windows(x: np.ndarray) -> list[np.ndarray]:
    return [x[i : i + 30 * RATE] for i in range(0, len(x), 30 * RATE)]


def _transformers(
    model: Any, x: np.ndarray, tokens: int, threads: int, folder: Path
) -> Call | None:
    """Returns transformers' model on windows of 30 seconds, without a cache of programs."""
    if model.device is None or not (find_spec("torch") and find_spec("transformers")):
        return None
    import torch
    import transformers as t

    torch.set_num_threads(threads)
    name = {"whisper": "WhisperForConditionalGeneration", "parakeet_ctc": "ParakeetForCTC",
            "moonshine": "MoonshineForConditionalGeneration"}[model.config.family]  # fmt: skip
    theirs: Any = getattr(t, name).from_pretrained(model.folder, dtype="float32").eval()
    kinds: Any = {"whisper": "WhisperFeatureExtractor", "parakeet_ctc": "ParakeetFeatureExtractor"}
    kind = kinds.get(model.config.family)
    mels = getattr(model.config, "mels", 0)
    steps = getattr(t, kind)(feature_size=mels) if kind else None
    more: dict[str, Any] = {} if isinstance(model, Parakeet) else {"max_new_tokens": tokens}
    more |= {"do_sample": False} if more else {}
    if isinstance(model, Whisper) and model.settings.languages:
        more |= {"language": _language(model), "task": "transcribe"}

    def call() -> None:
        for part in _windows(x):
            given = {"input_values": torch.from_numpy(part)[None]}
            if steps is not None:
                given = dict(steps(part, sampling_rate=RATE, return_tensors="pt"))
            with torch.no_grad():
                theirs.generate(**given, **more)

    return call


def _faster_whisper(
    model: Any, x: np.ndarray, tokens: int, threads: int, folder: Path
) -> Call | None:
    """Returns faster-whisper on the same weights, which its converter writes to `folder`."""
    needs = ("faster_whisper", "ctranslate2", "transformers", "torch")
    if not isinstance(model, Whisper) or not all(map(find_spec, needs)):
        return None
    convert: Any = import_module("ctranslate2.converters").TransformersConverter
    make: Any = import_module("faster_whisper").WhisperModel
    kind = "int8" if model.config.forms else "float32"
    made = str(folder / f"ct2-{kind}")
    copied = [n for n in ("tokenizer.json", "preprocessor_config.json")
              if (model.folder / n).exists()]  # fmt: skip
    convert(str(model.folder), copy_files=copied).convert(made, quantization=kind)
    theirs = make(made, device="cpu", compute_type=kind, cpu_threads=threads)
    code = _language(model) or "en"

    def call() -> list[Any]:
        segments, _ = theirs.transcribe(
            x, language=code, beam_size=1, best_of=1, temperature=0.0, without_timestamps=True,
            # its count includes as many tokens of a prompt
            max_new_tokens=2 * tokens - 1, suppress_tokens=[model.settings.end],
            suppress_blank=False, compression_ratio_threshold=None, log_prob_threshold=None,
            no_speech_threshold=None, condition_on_previous_text=False,
        )  # fmt: skip
        return list(segments)

    return call
