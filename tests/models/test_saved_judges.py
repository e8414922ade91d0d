"""Classifiers, rerankers and taggers in one compiled file, and encoders with steps of their own
after the pooling: what they give from their folder, text by text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import write_model, write_tokenizer
from rows import few
from test_judges import PAIRS, TEXTS, written

import weft
from weft.core.errors import FileFormatError
from weft.importers.safetensors import save_file
from weft.models.run.judge import Judge
from weft.models.run.saved import save
from weft.models.run.saved_reader import load_reader
from weft.program.bundle import Bundle


def kept(model: Any, path: Path) -> Bundle:
    return save(model, path, "cpu", model.device.caps, {}, False)


def same(found: Any, want: Any) -> None:
    """Equal but for the last bits of scores."""
    assert [x._replace(score=0.0) for x in found] == [x._replace(score=0.0) for x in want]
    np.testing.assert_allclose([x.score for x in found], [x.score for x in want], atol=1e-6)


@pytest.mark.parametrize("name", few(["bert", "roberta", "modernbert", "qwen3"], "bert", "qwen3"))
def test_a_reranker(name: str, tmp_path: Path) -> None:
    """BERT's steps take which text of a pair a token is in."""
    written(name, tmp_path / "folder", labels=1)
    model = weft.load(tmp_path / "folder", device="cpu")
    kept(model, tmp_path / "m.weft")
    again = weft.load(tmp_path / "m.weft", device="cpu")
    assert isinstance(again, Judge) and again.typed == model.typed == (name == "bert")
    want = [model.score([pair])[0] for pair in PAIRS]
    np.testing.assert_allclose(again.score(PAIRS), want, atol=1e-6)  # the head is NumPy's
    ranked = again.rerank("a fox", TEXTS[:3])
    assert [x.index for x in ranked] == [x.index for x in model.rerank("a fox", TEXTS[:3])]


def test_a_classifier_and_a_tagger(tmp_path: Path) -> None:
    written("roberta", tmp_path / "a", labels=3)
    model = weft.load(tmp_path / "a", device="cpu")
    kept(model, tmp_path / "a.weft")
    again = weft.load(tmp_path / "a.weft", device="cpu")
    for found, text in zip(again.classify(TEXTS), TEXTS):
        same(found, model.classify(text)[0])
    written("bert", tmp_path / "b", "TokenClassification", labels=3)
    model = weft.load(tmp_path / "b", device="cpu")
    kept(model, tmp_path / "b.weft")
    again = weft.load(tmp_path / "b.weft", device="cpu")
    for found, text in zip(again.entities(TEXTS), TEXTS):
        same(found, model.entities(text)[0])


def test_an_encoder_with_a_dense_step(tmp_path: Path) -> None:
    """Sentence-transformers' Dense after the mean."""
    write_model("bert", tmp_path)
    write_tokenizer(tmp_path)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    at = "sentence_transformers.models."
    (tmp_path / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": at + kind}
        for i, (path, kind) in enumerate(modules)
    ]))  # fmt: skip
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (tmp_path / "2_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 7, "bias": True,
             "activation_function": "torch.nn.modules.activation.Tanh"}  # fmt: skip
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(dense))
    rng = np.random.default_rng(0)
    save_file(tmp_path / "2_Dense" / "model.safetensors", {
        "linear.weight": rng.normal(size=(7, 32)).astype(np.float32),
        "linear.bias": rng.normal(size=7).astype(np.float32),
    })  # fmt: skip
    model = weft.load(tmp_path, device="cpu")
    kept(model, tmp_path / "m.weft")
    again = weft.load(tmp_path / "m.weft", device="cpu")
    texts = ["def f", "return x + 1", "x"]
    assert again.dim == model.dim == 7
    want = [model.embed(text)[0] for text in texts]
    np.testing.assert_allclose(again.embed(texts), want, atol=1e-6)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    written("roberta", tmp_path / "folder", labels=3)
    model = weft.load(tmp_path / "folder", device="cpu")
    whole = kept(model, tmp_path / "m.weft")
    tensors = dict(whole.tensors)
    judging = whole.head["judging"]
    rows: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {k: v for k, v in tensors.items() if k != "steps.0.w"}, "steps.0.w is not [32, 32]"),
        ({}, tensors | {"steps.1.b": np.ones(2, np.float32)}, "steps.1.b is not [3]"),
        ({}, tensors | {"steps.9.w": np.ones(2, np.float32)}, "no step reads steps.9.w"),
        ({"judging": {**judging, "labels": ["a"]}}, tensors, "1 labels do not fit"),
        ({"judging": {**judging, "chosen": "cube"}}, tensors, ""),
    ]
    for head, arrays, said in rows:
        read = Bundle(whole.head | head, whole.programs, arrays, whole.files)
        with pytest.raises(FileFormatError) as caught:
            load_reader(tmp_path / "m.weft", read, model.device)
        assert said in str(caught.value)
