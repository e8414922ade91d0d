"""Models whose weights or caches are larger than the memory that is free: weights are read from a
file in the cache, caches are refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from memory_kit import gguf_of
from test_kept_order import IDS, SMALL, files, quick  # noqa: F401  (quick is a fixture)

import weft
from weft.core.errors import OutOfMemoryError
from weft.host import memory
from weft.models.weights import kept_order
from weft.models.weights.random_weights import random_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_folder(tmp_path / "small", HALF)


HALF = {**SMALL, "dtype": "float16"}


def little(monkeypatch: pytest.MonkeyPatch, free: int = 1 << 20) -> None:
    monkeypatch.setattr(memory, "available", lambda: free)


def logits(path: Path, dtype: str | None = None) -> np.ndarray:
    return weft.load(path, device="cpu", context=32, dtype=dtype).logits(IDS)


@pytest.mark.parametrize("kind", ["float16", "float32", "Q4_K"])
def test_weights_larger_than_memory_give_the_same_bits(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = random_folder(folder, {**SMALL, "dtype": kind.replace("Q4_K", "float32")})
    if kind == "Q4_K":
        path = gguf_of(folder, folder.parent / "small.gguf", kind)
    monkeypatch.setattr(kept_order, "LEAST", 1 << 62)
    want = logits(path)
    assert not files()
    monkeypatch.setattr(kept_order, "LEAST", 1)
    little(monkeypatch)
    np.testing.assert_array_equal(logits(path), want)
    said = capsys.readouterr().err
    assert "its weights take" in said and "1,048,576 are free" in said
    assert files()
    wrote: list[object] = []
    monkeypatch.setattr(kept_order.KeptOrder, "write", lambda *a: wrote.append(a))
    np.testing.assert_array_equal(logits(path), want)
    assert not wrote


def test_other_weights_of_the_same_names_are_written_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_order, "LEAST", 1)
    little(monkeypatch)
    first = logits(folder)
    random_folder(folder, HALF, seed=1)
    second = logits(folder)
    assert not np.array_equal(first, second)
    little(monkeypatch, 1 << 40)
    np.testing.assert_array_equal(second, logits(folder))


def test_a_cast_is_made_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file alone determines weights in another dtype."""
    monkeypatch.setattr(kept_order, "LEAST", 1)
    want = logits(folder, "float32")
    little(monkeypatch)
    np.testing.assert_array_equal(logits(folder, "float32"), want)
    assert not files()


def test_without_a_disk_the_weights_are_made_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_order, "LEAST", 1 << 62)  # the first model keeps nothing
    want = logits(folder)
    monkeypatch.setattr(kept_order, "LEAST", 1)

    def full(folder: object, nbytes: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("weft.models.weights.kept_tensors.check_free", full)
    little(monkeypatch)
    np.testing.assert_array_equal(logits(folder), want)
    assert not files()


def test_a_cache_that_memory_lacks_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer's part of it may fit alone: what is only promised would end the process later."""
    monkeypatch.setattr("weft.program.memory.CHECKED", 1)
    model = weft.load(folder, device="cpu", context=256)
    little(monkeypatch, 100_000)
    with pytest.raises(OutOfMemoryError, match="needs 131,072 bytes in addition to its weights"):
        model.logits(IDS)
