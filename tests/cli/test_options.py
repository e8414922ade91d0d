"""Options of commands mean what the library's arguments mean: ranges, adapters, devices."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click
import pytest
from adapter_kit import adapter

import weft
from weft.cli.chat import chat
from weft.cli.launch import launch
from weft.cli.main import invoke
from weft.cli.run import run
from weft.core.errors import UsageError
from weft.engine.sampler import Sampling
from weft.hub.box import box_folder

NAMES = ("temperature", "top_k", "top_p", "repetition_penalty")
TRIED = (-1, -1e-9, 0, 1e-9, 0.5, 1, 1.0000001, 2, 1e9, math.inf, math.nan)


def taken(command: click.Command, name: str, value: float) -> bool:
    option = next(p for p in command.params if p.name == name)
    try:
        option.type.convert(repr(value), option, None)
    except click.BadParameter:
        return False
    return True


@pytest.mark.parametrize("command", [run, chat], ids=["run", "chat"])
@pytest.mark.parametrize("name", NAMES)
def test_ranges_in_help_are_those_that_work(command: click.Command, name: str) -> None:
    """No value is refused later that the option takes, but for what is not finite."""
    for value in TRIED:
        try:
            Sampling(**{name: int(value) if name == "top_k" else value})
            works = True
        except (UsageError, OverflowError, ValueError):
            works = False
        given = taken(command, name, int(value) if works and name == "top_k" else value)
        assert given == works or not math.isfinite(value) or name == "top_k", f"{name} {value}"


def test_help_shows_both_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--help"]) == 0
    assert "0<x<=1" in "".join(capsys.readouterr().out.split())


def test_launch_names_all_that_it_takes() -> None:
    assert launch.help is not None and launch.epilog is not None
    for word in ("train", "run", "serve"):
        assert word in launch.help and "weft launch -n" in launch.epilog


# -- adapters --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("adapters") / "loud"
    return adapter(home, box_folder(), ["q_proj", "v_proj"], 4, 1)


@pytest.mark.parametrize("name", ["", "mine="])
def test_run_takes_an_adapter(added: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "box", "def f(", "--max-new-tokens", "8", "--device", "cpu", "--json"]
    assert invoke([*line, "--adapter", f"{name}{added}"]) == 0
    ids = json.loads(capsys.readouterr().out)["ids"]
    assert invoke(line) == 0
    assert json.loads(capsys.readouterr().out)["ids"] != ids
    model = weft.load(box_folder(), device="cpu", adapters={"a": added})
    expected = model.generate("def f(", 8, adapter="a")  # type: ignore[union-attr]
    assert list(expected.ids) == ids


def test_wrong_adapters(added: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "box", "x", "--device", "cpu"]
    assert invoke([*line, "--adapter", str(added), "--adapter", f"b={added}"]) == 2
    assert "one adapter" in capsys.readouterr().err
    for wrong in ("=x", "a=", ""):
        assert invoke([*line, "--adapter", wrong]) == 2
        assert "[NAME=]PATH" in capsys.readouterr().err


# -- devices ---------------------------------------------------------------------------------------


def test_the_variable_counts_where_a_command_names_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_DEVICE", "nosuch")
    text = tmp_path / "t.txt"
    text.write_text("words " * 100)
    out = str(tmp_path / "o")
    lines = ["explain box", f"compile box -o {out}", "check --level device", "tune",
             f"quantize box -o {out}", "bench ops --only softmax", "bench train --steps 1",
             f"eval box --text {text}"]  # fmt: skip
    for line in lines:
        assert invoke(line.split()) == 2
        assert "WEFT_DEVICE=nosuch" in capsys.readouterr().err
