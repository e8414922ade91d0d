"""The commands that take a model take a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_vocab import byte_level
from gguf_zoo import packed, write_gguf
from model_zoo import write_model, write_tokenizer
from test_gguf_model import wide

from weft.cli.main import invoke

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = wide(tmp_path_factory.mktemp("cli") / "hf")
    tokenizer = byte_level(write_tokenizer(folder), **{"tokenizer.chat_template": TEMPLATE})
    return str(write_gguf(folder, folder.parent / "m.gguf", packed(Kind.Q8_0), tokenizer))


def test_run(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", file, "the loom", "--max-new-tokens", "5", "--device", "cpu"]
    assert invoke([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["ids"]) == 5 and answer["precision"].startswith("packed, 8.50 bits")
    assert invoke(asked) == 0
    assert capsys.readouterr().out.startswith(answer["text"])


def test_run_without_a_prompt_says_so(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", file]) == 2
    assert "m.gguf is a model; give it a PROMPT" in capsys.readouterr().err


def test_chat(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    stdin = io.TextIOWrapper(io.BytesIO(b"the loom\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert invoke(["chat", file, "--max-new-tokens", "3", "--device", "cpu", "--json"]) == 0
    turn = json.loads(capsys.readouterr().out)
    assert len(turn["ids"]) == 3 and turn["prompt_tokens"] > 0


def test_explain(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", file, "--step", "decode"]) == 0
    shown = capsys.readouterr().out
    assert "matvec" in shown and "8-bit int, 32 to a scale" in shown


@pytest.mark.usefixtures("small_roofline")
@pytest.mark.slow
def test_bench(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "bench",
        "model",
        file,
        "--prompt-tokens",
        "4",
        "--max-new-tokens",
        "2",
        "--repeats",
        "1",
        "--json",
    ]
    assert invoke(asked) == 0
    assert "tg2" in json.loads(capsys.readouterr().out)["results"]


def test_failures_are_a_line_or_two(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(file).read_bytes()[:3000])
    write_model("llama2", tmp_path / "hf")
    other = write_gguf(tmp_path / "hf", tmp_path / "o.gguf", keys={"general.architecture": "rwkv6"})
    bad = write_gguf(tmp_path / "hf", tmp_path / "b.gguf", keys={"llama.block_count": 9})
    cases = ((cut, "truncated"), (other, "'rwkv6' is not supported; supported"),
             (bad, "is missing"), (tmp_path / "gone.gguf", "does not exist"))  # fmt: skip
    for path, said in cases:
        for command in (["run"], ["chat"], ["explain"], ["bench", "model"], ["embed"]):
            more = ["x"] if command[0] in ("run", "embed") else []
            assert invoke([*command, str(path), *more]) == 1, command
            out, err = capsys.readouterr()
            assert said in err and path.name in err and "Traceback" not in err and not out
            assert len(err.strip().splitlines()) <= 2
