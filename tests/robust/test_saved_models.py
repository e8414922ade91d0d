"""Files of compiled models that are damaged or lie: a named error, never a crash."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust_kit import tiny

import weft
from weft.core.caps import PRESETS
from weft.core.errors import FileFormatError, WeftError
from weft.models.run import saved
from weft.program.bundle import HEAD, WEIGHTS


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    model = weft.load(tiny(folder / "model"), device="cpu", max_batch=1)
    saved.save(model, folder / "m.weft", "cpu-avx2", PRESETS["cpu-avx2"], {}, False)
    return folder / "m.weft"


def played(path: Path) -> None:
    """Loads and runs; a WeftError of a line or two may come, nothing else."""
    try:
        model = weft.load(path, device="interp:cpu-avx2")
        model.runner().program("decode", model.device.caps)
        assert model.tokenizer is None or model.tokenizer.size
    except WeftError as error:
        assert len(str(error).splitlines()) <= 2 and len(str(error)) < 1500


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def test_cut_anywhere(good: Path, tmp_path: Path) -> None:
    raw, path = good.read_bytes(), tmp_path / "m.weft"
    for cut in sorted({0, 1, 21, 22, 40, *range(0, len(raw), len(raw) // 40), len(raw) - 1}):
        path.write_bytes(raw[:cut])
        with pytest.raises(WeftError):
            weft.load(path, device="interp:cpu-avx2")


def test_one_byte_changed(good: Path, tmp_path: Path) -> None:
    raw, path = good.read_bytes(), tmp_path / "m.weft"
    rng = np.random.default_rng(0)
    for at in [*rng.integers(0, len(raw), 40), *rng.integers(len(raw) - 800, len(raw), 40)]:
        changed = bytearray(raw)
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        played(path)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(part, (*at, key))
    return found


WRONG = [None, -1, 0, 1 << 70, 1e300, "", "../../etc/passwd", [], {}, True, [[[[[[[[[]]]]]]]]]]


def test_heads_that_lie(good: Path, tmp_path: Path) -> None:
    parts = members(good)
    head = json.loads(parts[HEAD])
    rng = np.random.default_rng(1)
    every = places(head)
    for at in (every[i] for i in rng.permutation(len(every))[:150]):
        lie = json.loads(parts[HEAD])
        *way, last = at
        inside = lie
        for key in way:
            inside = inside[key]
        inside[last] = WRONG[int(rng.integers(len(WRONG)))]
        text = json.dumps(lie).encode()
        played(written(tmp_path / "m.weft", {**parts, HEAD: text}))


def lie(parts: dict[str, bytes], change: Callable[[Any], None]) -> dict[str, bytes]:
    head = json.loads(parts[HEAD])
    change(head)
    return {**parts, HEAD: json.dumps(head).encode()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.update(format=99), "format 99"),
        (lambda h: h.update(kind="poem"), "'poem'"),
        (lambda h: h["config"].update(layers=10**9), "layers"),
        (lambda h: h["config"].update(wings=2), "wings"),
        (lambda h: h["config"].update(hidden="x"), "config.hidden"),
        (lambda h: h["caps"].update(max_threads=0.5), "max_threads"),
        (lambda h: h["weights"].update(bytes=1 << 60), "bytes of weights"),
        (lambda h: h["weights"].update(tensors=None), "damaged"),
        (lambda h: h["caps"].update({"": 1}), "a field ''"),
        (lambda h: h["weights"].update(file="../m.weights"), "not one of their names"),
        (lambda h: h["weights"]["tensors"].update(embed=["float32", [1 << 40], 0]), "beyond"),
        (lambda h: h["weights"]["tensors"].update(embed=["float32", [4], 3]), "at 3"),
    ],
)
def test_a_lie_is_named(good: Path, tmp_path: Path, change: Any, words: str) -> None:
    path = written(tmp_path / "m.weft", lie(members(good), change))
    with pytest.raises(FileFormatError, match=words):
        weft.load(path, device="interp:cpu-avx2")


def test_a_program_of_another_model(good: Path, tmp_path: Path) -> None:
    parts = lie(members(good), lambda h: h["config"].update(head_dim=4))
    model = weft.load(written(tmp_path / "m.weft", parts), device="interp:cpu-avx2")
    with pytest.raises(FileFormatError, match="of another model"):
        model.logits([1, 2])


def test_members_from_elsewhere(good: Path, tmp_path: Path) -> None:
    parts = members(good)
    for name in ("../x", "programs/../x", "files/a/b", "more.txt", "/abs", "files/\n"):
        with pytest.raises(FileFormatError, match="a member named"):
            weft.load(written(tmp_path / "m.weft", {**parts, name: b""}), device="interp:cpu-avx2")
    del parts[WEIGHTS]
    with pytest.raises(FileFormatError):
        weft.load(written(tmp_path / "m.weft", parts), device="interp:cpu-avx2")
