"""The player as npm packs it: what the tarball holds, its types, and README.md's lines in Node and
in two browsers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from package_kit import PROMPT, README, TOKENS, app, imported, recipe, run, served, tool, written
from page_device import PLAYER
from page_kit import Browser, Firefox, Pages, need
from rows import few

HERE = Path(__file__).parent
MODULE = "./node_modules/weft-ml/weft.js"
WORKER = """
import { load } from "MODULE";
const write = async (folder) => {
  const model = await load(folder, { target: "wasm" });
  let out = "";
  const pieces = model.generate("def fibonacci(n):", { maxNewTokens: 16 });
  for await (const { text } of pieces) out += text;
  return out;
};
const said = (port) => write(new URL("model/", location.origin)).catch(String)
  .then((text) => port.postMessage(text));
if (globalThis.ServiceWorkerGlobalScope) {
  self.onmessage = (event) => event.waitUntil(said(event.source));
} else said(self);
""".replace("MODULE", MODULE)
ASK = """
await page.goto(given);
return await page.evaluate(async () => {
  const worker = new Worker("./own.js", { type: "module" });
  const own = await new Promise((done) => (worker.onmessage = ({ data }) => done(data)));
  await navigator.serviceWorker.register("./own.js", { type: "module" });
  const heard = new Promise((done) => {
    navigator.serviceWorker.onmessage = ({ data }) => done(data);
  });
  (await navigator.serviceWorker.ready).active.postMessage(0);
  return [own, await heard];
});
"""
CONSUMERS: dict[str, dict[str, Any]] = {
    "node16": {"strict": True, "target": "es2022", "module": "node16", "types": []},
    "nodenext": {"strict": True, "target": "es2022", "module": "nodenext"},
    "an old target": {"strict": True, "target": "es5", "lib": ["es5"], "types": []},
    "as strict as can be": {
        "strict": True, "target": "es2022", "module": "esnext", "moduleResolution": "bundler",
        "exactOptionalPropertyTypes": True, "noUncheckedIndexedAccess": True,
        "verbatimModuleSyntax": True, "types": [],
    },
}  # fmt: skip


PLACES = """
import { load } from "weft-ml";
const place = new URL("./public/model", import.meta.url);
for (const folder of [place, place.href, undefined, 3]) {
  const model = await load(folder).catch((error) => error);
  console.log(model.manifest?.name ?? model.message);
  model.close?.();
}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return app(tmp_path_factory.mktemp("app"))


def test_it_holds_what_it_imports_and_no_more(installed: Path) -> None:
    """package.json's `files` leaves out the page's own modules by name."""
    package = installed / "node_modules" / "weft-ml"
    exports = (package / "package.json").read_text().partition('"exports"')[2].partition("files")[0]
    entries = re.findall(r'"\./([\w/]+\.(?:d\.ts|js))"', exports)
    modules = imported(package, {name for name in entries if name.endswith(".js")})
    found = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}
    others = {"LICENSE", "NOTICE", "README.md", "package.json"}
    assert found == modules | others | {name for name in entries if name.endswith(".d.ts")}
    version = json.loads((package / "package.json").read_text())["version"]
    assert f"./weft-ml-{version}.tgz" in README


@pytest.mark.parametrize("consumer", few(["tsc --init", *CONSUMERS], "tsc --init"))
def test_types(consumer: str, installed: Path, tmp_path: Path) -> None:
    """Nothing but the package is needed to compile against it."""
    need("typescript")
    (tmp_path / "node_modules").symlink_to(installed / "node_modules")
    shutil.copy(HERE / "consumer.ts", tmp_path)
    public = (PLAYER / "types" / "weft.d.ts").read_text()
    names = set(re.findall(r"^(?:export function|  (?=\w+\()) ?(\w+)", public, re.M))
    used = (HERE / "consumer.ts").read_text()
    assert len(names) > 15 and all(f"{name}(" in used for name in names - {"constructor"})
    (tmp_path / "package.json").write_text('{"type": "module"}')
    if consumer in CONSUMERS:
        config = {"compilerOptions": CONSUMERS[consumer], "include": ["consumer.ts"]}
        (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    else:
        tool("tsc", "--init", at=tmp_path)
    tool("tsc", "-p", ".", "--noEmit", "--skipLibCheck", "false", at=tmp_path)


KNOWN = """
import { load, ranked, type Message, type PageModel, type Part, type Progress } from "weft-ml";
import { pipeline } from "weft-ml/pipeline";
declare const token: string, notes: string[], signal: AbortSignal, out: HTMLElement;
declare const select: HTMLSelectElement, samples: Float32Array, rgba: Uint8ClampedArray;
declare const show: (done: number) => void, progress: (progress: Progress) => void;
export {};
"""
OURS = {"model": "PageModel", "messages": "Message[]", "text": "string"}  # if the lines make none


def test_the_lines_of_the_pages(installed: Path, tmp_path: Path) -> None:
    """Names, options and results are those of the declarations."""
    need("typescript")
    (tmp_path / "node_modules").symlink_to(installed / "node_modules")
    docs = HERE.parents[1] / "docs"
    pages = [
        README,
        *((docs / f"{name}.md").read_text() for name in ("browser", "speech", "pictures")),
    ]
    found = [lines for page in pages for lines in re.findall(r"```js\n(.*?)```", page, re.DOTALL)]
    for n, lines in enumerate(found):
        body = re.sub(r"^import .*\n", "", lines.replace("…", ";"), flags=re.M)
        for name, kind in (
            ("messages", "Message[]"),
            ("ask", "Part[]"),
        ):  # literals are texts alone
            body = body.replace(f"const {name} = [", f"const {name}: {kind} = [")
        ours = [f"declare const {name}: {kind};\n" for name, kind in OURS.items()
                if not re.search(rf"^(?:const|let) {name}\b", body, re.M)]  # fmt: skip
        (tmp_path / f"lines{n}.ts").write_text(KNOWN + "".join(ours) + body)
    assert len(found) > 10
    options = {"target": "es2022", "module": "esnext", "moduleResolution": "bundler", "types": []}
    config = {"compilerOptions": {**options, "lib": ["es2023", "dom"]}, "include": ["*.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    tool("tsc", "-p", ".", "--noEmit", at=tmp_path)


def test_node_writes_the_text_of_the_cpu(installed: Path, pages: Pages) -> None:
    page = pages()
    (installed / "public").mkdir()
    (installed / "public" / "model").symlink_to(page.folder)
    (installed / "main.js").write_text(recipe("main.js"))
    said = run(["node", "main.js"], at=installed)
    assert said == page.model.generate(PROMPT, max_new_tokens=TOKENS).text + "\n"
    (installed / "places.js").write_text(PLACES)
    assert run(["node", "places.js"], at=installed).splitlines() == [
        *[page.manifest["name"]] * 2,
        *[
            f"the folder of load is {odd}; expected a path or an address"
            for odd in ("undefined", "3")
        ],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Browser, Firefox])
def test_a_plain_page_writes_the_text_of_the_cpu(
    kind: type[Browser], pages: Pages, tmp_path: Path
) -> None:
    page, site, browser = pages(), app(tmp_path), kind()
    (site / "model").symlink_to(page.folder)
    (site / "index.html").write_text(recipe("index.html"))
    try:
        with served(site) as address:
            said = written(browser, address)
    finally:
        browser.close()
    assert said == page.model.generate(PROMPT, max_new_tokens=TOKENS).text


@pytest.mark.slow
def test_workers(browser: Browser, pages: Pages, tmp_path: Path) -> None:
    """A worker of one's own loads a model; a service worker is told that it cannot."""
    page, site = pages(), app(tmp_path)
    (site / "model").symlink_to(page.folder)
    (site / "index.html").write_text("<!doctype html>")
    (site / "own.js").write_text(WORKER)
    with served(site) as address:
        own, service = browser.run("workers", ASK, address)
    assert own == page.model.generate(PROMPT, max_new_tokens=TOKENS).text
    assert service.startswith("WeftError: there are no workers here, as in a service worker")
