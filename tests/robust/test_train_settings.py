"""Every setting of `weft train` with values that a stranger may write: right, or refused by its
name before any text is read."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from train_kit import tiny

from weft.cli.main import invoke
from weft.core.errors import DeviceError, LimitError, UsageError, WeftError
from weft.training import loop, prepare
from weft.training.settings import TrainingSettings, read_settings, settings_from

HOSTILE: list[Any] = [
    0, -1, 1, True, False, 2.5, -0.0, 1e-320, 1e300, math.nan, math.inf, -math.inf, 1 << 31,
    1 << 64, 10**400, "", " ", "x", "\0", "nosuch", "a\nb", [], [1], [""], ["\0"], ["x", 1], [[]],
    {}, {"a": 1},
]  # fmt: skip
KEYS = [
    (section.name, f.metadata.get("key", f.name))
    for section in dataclasses.fields(TrainingSettings)
    for f in dataclasses.fields(get_type_hints(TrainingSettings)[section.name])
]


@pytest.mark.parametrize("section, key", KEYS, ids=[".".join(k) for k in KEYS])
def test_hostile_values(
    section: str, key: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused in one line that names the setting, or is a setting that text can be read
    with."""

    class Reached(Exception):
        pass

    def reached(*_: Any) -> None:
        raise Reached

    monkeypatch.setattr(prepare, "read_corpus", reached)
    monkeypatch.chdir(tmp_path)
    seen = {"refused": 0, "taken": 0}
    for value in HOSTILE:
        try:
            loop.train(tiny(text, tmp_path / "run", **{section: {key: value}}))
        except Reached:
            seen["taken"] += 1
            assert not (key == "folder" and str(value).strip() == "")
        except WeftError as error:
            seen["refused"] += 1
            line = str(error)
            parts = {key, f"[{section}]", section, "hidden", "context", "device"}
            assert any(p in line for p in parts) and "\n" not in line.replace("a\nb", ""), line
            assert len(line) < 400, line
        assert [p.name for p in tmp_path.iterdir() if p.name != "run"] in ([], ["x"], ["nosuch"]), (
            value
        )
        for p in tmp_path.iterdir():
            assert not list(p.iterdir()) and p.rmdir() is None
    assert seen["refused"] > 5


def test_toml_that_is_hardly_toml(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    for content in (
        b"a = " + b"[" * 100_000,
        b"a = " + b"9" * 10_000,
        b"\xff",
        b"\0",
        b"a = 1e400",
        b"x" * 5_000_000,
        b"[train]\nsteps = " + b"9" * 4000,
        b"a.b" * 10_000 + b" = 1",
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError) as error:
            read_settings(path)
        assert str(path) in str(error.value) and len(str(error.value)) < 500
    for odd in (tmp_path, Path("/dev/null"), Path("/dev/zero"), tmp_path / "none"):
        with pytest.raises(UsageError):
            read_settings(odd)


def test_what_contradicts_itself(tmp_path: Path, text: Path, base: Path) -> None:
    start = {"from": str(base)}
    cases: list[tuple[str, dict[str, Any]]] = [
        (r"\[lora\] targets without \[lora\] rank", {"lora": {"targets": ["q_proj"]}}),
        (r"\[lora\] targets without", {"lora": {"targets": ["q_proj"]}, "model": start}),
        (r"\[lora\] alpha, \[lora\] dropout without",
         {"lora": {"alpha": 8, "dropout": 0.5}, "model": start}),
        (r"no layer is called nosuch",
         {"lora": {"rank": 2, "targets": ["nosuch"]}, "model": start}),
        (r"hidden 16 is not a multiple of heads 3", {"model": {"heads": 3}}),
        (r"hidden 6 / heads 2 is 3; make it even", {"model": {"hidden": 6}}),
        (r"heads 4 is not a multiple of kv_heads 3", {"model": {"heads": 4, "kv_heads": 3}}),
        (r"kv_heads is 1; gpt2", {"model": {"family": "gpt2", "kv_heads": 1}}),
        (r"min_lr 0.1 is above lr 0.01", {"optimizer": {"min_lr": 0.1}}),
        (r"betas is 1.0; expected 0 to below 1", {"optimizer": {"betas": [0.9, 1.0]}}),
        (r"context is 4096; the model has 16", {"train": {"context": 4096}, "model": start}),
        (r"is not a folder", {"tokenizer": {"from": str(text)}}),
        (r"suffixes is empty", {"data": {"suffixes": []}}),
    ]  # fmt: skip
    for message, sections in cases:
        with pytest.raises(UsageError, match=message):
            loop.train(tiny(text, tmp_path / "run", **sections))
        assert not (tmp_path / "run").exists()


def test_the_example_says_nothing_that_contradicts() -> None:
    plain = {"lora": {"rank": 0, "alpha": 16.0, "targets": [], "dropout": 0.0}}
    assert settings_from({"data": {"paths": ["x"]}, **plain}, "c").lora.targets == ()


def test_sizes_that_no_machine_has(tmp_path: Path, text: Path) -> None:
    huge = {"hidden": 16384, "layers": 256, "heads": 64}
    with pytest.raises(LimitError, match=r"parameters, which take more than .* lower \[model\]"):
        loop.train(tiny(text, tmp_path / "run", model=huge))
    with pytest.raises(LimitError, match=r"\[train\] batch 65536 x context 1048576"):
        loop.train(tiny(text, tmp_path / "run", train={"batch": 1 << 16, "context": 1 << 20}))


@pytest.mark.parametrize("device", ["nosuch", "cpu:1", "cpu:x", "gpu:99", "gpu:x", "vulkan:99", ""])
def test_a_wrong_device_is_refused_before_text_is_read(
    device: str, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def reached(*_: Any) -> None:
        raise AssertionError("text was read")

    monkeypatch.setattr(prepare, "read_corpus", reached)
    with pytest.raises((DeviceError, UsageError), match=r"device|GPU|vulkan|gpu"):
        loop.train(tiny(text, tmp_path / "run", train={"device": device}))
    config = tmp_path / "c.toml"
    config.write_text(f'[data]\npaths = ["{text}"]\n[output]\nfolder = "{tmp_path}/run"\n')
    wrong = device in ("", "nosuch", "cpu:1", "cpu:x", "gpu:x")  # and not merely missing here
    assert invoke(["train", str(config), "--device", device]) == (2 if wrong else 1)
    monkeypatch.setenv("WEFT_DEVICE", device or "nosuch")
    with pytest.raises(DeviceError, match="WEFT_DEVICE"):
        loop.train(tiny(text, tmp_path / "run", train={"device": "auto"}))
    assert not (tmp_path / "run").exists()


def test_the_device_of_the_command_line_goes_first(tmp_path: Path, text: Path, capfd: Any) -> None:
    config, run = tmp_path / "c.toml", tmp_path / "run"
    config.write_text(
        f'[model]\nhidden = 16\nlayers = 1\nheads = 2\n[data]\npaths = ["{text}"]\n'
        '[tokenizer]\nvocab = 300\n[train]\nsteps = 2\nbatch = 2\ncontext = 16\ndevice = "nosuch"\n'
        f'[output]\nfolder = "{run}"\neval_every = 0\nsample_every = 0\n'
    )
    assert invoke(["train", str(config), "--device", "cpu", "--until", "1"]) == 0
    assert f"weft train {config} --resume --device cpu" in capfd.readouterr().err
    assert invoke(["train", str(config), "--resume", "--device", "cpu"]) == 0


def test_folders_that_cannot_be_written(tmp_path: Path, text: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        loop.train(tiny(text, tmp_path / "file"))
    with pytest.raises(OSError) as error:
        loop.train(tiny(text, tmp_path / "file" / "run"))
    assert error.value.filename == str(tmp_path / "file" / "run")
    with pytest.raises(OSError):
        loop.train(tiny(text, Path("/proc/nothing")))


def test_settings_that_a_model_makes_void_are_named(
    tmp_path: Path, text: Path, base: Path, capfd: Any
) -> None:
    loop.train(tiny(text, tmp_path / "run", model={"from": str(base)}, train={"steps": 1}))
    err = capfd.readouterr().err
    assert "[model] hidden, [model] layers, [model] heads, [tokenizer] vocab: not used" in err
