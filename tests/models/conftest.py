"""Tiny models of every family for the whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_zoo import write_model, write_tokenizer

import weft


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Family -> (folder, transformers model), each written once."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(name: str) -> tuple[Path, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = (folder, write_model(name, folder))
        return made[name]

    return get


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama's."""
    made = tmp_path_factory.mktemp("model") / "hf"
    write_model("llama2", made)
    return made


@pytest.fixture(scope="module")
def bytes_tokenizer(folder: Path) -> Any:
    """A byte-level tokenizer, which the folder then has."""
    return write_tokenizer(folder, "bytes")


@pytest.fixture(scope="session")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Type of a causal model -> (folder, transformers' model), each written once."""
    from causal_zoo import written

    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            folder = tmp_path_factory.mktemp("zoo") / kind
            made[kind] = folder, written(kind, folder)
        return made[kind]

    return get


@pytest.fixture
def traced_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type is traced from transformers' code, in the test's own process."""
    from zoo_kit import here

    monkeypatch.setattr("weft.models.zoo.ask._asked", here)
    monkeypatch.setattr("weft.models.run.loader.DECODERS", {})


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for codes compiles quicker, with fewer ranges to choose among."""
    monkeypatch.setattr("weft.quantize.search.STEPS", {4: 3, 5: 2, 6: 1, 8: 1})
    monkeypatch.setattr("weft.quantize.super_blocks.ROUNDS", 1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Any]]:
    """Family, device, options -> (our model, transformers' model), each loaded once."""
    made: dict[Any, tuple[Any, Any]] = {}

    def get(name: str, device: str = "cpu", **options: Any) -> tuple[Any, Any]:
        key = name, device, *options.items()
        if key not in made:
            folder = tmp_path_factory.mktemp(name)
            theirs = write_model(name, folder)
            made[key] = weft.load(folder, device=device, context=96, max_batch=2, **options), theirs
        return made[key]

    return get
