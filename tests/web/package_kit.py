"""What the tests of the npm package share: an application that installed it, README.md's lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from page_device import PLAYER
from page_kit import MODULES, Browser, need

from weft.web.server import server

README = (PLAYER / "README.md").read_text()
PROMPT, TOKENS = "def fibonacci(n):", 16  # as README.md's lines have them
# An error of the page ends the wait for its title.
CHECKED = """
const failed = new Promise((_, no) => page.once("pageerror", no));
await page.goto(given);
await Promise.race([failed, page.waitForFunction(() => document.title === "done")]);
return await page.evaluate(() => document.querySelector("#out").textContent);
"""


def run(command: list[str], at: Path, **env: str) -> str:
    given = {**os.environ, "NODE_PATH": str(MODULES), **env}
    out = subprocess.run(command, cwd=at, env=given, capture_output=True, text=True, timeout=240)
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


def tool(name: str, *args: str, at: Path) -> str:
    """Runs a program of npm's packages."""
    return run([str(MODULES / ".bin" / name), *args], at)


def packed(folder: Path) -> Path:
    """The tarball that `npm pack` makes of the player, in `folder`."""
    need()
    made = run(["npm", "pack", "--silent", "--pack-destination", str(folder), str(PLAYER)], folder)
    return folder / made.split()[-1]


def app(folder: Path) -> Path:
    """Makes `folder` an application that has installed the packed player."""
    (folder / "node_modules").mkdir()
    run(["tar", "-xzf", str(packed(folder)), "-C", "node_modules"], at=folder)
    (folder / "node_modules" / "package").rename(folder / "node_modules" / "weft-ml")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def recipe(name: str) -> str:
    """The file that README.md shows under this name, which its first line says."""
    blocks = re.findall(r"```\w+\n(?:// |<!-- )(\S+)(?: -->)?\n(.*?)```", README, re.DOTALL)
    return dict(blocks)[name]


def script() -> str:
    """The lines of the page that README.md shows, without the page."""
    (lines,) = re.findall(r'<script type="module">\n(.*?)</script>', recipe("index.html"), re.S)
    return lines


def imported(folder: Path, entries: Set[str]) -> set[str]:
    """The modules that `entries` import or start, and those of these."""
    found, ahead = set[str](), sorted(entries)
    while ahead:
        name = ahead.pop()
        if name in found:
            continue
        found.add(name)
        code = re.sub(r"/\*.*?\*/", "", (folder / name).read_text(), flags=re.DOTALL)
        ahead += re.findall(r'(?:from |import |import\(|new URL\()"\./(\w+\.js)"', code)
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on localhost, with the headers for threads."""
    serving = server(folder)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_address[1]}/"
    finally:
        serving.shutdown()
        serving.server_close()


def written(browser: Browser, address: str) -> str:
    """The text that a page of README.md writes."""
    return str(browser.run(address, CHECKED, address))


def copied(folder: Path, to: Path) -> None:
    """Puts a model's folder where a bundler takes files as they are."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
