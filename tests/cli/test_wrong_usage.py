"""Wrong usage ends with status 2, whichever command, option or variable it is in; a device that
this machine lacks ends with 1."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import pytest

from weft.cli.main import invoke
from weft.core.errors import DeviceError, UnknownDeviceError, UsageError
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 2048,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
DEVICES = (
    "nosuch", "cpu:x", "vulkan:x", "cpu:7", "cuda:zz", "npu0", "interp:nosuch", "gpu:x", "emulated",
)  # fmt: skip
TAKE_A_DEVICE = (
    "run M x", "eval M --text t.txt", "explain M", "compile M -o o.weft", "check",
    "bench ops --only softmax", "bench model M", "bench train --steps 1", "bench nets --only x",
    "bench drafts M", "tune", "quantize M -o q", "train c.toml", "chat M",
    "serve M --port 0", "embed M x",
)  # fmt: skip
TAKE_NUMBERS = {
    "--dtype": ("run M x", "explain M", "compile M -o o.weft", "bench model M", "tune M",
                "serve M --port 0", "bench train --steps 1"),
    "--quant": ("run M x", "explain M", "compile M -o o.weft", "export web M -o p"),
    "--cache": ("run M x", "explain M", "compile M -o o.weft", "chat M"),
    "--act-dtype": ("run M x", "explain M", "compile M -o o.weft", "export web M -o p"),
}  # fmt: skip
OTHERS = (
    "quantize M -o q --scheme nosuch", "quantize M -o q --method nosuch", "nosuch",
    "check --device cpu --level nosuch", "explain M --show nosuch", "explain M --step nosuch",
    "compile M -o o.weft --device sm_999", "tune --kinds nosuch", "bench nets --peers nosuch",
    "run M x --nosuch", "bench ops --sizes x", "export web M -o p --train nosuch",
    "serve M --tool-parser nosuch", "new-backend A-B", "pull nosuch", "bench ops --only nosuch",
)  # fmt: skip
CASES = [
    *(f"{c} --device nosuch" for c in TAKE_A_DEVICE),
    *(f"run M x --device {d}" for d in DEVICES),
    *(f"{c} {option} nosuch" for option, commands in TAKE_NUMBERS.items() for c in commands),
    *OTHERS,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = random_folder(tmp_path_factory.mktemp("model") / "llama", LLAMA)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(box_folder() / name, made)
    return made


def status(line: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of a command in a folder with a text and a config of training."""
    monkeypatch.chdir(model.parent)
    Path("t.txt").write_text("hello world " * 200)
    Path("c.toml").write_text('[data]\npaths = ["t.txt"]\n[train]\nsteps = 1\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    return invoke([str(model) if word == "M" else word for word in line.split()])


@pytest.mark.parametrize("line", CASES)
def test_wrong_usage_is_2(
    line: str, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status(line, model, monkeypatch) == 2
    out, err = capfd.readouterr()
    assert not out and err and "Traceback" not in err


@pytest.mark.parametrize("device", DEVICES)
def test_so_it_is_in_the_environment(
    device: str, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_DEVICE", device)
    assert status("run M x", model, monkeypatch) == 2
    assert f"WEFT_DEVICE={device}" in capfd.readouterr().err


def test_a_device_that_is_not_here_is_1(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status("run M x --device dx12:0", model, monkeypatch) == 1
    assert "not available" in capfd.readouterr().err


def test_what_python_sees() -> None:
    """Both kinds; and no fallback hides a name that is misspelt."""
    import weft

    assert issubclass(UnknownDeviceError, DeviceError) and issubclass(
        UnknownDeviceError, UsageError
    )
    with pytest.raises(UnknownDeviceError, match='unknown device "vulcan"'):
        weft.load(box_folder(), device="vulcan", fallback="cpu")
