"""The command line as a user meets it: exit status, streams, no tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli.main import invoke
from weft.hub.box import box_folder
from weft.models.weights.random_weights import random_folder

BERT = {
    "model_type": "bert", "vocab_size": 30, "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 16,
    "type_vocab_size": 2,
}  # fmt: skip


def weft(
    *args: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs the command in a process of its own, `env` added to its environment."""
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", *args]
    more = {**os.environ, **(env or {})}
    return subprocess.run(command, input=stdin, capture_output=True, timeout=240, env=more)


def failed(result: subprocess.CompletedProcess[bytes], status: int = 1) -> str:
    """stderr of a failure: the right status, one or two lines, no traceback, nothing on stdout."""
    error = result.stderr.decode()
    assert result.returncode == status, error
    assert "Traceback" not in error and result.stdout == b""
    return error


def test_help_lists_the_commands_and_an_example() -> None:
    result = weft("--help")
    text = result.stdout.decode()
    assert result.returncode == 0 and "Example:" in text
    for name in ("devices", "run", "chat", "eval", "embed", "check", "explain", "bench"):
        assert name in text


@pytest.mark.parametrize(
    "command", ["devices", "run", "chat", "eval", "embed", "check", "explain", "tune"]
)
def test_each_command_has_help_with_an_example(command: str) -> None:
    result = weft(command, "--help")
    assert result.returncode == 0 and b"Example:" in result.stdout


@pytest.mark.parametrize(
    "args", [("nosuch",), ("run",), ("run", "x", "y", "--top-p", "7"), ("-z",)]
)
def test_wrong_usage_is_status_2(args: tuple[str, ...]) -> None:
    failed(weft(*args), 2)


def test_devices_lists_the_cpu_and_says_why_others_are_missing() -> None:
    found = json.loads(weft("devices", "--json").stdout)["devices"]
    by_kind = {d["kind"]: d for d in found}
    assert by_kind["cpu"]["available"]
    assert {"vulkan", "metal", "dx12", "webgpu", "cuda", "hip"} <= set(by_kind)
    for device in found:
        assert device["available"] or len(device["reason"]) > 10


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    error = failed(weft("run", str(tmp_path / "nothing"), "hello"))
    assert "nothing" in error and len(error.strip().splitlines()) <= 2


def test_an_empty_folder_is_one_line(tmp_path: Path) -> None:
    error = failed(weft("run", str(tmp_path), "hello"))
    assert "config.json" in error and len(error.strip().splitlines()) <= 2


def test_an_unknown_device_is_one_line(tmp_path: Path) -> None:
    error = failed(weft("check", "--device", "abacus"), 2)
    assert "abacus" in error and len(error.strip().splitlines()) <= 2


def test_a_prompt_that_is_not_utf8() -> None:
    error = failed(weft("run", ".", "-", stdin=b"\xff\xfe\x00"))
    assert "UTF-8" in error


def test_embedding_nothing_is_wrong_usage() -> None:
    failed(weft("embed", "."), 2)


def test_a_prompt_that_looks_like_a_folder_or_a_file_is_said_to_be_taken_as_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(prompt: str) -> str:
        assert invoke(["run", prompt, "--device", "cpu", "--max-new-tokens", "1"]) == 0
        return capfd.readouterr().err

    assert "no such folder mine/modell" in run("mine/modell")
    file = tmp_path / "prompt.txt"
    file.write_text("x")
    for prompt in (str(file), f"@{file}"):
        assert f"- < {file}" in run(prompt)
    quiet = run("a = b/c")
    assert "no such" not in quiet and "is a file" not in quiet


def test_a_prompt_may_be_longer_than_the_name_of_a_file() -> None:
    result = weft("run", "def f(x): " * 40, "--device", "cpu", "--max-new-tokens", "1")
    assert result.returncode == 0, result.stderr.decode()


def test_commands_say_which_command_a_model_is_for(tmp_path: Path) -> None:
    random_folder(tmp_path, BERT)
    assert "weft embed" in failed(weft("run", str(tmp_path), "x", "--device", "cpu"), 2)
    assert "weft embed" in failed(weft("chat", str(tmp_path), "--device", "cpu"), 2)
    box = str(box_folder())
    assert "weft run" in failed(weft("embed", box, "x", "--device", "cpu"), 2)
    assert "weft run" in failed(weft("chat", box, "--device", "cpu"), 2)


def test_run_without_anything_asks_for_a_prompt() -> None:
    assert "give a PROMPT" in failed(weft("run"), 2)
