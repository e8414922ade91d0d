"""Several models on one page: the player's files once, and a choice for the visitor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_kit import LLAMA, Browser, Site, bare, light

import weft
from weft.cli.main import invoke
from weft.core.errors import UsageError
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder
from weft.web.several import export_several

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, list[Any]]]:
    """A page of one model that writes and one that talks, and the models."""
    root, models = tmp_path_factory.mktemp("several"), []
    for seed, name in enumerate(("writes", "talks")):
        folder = root / name
        folder.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(box_folder() / file, folder)
        if name == "talks":
            (folder / "chat_template.jinja").write_text(TEMPLATE)
        model = random_folder(folder, LLAMA, seed=seed)
        models.append(weft.load(model, device="cpu", max_batch=1, context=256))
    with bare():
        export_several(models, root / "site")
    with light():
        made = export_several(models, root / "site")  # a page takes the place of another
    assert list(made) == ["writes", "talks"] and made["talks"]["chat"] is True
    site = Site(root / "site")
    yield site, models
    site.close()


def test_the_player_is_there_once(several: tuple[Site, list[Any]]) -> None:
    folder = several[0].folder
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"index.html", "worker.js", "chat.js"} <= names
    assert not {n for n in names if "/" in n and n.endswith((".js", ".html"))}
    kept = (folder / "sw.js").read_text()
    assert "talks/manifest.json=" in kept and "talks/weights" not in kept
    assert "talks/tokenizer.json" not in kept  # it comes with the model
    assert json.loads((folder / "manifest.json").read_text())["models"] == ["writes", "talks"]


WRITTEN = """
await page.goto(given.url + given.query);
await page.waitForFunction(() => document.body.dataset.state === "ready", null, given.wait);
const [label, terms] = await page.evaluate(() =>
  [document.querySelector("#model").value, document.querySelector("#terms").textContent]);
const ids = await page.evaluate(async ({ folder }) => {
  const { load } = await import("./weft.js");
  const model = await load(folder, { target: "wasm" });
  const ids = [];
  for await (const piece of model.generate("def f(x):", { maxNewTokens: 8 })) {
    ids.push(...piece.ids);
  }
  model.close();
  return ids;
}, { folder: `./${label}/` });
const chats = await page.evaluate(() => !document.querySelector("#tab-chat").hidden);
return { label, terms, ids, chats };
"""
TALKED = """
await page.locator("#model").selectOption("talks");
await page.waitForFunction(() => location.search.includes("model=talks")
  && document.body.dataset.state === "ready");
await page.locator("#say").fill("hi");
await page.locator("#say").press("Enter");
await page.waitForFunction(() => Object.keys(localStorage).some((key) => key.includes("chat")));
return await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("chat")));
"""


def test_a_visitor_chooses(browser: Browser, several: tuple[Site, list[Any]]) -> None:
    """Each model has its own tabs, conversation and answers."""
    site, models = several
    for query, model, chats in [
        ("?target=wasm", models[0], False), ("?target=wasm&model=talks", models[1], True),
        ("?target=wasm&model=no%20such", models[0], False),
    ]:  # fmt: skip
        found = browser.run("chooses", WRITTEN, {"url": site.url, "query": query})
        name = model.folder.name
        assert found["label"] == name and found["terms"].startswith(f"Model: {name}")
        assert found["ids"] == list(model.generate("def f(x):", max_new_tokens=8).ids)
        assert found["chats"] is chats
    assert site.files["worker.js"] > 0
    keys = browser.run("chooses", TALKED, {"url": site.url})
    assert keys == ["weft-chat /talks/"]


def test_what_is_refused(several: tuple[Site, list[Any]], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two models are called writes"):
        export_several([several[1][0], several[1][0]], tmp_path / "site")
    said = invoke(["export", "web", "a", "b", "-o", str(tmp_path / "site"), "--train", "lora"])
    assert said != 0
