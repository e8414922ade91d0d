"""README.md's recipes for bundlers, with the packed player: each is built, and its page writes the
text of the CPU."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from package_kit import (
    PROMPT,
    README,
    TOKENS,
    app,
    copied,
    recipe,
    run,
    script,
    served,
    tool,
    written,
)
from page_kit import MODULES, Browser, Pages, need

pytestmark = pytest.mark.slow
PAGE = '<!doctype html><pre id="out"></pre><script type="module" src="./app.js"></script>\n'
PORT = re.compile(r"http://(?:localhost|127\.0\.0\.1):\d+/?")


@pytest.fixture
def project(tmp_path: Path, pages: Pages) -> Path:
    """An application with the lines of README.md's page, and a model in `public`."""
    folder = app(tmp_path)
    (folder / "app.js").write_text(script())
    (folder / "index.html").write_text(PAGE)
    copied(pages().folder, folder / "public" / "model")
    return folder


@pytest.fixture
def expected(pages: Pages) -> str:
    return str(pages().model.generate(PROMPT, max_new_tokens=TOKENS).text)


@contextmanager
def running(command: list[str], at: Path) -> Iterator[str]:
    """The address that a server prints, while it runs."""
    env = {**os.environ, "NO_COLOR": "1", "NEXT_TELEMETRY_DISABLED": "1"}
    env.pop("FORCE_COLOR", None)
    process = subprocess.Popen(
        command, cwd=at, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout
        found = next(filter(None, map(PORT.search, process.stdout)), None)
        assert found, f"{command} names no address"
        yield found[0]
    finally:
        process.kill()
        process.wait()


def test_webpack(project: Path, browser: Browser, expected: str) -> None:
    need("webpack")
    (project / "webpack.config.js").write_text(recipe("webpack.config.js"))
    build = """
    import webpack from "webpack";
    import config from "./webpack.config.js";
    webpack({ ...config, context: process.cwd() }, (error, stats) => {
      if (error || stats.hasErrors()) { console.error(error ?? stats.toString()); process.exit(1); }
    });
    """
    (project / "build.mjs").write_text(build)
    link("webpack", project)
    run(["node", "build.mjs"], at=project)
    finished(project)
    with served(project / "dist") as address:
        assert written(browser, address) == expected


def test_esbuild(project: Path, browser: Browser, expected: str) -> None:
    need("esbuild")
    (lines,) = re.findall(r"```sh\n(esbuild.*?)```", README, re.DOTALL)
    link("esbuild", project)
    path = f"{project / 'node_modules/.bin'}{os.pathsep}{os.environ['PATH']}"
    run(["sh", "-ec", lines], at=project, PATH=path)
    finished(project)
    with served(project / "dist") as address:
        assert written(browser, address) == expected


@pytest.mark.parametrize("command", ["preview", "dev"])
def test_vite(command: str, project: Path, browser: Browser, expected: str) -> None:
    """Built, and as the development server has it."""
    need("vite")
    (project / "vite.config.js").write_text(recipe("vite.config.js"))
    if command == "preview":
        tool("vite", "build", "--logLevel=error", at=project)
    vite = str(project / "node_modules/.bin/vite")
    link("vite", project)
    with running([vite, command, "--port", "0"], at=project) as address:
        assert written(browser, address) == expected
        assert browser.run(address, "return await page.evaluate(() => crossOriginIsolated)")


def test_next(project: Path, browser: Browser, expected: str) -> None:
    """With the versions that npm has."""
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefer-offline"]
    tarball = next(project.glob("weft-ml-*.tgz"))
    try:
        run([*install, "next", "react", "react-dom", f"./{tarball.name}"], at=project)
    except AssertionError as error:
        pytest.skip(f"npm could not install Next.js: {str(error)[:200]}")
    (project / "app").mkdir()
    for name in ("app/page.jsx", "next.config.mjs"):
        (project / name).write_text(recipe(name))
    layout = "export default ({ children }) => <html><body>{children}</body></html>;\n"
    (project / "app" / "layout.jsx").write_text(layout)
    run(["npx", "next", "build"], at=project, NEXT_TELEMETRY_DISABLED="1")
    with running(["node", "node_modules/next/dist/bin/next", "start", "-p", "0"], project) as at:
        assert written(browser, at) == expected
        assert browser.run(at, "return await page.evaluate(() => crossOriginIsolated)")


def link(package: str, project: Path) -> None:
    """Makes one of npm's packages, installed by scripts/setup, one of the project's."""
    (project / "node_modules" / package).symlink_to(MODULES / package)
    (project / "node_modules" / ".bin").mkdir(exist_ok=True)
    if (MODULES / ".bin" / package).exists():
        (project / "node_modules" / ".bin" / package).symlink_to(MODULES / ".bin" / package)


def finished(project: Path) -> None:
    """Puts the page and the model beside the script that was built."""
    (project / "dist" / "index.html").write_text(PAGE)
    copied(project / "public", project / "dist")
