"""`weft chat --json`: one object per turn, and turns that read only what is new."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from model_zoo import write_model, write_tokenizer

import weft

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model("llama2", tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def test_turns_as_json(folder: Path) -> None:
    options = ["--device", "cpu", "--json", "--max-new-tokens", "5", "--system", "Be brief."]
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", "chat", str(folder)]
    done = subprocess.run(
        [*command, *options], input=b"the fox\nand a weft\n\n", capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    first, second = map(json.loads, done.stdout.decode().splitlines())
    assert first["reused_tokens"] == 0 and first["device"].startswith("cpu")
    assert len(first["ids"]) == 5 and first["finish_reason"] == "length" and first["text"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + 5
    assert second["reused_tokens"] >= first["prompt_tokens"] - 2  # the last ones may merge
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the fox"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "and a weft"},
    ]
    fresh = weft.load(folder, device="cpu")
    assert second["ids"] == list(fresh.generate(fresh.chat_ids(messages), max_new_tokens=5).ids)


def test_without_a_template_it_is_one_line(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    command = [sys.executable, "-c", "from weft.cli.main import main; main()", "chat", str(folder)]
    done = subprocess.run([*command, "--json"], input=b"hi\n", capture_output=True, timeout=120)
    assert done.returncode in (1, 2) and done.stdout == b""
    assert b"Traceback" not in done.stderr and b"template" in done.stderr
