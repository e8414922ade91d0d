"""examples/page: built by its one command, it writes in Chromium what the CPU writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from page_kit import Browser, Site

import weft
from weft.hub.box import box_folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "page"
RUN = """
await page.goto(`${given}index.html`);
await page.waitForSelector("#go:enabled");
await page.click("#go");
await page.waitForFunction(() => document.getElementById("says").textContent.includes("tokens in"));
return await page.inputValue("#text");
"""


@pytest.mark.skipif(os.name != "posix", reason="the command is a shell script")
def test_the_example(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "examples" / "page"
    shutil.copytree(EXAMPLE, page, ignore=shutil.ignore_patterns("site"))
    (tmp_path / "weft").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m weft "$@"\n')
    (tmp_path / "weft").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    build = ["sh", str(page / "build.sh")]
    subprocess.run(build, check=True, capture_output=True, env={**os.environ, "PATH": path})
    prompt = "def mean(values):"
    site = Site(page / "site")
    written = browser.run("example", RUN, site.url)
    site.close()
    model = weft.load(box_folder(), device="cpu")
    assert written == prompt + model.generate(prompt, max_new_tokens=60).text
