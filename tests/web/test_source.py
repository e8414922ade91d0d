"""The player's source: types, lint; and the package that bundlers and npm make of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from page_device import PLAYER
from page_kit import MODULES, Browser, Pages, Site, need
from rows import few

from weft.web.folder import DEVELOPING, bare

HERE = Path(__file__).parent
CHECK = "tsc -p jsconfig.json"  # what `npm run types` does


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the player beside npm's packages."""
    (tmp_path / "node_modules").symlink_to(MODULES)
    return Path(shutil.copytree(PLAYER, tmp_path / "js"))


def tool(name: str, *args: str, at: Path) -> str:
    return run([str(MODULES / ".bin" / name), *args], at)


def run(command: list[str], at: Path) -> str:
    env = {**os.environ, "NODE_PATH": str(MODULES)}
    out = subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=240)
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


def test_types(source: Path) -> None:
    """With what a caller may write (declared.ts): the declarations are those of the source."""
    need("typescript", "@webgpu/types", "@types/node")
    assert json.loads((PLAYER / "package.json").read_text())["scripts"]["types"] == CHECK
    shutil.copy(HERE / "declared.ts", source)
    config = {"extends": "./jsconfig.json", "include": ["*.js", "declared.ts"]}
    (source / "declared.json").write_text(json.dumps(config))
    tool("tsc", "-p", "declared.json", at=source)


def test_lint(source: Path) -> None:
    need("eslint")
    run(["npm", "run", "lint"], source)


TREES = """
import { readdirSync, readFileSync } from "node:fs";
import { parse } from "acorn";
const [source, bare] = process.argv.slice(1);
const plain = (key, value) => key === "start" || key === "end" ? undefined
  : typeof value === "bigint" ? String(value) : value;
const tree = (file) => JSON.stringify(parse(readFileSync(file, "utf8"),
  { ecmaVersion: "latest", sourceType: "module" }), plain);
console.log(JSON.stringify(readdirSync(bare).filter((name) =>
  tree(`${source}/${name}`) !== tree(`${bare}/${name}`))));
"""


def test_a_page_has_the_same_code_without_comments(source: Path) -> None:
    need("acorn")
    plain = source.parent / "bare"
    plain.mkdir()
    files = [p for p in source.glob("*.js") if p.name not in DEVELOPING]
    for file in files:
        (plain / file.name).write_bytes(bare(file.read_bytes()))
        assert "/**" not in (plain / file.name).read_text()
    found = run(["node", "--input-type=module", "-e", TREES, str(source), str(plain)], source)
    assert json.loads(found) == [] and len(files) > 40


# -- as a package ---------------------------------------------------------------------------------

USE = """
import { load } from "weft-ml";
const model = await load("./folder/", { target: "wasm" });
globalThis.ids = [];
for await (const piece of model.generate("def fibonacci(n):", { maxNewTokens: 16 })) {
  globalThis.ids.push(...piece.ids);
}
document.title = "done";
"""
BUILDS = {
    "esbuild": [
        "app.js",
        "node_modules/weft-ml/worker.js",
        "--entry-names=[name]",
        "--bundle",
        "--format=esm",
        "--outdir=dist",
        "--target=es2022",
    ],
    "vite": ["build", "--logLevel=error", "--base=./"],
    "webpack": [],
}
WEBPACK = """
const path = require("path");
const { webpack } = require("webpack");
const output = { path: path.resolve("dist"), filename: "app.js", module: true, publicPath: "./" };
webpack({ mode: "production", entry: "./app.js", output, experiments: { outputModule: true } },
  (error, stats) => {
    if (error || stats.hasErrors()) { console.error(error ?? stats.toString()); process.exit(1); }
  });
"""


@pytest.fixture
def app(source: Path, tmp_path: Path) -> Path:
    """An application that has installed the package that npm packs."""
    need("typescript", "esbuild", "vite", "webpack")
    node_modules = tmp_path / "app" / "node_modules"
    node_modules.mkdir(parents=True)
    packed = run(["npm", "pack", "--silent", "--pack-destination", str(tmp_path)], at=source)
    run(["tar", "-xzf", str(tmp_path / packed.split()[-1]), "-C", str(node_modules)], at=tmp_path)
    (node_modules / "package").rename(node_modules / "weft-ml")
    (tmp_path / "app" / "app.js").write_text(USE)
    (tmp_path / "app" / "package.json").write_text('{"type": "module"}')
    return tmp_path / "app"


CONSUMERS: dict[str, dict[str, Any]] = {
    "tsc's defaults": {},
    "Node": {"strict": True, "target": "es2022", "module": "nodenext"},
    "an old target": {"strict": True, "target": "es5", "lib": ["es5"], "types": []},
    "as strict as can be": {
        "strict": True, "target": "es2022", "module": "esnext", "moduleResolution": "bundler",
        "exactOptionalPropertyTypes": True, "noUncheckedIndexedAccess": True,
        "verbatimModuleSyntax": True, "types": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("consumer", few(CONSUMERS, "Node"))
def test_types_of_the_package(consumer: str, source: Path, tmp_path: Path) -> None:
    """The folder is what npm installs from a clone; nothing but itself is needed to compile."""
    need("typescript")
    (tmp_path / "app" / "node_modules").mkdir(parents=True)
    shutil.copytree(source, tmp_path / "app" / "node_modules" / "weft-ml")
    shutil.copy(HERE / "consumer.ts", tmp_path / "app")
    (tmp_path / "app" / "package.json").write_text('{"type": "module"}')
    about = {"noEmit": True, "skipLibCheck": False, **CONSUMERS[consumer]}
    config = {"compilerOptions": about, "include": ["consumer.ts"]}
    (tmp_path / "app" / "tsconfig.json").write_text(json.dumps(config))
    tool("tsc", "-p", ".", at=tmp_path / "app")


@pytest.mark.slow
@pytest.mark.parametrize("bundler", BUILDS)
def test_bundles_run(bundler: str, app: Path, pages: Pages, browser: Browser) -> None:
    (app / "index.html").write_text('<script type="module" src="./app.js"></script>')
    if bundler == "webpack":
        (app / "build.cjs").write_text(WEBPACK)
        run(["node", "build.cjs"], at=app)
    else:
        tool(bundler, *BUILDS[bundler], at=app)
    dist = app / "dist"
    if bundler != "vite":
        shutil.copy(app / "index.html", dist)
    shutil.copytree(pages(tiles=True).folder, dist / "folder")
    site = Site(dist)
    try:
        go = "await page.goto(given); await page.waitForFunction(() => document.title === 'done');"
        browser.run(bundler, go, site.url)
        ids = browser.run(bundler, "return await page.evaluate(() => ids);")
    finally:
        site.close()
    assert ids == list(pages(tiles=True).model.generate("def fibonacci(n):", max_new_tokens=16).ids)
