"""sentence-transformers folders against the library itself: prompts, pooling, limits, cuts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import write_model, write_tokenizer

from weft.core import notices
from weft.core.errors import ModelError, UsageError
from weft.models import load
from weft.models.run.embedder import Encoder

TEXTS = [
    "the quick brown fox",
    "a loom",
    "weaving needs a warp and a weft, and a loom to hold them",
]
PROMPTS = {"query": "the lazy dog: ", "document": "a warp ", "": ""}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"prompts": PROMPTS},
    {"prompts": PROMPTS, "default_prompt_name": "query"},
    {"prompts": PROMPTS, "default_prompt_name": None, "truncate_dim": 7},
    {"prompts": {"x": "fox "}, "default_prompt_name": "x", "similarity_fn_name": "dot"},
    {"truncate_dim": 1000},
    {"model_type": "SentenceTransformer", "__version__": {"sentence_transformers": "3.0"}},
]
POOLINGS: list[dict[str, Any]] = [
    {"pooling_mode": "mean"},
    {"pooling_mode": ["cls", "max"], "include_prompt": False},
    {"pooling_mode": "mean", "include_prompt": False},
    {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False},
    {"pooling_mode_max_tokens": True, "include_prompt": False},
    {"pooling_mode": ["lasttoken", "weightedmean", "mean_sqrt_len_tokens", "cls", "mean"]},
    {"pooling_mode": ["mean_sqrt_len_tokens", "weightedmean"], "include_prompt": False},
    {
        "pooling_mode_weightedmean_tokens": True,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_lasttoken": True,
        "pooling_mode_mean_sqrt_len_tokens": True,
    },
]
LIMITS: list[dict[str, Any] | None] = [
    None, {"max_seq_length": 9}, {"max_seq_length": None, "do_lower_case": True}, {},
]  # fmt: skip


def written(
    folder: Path, settings: dict[str, Any] | None, pooling: dict[str, Any],
    limits: dict[str, Any] | None = None, normalize: bool = False, tokens: int | None = None,
) -> Path:  # fmt: skip
    write_model("bert", folder)
    limit = {} if tokens is None else {"model_max_length": tokens}
    write_tokenizer(folder, "fallback", pad_token="<unk>", **limit)
    named = "sentence_transformers.models"
    parts = [("", "Transformer"), ("1_Pooling", "Pooling")]
    parts += [("2_N", "Normalize")] if normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{named}.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "2_N").mkdir()
    size = {"word_embedding_dimension": 32}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(size | pooling))
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    if limits is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder


def library(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def ours(folder: Path) -> Encoder:
    found = load(folder, device="oracle")
    assert isinstance(found, Encoder)
    return found


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("settings", range(len(SETTINGS)))
def test_settings(settings: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notices.say.cache_clear()
    normalize = settings % 2 == 1
    written(tmp_path, SETTINGS[settings], {"pooling_mode": "mean"}, normalize=normalize)
    theirs = library(tmp_path)
    capsys.readouterr()
    model = ours(tmp_path)
    close(model.embed(TEXTS), theirs.encode(TEXTS))
    assert model.embed(TEXTS).shape[1] == model.dim
    for name in SETTINGS[settings].get("prompts", {}):
        close(model.embed(TEXTS, prompt_name=name), theirs.encode(TEXTS, prompt_name=name))
    close(model.embed(TEXTS, "lazy "), theirs.encode(TEXTS, prompt="lazy "))
    close(model.embed(TEXTS, ""), theirs.encode(TEXTS, prompt=""))
    close(model.embed(TEXTS, prompt_name="query"), theirs.encode_query(TEXTS))
    close(model.embed(TEXTS, prompt_name="document"), theirs.encode_document(TEXTS))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("pooling", range(len(POOLINGS)))
def test_poolings(pooling: int, tmp_path: Path) -> None:
    settings = {"prompts": PROMPTS, "default_prompt_name": "query"}
    written(tmp_path, settings, POOLINGS[pooling])
    model, theirs = ours(tmp_path), library(tmp_path)
    close(model.embed(TEXTS), theirs.encode(TEXTS))
    close(model.embed(TEXTS, ""), theirs.encode(TEXTS, prompt=""))


@pytest.mark.parametrize("limits", range(len(LIMITS)))
@pytest.mark.parametrize("tokens", [None, 11, 10**30])
def test_limits(limits: int, tokens: int | None, tmp_path: Path) -> None:
    texts = [text.upper() for text in TEXTS] if limits == 2 else TEXTS
    written(tmp_path, None, {"pooling_mode": "mean"}, LIMITS[limits], tokens=tokens)
    close(ours(tmp_path).embed(texts), library(tmp_path).encode(texts))


def test_a_folder_without_modules(tmp_path: Path) -> None:
    written(tmp_path, {"prompts": PROMPTS, "default_prompt_name": "query"}, {}, tokens=12)
    (tmp_path / "modules.json").unlink()
    model = ours(tmp_path)
    assert model.max_length == 12


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"config_sentence_transformers.json": {"model_type": "CrossEncoder"}}, "CrossEncoder"),
    ({"config_sentence_transformers.json": {"model_type": "SparseEncoder"}}, "SparseEncoder"),
    ({"config_sentence_transformers.json": {"default_prompt_name": "q"}}, "'q'; the prompts are"),
    ({"config_sentence_transformers.json": {"prompts": {"q": 5}}}, "q is 5"),
    ({"config_sentence_transformers.json": {"truncate_dim": 0}}, "truncate_dim is 0"),
    ({"1_Pooling/config.json": {"pooling_mode": "attention"}}, "attention"),
    ({"2_N/config.json": {"module_input_name": "token_embeddings"}}, "module_input_name"),
    ({"sentence_bert_config.json": {"query_length": 32}}, "query_length"),
    ({"sentence_bert_config.json": {"transformer_task": "fill-mask"}}, "transformer_task"),
]


@pytest.mark.parametrize(("files", "what"), REFUSED)
def test_what_weft_does_not_do_is_refused(files: dict[str, Any], what: str, tmp_path: Path) -> None:
    written(tmp_path, None, {"pooling_mode": "mean"}, normalize=True)
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(ModelError, match=what):
        ours(tmp_path)


def test_modules_in_another_order_are_refused(tmp_path: Path) -> None:
    written(tmp_path, None, {"pooling_mode": "mean"}, normalize=True)
    path = tmp_path / "modules.json"
    modules = json.loads(path.read_text())
    for wrong in (modules[:1], modules[::-1], [*modules, modules[1]], []):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match="expected Transformer, Pooling"):
            ours(tmp_path)


def test_unknown_settings_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notices.say.cache_clear()
    written(tmp_path, {"quantise_to": 8}, {"pooling_mode": "mean", "temperature": 2}, {"warp": 1})
    ours(tmp_path)
    err = capsys.readouterr().err
    assert all(name in err for name in ("quantise_to", "temperature", "warp"))
    with pytest.raises(UsageError, match="defines the prompts query, document, not q"):
        ours(tmp_path).embed(TEXTS, prompt_name="q")


def test_modules_that_weft_lacks_are_named(tmp_path: Path) -> None:
    written(tmp_path, None, {"pooling_mode": "mean"})
    path = tmp_path / "modules.json"
    more = {"idx": 2, "name": "2", "path": "2_CNN", "type": "sentence_transformers.models.CNN"}
    path.write_text(json.dumps([*json.loads(path.read_text()), more]))
    with pytest.raises(ModelError, match=r"module 2: 'CNN' is not supported; supported: Trans"):
        ours(tmp_path)


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_padding_tokens_inside_a_text(name: str, tmp_path: Path) -> None:
    """They have no position of their own, and are not counted."""
    import torch

    reference = write_model(name, tmp_path)
    rows = [[5, 1, 7, 8], [1, 5, 6], [9, 8, 7, 1, 1, 5, 1], [4, 4]]
    got = ours(tmp_path).embed_ids(rows)
    for row, vector in zip(rows, got):
        with torch.no_grad():
            mask = torch.ones(1, len(row), dtype=torch.int64)
            hidden = reference(torch.tensor([row]), attention_mask=mask).last_hidden_state[0]
        close(vector, hidden.mean(0).numpy())
    compiled = load(tmp_path, device="cpu")
    assert isinstance(compiled, Encoder)
    close(compiled.embed_ids(rows), got)
