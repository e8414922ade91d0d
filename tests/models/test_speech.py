"""Whisper beside transformers: encoder, logits, rules of timestamps, long sounds, words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rows import few
from speech_zoo import TRANSLATORS, learned, shake, translator, whisper

import weft
from weft.core.errors import LimitError, ModelError, UsageError
from weft.models.run.transcriber import Transcriber

PLAIN: dict[str, Any] = {
    "temperature": 0.0, "logprob_threshold": None, "compression_ratio_threshold": None,
    "no_speech_threshold": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("whisper")
    return folder, whisper(folder)


def noise(seconds: float) -> np.ndarray:
    n = int(seconds * 16000)
    x = np.random.default_rng(0).standard_normal(n) * 0.1 * np.abs(np.sin(np.arange(n) / 9000))
    return np.asarray(x, np.float32)


CASES = [("oracle", None, None, 1e-4), ("cpu", None, None, 1e-4), ("cpu", "bfloat16", None, 0.6),
         ("cpu", "float16", None, 0.1), ("cpu", None, "int8", 0.9)]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "dtype", "quant", "most"), few(CASES, CASES[0], CASES[1], CASES[4])
)
def test_logits(
    pair: tuple[Path, Any], device: str, dtype: str | None, quant: str | None, most: float
) -> None:
    folder, theirs = pair
    mel = torch.randn(1, 20, 200, generator=torch.Generator().manual_seed(1))
    ids = [90, 91, 95, 124, 13, 60, 70, 17, 130]
    with torch.no_grad():
        hidden = theirs.model.encoder(mel)[0][0].numpy()
        out = theirs(mel, decoder_input_ids=torch.tensor([ids]), output_attentions=True)
    model = weft.load(folder, device=device, dtype=dtype, quant=quant)
    assert isinstance(model, Transcriber)
    for slot in (0, 1):
        found = model.runner.encode(slot, mel[0].T.numpy().copy())
        assert abs(found - hidden).max() < most * abs(hidden).max()
    logits, maps = model.prefill(0, ids, range(len(ids)), heads=((1, 0), (1, 2)))
    true = out.logits[0].numpy()
    assert abs(logits - true).max() < most * abs(true).max()
    one, _ = model.runner.step([ids[5]], [0], [5])
    assert abs(one[0] - true[5]).max() < most * abs(true).max()
    if device == "cpu" and dtype is None and quant is None:
        assert maps is not None
        crossing = out.cross_attentions[1][0, [0, 2]].numpy() if out.cross_attentions else maps
        assert abs(maps - crossing).max() < 1e-4


@pytest.mark.parametrize("more", [
    ({}, {}), ({"task": "translate", "language": "de"}, {"task": "translate", "language": "de"}),
    ({"condition_on_prev_tokens": True, "temperature": 0.0}, {"condition_on_previous": True}),
])  # fmt: skip
def test_long_sound_equals_transformers(
    pair: tuple[Path, Any], more: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Three windows and a part: the same tokens and times."""
    from transformers import WhisperFeatureExtractor

    folder, theirs = pair
    said = {"language": "en", "task": "transcribe"}
    x = noise(6.3)
    extract = WhisperFeatureExtractor(feature_size=20, chunk_length=2)
    mel = extract(x, sampling_rate=16000, return_tensors="pt", truncation=False, padding="longest")
    out = theirs.generate(
        mel["input_features"], return_timestamps=True, return_segments=True, **said | more[0]
    )
    true = out["segments"][0]
    found = weft.load(folder, device="cpu").transcribe(x, **PLAIN | said | more[1])
    assert [s.tokens for s in found.segments] == [s["tokens"].tolist() for s in true]
    times = [(float(s["start"]), float(s["end"])) for s in true]
    assert np.allclose([(s.start, s.end) for s in found.segments], times)
    assert len(true) > 2


def test_language_words_and_silence(pair: tuple[Path, Any]) -> None:
    folder, _ = pair
    model, x = weft.load(folder, device="cpu"), noise(2.0)
    found = model.transcribe(x, words=True, **PLAIN)
    assert found.language in ("en", "de") and found.duration == 2.0
    for segment in found.segments:
        ends = [t for word in segment.words for t in (word.start, word.end)]
        assert ends == sorted(ends)
    sure = {**PLAIN, "logprob_threshold": 0.0, "no_speech_threshold": 0.0}
    assert model.transcribe(x, **sure).segments == []  # everything counts as silence
    hot = PLAIN | {"temperature": (0.0, 1.0), "logprob_threshold": 0.0}
    assert {s.temperature for s in model.transcribe(x, **hot).segments} <= {1.0}
    assert model.transcribe(x, **hot) == model.transcribe(x, **hot)
    heard, shown = model.listen(x, **PLAIN), []
    heard.show = shown.append
    texts = [s.text for s in heard]
    assert len(shown) > len(texts) and shown[0] == shown[-1][: len(shown[0])]


def test_wrong_options_are_named(pair: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = pair
    model = weft.load(folder, device="cpu")
    for options, said in (
        ({"langauge": "de"}, "does not take langauge"), ({"language": "xx"}, "this model has: de"),
        ({"task": "sing"}, "transcribe or translate"), ({"temperature": -1}, "expected 0 to 2"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            model.transcribe(noise(0.5), **options)
    with pytest.raises(UsageError, match="does not hear"):
        weft.load("box", device="cpu").transcribe(noise(0.5))
    (folder / "generation_config.json").rename(folder / "kept.json")
    with pytest.raises(ModelError, match="json is missing"):
        weft.load(folder, device="cpu").transcribe(noise(0.5))
    (folder / "kept.json").rename(folder / "generation_config.json")


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_texts_equal_transformers(kind: str, tmp_path: Path) -> None:
    theirs = translator(kind)
    shake(theirs, 0.3)
    theirs.save_pretrained(tmp_path)
    source = [5, 9, 100, 17, 3, 60, 7, 2]
    with torch.no_grad():
        begin = theirs.config.decoder_start_token_id
        fed = torch.tensor([[begin, 8, 50, 12, 90, 33]])
        true = theirs(torch.tensor([source]), decoder_input_ids=fed).logits[0].numpy()
    for device in ("oracle", "cpu"):
        model = weft.load(tmp_path, device=device)
        model.runner.encode(0, np.array(source, np.int32))
        logits, _ = model.prefill(0, fed[0].tolist(), range(6))
        assert abs(logits - true).max() < 1e-4 * abs(true).max()
    made = theirs.generate(torch.tensor([source]), max_new_tokens=12, do_sample=False, num_beams=1)
    ends = model.config.end_ids
    assert model.generate(source, 12).ids == [i for i in made[0].tolist()[1:] if i not in ends]
    for options in ({"num_beams": 3}, {"num_beams": 4, "length_penalty": 0.3},
                    {"num_beams": 2, "early_stopping": True}):  # fmt: skip
        made = theirs.generate(
            torch.tensor([source]), max_new_tokens=12, do_sample=False, **options
        )
        wanted = [i for i in made[0].tolist()[1:] if i not in (*ends, theirs.config.pad_token_id)]
        found = [i for i in model.generate(source, 12, **options).ids if i != model.config.pad_id]
        assert found == wanted
    with pytest.raises(LimitError, match="num_beams is 9"):
        model.generate(source, 12, num_beams=9)
    with pytest.raises(UsageError, match="early_stopping need num_beams"):
        model.generate(source, 12, early_stopping=True)


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_int8_keeps_what_was_learned(kind: str, tmp_path: Path) -> None:
    """A few steps of training give logits that mean something: few bits hardly move them."""
    theirs = translator(kind)
    sources, targets = learned(theirs)
    theirs.save_pretrained(tmp_path)
    begin = torch.full((len(targets), 1), theirs.config.decoder_start_token_id)
    fed = torch.cat([begin, targets[:, :-1]], 1)
    with torch.no_grad():
        true = theirs(sources, decoder_input_ids=fed).logits.log_softmax(-1)
    assert (true.argmax(-1) == targets).float().mean() > 0.95  # it has learned them
    model = weft.load(tmp_path, device="cpu", quant="int8")
    rows = []
    for source, ids in zip(sources.numpy(), fed.tolist()):
        model.runner.encode(0, source.astype(np.int32))
        rows.append(model.prefill(0, ids, range(len(ids)))[0])
    found = torch.from_numpy(np.stack(rows)).log_softmax(-1)
    lost = (true.exp() * (true - found)).sum(-1)
    assert 1e-7 < lost.mean() < 0.01 and lost.max() < 0.2, (lost.mean(), lost.max())
    assert (found.argmax(-1) == true.argmax(-1)).float().mean() > 0.98
    wanted = [i for i in targets[0].tolist() if i not in model.config.end_ids]
    assert model.generate(sources[0].tolist(), len(targets[0])).ids == wanted


def test_sounds_at_once_equal_sounds_alone(pair: tuple[Path, Any]) -> None:
    """Listeners of one model that take turns have slots of their own."""
    folder, _ = pair
    model = weft.load(folder, device="cpu", max_batch=3)
    sounds = [noise(4.1), noise(5.0)[::-1].copy(), noise(2.5)[:20000], noise(3.0) * 0.3]
    alone = [model.transcribe(x, words=True, **PLAIN).segments for x in sounds]
    heard = [iter(model.listen(x, words=True, **PLAIN)) for x in sounds]
    found: list[list[Any]] = [[] for _ in sounds]
    left = set(range(len(sounds)))
    while left:
        for i in sorted(left):
            segment = next(heard[i], None)
            if segment is None:
                left.remove(i)
            else:
                found[i].append(segment)
    assert found == alone and len(found[0]) > 1
    next(iter(model.listen(sounds[0], **PLAIN)))  # let go of in the middle
    assert model.transcribe(sounds[3], words=True, **PLAIN).segments == alone[3]


def test_passages_at_once(pair: tuple[Path, Any]) -> None:
    """The same segments for any batch; quiet parts are left out by vad."""
    folder, _ = pair
    model = weft.load(folder, device="cpu")
    x = noise(23.0)
    x[5 * 16000 : 9 * 16000] *= 1e-3
    found = [model.transcribe(x, words=True, batch=n, **PLAIN).segments for n in (1, 3, 64)]
    assert found[0] == found[1] == found[2] and len(found[0]) > 5
    starts = [s.start for s in found[0]]
    assert starts == sorted(starts)
    voiced = model.transcribe(x, vad=True, **PLAIN).segments
    assert voiced == model.transcribe(x, vad=True, batch=8, **PLAIN).segments
    assert any(5.5 < s.start < 8.5 for s in found[0])
    assert not any(5.5 < s.start < 8.5 for s in voiced) and voiced[-1].end > 20
    assert model.transcribe(np.zeros(16000, np.float32), vad=True, **PLAIN).duration == 1.0
    with pytest.raises(UsageError, match="leave one out"):
        model.transcribe(x, vad=True, condition_on_previous=True)
    with pytest.raises(UsageError, match="expected 1 to 64"):
        model.transcribe(x, batch=0)
