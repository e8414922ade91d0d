"""`weft eval`: losses against transformers', figures against plain float64, texts of all kinds."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import reference_logits, write_model, write_tokenizer

import weft
from weft.cli.main import invoke
from weft.errors import FileFormatError, ModelError, UsageError, WeftError
from weft.evaluate import text as evaluate_text
from weft.evaluate.model import Evaluation, evaluate
from weft.models.arch.weights import Weights
from weft.models.run.loader import decoder_from
from weft.models.weights.placement import Placement
from weft.models.weights.source import Source

TEXT = "naïve café: 日本語 and a weft.\ndef f(x):\n    return x\n" * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a tokenizer that puts no bos before a text."""
    made = tmp_path_factory.mktemp("plain")
    write_model("llama2", made)
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def small(folder: Path) -> Any:
    return weft.load(folder, device="oracle", context=64)


def test_the_loss_is_transformers(zoo: Callable[[str], tuple[Path, Any]]) -> None:
    """One window; then windows that overlap, each token scored once with what stands before it."""
    import torch

    path, theirs = zoo("gemma2")
    ids = np.random.default_rng(0).integers(0, 300, 45)
    model = weft.load(path, device="oracle")
    whole = evaluate(model, ids, context=64)
    row = torch.tensor(ids)[None]
    with torch.no_grad():
        want = float(theirs(row, labels=row).loss)
    assert whole.tokens == 44 and whole.nbytes is None and whole.bits_per_byte is None
    assert abs(whole.loss.value - want) < 1e-4
    assert abs(whole.perplexity.value / np.exp(want) - 1) < 1e-4

    losses, scored = [], 1
    for begin, end in ((0, 16), (6, 22), (12, 28), (18, 34), (24, 40), (30, 45)):
        logits = reference_logits(theirs, ids[begin:end]).astype(np.float64)
        log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses += [-log[t - begin - 1, ids[t]] for t in range(scored, end)]
        scored = end
    parts = evaluate(model, ids, context=16, stride=6)
    assert parts.tokens == len(losses) == 44
    assert abs(parts.loss.value - np.mean(losses)) < 1e-4
    error = np.std(losses, ddof=1) / np.sqrt(44)
    assert abs(parts.loss.error - error) < 1e-4
    assert abs(parts.perplexity.error / (error * np.exp(np.mean(losses))) - 1) < 1e-3


def test_distances_are_those_of_float64(zoo: Callable[[str], tuple[Path, Any]]) -> None:
    path, _ = zoo("llama2")
    ids = np.random.default_rng(1).integers(0, 300, 100)
    exact = weft.load(path, device="cpu", act_dtype="float32")
    narrow = weft.load(path, device="cpu", dtype="bfloat16")
    found = evaluate(narrow, ids, exact, context=128).against
    p, q = (m.logits(ids)[:-1].astype(np.float64) for m in (exact, narrow))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (p, q))
    kl = (p * np.log(p / q)).sum(-1)
    assert found is not None and kl.mean() > 1e-6
    np.testing.assert_allclose(
        [found.kl.value, found.kl.error, found.kl_p99, found.kl_max],
        [kl.mean(), kl.std(ddof=1) / np.sqrt(99), np.percentile(kl, 99), kl.max()],
        rtol=1e-6,
    )
    share = float((p.argmax(-1) == q.argmax(-1)).mean())
    assert found.same_top.value == share
    assert abs(found.same_top.error - np.sqrt(share * (1 - share) / 98)) < 1e-12
    excess = np.log(p[range(99), ids[1:]] / q[range(99), ids[1:]])
    assert abs(found.excess.value - excess.mean()) < 1e-9
    assert evaluate(exact, ids, weft.load(path, device="cpu")).against.kl.value == 0  # type: ignore[union-attr]


def test_bits_per_byte_count_the_text(small: Any) -> None:
    whole = evaluate(small, TEXT)
    first = len(small.tokenizer.decode(small.tokenizer.encode(TEXT)[:1]).encode())
    assert whole.nbytes == len(TEXT.encode()) - first
    want = whole.loss.value * whole.tokens / whole.nbytes / np.log(2)
    assert whole.bits_per_byte is not None and abs(whole.bits_per_byte.value - want) < 1e-12
    cut = evaluate(small, TEXT, limit=20)
    said = small.tokenizer.decode(small.tokenizer.encode(TEXT)[1:20])
    assert cut.tokens == 19 and cut.nbytes == len(said.rstrip("\ufffd").encode())


def test_bos_stands_before_every_window(tmp_path: Path) -> None:
    theirs = write_model("llama2", tmp_path)
    write_tokenizer(tmp_path, "fallback")
    model = weft.load(tmp_path, device="oracle", context=64)
    ids = model.tokenizer.encode("the quick brown fox", special=False)
    found = evaluate(model, "the quick brown fox", context=11, stride=10)
    losses: list[float] = []
    for begin in range(0, len(ids), 10):
        part = ids[begin : begin + 10]
        logits = reference_logits(theirs, [0, *part]).astype(np.float64)
        log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses += [-log[i, t] for i, t in enumerate(part)]
    assert found.tokens == len(ids) and found.nbytes == len(b"the quick brown fox")
    assert abs(found.loss.value - np.mean(losses)) < 1e-4
    assert evaluate(model, "a", context=11).tokens == 2  # the mark of a word's begin, and "a"


def test_a_long_text_is_read_in_blocks(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters and lines may lie across the blocks; ids and bytes are those of the whole."""
    monkeypatch.setattr(evaluate_text, "READ", 7)
    monkeypatch.setattr(evaluate_text, "BLOCK", 40)
    text = TEXT * 4
    blocks = list(evaluate_text._blocks(evaluate_text._decoded(io.BytesIO(text.encode()), "")))
    assert "".join(blocks) == text and len(blocks) > 8
    tokens = evaluate_text.tokens_of(io.BytesIO(text.encode()), small, None, None)
    assert tokens.ids.tolist() == small.tokenizer.encode(text)


@pytest.mark.parametrize(
    "data, error",
    [
        (b"", "0 tokens"),
        (b"a", "1 tokens"),
        (b"caf\xc3\xa9 \xff!", "byte 6"),
        (b"caf\xc3", "byte 3"),
    ],
    ids=["empty", "one token", "not UTF-8", "cut off"],
)
def test_texts_that_are_none(small: Any, tmp_path: Path, data: bytes, error: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    with pytest.raises(WeftError, match=error):
        evaluate(small, path)


def test_what_cannot_be_compared_is_refused(
    small: Any, folder: Path, tmp_path: Path, zoo: Callable[[str], tuple[Path, Any]]
) -> None:
    with pytest.raises(UsageError, match="own reference"):
        evaluate(small, TEXT, small)
    write_model("llama2", tmp_path)
    write_tokenizer(tmp_path, "fallback")
    with pytest.raises(ModelError, match="tokenizers"):
        evaluate(small, TEXT, weft.load(tmp_path, device="oracle"))
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 310}
    other = weft.models.random_folder(tmp_path / "wider", config)
    with pytest.raises(ModelError, match=r"300.*310"):
        evaluate(small, TEXT, weft.load(other, device="oracle"))
    for options in ({"context": 1}, {"context": 65}, {"stride": 64}, {"stride": 0}, {"limit": 0}):
        with pytest.raises(UsageError):
            evaluate(small, TEXT, **options)
    with pytest.raises(UsageError, match="cannot be read"):
        evaluate(small, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="encoder"):
        evaluate(weft.load(zoo("bert")[0], device="oracle"), TEXT)


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT, encoding="utf-8")
    common = ["--text", str(text), "--device", "oracle", "--context", "32", "--text-tokens", "60"]
    assert invoke(["eval", str(folder), str(folder), *common, "--dtype", "bfloat16", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    run = first["runs"][0]
    assert run["cache"] == "bfloat16" and run["cache_bytes"] == 3 * 2 * 2 * 8 * 2
    assert run["tokens"] == 59 and run["kl"] > 0 and 0 <= run["same_top"] <= 1
    assert run["weight_bytes"] == sum(
        w.nbytes for w in weft.load(folder, device="oracle", dtype="bfloat16").weights.values()
    )
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(first))
    for ending, magic in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        picture = tmp_path / f"sizes{ending}"
        more = ["--add", str(earlier), "--plot", str(picture), "--name", "exact"]
        assert invoke(["eval", str(folder), *common, *more]) == 0
        table = capsys.readouterr().out
        assert picture.read_bytes()[:5].startswith(magic[:4])
        assert f"{run['perplexity']:.3f}" in table and "exact" in table and "KL max" in table
    (tmp_path / "p.svg").mkdir()  # the figures stand, whatever becomes of a picture
    assert invoke(["eval", str(folder), *common, "--plot", str(tmp_path / "p.svg")]) == 1
    assert "perplexity" in capsys.readouterr().out
    assert invoke(["eval", str(folder), *common]) == 0
    assert "KL" not in capsys.readouterr().out.splitlines()[2]
    earlier.write_text('{"runs": [{"name": "x"}]}')
    assert invoke(["eval", str(folder), *common, "--add", str(earlier)]) == 1
    assert invoke(["eval", str(folder), *common, "--plot", "x.gif"]) == 2
    assert "weft eval --json" in capsys.readouterr().err


def test_figures_that_overflow() -> None:
    """A loss of which exp is infinite has a perplexity that says so."""
    from weft.evaluate.model import Mean

    found = Evaluation(2, 8, 4, Mean(800.0, 1.0), None, None)
    assert found.perplexity.value == np.inf and found.data()["loss"] == 800.0


def test_a_damaged_model_is_named(folder: Path) -> None:
    model = weft.load(folder, device="oracle", context=64)
    weights = dict(model.weights)
    bad = np.array(weights["norm.w"])
    bad[3] = np.nan
    source = Source(folder, model.config, model.tokens)
    broken = Weights.of(weights | {"norm.w": bad})
    model = decoder_from(source, broken, model.device, Placement(context=64))
    with pytest.raises(ModelError, match="norm"):
        evaluate(model, [1, 2, 3])
    with pytest.raises(FileFormatError):
        evaluate(weft.load(folder, device="oracle"), io.BytesIO(b"\xff"))
