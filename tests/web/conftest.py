"""Folders that `weft export web` writes, once for all tests here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from page_kit import LLAMA, Browser, Page, Pages, Site, light
from training_kit import write_small

import weft
from weft.hub.box import box_folder
from weft.models.run.base import Model
from weft.models.weights.random_weights import random_folder
from weft.web.export import export_web


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """Makes pages of the tiny llama (`source="box"`: of the model in the box), as asked for: light
    ones, except with `tiles`."""
    root = tmp_path_factory.mktemp("pages")

    @cache
    def tiny() -> Path:
        folder = root / "tiny"
        folder.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(box_folder() / name, folder)
        return random_folder(folder, LLAMA, seed=3)

    @cache
    def made(source: str, tiles: bool, options: tuple[tuple[str, Any], ...]) -> Page:
        path = tiny() if source == "tiny" else box_folder()
        model: Model = weft.load(path, device="cpu", max_batch=1, **dict(options))
        words = [source, "tiles" if tiles else "light", *(str(value) for _, value in options)]
        folder = root / "-".join(words)
        with nullcontext() if tiles else light():
            return Page(folder, model, export_web(model, folder))

    def page(source: str = "tiny", tiles: bool = False, **options: Any) -> Page:
        return made(source, tiles, tuple(options.items()))

    return page


@pytest.fixture(scope="session")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a page that trains, and its model."""
    return write_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    driven = Browser()
    yield driven
    driven.close()


@pytest.fixture(scope="module")
def browser(chromium: Browser) -> Iterator[Browser]:
    """One Chromium for the whole run; a module's visitors go when it ends."""
    yield chromium
    chromium.leave()


@pytest.fixture(scope="module")
def site(pages: Pages) -> Iterator[Site]:
    served = Site(pages().folder)
    yield served
    served.close()
