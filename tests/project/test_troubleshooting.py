"""docs/troubleshooting.md quotes messages as weft gives them."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.cli.main import invoke

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
QUOTED = [
    code
    for row in re.findall(r"^\| (.*?) \| ", PAGE, re.M)
    for code in re.findall(r"`([^`]+)`", row)
]


def found(message: str) -> bool:
    """True if a row of the page quotes the message; `...` stands for any text."""
    return any(
        re.search(".*".join(re.escape(p.strip()) for p in quote.split("...")), message, re.DOTALL)
        for quote in QUOTED
        if len(quote) > 20
    )


def _called(fn: Callable[..., object], *args: object) -> Callable[[], object]:
    return lambda: weft.compile(fn, device="cpu")(*args)


X = weft.ones((2, 3))
IN_PYTHON: dict[str, Callable[[], object]] = {
    "control flow": _called(lambda a: a if a.sum() > 0 else -a, X),
    "item": _called(lambda a: a * a.sum().item(), X),
    "float64": _called(lambda a: a + 1, np.ones(3)),
    "int64": _called(lambda a: a + 1, np.array([2**40])),
    "shapes": lambda: X @ weft.ones((2, 2)),
    "gradient": lambda: weft.ones(3).sum().backward(),
    "read-only": lambda: X.numpy().__setitem__(0, 1.0),
    "no such model": lambda: weft.load("nofile"),
    "devices": lambda: weft.compile(lambda a: a, device="foo")(X),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_errors_in_python(name: str) -> None:
    with pytest.raises(Exception) as caught:
        IN_PYTHON[name]()
    assert found(f"{type(caught.value).__name__}: {caught.value}"), str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "run box hi --device foo",
        "run box hi --quant int3 --device cpu",
        "run box hi --context 100000 --device cpu",
        "chat box --device cpu",
        "embed box --text notes.txt --query tea --device cpu",
        "serve box --host 0.0.0.0 --device cpu",
    ],
)
def test_errors_of_commands(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("tea\n")
    assert invoke(words.split()) in (1, 2)
    said = capsys.readouterr().err
    assert found(said), said


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("msgspec")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert invoke(["serve", "box", "--port", port, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert found(said.replace(port, "8000")), said
