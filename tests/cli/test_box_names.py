"""`box` and `box-chat` wherever a model is named, and paths that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.cli.main import invoke
from weft.core.errors import HubError
from weft.hub import fetch
from weft.hub.box import FILES, NAMES, box_folder
from weft.hub.resolve import resolve


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_model_that_comes_with_weft(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(name) == box_folder(name) == Path(weft.__file__).parent / name
    assert all((box_folder(name) / file).exists() for file in FILES)
    assert not capsys.readouterr().err
    (tmp_path / name).mkdir()
    assert resolve(name) == box_folder(name)
    assert f"what lies here is ./{name}" in capsys.readouterr().err
    for here in (f"./{name}", Path(name), str(tmp_path / name)):
        assert resolve(here).absolute() == tmp_path / name
    assert str(resolve(f"./{name}")) not in NAMES  # names may be resolved twice
    assert resolve(str(resolve(f"./{name}"))) == tmp_path / name


def test_the_names_are_in_the_package_s_data() -> None:
    import tomllib

    project = Path(weft.__file__).parent.parent / "pyproject.toml"
    data = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]["weft"]
    assert {f"{name}/*" for name in NAMES} <= set(data)


def test_weft_load_and_the_commands_take_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box").mkdir()
    assert weft.load("box", device=None).config.vocab == 2048
    capsys.readouterr()
    assert invoke(["run", "box", "def", "--device", "cpu", "--max-new-tokens", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "length"
    assert invoke(["run", "./box", "def", "--device", "cpu"]) == 1
    assert f"{tmp_path / 'box'}" in capsys.readouterr().err
    assert invoke(["explain", "box", "--device", "cpu"]) == 0
    assert "decode" in capsys.readouterr().out
    assert invoke(["run", "box"]) == 2
    assert "box is a model; give it a PROMPT" in capsys.readouterr().err


def test_a_path_that_is_not_there_is_said_before_a_hub_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    said: list[str] = []

    def ask(name: Any) -> Any:
        said.append(capsys.readouterr().err)
        raise HubError(f"{name}: not asked in a test")

    monkeypatch.setattr(fetch, "look_up", ask)
    with pytest.raises(HubError, match="not asked in a test"):
        resolve("weft/box")
    assert said == [
        "weft: there is no file or folder weft/box here: looking for weft/box on the hub\n"
    ]


def test_box_chat_is_what_chat_and_serve_take_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    from weft.cli import serve as serve_cli

    class Lines(io.TextIOWrapper):
        def isatty(self) -> bool:
            return False

    asked = Lines(io.BytesIO(b"what does os.path.join do?\n\n"))
    monkeypatch.setattr("sys.stdin", asked)
    assert invoke(["chat", "--device", "cpu", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[0])
    assert answer["text"].startswith("os.path.join(a, *p): Join two or more pathname components")
    assert answer["finish_reason"] == "eos"
    served: dict[str, str] = {}

    async def serve(paths: dict[str, str], *rest: Any) -> int:
        served.update(paths)
        return 0

    monkeypatch.setattr(serve_cli, "_serve", serve)
    assert invoke(["serve", "--device", "cpu"]) == 0
    assert served == {"box-chat": str(box_folder("box-chat"))}
    served.clear()
    assert invoke(["serve", "box", "code=box", "--device", "cpu"]) == 0
    assert set(served) == {"box", "code"} and set(served.values()) == {str(box_folder())}
