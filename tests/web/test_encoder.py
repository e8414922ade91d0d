"""An encoder in a page's folder: its vectors, and what is fetched of one that is for search."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from page_kit import Browser, Site, bare, export_light
from rows import few

import weft
from weft.core.errors import ModelError, UsageError
from weft.hub.box import box_folder
from weft.models import random_folder
from weft.web.export import export_web

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from sentences import SENTENCES, minilm_folder

BERT = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 40,
}  # fmt: skip
SCRIPT = """
const { load, ranked } = await import(process.argv[1] + "/node.js");
const model = await load(process.argv[2]);
const rows = await model.embed(JSON.parse(process.argv[3]));
const order = ranked(rows[0], rows).map(({ index }) => index);
const failed = await model.generate("a").next().catch((error) => error.message);
console.log(JSON.stringify({ rows: rows.map((row) => [...row]), order, failed }));
"""


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A tiny encoder with MiniLM's tokenizer, which cuts at 40 tokens."""
    folder = random_folder(tmp_path / "bert", BERT, scale=0.5)
    shutil.copy(minilm_folder() / "tokenizer.json", folder)
    return folder


@pytest.mark.skipif(shutil.which("node") is None, reason="node was not found")
@pytest.mark.parametrize(
    ("modes", "quant"),
    few(itertools.product([("mean",), ("cls", "max", "mean")], ["int8", None]),
        (("cls", "max", "mean"), "int8")),
)  # fmt: skip
def test_vectors_are_those_of_python(bert, tmp_path, modes, quant):
    (bert / "1_Pooling").mkdir()
    (bert / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": list(modes)}))
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"type": f"x.{kind}", "path": path} for kind, path in kinds]
    (bert / "modules.json").write_text(json.dumps(modules))
    model = weft.load(bert, device="cpu", quant=quant)
    export_light(model, tmp_path / "page")
    texts = [*SENTENCES[:8], "", "word " * 99]
    want = model.embed(texts)
    call = ["node", "--input-type=module", "-e", SCRIPT]
    call += [(tmp_path / "page").as_uri(), str(tmp_path / "page"), json.dumps(texts)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    got = json.loads(done.stdout)
    np.testing.assert_allclose(got["rows"], want, atol=1e-5)
    if quant is not None:  # it did change, by little
        whole = weft.load(bert, device="cpu").embed(texts)
        assert 1e-6 < 1 - (whole * want).sum(1).min() < 1e-2
    assert got["order"] == np.argsort(-(want @ want[0]), kind="stable").tolist()
    assert "is an encoder" in got["failed"]


def test_the_search_is_a_folder_that_the_first_visit_does_not_fetch(bert, tmp_path):
    search = weft.load(bert, device="cpu")
    box = weft.load(box_folder(), device="cpu", max_batch=1, context=64)
    with bare():
        manifest = export_web(box, tmp_path / "page", search=search)
    inner = json.loads((tmp_path / "page" / manifest["search"] / "manifest.json").read_text())
    assert (manifest["kind"], inner["kind"]) == ("decoder", "encoder")
    worker = (tmp_path / "page" / "sw.js").read_text()
    assert worker.count("search/") == 1 and "search/manifest.json" in worker
    with pytest.raises(UsageError, match="takes an encoder"):
        export_light(search, tmp_path / "other", search=search)


def test_a_tokenizer_that_the_page_would_read_otherwise_is_refused(bert, tmp_path):
    path = bert / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": "a(?=b)"}, "behavior": "Isolated"}
    path.write_text(json.dumps(data | {"pre_tokenizer": split | {"invert": False}}))
    with pytest.raises(ModelError, match=r"does not have the pre_tokenizer 'a\(\?=b\)'"):
        export_light(weft.load(bert, device="cpu"), tmp_path / "page")


SEARCH = """
await page.goto(given.url);
await it.ready();
await page.fill("#notes", given.notes.join("\\n"));
await page.fill("#query", given.query);
await page.click("#search-run");
await page.waitForSelector("#search[data-found]");
const found = await page.$$eval("#results li", (rows) => rows.map((row) => row.textContent));
const facts = await page.textContent("#facts");
return { found, facts, shown: await page.isVisible("#search"), errors: it.errors,
  writes: await page.isVisible("#tab-write") };
"""


@pytest.mark.parametrize(
    "target",
    ["wasm", pytest.param("webgpu", marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_the_page_of_an_encoder_ranks_as_python_does(
    bert: Path, tmp_path: Path, browser: Browser, target: str
) -> None:
    """Nothing but its search is shown, and it is the tab that is open."""
    model = weft.load(bert, device="cpu")
    export_light(model, tmp_path / "page")
    notes, query = SENTENCES[5:17], "My neighbour bakes bread"
    site = Site(tmp_path / "page")
    try:
        given = {"url": f"{site.url}?target={target}", "notes": notes, "query": query}
        said = browser.run(target, SEARCH, given, patience=500)
    finally:
        site.close()
    rows, asked = model.embed(notes), model.embed([query])[0]
    scores = rows @ asked / np.linalg.norm(rows, axis=1) / np.linalg.norm(asked)
    order = np.argsort(-scores, kind="stable")
    found = [text.split(" ", 1) for text in said["found"]]
    assert [note for _, note in found] == [notes[n] for n in order]
    np.testing.assert_allclose([float(score) for score, _ in found], scores[order], atol=6e-4)
    assert {"wasm": "WebAssembly", "webgpu": "WebGPU"}[target] in said["facts"]
    assert (said["shown"], said["writes"], said["errors"]) == (True, False, [])
