"""Runs whose disk fills up, fails or forgets, and runs that are killed at their end."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk_kit import INTERRUPT, disk
from rows import few
from train_kit import text_file, tiny

from weft.cli.main import invoke
from weft.core.errors import FileFormatError, ModelError, StorageError, UsageError, WeftError
from weft.host.files import write_bytes
from weft.importers.safetensors import SafetensorsFile
from weft.training import checkpoints, loop
from weft.training.report import Log

FAILURES = {
    "full": errno.ENOSPC, "quota": errno.EDQUOT, "failing": errno.EIO, "killed": 0,
    "interrupted": INTERRUPT,
}  # fmt: skip


@pytest.fixture(scope="module")
def half(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after two of four steps."""
    run = tmp_path_factory.mktemp("half") / "run"
    loop.train(tiny(text, run), until=2)
    return run


@pytest.fixture(scope="module")
def whole(text: Path, half: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, to its end."""
    run = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(half, run)
    loop.train(tiny(text, run), resume=True)
    return run


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    """A copy of `half`, to be spoilt."""
    return Path(shutil.copytree(half, tmp_path / "run"))


def weights(folder: Path) -> dict[str, Any]:
    return {k: v.tolist() for k, v in SafetensorsFile(folder / "model.safetensors").items()}


def leftovers(run: Path) -> list[str]:
    """Hidden names, and visible folders that are not whole."""
    found = [p.name for p in run.rglob("*") if p.name.startswith(".")]
    return found + [p.name for p in run.glob("step-*") if not (p / "trainer.json").exists()]


@pytest.fixture
def ending(text: Path, tmp_path: Path, half: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(folder -> None): what a run does after its last step, in a copy of `half`."""
    monkeypatch.setattr(loop, "draw_curve", lambda log, path, name: write_bytes(path, b"PNG"))
    run = tmp_path / "first"
    shutil.copytree(half, run)
    settings = tiny(text, run, output={"keep": 1})
    data, config, raw = loop.prepare_data(settings, run)
    made = loop._Run(settings, run, data, config, raw)
    made.log = Log(run / "log.jsonl", 4)
    made._save(4)  # warms what is compiled or imported on first use

    def end(folder: Path) -> None:
        made.run = folder
        with loop.closing(Log(folder / "log.jsonl", 4)) as made.log:
            made._save(4)
            made._finish(4)

    return end


@pytest.mark.parametrize("apart", few([5, 1], 5))
@pytest.mark.parametrize("what", FAILURES)
def test_a_run_cut_off_at_any_call_of_its_end_is_whole(
    text: Path, half: Path, tmp_path: Path, ending: Any, what: str, apart: int
) -> None:
    """There is always a checkpoint that passes every check, and the next start leaves no rest;
    sampled, a resumed run ends as one that nothing happened to. By default each failure hits every
    fifth call, another one the call after it."""
    clean = tmp_path / "clean"
    shutil.copytree(half, clean)
    with disk(clean) as counted:
        ending(clean)
    calls, want = len(counted.calls), weights(clean / "model")
    assert calls > 50 and leftovers(clean) == []
    places = range(1 + [*FAILURES].index(what) % apart, calls + 1, apart)
    for at in places:
        run = tmp_path / f"cut-{at}"
        shutil.copytree(half, run)
        with disk(run, at, FAILURES[what]):
            try:
                ending(run)
            except StorageError as error:
                assert error.errno == FAILURES[what] and ".weft-" not in str(error)
            except KeyboardInterrupt:
                assert what == "interrupted"
        visible = [p.name for p in run.glob("step-*")]
        assert visible and all((run / name / "trainer.json").exists() for name in visible), at
        state = checkpoints.read_state(checkpoints.latest(run))
        assert state.step in (2, 4)
        if (run / "model").exists():
            assert weights(run / "model") == want
        if at in places[::20]:
            assert loop.train(tiny(text, run, output={"keep": 1}), resume=True).step == 4
            assert (run / "model").exists() and leftovers(run) == []
        shutil.rmtree(run)


@pytest.mark.parametrize("at", few([2, 3, 12, 25, 40, 60], 2, 25, 60))
def test_a_full_disk_while_text_is_prepared(
    text: Path, tmp_path: Path, at: int, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with disk(run, at, errno.ENOSPC), pytest.raises(StorageError) as error:
        loop.train(tiny(text, run))
    lines = str(error.value).splitlines()
    assert len(lines) == 2 and "the disk is full" in lines[0] and "start again" in lines[1]
    assert loop.train(tiny(text, run)).step == 4
    assert leftovers(run) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("kib", few([16, 48, 80, 128, 176], 80))
def test_a_small_disk(text: Path, tmp_path: Path, kib: int, capfd: Any) -> None:
    """A real file system that fills up somewhere, and then has room again."""
    small, config = tmp_path / "small", tmp_path / "config.toml"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        config.write_text(f"""
            [model]\nhidden = 16\nlayers = 1\nheads = 2
            [data]\npaths = ["{text}"]
            [tokenizer]\nvocab = 300
            [train]\nsteps = 4\nbatch = 2\ncontext = 16\ndevice = "cpu"
            [output]\nfolder = "{small}/run"\neval_every = 0\nsample_every = 0
            checkpoint_every = 1
        """)
        status = invoke(["train", str(config)])
        err = capfd.readouterr().err
        assert status == 1 and "Traceback" not in err
        said = err.splitlines()[-2:]
        assert said[0].startswith(f"weft: {small}/run") and "the disk is full" in said[0], err
        assert "whole" in said[1] or "no checkpoint" in said[1], err
        mount[4] = "remount,size=8m"
        subprocess.run(mount, check=True)
        more = ["--resume"] if "--resume" in said[1] else []
        assert invoke(["train", str(config), *more]) == 0
        assert leftovers(small / "run") == [] and (small / "run" / "model").exists()
    finally:
        gc.collect()  # a run that failed may still map its files
        subprocess.run(["umount", str(small)], check=True)


# -- runs that are finished, and what is left of killed ones ---------------------------------------


def test_resuming_a_finished_run_changes_nothing(text: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    before = {p: p.stat().st_ino for p in (run / "model").iterdir()}
    result = loop.train(tiny(text, run), resume=True)
    assert result.step == 4 and not result.losses and result.folder == run / "model"
    assert {p: p.stat().st_ino for p in (run / "model").iterdir()} == before
    shutil.rmtree(run / "model")
    loop.train(tiny(text, run), resume=True)
    assert weights(run / "model") == weights(whole / "model")
    loop.train(tiny(text, run, output={"dtype": "bfloat16"}), resume=True)
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"


def test_what_a_killed_run_left_is_removed(text: Path, half: Path, run: Path) -> None:
    for name in (".step-000003.0a1b2c3d.weft-new", "data/.train.npy.0a1b2c3d.weft-new"):
        (run / name).mkdir()
        (run / name / "model.safetensors").write_text("half")
    (run / ".log.jsonl.0a1b2c3d.weft-new").write_text("half")
    (run / ".mine").write_text("stays")
    loop.train(tiny(text, run), resume=True)
    assert leftovers(run) == [".mine"]


def test_two_runs_do_not_share_a_folder(text: Path, run: Path) -> None:
    from weft.host.files import owned

    refused = pytest.raises(UsageError, match="another process is writing there")
    with owned(run), refused:
        loop.train(tiny(text, run), resume=True)


# -- damage that only shows when one looks ---------------------------------------------------------


@pytest.mark.parametrize(
    "name", few(["train.npy", "eval.npy", "tokenizer.json"], "train.npy", "tokenizer.json")
)
def test_a_flipped_bit_in_the_data_is_seen(
    text: Path, run: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = run / "data" / name
    for bit in (3, path.stat().st_size * 4, path.stat().st_size * 8 - 2):
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match=rf"{name} is not what was written.*again"):
            loop.train(tiny(text, run), resume=True)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
    with path.open("ab") as f:
        f.write(b"\0")
    with pytest.raises(FileFormatError, match="not what was written"):
        loop.train(tiny(text, run), resume=True)
    shutil.rmtree(run / "data")  # what the message says: the same text gives it again
    assert loop.train(tiny(text, run), resume=True).step == 4
    other = tmp_path / "other"
    shutil.copytree(run / "data", other / "data")
    path = other / "data" / name
    path.write_bytes(path.read_bytes()[:-1])
    loop.train(tiny(text, other))  # no checkpoint depends on it: made anew
    assert "making it anew" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "config.json"])
def test_a_flipped_bit_in_a_checkpoint_is_seen(text: Path, run: Path, name: str) -> None:
    path = run / "step-000002" / name
    data = bytearray(path.read_bytes())
    for at in (len(data) // 2, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        with pytest.raises(FileFormatError, match=rf"{name} is not what was written.*remove"):
            loop.train(tiny(text, run), resume=True)
    path.unlink()
    with pytest.raises(FileFormatError, match=rf"{name}: No such file.*remove"):
        loop.train(tiny(text, run), resume=True)


def test_other_text_than_a_checkpoint_saw_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "data")
    state = json.loads((run / "step-000002" / "trainer.json").read_text())
    other = text_file(tmp_path, "another text altogether\n" * 300)
    state["settings"]["data"]["paths"] = [str(other)]
    (run / "step-000002" / "trainer.json").write_text(json.dumps(state))
    with pytest.raises(UsageError, match=r"is not what .* was trained on"):
        loop.train(tiny(other, run), resume=True)


BAD: dict[str, list[Any]] = {
    "step": [True, False, -5, 2.0, float("nan"), float("inf"), 10**18, 1 << 80, "2", None, [2], 3],
    "device": [None, 3, "", True, ["cpu"]],
    "data": [None, 3, "", {}],
    "settings": [None, [], {"train": 3}, {"train": {"steps": True}}, {"train": {"lr": 1}},
                 {"unknown": {}}, {"train": {"steps": 1}}],
    "sha256": [None, {}, {"optimizer.safetensors": 3}, {"../x": "y"}],
    "format": [None, True, 1, "2", 2.5],
}  # fmt: skip


@pytest.mark.parametrize("field", BAD)
def test_each_field_of_a_state_is_checked(text: Path, run: Path, field: str) -> None:
    path = run / "step-000002" / "trainer.json"
    good = json.loads(path.read_text())
    broken = [{**good, field: value} for value in BAD[field]]
    broken += [{k: v for k, v in good.items() if k != field}, {**good, f"{field}2": 1}]
    for state in broken:
        path.write_text(json.dumps(state))
        with pytest.raises(WeftError) as error:
            loop.train(tiny(text, run), resume=True)
        assert "trainer.json: " in str(error.value) and "remove" in str(error.value)
        assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 500
    path.write_text(json.dumps(good))
    assert loop.train(tiny(text, run), resume=True).step == 4


def test_a_state_that_is_no_json(text: Path, run: Path) -> None:
    path = run / "step-000002" / "trainer.json"
    for content in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"step": ' + b"9" * 9999 + b"}"):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"trainer\.json"):
            loop.train(tiny(text, run), resume=True)


def test_an_adapter_resumes_on_its_own_base_only(text: Path, whole: Path, tmp_path: Path) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(whole / "model", base)
    settings = tiny(text, run, model={"from": str(base)}, lora={"rank": 2})
    loop.train(settings, until=2)
    data = bytearray((base / "model.safetensors").read_bytes())
    data[-1] ^= 64
    (base / "model.safetensors").write_bytes(data)
    with pytest.raises((UsageError, ModelError), match=r"does not hold the weights|not finite"):
        loop.train(settings, resume=True)


def test_a_log_that_is_no_log_is_named(text: Path, run: Path) -> None:
    for content in (b"\x00\xff\n{}\n", b'5\n{"step": 1}\n', b'{"loss": 1}\n{"step": 1}\n'):
        (run / "log.jsonl").write_bytes(content)
        with pytest.raises(FileFormatError, match=r"log\.jsonl: line 1.*remove or repair the file"):
            loop.train(tiny(text, run), resume=True)
    (run / "log.jsonl").write_bytes(b'{"step": 1, "loss": 2.5}\n{"step": 2, "lo\x00\x00')
    assert loop.train(tiny(text, run), resume=True).step == 4
    assert np.isfinite(loop.read_log(run / "log.jsonl")[-1]["loss"])
