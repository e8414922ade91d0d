"""The page of a model that answers questions about pictures: tokens are Python's, in Node and in
browsers."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_kit import Browser, Site, export_light
from PIL import Image
from rows import few

import weft
from weft.web.export import sizes

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from picture_zoo import picture, write_pictured

SIDES = {"llava": 28, "gemma3": 42, "smolvlm": 28, "internvl": 28}
SCRIPT = """
const [base, folder, given] = process.argv.slice(1);
const { load } = await import(base + "/node.js");
const model = await load(folder);
const [one, two] = JSON.parse(given).map((rgba) => Uint8ClampedArray.from(rgba));
const all = async (pieces) => {
  const ids = [];
  for await (const piece of pieces) ids.push(...piece.ids);
  return ids;
};
const show = (image) => ({ type: "image", image });
const tell = (text) => ({ type: "text", text });
const first = [{ role: "user", content: [show(one), tell("What is this? ".repeat(9))] }];
const rest = [{ role: "assistant", content: [tell("A cat.")] },
  { role: "user", content: [show(two), tell("And this?")] }];
const how = { maxNewTokens: 12 };
const part = model.part;
const [steps, rows] = [[], []];
const logits = part.logits.bind(part);
part.logits = async (...given) => {
  const found = await logits(...given);
  rows.push([...found]);
  return found;
};
const step = part.step.bind(part);
part.step = (kind, ids, ...more) => (steps.push([kind, ids.length]), step(kind, ids, ...more));
const asked = await all(model.chat(first, how));
const askedRow = rows.splice(0)[0];
const later = await all(model.chat([...first, ...rest], how));
steps.length = 0;
const again = await all(model.chat([...first, ...rest], { maxNewTokens: 1 }));
const fed = [...steps];
rows.length = 0;
const same = [{ role: "user", content: [show(two), first[0].content[1]] }];
const other = await all(model.chat(same, how));
const otherRow = rows[0];
const plain = await all(model.generate("Describe it:", { images: [one], ...how }));
const wrong = async (options) => {
  try {
    await all(model.generate("x", options));
    return "";
  } catch (error) {
    return error.message;
  }
};
console.log(JSON.stringify({ asked, later, again, fed, other, plain, askedRow, otherRow, wrong: [
  await wrong({ images: [one.subarray(4)] }), await wrong({ images: [3] }),
  await all(model.generate(PLACE, { images: [one] })).catch((error) => error.message)] }));
""".replace("PLACE", "model.manifest.model.picture.given.repeat(2)")


def export(name: str, folder: Path) -> Any:
    write_pictured(name, folder / "model")
    steps = folder / "model" / "preprocessor_config.json"
    said = json.loads(steps.read_text())
    if "do_image_splitting" in said:
        steps.write_text(
            json.dumps({**said, "do_image_splitting": False, "size": {"longest_edge": 28}})
        )
    if "max_patches" in said:
        steps.write_text(json.dumps({**said, "max_patches": 1}))
    model: Any = weft.load(folder / "model", device="cpu", context=512)
    export_light(model, folder / "page")
    return model


def shown(seed: int, side: int) -> tuple[np.ndarray, list[int]]:
    """A picture of the model's own size, which nothing resizes, and its pixels in the player."""
    made = picture(seed, side, side)
    rgba = np.concatenate([made, np.full((side, side, 1), 255, np.uint8)], -1)
    return made, rgba.reshape(-1).tolist()


@pytest.mark.skipif(shutil.which("node") is None, reason="node was not found")
@pytest.mark.parametrize("name", few(SIDES))
def test_answers_about_pictures_are_pythons(name: str, tmp_path: Path) -> None:
    model = export(name, tmp_path)
    manifest = json.loads((tmp_path / "page" / "manifest.json").read_text())
    parts = {what: packed for what, _, packed in sizes(tmp_path / "page", manifest)}
    assert parts["player"] + parts["page"] + parts["Program, WebGPU"] < 70_000
    (one, first), (two, second) = (shown(k, SIDES[name]) for k in (1, 2))
    page = tmp_path / "page"
    given = [page.as_uri(), str(page), json.dumps([first, second])]
    call = ["node", "--input-type=module", "-e", SCRIPT, *given]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    rows: list[np.ndarray] = []

    def kept(ids: Any, row: np.ndarray) -> np.ndarray:
        rows.append(row.copy())
        return row

    def chat(*turns: Any) -> list[int]:
        return list(model.generate(messages=list(turns), max_new_tokens=12, logits=kept).ids)

    ask = {"type": "text", "text": "What is this? " * 9}
    begin = {"role": "user", "content": [{"type": "image", "image": one}, ask]}
    other = {"role": "user", "content": [{"type": "image", "image": two}, ask]}
    rest = [
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        {"role": "user", "content": [{"type": "image", "image": two},
                                     {"type": "text", "text": "And this?"}]},
    ]  # fmt: skip
    assert found["asked"] == chat(begin)
    np.testing.assert_allclose(found["askedRow"], rows[0], atol=1e-4)
    assert found["later"] == chat(begin, *rest) and found["again"] == found["later"][:1]
    assert found["fed"] == [["decode", 1]]  # the whole prompt is in the cache, with its pictures
    rows.clear()
    assert found["other"] == chat(other)
    np.testing.assert_allclose(found["otherRow"], rows[0], atol=1e-4)
    assert np.abs(np.subtract(found["otherRow"], found["askedRow"])).max() > 1e-2
    eyes = model.need_eyes()
    prompt = eyes.prompt(eyes.led("Describe it:", [one]), [one], model.tokenizer, True)
    assert found["plain"] == list(model.generate(prompt, max_new_tokens=12).ids)
    for message, part in zip(
        found["wrong"], ("expected RGBA of", "a list of", "give one"), strict=True
    ):
        assert part in message, (message, part)


PAGE = """
await page.goto(given.url);
await it.ready();
await page.setInputFiles("#ask-file", given.odd);
await page.waitForFunction(() => document.querySelector("#ask-note").textContent);
const odd = await page.textContent("#ask-note");
await page.setInputFiles("#ask-file", given.picture);
await page.waitForSelector("#ask[data-state=shown]");
await page.fill("#ask-question", given.question);
await page.$eval("#tokens", (e) => { e.value = 12; });
await page.click("#ask-send");
await page.waitForSelector("#ask[data-state=answered]");
if (given.shot) await page.screenshot({ path: given.shot, fullPage: true });
return { odd, answer: await page.textContent("#ask-answer"),
  note: await page.textContent("#ask-note"), chats: await page.isVisible("#tab-chat"),
  errors: it.errors, violations: await page.evaluate(() => noted.violations) };
"""


SHOWN = [("smolvlm", "wasm"), *(pytest.param(name, target, marks=pytest.mark.slow)
         for name, target in itertools.product(SIDES, ("wasm", "webgpu"))
         if (name, target) != ("smolvlm", "wasm"))]  # fmt: skip


@pytest.mark.parametrize(("name", "target"), SHOWN)
def test_the_page_answers(name: str, target: str, tmp_path: Path, browser: Browser) -> None:
    model = export(name, tmp_path)
    path, text = tmp_path / "one.png", tmp_path / "text.png"
    Image.fromarray(picture(1, SIDES[name], SIDES[name])).save(path)
    text.write_text("a letter")
    site = Site(tmp_path / "page")
    try:
        given = {"url": f"{site.url}?target={target}", "picture": str(path), "odd": str(text),
                 "question": "What?"}  # fmt: skip
        found = browser.run(target, PAGE, given)
    finally:
        site.close()
    ask = [{"type": "image", "image": str(path)}, {"type": "text", "text": "What?"}]
    wanted = model.generate(messages=[{"role": "user", "content": ask}], max_new_tokens=12)
    assert found["answer"] == wanted.text and "First token" in found["note"]
    assert wanted.text or name == "gemma3"  # whose random weights choose special tokens alone
    assert "cannot read text.png as a picture" in found["odd"] and found["chats"]
    assert (found["errors"], found["violations"]) == ([], [])
