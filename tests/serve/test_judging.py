"""Reranking, scores and labels over HTTP are those of the model alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import covering
from serve_kit import Running, serving

import weft
from weft.serve.keys import ApiKey, ApiKeys

sys.path.append(str(Path(__file__).parents[1] / "models"))
from test_judges import TEXTS, write_yes_no, written

sys.path.append(str(Path(__file__).parents[1] / "robust"))
from robust_kit import BERT, tiny

QUERY, DOCUMENTS = "a fox", [*TEXTS[:3], "the lazy dog", "warp", "x" * 300]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("judges")
    written("bert", home / "judge", labels=1)
    written("roberta", home / "labels", id2label={0: "warp", 1: "weft", 2: "loom"})
    written("bert", home / "tags", "TokenClassification")
    write_yes_no(home / "yes", template=None)
    tiny(home / "vectors", BERT)
    return {name: str(home / name) for name in ("judge", "labels", "tags", "yes", "vectors")}


@pytest.fixture(scope="module")
def judges(folders: dict[str, str]) -> Iterator[Running]:
    with serving(folders) as running:
        yield running


def asked(to: Running, path: str, **body: Any) -> Any:
    status, made, _ = to.ask("POST", path, body)
    assert status == 200, made
    return made


def refused(to: Running, path: str, **body: Any) -> str:
    status, made, _ = to.ask("POST", path, body)
    assert status == 400, made
    return str(made["error"]["message"])


@pytest.mark.parametrize(
    "path, name", covering(["/rerank", "/v1/rerank", "/v2/rerank"], ["judge", "yes"])
)
def test_rerank(judges: Running, folders: dict[str, str], path: str, name: str) -> None:
    want = weft.load(folders[name], device="cpu").rerank(QUERY, DOCUMENTS, top=4)
    given = {"query": QUERY, "documents": DOCUMENTS, "model": name}
    made = asked(judges, path, **given, top_n=4)
    assert [r["index"] for r in made["results"]] == [x.index for x in want]
    scores = [r["relevance_score"] for r in made["results"]]
    np.testing.assert_allclose(scores, [x.score for x in want], atol=1e-6)
    assert made["model"] == name and made["usage"]["total_tokens"] > 0
    texts = [r.get("document") for r in made["results"]]
    shown = [{"text": DOCUMENTS[x.index]} for x in want]
    assert texts == ([None] * 4 if path == "/v2/rerank" else shown)
    objects = [{"text": d} for d in DOCUMENTS]
    made = asked(judges, path, **{**given, "documents": objects}, return_documents=True)
    assert len(made["results"]) == len(DOCUMENTS) and "document" in made["results"][0]
    assert asked(judges, path, query="a", documents=[], model=name)["results"] == []


def test_instructions_reach_a_language_model(judges: Running, folders: dict[str, str]) -> None:
    want = weft.load(folders["yes"], device="cpu").rerank("a", ["b", "c"], instruction="look")
    made = asked(judges, "/rerank", query="a", documents=["b", "c"], model="yes",
                 instruction="look")  # fmt: skip
    np.testing.assert_allclose(
        [r["relevance_score"] for r in made["results"]], [x.score for x in want], atol=1e-6
    )
    said = refused(judges, "/rerank", query="a", documents=["b"], model="judge", instruction="x")
    assert "leave it out" in said


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score(judges: Running, folders: dict[str, str], path: str) -> None:
    model = weft.load(folders["judge"], device="cpu")
    made = asked(judges, path, text_1=QUERY, text_2=TEXTS[:3], model="judge")
    want = model.score([(QUERY, text) for text in TEXTS[:3]])
    np.testing.assert_allclose([d["score"] for d in made["data"]], want, atol=1e-6)
    made = asked(judges, path, text_1=["a", "b"], text_2=["c", "d"], model="judge")
    np.testing.assert_allclose(
        [d["score"] for d in made["data"]], model.score([("a", "c"), ("b", "d")]), atol=1e-6
    )
    assert [d["index"] for d in made["data"]] == [0, 1]
    said = refused(judges, path, text_1=["a", "b", "c"], text_2=["c", "d"], model="judge")
    assert "text_1 has 3 texts, text_2 2" in said
    said = refused(judges, path, text_1="a", text_2="b" * 200, model="judge")
    assert "judge takes 100" in said
    asked(judges, path, text_1="a", text_2="b" * 200, model="judge", truncate_prompt_tokens=-1)


def test_classify(judges: Running, folders: dict[str, str]) -> None:
    want = weft.load(folders["labels"], device="cpu").classify(TEXTS[:3])
    made = asked(judges, "/classify", input=TEXTS[:3], model="labels")
    for one, labels in zip(made["data"], want):
        assert one["label"] == labels[0].label and one["num_classes"] == 3
        found = dict(zip(("warp", "weft", "loom"), one["probs"]))
        for label in labels:
            assert abs(found[label.label] - label.score) < 1e-6
    assert asked(judges, "/classify", input="x", model="labels")["data"][0]["index"] == 0
    assert "labels takes 100" in refused(judges, "/classify", input="x" * 200, model="labels")


def test_a_model_of_another_kind(judges: Running) -> None:
    given = {"query": "a", "documents": ["b"]}
    assert "has 3 labels" in refused(judges, "/rerank", **given, model="labels")
    assert "does not score pairs" in refused(judges, "/rerank", **given, model="vectors")
    assert "is not a classifier" in refused(judges, "/classify", input="a", model="yes")
    assert "labels tokens, not texts" in refused(judges, "/classify", input="a", model="tags")
    assert "does not embed" in refused(judges, "/v1/embeddings", input="a", model="judge")
    for name in ("judge", "labels"):
        hi = [{"role": "user", "content": "x"}]
        assert "does not write" in refused(judges, "/v1/chat/completions", messages=hi, model=name)
    for documents in ([5], [None], [{"text": 5}], [{"text": "a", "image": "b"}], [["a"]]):
        said = refused(judges, "/rerank", query="a", documents=documents, model="judge")
        assert "documents[0]" in said
    many = ["a"] * 10_001
    assert "10000" in refused(judges, "/rerank", query="a", documents=many, model="judge")
    assert judges.ask("GET", "/health")[0] == 200


def test_ten_thousand_documents(judges: Running) -> None:
    documents = ["x" * (i % 60) for i in range(10_000)]
    made = asked(judges, "/v2/rerank", query="a", documents=documents, model="judge", top_n=3)
    assert len(made["results"]) == 3


def test_keys_share_no_cache_of_a_model_that_judges(folders: dict[str, str]) -> None:
    """What one key asked to be judged makes another key's answer no faster, and each token counts
    once for the key that asked, also the one that judges a pair."""
    keys = ApiKeys([ApiKey("ann", b"ann-" * 4), ApiKey("bob", b"bob-" * 4)])
    body = {"query": QUERY * 20, "documents": DOCUMENTS[:2], "model": "yes"}
    with serving({"yes": folders["yes"]}, key=keys) as server:
        engine, found, used = None, [], []
        for secret in ("ann-", "bob-", "ann-"):
            made = server.ask("POST", "/rerank", body, {"x-api-key": secret * 4})
            assert made[0] == 200, made
            engine = server.shelf.decoders()[0].engine
            found.append(engine.stats.cached_tokens)
            used.append(made[1]["usage"]["total_tokens"])
        first, second, third = (b - a for a, b in zip((0, *found), found))
        assert first == second < third
        assert [key.tokens for key in keys.keys] == [2 * (used[0] + 2), used[0] + 2]
