"""The commands of docs/pictures.md about models that see run, and its Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from picture_zoo import picture, write_pictured
from PIL import Image
from vector_zoo import write_vectors

from weft.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "pictures.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    for k, name in enumerate(["cat.jpg", "before.png", "after.png", "photos/car.jpg"]):
        Image.fromarray(picture(k, 40, 50)).save(tmp_path / name)
    (tmp_path / "frames").mkdir()
    frames = [Image.fromarray(picture(k, 40, 50)) for k in range(4)]
    for k, frame in enumerate(frames):
        frame.save(tmp_path / "frames" / f"{k}.png")
    frames[0].save(tmp_path / "cat.gif", save_all=True, append_images=frames[1:], duration=500)
    write_pictured("qwen2_vl", tmp_path / "MODEL")
    path = tmp_path / "MODEL" / "tokenizer_config.json"
    both = "{% if p.type == 'video' %}<|video_pad|>{% elif p.type"
    path.write_text(path.read_text().replace("{% if p.type", both))
    write_vectors("clip", tmp_path / "CLIP")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_DEVICE", "cpu")
    page = PAGE.read_text()
    lines = [line.split() for line in page.splitlines()]
    ours = [k for k, words in enumerate(lines) if {"MODEL", "CLIP"} & {*words[2:3]}]
    commands = [line for k, line in enumerate(page.splitlines()) if k in ours and "weft " in line]
    assert len(commands) >= 4
    for line in commands:
        said = CliRunner().invoke(main.cli, shlex.split(line)[1:])
        assert said.exit_code == 0, (line, said.output, said.exception)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        exec(block, names)
