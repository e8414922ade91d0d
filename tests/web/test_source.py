"""The player's source: types, lint, and the page's copy of it without comments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from package_kit import run, tool
from page_device import PLAYER
from page_kit import MODULES, need

from weft.web.folder import DEVELOPING, bare

HERE = Path(__file__).parent
CHECK = "tsc -p jsconfig.json"  # what `npm run types` does


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the player beside npm's packages."""
    (tmp_path / "node_modules").symlink_to(MODULES)
    return Path(shutil.copytree(PLAYER, tmp_path / "js"))


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
