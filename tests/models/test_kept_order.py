"""Packed weights of a GGUF file that are kept in a device's order, and what happens to their files.

One process makes and keeps them, here by `keep`; the next maps them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from kept_kit import rewrite
from memory_kit import LLAMA, gguf_of
from rows import few

import weft
from weft.cli.main import invoke
from weft.core.errors import ModelError
from weft.importers.gguf import open_gguf
from weft.importers.gguf_blocks import BY_NAME
from weft.importers.packed.gguf import FORMS
from weft.models.run.model import Decoder
from weft.models.weights import content, gguf as read_, kept_order, kept_tensors
from weft.models.weights.kept_tensors import PACKED
from weft.models.weights.random_weights import random_folder

SMALL = {
    **LLAMA, "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 320,
}  # fmt: skip
IDS = [1, 2, 3, 4, 5]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept_tensors, "default_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(kept_order, "LEAST", 0)
    monkeypatch.setattr(content, "_SETTLED", 0)  # files are as old as they need to be


@pytest.fixture
def path(tmp_path: Path) -> Path:
    random_folder(tmp_path / "small", SMALL)
    return gguf_of(tmp_path / "small", tmp_path / "small.gguf", "Q4_K")


def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tensors that are taken apart from now on."""
    real, found = read_.packed_of, []

    def counted(kind: object, data: np.ndarray, shape: tuple[int, ...]) -> object:
        found.append(str(kind))
        return real(kind, data, shape)  # type: ignore[arg-type]

    monkeypatch.setattr(read_, "packed_of", counted)
    return found


def answer(path: Path) -> np.ndarray:
    """The logits of a model that was just loaded; what it keeps is on the disk."""
    model = weft.load(path, device="cpu", context=32)
    found = model.logits(IDS)
    for thread in threading.enumerate():
        if thread.name == "weft-keep":
            thread.join()
    return found


def files() -> list[Path]:
    assert PACKED.shelf is not None
    return [entry.path for entry in PACKED.shelf.entries()]


@pytest.mark.parametrize("kind", few([*FORMS], "Q4_K", "Q8_0", "Q5_1"))
def test_kept_weights_give_the_same_bits(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any(BY_NAME[kind].layout[name].kind == "f" for name in BY_NAME[kind].layout.names or ()):
        pytest.skip("the kit writes no scales of this type")
    random_folder(tmp_path / "small", SMALL)
    path, taken = gguf_of(tmp_path / "small", tmp_path / "m.gguf", kind), made(monkeypatch)
    first = answer(path)
    assert taken and len(files()) == 1
    taken.clear()
    assert answer(path).tobytes() == first.tobytes() and not taken
    model = weft.load(path, device="cpu", context=32)
    assert isinstance(model, Decoder)
    model.logits(IDS)
    assert files()[0].resolve() in [file.path.resolve() for file in model.weights.files]
    files()[0].unlink()
    assert answer(path).tobytes() == first.tobytes() and taken


def test_floats_in_another_order_than_their_file_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_folder(tmp_path / "small", SMALL)
    path, turned = gguf_of(tmp_path / "small", tmp_path / "m.gguf", "F16"), []
    real = read_.halves
    monkeypatch.setattr(read_, "halves", lambda *a: turned.append(a) or real(*a))
    first = answer(path)
    assert turned and len(files()) == 1
    turned.clear()
    assert answer(path).tobytes() == first.tobytes() and not turned
    assert weft.load(path, device="oracle", context=32).logits(IDS).shape == first.shape and turned


def test_a_tensor_is_taken_apart_when_it_is_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = made(monkeypatch)
    model = weft.load(path, device="cpu", context=32)
    assert not taken and "bits per weight" in model.precision
    model.logits(IDS)
    assert len(taken) == sum(t.kind.name == "Q4_K" for t in open_gguf(path).tensors.values())


@pytest.mark.parametrize("harm", ["flip", "cut", "zero", "mode", "hard link", "link", "garbage"])
def test_a_harmed_file_is_made_again(
    path: Path, harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answer(path)
    kept, taken = files()[0], made(monkeypatch)
    if harm == "flip":
        rewrite(kept, lambda d: d.__setitem__(-9, d[-9] ^ 1))
    elif harm == "cut":
        kept.write_bytes(kept.read_bytes()[:-64])
    elif harm == "zero":
        rewrite(kept, lambda d: d.__setitem__(slice(-64, None), bytes(64)))
    elif harm == "mode":
        kept.chmod(0o666)
    elif harm == "hard link":
        os.link(kept, tmp_path / "twice")
    elif harm == "link":
        kept.rename(tmp_path / "aside")
        kept.symlink_to(tmp_path / "aside")
    else:
        kept.write_bytes(b"not tensors")
    assert answer(path).tobytes() == first.tobytes() and taken
    taken.clear()
    assert answer(path).tobytes() == first.tobytes() and not taken  # a whole file replaced it


def test_another_file_of_the_same_size_and_times(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(path, (0, 0))
    first, taken = answer(path), made(monkeypatch)
    time.sleep(0.02)  # the clock of the file system moves on
    with path.open("r+b") as file:
        file.seek(open_gguf(path).tensors["output.weight"].start + 20)
        file.write(bytes(64))
    os.utime(path, (0, 0))
    second = answer(path)
    assert taken and second.tobytes() != first.tobytes()


def test_a_file_that_changes_meanwhile_is_not_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kept_tensors._digest

    def slow(value: np.ndarray) -> str:
        os.utime(path)
        return real(value)

    monkeypatch.setattr(kept_tensors, "_digest", slow)
    answer(path)
    assert not files()


def test_a_file_just_written_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_SETTLED", 3600 * 10**9)
    answer(path)
    assert not files()


@pytest.mark.parametrize("trouble", ["full", "read-only", "foreign", "off", "small", "large"])
def test_nothing_is_kept_where_that_cannot_be(
    path: Path, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = answer(path)
    files()[0].unlink()
    folder = tmp_path / "cache"
    if trouble == "full":
        none = type("Usage", (), {"free": 0})
        monkeypatch.setattr("weft.host.files.shutil.disk_usage", lambda at: none)
    elif trouble == "read-only":
        (folder / "quantised").rmdir()
        (folder / "quantised").write_bytes(b"")  # root may write to any folder
    elif trouble == "foreign":
        (folder / "quantised").chmod(0o777)
    elif trouble == "off":
        monkeypatch.setattr(kept_tensors, "default_directory", lambda: None)
    else:
        name, size = ("LEAST", 1 << 40) if trouble == "small" else ("MOST", 100)
        monkeypatch.setattr(kept_order, name, size)
    assert answer(path).tobytes() == wanted.tobytes()
    if trouble in ("full", "small", "large"):
        assert not files() and not list(folder.rglob("*weft-new"))


def test_an_interrupted_writer_leaves_nothing_that_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kept_tensors._digest

    def stops(value: np.ndarray) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_tensors, "_digest", stops)
    first = answer(path)
    assert not files() and PACKED.shelf and not list(PACKED.shelf.folder.glob(".*weft-new"))
    monkeypatch.setattr(kept_tensors, "_digest", real)
    assert answer(path).tobytes() == first.tobytes() and len(files()) == 1


def test_several_writers_at_once(path: Path) -> None:
    models = [weft.load(path, device="cpu", context=32) for _ in range(3)]
    found = [model.logits(IDS) for model in models]
    for thread in threading.enumerate():
        if thread.name == "weft-keep":
            thread.join()
    assert len(files()) == 1 and len({x.tobytes() for x in found}) == 1
    assert answer(path).tobytes() == found[0].tobytes()


ENDS = """
import sys, weft
from weft.models.weights import content, kept_order
kept_order.LEAST = content._SETTLED = 0
print(weft.load(sys.argv[1], device="cpu", context=32).generate([1, 2], max_new_tokens=1).ids)
"""


def test_a_process_that_ends_has_kept_them(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-c", ENDS, path], check=True, capture_output=True)
    taken = made(monkeypatch)
    answer(path)
    assert len(files()) == 1 and not taken


def test_list_and_rm_know_them(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))  # looking through all kernels is slow
    answer(path)
    assert invoke(["list", "--json"]) == 0
    (mine,) = json.loads(capsys.readouterr().out)["kept"]["quantised"]
    assert mine["source"] == str(path.resolve()) and mine["scheme"].startswith("lanes")
    assert mine["bytes"] == files()[0].stat().st_size
    assert invoke(["list", "--prune"]) == 0 and len(files()) == 1
    assert mine["name"] in capsys.readouterr().out
    assert invoke(["rm", mine["name"], "--yes"]) == 0 and not files() and path.exists()


@pytest.mark.parametrize("change", ["gone", "other"])
def test_prune_removes_those_of_a_file_that_is_gone_or_changed(path: Path, change: str) -> None:
    answer(path)
    if change == "gone":
        path.unlink()
    else:
        time.sleep(0.02)
        os.utime(path)
    assert PACKED.prune() and not files()


def test_a_damaged_scale_is_an_error_of_load(path: Path) -> None:
    tensor = next(t for t in open_gguf(path).tensors.values() if t.kind.name == "Q4_K")
    weft.load(path, device="cpu")
    time.sleep(0.02)
    with path.open("r+b") as file:
        file.seek(tensor.start)
        file.write(np.array(np.nan, np.float16).tobytes())
    for device in ("cpu", "oracle"):
        with pytest.raises(ModelError, match="NaN or infinite"):
            weft.load(path, device=device)
